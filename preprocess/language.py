"""The language of captions: a guess that is good enough to notice captions that a tagger does not speak.

The script of the letters decides where one language has it nearly for itself (Japanese, Korean, Greek, ...). Among
languages with one script, the one with most stop words of spaCy's lists wins. It cannot tell a caption of content words
alone ("onion soup"), which counts for no language; nor languages whose lists are nearly the same, such as Danish and
Norwegian, where it may name the other one.
"""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module

from ..storage.common.errors import SettingError
from .tag import installed_model, is_installed

TAGGED = ("ca", "da", "de", "el", "es", "fi", "fr", "hr", "it", "ja", "ko")
TAGGED += ("lt", "mk", "nb", "nl", "pl", "pt", "ro", "ru", "sl", "sv", "uk")
MODELS = {
    "en": ("en_core_web_sm", "en_core_web_md", "en_core_web_lg", "en_core_web_trf"),
    "zh": ("zh_core_web_sm", "zh_core_web_md", "zh_core_web_lg", "zh_core_web_trf"),
} | {code: tuple(f"{code}_core_news_{size}" for size in ("sm", "md", "lg")) for code in TAGGED}
"""{language: spaCy's own pipelines that tag it}, the smallest first (spacy.io/models)."""
OTHER_LETTERS = ("el", "ja", "ko", "mk", "ru", "uk")
"""Languages among ``TAGGED`` that are not written in Latin letters."""
OF_SCRIPT = {
    "HIRAGANA": "ja",
    "KATAKANA": "ja",
    "HANGUL": "ko",
    "CJK": "zh",
    "ARABIC": "ar",
    "HEBREW": "he",
    "GREEK": "el",
    "THAI": "th",
    "DEVANAGARI": "hi",
    "BENGALI": "bn",
    "TAMIL": "ta",
    "TELUGU": "te",
    "ARMENIAN": "hy",
    "GEORGIAN": "ka",
}
"""{first word of a letter's Unicode name: the language with most speakers that is written so}"""
STOP_WORDS = {
    "LATIN": ("en", *(code for code in TAGGED if code not in OTHER_LETTERS), "cs", "hu", "tr", "id", "vi"),
    "CYRILLIC": ("ru", "uk", "mk"),
}
"""{script: languages that are distinguished by stop words}"""
SAMPLE_SIZE = 100
"""Captions of a part of the table that are looked at. That takes 2 ms, and tagging the part 20 s."""
MAX_NAMED = 4
MIN_REPORTED_SHARE = 0.03
"""Share of captions in other languages that is worth a line. Of YouCook2's captions, which are English, 0.2 % are taken
for another language."""


@lru_cache(maxsize=1 << 12)
def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


@lru_cache(maxsize=1)
def _languages_of() -> dict[str, dict[str, tuple[str, ...]]]:
    """Return {script: {word: languages in which it is a stop word}}."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for script, languages in STOP_WORDS.items():
        words = found.setdefault(script, {})
        for language in languages:
            for word in import_module(f"spacy.lang.{language}.stop_words").STOP_WORDS:
                words[word] = (*words.get(word, ()), language)
    return found


def guess_language(text: str, expected: str) -> str:
    """Return the code of a text's language, such as "de"; empty if nothing tells it.

    Args:
        text: A sentence.
        expected: The language that is assumed unless another one has twice as many stop words in the text.
    """
    scripts = Counter(_script(letter) for letter in text[:500] if letter.isalpha())
    if not scripts:
        return ""
    if scripts["HIRAGANA"] or scripts["KATAKANA"]:  # Japanese also has Chinese characters
        scripts["HIRAGANA"] += scripts.pop("CJK", 0)
    script = scripts.most_common(1)[0][0]
    if script not in STOP_WORDS:
        return OF_SCRIPT.get(script, "")
    languages_of = _languages_of()[script]
    votes = Counter(language for word in text[:500].lower().split() for language in languages_of.get(word, ()))
    if not votes:
        return ""
    max_votes = max(votes.values())
    # Short words are shared: "add oil to a pan" has three stop words of Polish, and two of English.
    return expected if 2 * votes[expected] > max_votes else max(votes, key=lambda language: votes[language])


def languages_among(texts: Sequence[str], expected: str) -> Counter[str]:
    """Return how many of about ``SAMPLE_SIZE`` of the texts are in each language; "" for those that nothing tells."""
    return Counter(guess_language(text, expected) for text in texts[:: max(1, len(texts) // SAMPLE_SIZE)])


def other_languages(counts: Mapping[str, int], tagger_language: str) -> dict[str, float]:
    """Return the share of each language but the tagger's, the largest first, if they are worth a line together."""
    known = Counter({language: count for language, count in counts.items() if language})
    shares = {name: round(count / known.total(), 3) for name, count in known.most_common() if name != tagger_language}
    return shares if sum(shares.values()) >= MIN_REPORTED_SHARE else {}


def in_other_languages(shares: Mapping[str, float], model: str) -> str:
    """Return a line about captions in languages that a tagger does not speak.

    Args:
        shares: As from ``other_languages``.
        model: Name of the tagger's pipeline.
    """
    named = ", ".join(f"{language} {100 * share:.0f} %" for language, share in [*shares.items()][:MAX_NAMED])
    first, total = next(iter(shares)), sum(shares.values())
    if shares[first] > 1 / 2:
        has_model = first in MODELS
        advice = (
            f"pass --language {first}" if has_model else f"spaCy has no tagger of {first}; --spacy-model takes yours"
        )
    else:
        advice = "put the captions of each language into a data set of its own and pass its --language"
    return (
        f"about {100 * total:.0f} % of the captions are in languages that {model} does not speak ({named}; guessed "
        f"from a sample), so their tags are wrong; {advice}"
    )


def model_of_language(language: str) -> str:
    """Return the name of an installed spaCy pipeline of a language, or of the smallest one if none is installed.

    Raises:
        UserError: spaCy has no pipeline that tags this language, or none is installed.
    """
    if language not in MODELS:
        problem = (
            f"spaCy has no tagger of this language; expected one of {', '.join(sorted(MODELS))}, or pass the name of "
            "an installed pipeline of your own: --spacy-model NAME"
        )
        raise SettingError("language", language, problem)
    name = next(filter(is_installed, MODELS[language]), MODELS[language][0])
    installed_model(name)
    return name
