"""Guess the language of captions by script and stop words.

The guess is good enough to choose stop words and stems, and to find captions in a language that the tagger does not
support.

The script decides if it is used almost only by one language (Japanese, Korean, Greek, ...). Among languages with the
same script, the one with the most stop words of spaCy's lists wins. There are two limits. A caption without stop words
("onion soup") has no known language. Languages with nearly the same stop words, such as Danish and Norwegian, may be
confused.
"""

import runpy
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

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
"""{first word of a letter's Unicode name: most spoken language with this script}"""
LATIN = ("en", "ca", "da", "de", "es", "fi", "fr", "hr", "it", "lt", "nb", "nl", "pl", "pt", "ro", "sl", "sv")
LATIN += ("cs", "hu", "tr", "id", "vi")
BY_STOP_WORDS = {"LATIN": LATIN, "CYRILLIC": ("ru", "uk", "mk")}
"""{script: languages that stop words distinguish}, the most spoken first."""
LANGUAGES = frozenset([*OF_SCRIPT.values(), *(code for codes in BY_STOP_WORDS.values() for code in codes)])
"""Languages that can be distinguished."""
WITH_LISTS = LANGUAGES - {"ka"}
"""Languages for which spaCy has stop words."""
SAMPLE_SIZE = 100
"""Number of captions that are examined in each part of the table. That takes 2 ms; tagging the part takes 20 s."""
MAX_CHARACTERS = 500
"""Number of characters of a text that are examined."""


@lru_cache(maxsize=1 << 12)
def script_of(letter: str) -> str:
    """Return the first word of a letter's Unicode name, such as "LATIN"."""
    return unicodedata.name(letter, "").split(" ")[0]


@cache
def stop_words(language: str) -> frozenset[str]:
    """Return spaCy's stop words of a language.

    >>> "der" in stop_words("de")
    True

    The list is read from spaCy's file without importing spaCy, which takes seconds.

    Args:
        language: One of ``WITH_LISTS``; others have no list.

    Raises:
        ModuleNotFoundError: spaCy is not installed.
    """
    if language not in WITH_LISTS:
        return frozenset()
    spec = find_spec("spacy")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'spacy'", name="spacy")
    file = Path(spec.submodule_search_locations[0]) / "lang" / language / "stop_words.py"
    return frozenset(runpy.run_path(str(file))["STOP_WORDS"])


@lru_cache(maxsize=1)
def _languages_of() -> dict[str, tuple[str, ...]]:
    """Return {word: languages in which it is a stop word}, for scripts with several languages."""
    found: dict[str, tuple[str, ...]] = {}
    for language in (code for codes in BY_STOP_WORDS.values() for code in codes):
        for word in stop_words(language):
            found[word] = (*found.get(word, ()), language)
    return found


def count_stop_words(words: Iterable[str]) -> Counter[str]:
    """Return how many of the words are stop words in each language of ``BY_STOP_WORDS``.

    Args:
        words: Words in lower case.
    """
    languages_of = _languages_of()
    return Counter(language for word in words for language in languages_of.get(word, ()))


def guess_language(text: str, expected: str, among: Collection[str] = LANGUAGES) -> str:
    """Return the code of a text's language, such as "de"; empty if unknown.

    Args:
        text: A sentence, or several.
        expected: The language to assume unless another one has twice as many stop words in the text.
        among: Candidates among languages that share a script.
    """
    text = text[:MAX_CHARACTERS]
    scripts = Counter(script_of(letter) for letter in text if letter.isalpha())
    if not scripts:
        return ""
    if scripts["HIRAGANA"] or scripts["KATAKANA"]:  # Japanese also has Chinese characters
        scripts["HIRAGANA"] += scripts.pop("CJK", 0)
    script = scripts.most_common(1)[0][0]
    if script not in BY_STOP_WORDS:
        return OF_SCRIPT.get(script, "")
    counts = count_stop_words(text.lower().split())
    votes = Counter({code: counts[code] for code in BY_STOP_WORDS[script] if code in among and counts[code]})
    if not votes:
        return ""
    max_votes = max(votes.values())
    # Short words are shared: "add oil to a pan" has three stop words of Polish, and two of English.
    return expected if 2 * votes[expected] > max_votes else max(votes, key=lambda language: votes[language])


def languages_among(texts: Sequence[str], expected: str) -> Counter[str]:
    """Return {language: number of texts} for a sample of about ``SAMPLE_SIZE`` texts; "" for unknown languages."""
    return Counter(guess_language(text, expected) for text in texts[:: max(1, len(texts) // SAMPLE_SIZE)])
