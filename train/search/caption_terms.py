"""The search terms of captions. Words become stems without accents, scripts without spaces become bigrams.

A caption and a query become terms in the same way, so that they can be compared. Stop words give no terms. In scripts
without spaces, stop words are skipped in queries only: where they begin and end is less certain there.
"""

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cache, lru_cache
from importlib import import_module
from itertools import accumulate, chain, pairwise, zip_longest

from ...storage.captions.languages import (
    BY_STOP_WORDS,
    OF_SCRIPT,
    count_stop_words,
    guess_language,
    languages_among,
    script_of,
    stop_words,
)

DEFAULT_LANGUAGE = "en"
MIN_SHARE, MIN_CAPTIONS = 0.05, 2
"""A language is used if it has at least this share and this number of the captions of a sample."""
MIN_STOP_WORDS, MIN_OTHER_STOP_WORDS = 2, 3
"""Number of different stop words needed to detect the main language of captions, and any other one: "dog" alone is not
Danish. For the main one, words of one letter do not count, since many languages have them."""
MAX_CACHED_WORDS = 1 << 18
"""Number of words whose terms are cached for each language: about 50 MB."""

STEMMERS = {
    "ar": "arabic",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "nb": "norwegian",
    "nl": "dutch",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
}
"""{language: module of snowballstemmer, without "_stemmer"}. Words of other languages are not stemmed."""
CONTENT_WORDS = {
    "en": "alone back bottom call empty first front full move name serious side third top two three four five "
    "six eight nine ten eleven twelve fifteen twenty forty fifty sixty hundred",
    "de": "allein ende geht gehen ging groß große großen großer großes gross grosse grossen grosser grosses "
    "hoch jahr jahre jahren klein kleine kleinen kleiner kleines kurz lang lange leicht morgen neue neuen offen "
    "rechte rechten rechter rechtes rund satt schlecht tag tage tagen uhr zeit erste ersten erster erstes "
    "zweite zweiten zweiter zweites dritte dritten dritter drittes vierte vierten vierter viertes fünfte "
    "fünften fünfter fünftes sechste siebte achte neunte zehnte zwei drei vier fünf sechs sieben acht neun zehn "
    "elf zwanzig",
    "cs": "článek články článku dobrý email chuť chuti jde jdou nové noví nový pravé první strana večer den "
    "nula dva dvě tři čtyři pět šest sedm osm devět deset jedenáct dvanáct třináct čtrnáct patnáct šestnáct "
    "sedmnáct osmnáct devatenáct dvacet sto tisíc tisíce",
    "fr": "debout gens ouvert ouverte ouverts stop tente deux trois quatre cinq six sept huit dix onze douze "
    "treize quatorze quinze seize vingt trente quarante cinquante soixante cent mille",
    "es": "dia dias día días grande grandes largo nueva nuevas nuevo nuevos dos tres cuatro cinco seis siete "
    "ocho nueve diez doce",
    "zh": "先生 马上 成年 加入 准备 眨眼 练习 移动 转动 战斗 高兴 安全 背靠背 并肩 并排 独自 巨大 第二",
    "ja": "ひと うち おけ",
}
"""{language: words of spaCy's stop list that a search uses}: numbers, and visible or named things."""
MORE_STOP_WORDS = {
    "en": "gonna let oh okay yeah",
    "de": "ans aufs euer eure eurem euren eurer eures fürs hab mal tue tut unserem unseren unseres wieso wofür "
    "woher wohin womit",
    "cs": "bych bychom dělat dělá dělám děláš děláme děláte dělají dělal dělala dělali jaká jaké jaký kterého "
    "kterém nějaký nyní odkud sem ta tato toho tou tá té těch těchto vše všechny",
    "zh": "的 了 吗 呢 吧 啊 呀 嘛 着 在 是 把 被 和 与 或 但 也 就 还 又 很 不 没 有 我 你 他 她 它 您 们 这 "
    "那 哪 谁 么 个 从 给 以 于 之 其 什么 怎么 怎样 怎么做 做什么 哪里 哪儿 哪个 多少 为什么 这个 那个 这里 "
    "那里 是不是 有没有",
    "ja": "あそこ あなた こちら どうして どちら なぜ わたし 私 彼 彼女 何 誰 何処 此処 どこ だれ なに いつ どれ "
    "どの どんな いくつ いくら では には とは のは のが のを のか のです でも にも へは からは って った した "
    "して している しています ている ています でいる でいます いる います ある あります ました ません でした "
    "でしょう ですか ますか ください それは これは あれは",
    "ko": "은 는 이 가 을 를 의 에 에서 으로 로 와 과 도 만 어디 어디에 누구 무엇 무엇을 언제 어떻게 왜 있어요 "
    "있나요 있습니까 있다 있는 하는 합니까 합니다 입니까 입니다 그는 그녀는 그녀가",
    "th": "ไหน ที่ไหน อยู่ที่ไหน อะไร ใคร เมื่อไร เมื่อไหร่ อย่างไร ทำไม",
}
"""{language: words that spaCy's list lacks}: forms of "to do", particles, endings and question words. In spaCy's
lists of languages without spaces, words of one character are ignored: many are parts of other words, as in "上海"."""
HIRAGANA_EDGES = "はがのをにでともへやかいるたてく"
"""Particles and endings between Hiragana and another script, as in 赤い|りんご|を|切る."""

HAN = "\u2e80-\u2fdf\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
HIRAGANA, KATAKANA, LONG_VOWEL = "\u3041-\u309f", "\u30a1-\u30fa\u30fd-\u30ff\u31f0-\u31ff", "\u30fc"
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
THAI, LAO = "\u0e01-\u0e3a\u0e40-\u0e4e", "\u0e81-\u0ece\u0edc-\u0edf"
BURMESE, KHMER = "\u1000-\u103f\u1050-\u109f", "\u1780-\u17d3\u17d7\u17dc\u17dd"
SPACELESS = re.compile(f"[{HAN}{HIRAGANA}{KATAKANA}{LONG_VOWEL}{HANGUL}{THAI}{LAO}{BURMESE}{KHMER}]")
"""A letter of a script without spaces. Korean has spaces, but its words end in particles, which bigrams tolerate."""
KINDS = {
    "han": "zh",
    "hiragana": "ja",
    "katakana": "ja",
    "hangul": "ko",
    "thai": "th",
    "lao": "",
    "burmese": "",
    "khmer": "",
}
"""{kind of a run of letters without spaces: language of its stop words}"""
ALPHABETS = {"thai", "lao", "burmese", "khmer"}
MAX_STOP_WORD = 16
"""Maximum length in characters of the stop words that are looked for in a run of letters without spaces."""
ASCII_WORD = re.compile("[a-z0-9]+")
CONTRACTION = re.compile("n['\u2019]t\\b")
"""As in "don't", for which spaCy's list has the stop words "do" and "n't"."""
APOSTROPHES = re.compile("['\u2018\u2019]")
ACCENTS = re.compile("[\u0300-\u036f]+")
LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "\u0131": "i", "æ": "ae", "œ": "oe"})
"""Letters that Unicode does not decompose, such as letters with a stroke."""


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Return patterns for words, for words and runs without spaces, and for letters with vowel signs and tone marks."""
    marks = "".join(re.escape(chr(c)) for c in range(sys.maxunicode >> 4) if unicodedata.category(chr(c))[0] == "M")
    word = re.compile(f"[^\\W_](?:[^\\W_]|[{marks}])*")
    kinds = f"(?P<han>[{HAN}]+)|(?P<hiragana>[{HIRAGANA}][{HIRAGANA}{LONG_VOWEL}]*)|(?P<hangul>[{HANGUL}]+)"
    kinds += f"|(?P<katakana>[{KATAKANA}{LONG_VOWEL}]+)|(?P<thai>[{THAI}]+)|(?P<lao>[{LAO}]+)|(?P<burmese>[{BURMESE}]+)"
    kinds += f"|(?P<khmer>[{KHMER}]+)"
    kinds += f"|(?P<word>(?!{SPACELESS.pattern})[^\\W_](?:(?!{SPACELESS.pattern})(?:[^\\W_]|[{marks}]))*)"
    # Khmer and Burmese stack the next letter under U+17D2 and U+1039.
    return word, re.compile(kinds), re.compile(f".(?:[\u17d2\u1039].|[{marks}])*", re.DOTALL)


def normalize(text: str) -> str:
    """Return a text in lower case, with one form of each letter; full-width letters become usual ones.

    >>> normalize("The OVEN isn't hot")
    'the oven is not hot'

    Args:
        text: Any text.
    """
    text = text.lower() if text.isascii() else unicodedata.normalize("NFKC", text).lower()
    return CONTRACTION.sub(" not", text) if "n't" in text or "n\u2019t" in text else text


def fold(word: str) -> str:
    """Return a word without accents.

    >>> fold("größe")
    'grosse'

    Args:
        word: A word in lower case.
    """
    if word.isascii():
        return word
    folded = ACCENTS.sub("", unicodedata.normalize("NFD", word.casefold())).translate(LETTERS)
    return unicodedata.normalize("NFC", folded)


@cache
def _stop_words(language: str) -> frozenset[str]:
    """Return the stop words of a language, as ``normalize`` writes them."""
    found = {unicodedata.normalize("NFKC", word).lower() for word in stop_words(language)}
    if language in KINDS.values():
        found = {word for word in found if len(word) > 1}
    parts = {part for word in found if APOSTROPHES.search(word) for part in APOSTROPHES.split(word)}
    more = MORE_STOP_WORDS.get(language, "").split()
    return frozenset(found | parts | {word.rstrip(".") for word in found} | set(more)) - {
        "",
        *CONTENT_WORDS.get(language, "").split(),
    }


@cache
def _stemmer(language: str) -> Callable[[str], str]:
    name = STEMMERS.get(language)
    if name is None:
        return str
    # Not snowballstemmer.stemmer: if PyStemmer is installed, it uses that, which may stem differently.
    module = import_module(f"snowballstemmer.{name}_stemmer")
    return getattr(module, f"{name.capitalize()}Stemmer")().stemWord


def _language_of_word(word: str, language: str) -> str:
    """Return a language with the script of the word: the given language if it has this script."""
    script = script_of(word[0])
    if script in BY_STOP_WORDS:
        return language if language in BY_STOP_WORDS[script] else BY_STOP_WORDS[script][0]
    return OF_SCRIPT.get(script, language)


class _WordTerms(dict[str, str]):
    """{word: its terms in a language, separated by spaces; empty for a stop word}, computed when a word is looked up.

    A word with accents has two terms if its stems with and without accents differ: in German, "café" has "cafe" and
    "caf".
    """

    def __init__(self, language: str) -> None:
        super().__init__()
        self.language = language

    def __missing__(self, word: str) -> str:
        language = _language_of_word(word, self.language)
        forms = () if word in _stop_words(language) else (word, fold(word))
        terms = " ".join(dict.fromkeys(fold(_stemmer(language)(form)) or fold(form) for form in forms))
        if len(self) >= MAX_CACHED_WORDS:
            self.clear()
        self[word] = terms
        return terms


class CaptionTerms:
    """Converts captions and queries to terms, for captions in some languages."""

    def __init__(self, languages: Sequence[str]) -> None:
        """Prepare the conversion of texts to terms.

        Args:
            languages: Languages of the captions, such as "de", the most frequent first.
        """
        self.languages = tuple(languages) or (DEFAULT_LANGUAGE,)
        self._terms = {language: _WordTerms(language) for language in self.languages}

    @classmethod
    def detect(cls, samples: Sequence[Sequence[str]]) -> "CaptionTerms":
        """Detect the languages of captions, and return the converter for them.

        Args:
            samples: Texts of each file of captions.
        """
        words = [word for texts in samples for text in texts for word in text.lower().split()]
        votes, evidence = count_stop_words(words), count_stop_words({word for word in words if len(word) > 1})
        known = [language for language in votes if evidence[language] >= MIN_STOP_WORDS]
        expected = max(known, key=lambda language: votes[language], default=DEFAULT_LANGUAGE)
        others = count_stop_words(set(words) - stop_words(expected))
        counts: Counter[str] = Counter()
        for texts in samples:
            counts.update(languages_among(texts, expected))
        for language in ("", *(code for codes in BY_STOP_WORDS.values() for code in codes)):
            if language != expected and others[language] < MIN_OTHER_STOP_WORDS:
                del counts[language]
        min_count = max(MIN_SHARE * counts.total(), MIN_CAPTIONS)
        return cls([language for language, count in counts.most_common() if count >= min_count] or [expected])

    def language_of(self, texts: Sequence[str]) -> str:
        """Return the language of a video's captions, one of the languages of all captions."""
        if len(self.languages) == 1:
            return self.languages[0]
        guess = guess_language(" ".join(texts), self.languages[0], self.languages)
        return guess if guess in self.languages else self.languages[0]

    def of_caption(self, text: str, language: str) -> str:
        """Return the terms of a caption, with spaces between them.

        >>> CaptionTerms(["en"]).of_caption("The roses are red.", "en").split()
        ['rose', 'red']

        Args:
            text: The caption.
            language: One of ``languages``.
        """
        text, term_of = normalize(text), self._terms[language]
        if text.isascii():
            return " ".join(map(term_of.__getitem__, ASCII_WORD.findall(text)))
        words, runs, _ = _patterns()
        if not SPACELESS.search(text):
            return " ".join(map(term_of.__getitem__, words.findall(text)))
        terms: list[str] = []
        for match in runs.finditer(text):
            kind, run = match.lastgroup or "", match[0]
            terms.extend([term_of[run]] if kind == "word" else _terms_of_run(kind, run))
        return " ".join(terms)

    def of_query(self, query: str) -> list[str]:
        """Return the terms of a query, each once, in all languages of the captions; none if it has only stop words.

        >>> CaptionTerms(["de"]).of_query("Wo ist der Hund?")
        ['hund']

        Args:
            query: Any text.
        """
        words = zip_longest(*self.of_words(query).values(), fillvalue=())
        return list(dict.fromkeys(chain.from_iterable(chain.from_iterable(words))))

    def of_words(self, query: str) -> dict[str, list[list[str]]]:
        """Return the terms of each content word of a query, in each language of the captions. A caption in a language
        that has the word has one of these terms.

        Which words are stop words depends on the captions' language: "die" is one in German, but not in English.

        >>> CaptionTerms(["en", "de"]).of_words("the roses die")
        {'en': [['rose'], ['die']], 'de': [['the'], ['ros']]}

        Args:
            query: Any text. In scripts without spaces, each pair of letters counts as a word.
        """
        matches = list(_patterns()[1].finditer(normalize(query)))
        kinds = {match.lastgroup for match in matches}
        of_han = (
            "ja"
            if kinds & {"hiragana", "katakana"} or ("ja" in self._terms and "zh" not in self._terms)
            else KINDS["han"]
        )
        found: dict[str, list[list[str]]] = {}
        for language, term_of in self._terms.items():
            words = found.setdefault(language, [])
            for match in matches:
                kind, run = match.lastgroup or "", match[0]
                if kind == "word":
                    words.append(term_of[run].split())
                    continue
                stops = _stop_words(of_han if kind == "han" else KINDS[kind])
                words.extend([term] for term in _query_terms_of_run(kind, _without_edges(match, stops), stops))
        return {language: [terms for terms in words if terms] for language, words in found.items()}


def has_words(text: str) -> bool:
    """Return whether a text has words, and not only punctuation, symbols or emoji."""
    return _patterns()[1].search(normalize(text)) is not None


def _stands_alone(kind: str, unit: str) -> bool:
    """Return whether one letter can be a word.

    In alphabets, it can only with a vowel sign; in Hiragana never, since most letters there are endings.
    """
    return kind in ("han", "katakana", "hangul") or (kind != "hiragana" and len(unit) > 1)


def _terms_of_run(kind: str, run: str) -> list[str]:
    """Return the letters of a run and its pairs of letters."""
    units = _patterns()[2].findall(run)
    return [*(unit for unit in units if _stands_alone(kind, unit)), *map("".join, pairwise(units))]


def _query_terms_of_run(kind: str, run: str, stops: Collection[str]) -> list[str]:
    """Return a run's pairs of letters without stop words, and single letters between stop words."""
    units = _patterns()[2].findall(run)
    in_stop = [run in stops] * len(run) if kind == "hangul" else _in_stop_words(run, stops)
    ends = list(accumulate(map(len, units)))
    is_stop = [all(in_stop[end - len(unit) : end]) for unit, end in zip(units, ends, strict=True)]
    # In an alphabet, the letters of a stop word are often a part of another word: a pair may have one of them.
    skips = all if kind in ALPHABETS else any
    terms = [
        "".join(pair) for pair, is_pair in zip(pairwise(units), pairwise(is_stop), strict=True) if not skips(is_pair)
    ]
    around = [True, *is_stop, True]
    for unit, before, here, after in zip(units, around, is_stop, around[2:], strict=False):
        if before and after and not here and _stands_alone(kind, unit):
            terms.append(unit)
    return terms


def _in_stop_words(run: str, stops: Collection[str]) -> list[bool]:
    """Return for each character of a run whether it is in a stop word; the longest one at each place counts."""
    found, first = [False] * len(run), 0
    while first < len(run):
        lengths = range(min(MAX_STOP_WORD, len(run) - first), 0, -1)
        length = next((n for n in lengths if run[first : first + n] in stops), 0)
        found[first : first + length] = [True] * length
        first += max(length, 1)
    return found


def _without_edges(match: re.Match[str], stops: Collection[str]) -> str:
    """Return a run without the particles at its ends, as they are written in Japanese and in Korean."""
    run, text = match[0], match.string
    if match.lastgroup == "hiragana":
        has_before = SPACELESS.match(text, match.start() - 1) is not None if match.start() else False
        has_after = SPACELESS.match(text, match.end()) is not None
        run = run[1:] if has_before and run not in stops and run[0] in HIRAGANA_EDGES else run
        return run[:-1] if has_after and run[-1:] in HIRAGANA_EDGES else run
    if match.lastgroup == "hangul" and run not in stops:
        lengths = range(min(MAX_STOP_WORD, len(run) - 1), 0, -1)
        return run[: -next((n for n in lengths if run[-n:] in stops), 0) or None]
    return run
