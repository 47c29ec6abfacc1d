"""Captions in languages that the tagger does not know: their share, a line about it, and pipelines for them."""

from collections import Counter
from collections.abc import Mapping

from ..storage.common.errors import SettingError
from .tag import installed_model, is_installed

TAGGED = ("ca", "da", "de", "el", "es", "fi", "fr", "hr", "it", "ja", "ko")
TAGGED += ("lt", "mk", "nb", "nl", "pl", "pt", "ro", "ru", "sl", "sv", "uk")
MODELS = {
    "en": ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf"),
    "zh": ("zh_core_web_sm", "zh_core_web_md", "zh_core_web_lg", "zh_core_web_trf"),
} | {code: tuple(f"{code}_core_news_{size}" for size in ("sm", "md", "lg")) for code in TAGGED}
"""{language: spaCy's own pipelines that tag it}, the smallest first (spacy.io/models)."""
MAX_NAMED = 4
MIN_REPORTED_SHARE = 0.03
"""Smallest share of captions in other languages that is reported. Of YouCook2's captions, which are English, 0.2 % are
taken for another language."""


def other_languages(counts: Mapping[str, int], tagger_language: str) -> dict[str, float]:
    """Return the share of each language but the tagger's, the largest first; empty if they are too few to report."""
    known = Counter({language: count for language, count in counts.items() if language})
    shares = {name: round(count / known.total(), 3) for name, count in known.most_common() if name != tagger_language}
    return shares if sum(shares.values()) >= MIN_REPORTED_SHARE else {}


def in_other_languages(shares: Mapping[str, float], model: str) -> str:
    """Return a line about captions in languages that a tagger does not know.

    Args:
        shares: As from ``other_languages``.
        model: Name of the tagger's pipeline.
    """
    named = ", ".join(f"{language} {100 * share:.0f} %" for language, share in [*shares.items()][:MAX_NAMED])
    first, total = next(iter(shares)), sum(shares.values())
    if shares[first] > 1 / 2:
        has_model = first in MODELS
        advice = (
            f"pass --language {first}"
            if has_model
            else f"spaCy has no tagger for {first}; pass your own with --spacy-model"
        )
    else:
        advice = "put the captions of each language into a separate data set, and pass its --language"
    return (
        f"about {100 * total:.0f} % of the captions are in languages that {model} does not know ({named}; guessed "
        f"from a sample), so their tags are wrong; {advice}"
    )


def model_of_language(language: str) -> str:
    """Return the name of an installed spaCy pipeline of a language, or of the smallest one if none is installed.

    Raises:
        UserError: spaCy has no pipeline that tags this language, or none is installed.
    """
    if language not in MODELS:
        problem = (
            f"spaCy has no tagger for this language; expected one of {', '.join(sorted(MODELS))}; or pass your own "
            "installed pipeline: --spacy-model NAME"
        )
        raise SettingError("language", language, problem)
    name = next(filter(is_installed, MODELS[language]), MODELS[language][0])
    installed_model(name)
    return name
