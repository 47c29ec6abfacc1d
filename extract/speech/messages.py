"""The requests to a recogniser's process and its answers, as JSON over a socket.

Sound and weights are untrusted, and so are the answers: ``parse_answer`` accepts only answers that are possible for a
part of this length.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...storage.common.validation import is_number, is_text
from ..decoding.messages import InvalidMessage

MAX_WINDOWS = 4096
MAX_WORDS = 1024
"""Maximum number of words of a window: a model writes at most 448 tokens."""
MAX_WORD_CHARACTERS = 256
MAX_WORDS_PER_SECOND = 32
"""Maximum number of words per second of a part, in addition to ``MAX_WORDS``: 448 tokens in a window of 30 s, which may
be half full.
"""
MIN_SHARE_DONE = 0.5
"""Minimum share of a part that is processed: only its last span of speech, of 30 s at most, waits for the next part."""


@dataclass(frozen=True)
class RecognisedWindow:
    """Up to 30 s of speech, as the model understood it. Times are counted from the beginning of the part."""

    speech_seconds: float
    log_probability: float
    """Mean log probability of the tokens."""
    compression_ratio: float
    """Compression ratio of the text: repetitive text has a high one."""
    words: Sequence[tuple[str, float, float, float]]
    """(word with punctuation and the blank before it, start, end, probability)"""


@dataclass(frozen=True)
class RecognisedPart:
    """The answer about a part of the sound."""

    num_done: int
    """Number of processed samples of the part; send the others again with the next part."""
    language: str
    """Such as "en"; empty without speech."""
    language_probability: float
    windows: Sequence[RecognisedWindow]


@dataclass(frozen=True)
class Loaded:
    """The answer once the model is loaded."""

    is_multilingual: bool


def encode_answer(answer: RecognisedPart | Loaded | None = None, *, problem: str = "") -> bytes:
    """Return an answer as JSON. None means that the work continues; ``problem`` is the reason for a failure."""
    if problem:
        return json.dumps({"problem": problem}).encode()
    return json.dumps(None if answer is None else asdict(answer)).encode()


def parse_answer(content: bytes, num_samples: int, rate: int) -> RecognisedPart | Loaded | str | None:
    """Parse an answer about a part of ``num_samples`` samples. Returns a text for a failure, and None for a heartbeat.

    Raises:
        InvalidMessage: The answer is not valid.
    """
    try:
        values = json.loads(content)
        if values is None:
            return None
        if "problem" in values:
            return str(values["problem"])[:500]
        if "is_multilingual" in values:
            return Loaded(bool(values["is_multilingual"]))
        return _part(values, num_samples, rate)
    except InvalidMessage:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidMessage(str(error)[:200] or type(error).__name__) from None


def _part(values: dict[str, Any], num_samples: int, rate: int) -> RecognisedPart:
    num_done, language, probability = values["num_done"], values["language"], values["language_probability"]
    _require(type(num_done) is int and 0 < num_done <= num_samples, f"{str(num_done)[:20]} samples done")
    _require(is_text(language) and len(language) <= 8 and ((language.isascii() and language.isalpha()) or not language))
    _require(_is_share(probability), "a language's probability")
    windows = values["windows"]
    _require(num_done >= MIN_SHARE_DONE * num_samples, f"{num_done:,} samples done, of {num_samples:,}")
    _require(isinstance(windows, list) and len(windows) <= MAX_WINDOWS, "too many windows")
    seconds = num_samples / rate
    checked = [_window(window, seconds) for window in windows]
    num_words = sum(len(window.words) for window in checked)
    _require(num_words <= MAX_WORDS + MAX_WORDS_PER_SECOND * seconds, f"{num_words:,} words in {seconds:.0f} s")
    return RecognisedPart(num_done, language, probability, checked)


def _window(values: dict[str, Any], seconds: float) -> RecognisedWindow:
    words = values["words"]
    for name in ("speech_seconds", "log_probability", "compression_ratio"):
        _require(is_number(values[name]), name)
    _require(0 <= values["speech_seconds"] <= seconds + 1, "speech that is longer than the part")
    _require(isinstance(words, list) and len(words) <= MAX_WORDS, "too many words")
    checked = []
    for word, start, end, probability in words:
        _require(is_text(word) and len(word) <= MAX_WORD_CHARACTERS, "a long word")
        _require(is_number(start) and is_number(end) and 0 <= start <= end <= seconds + 1, "a word outside of the part")
        _require(_is_share(probability), "a word's probability")
        checked.append((word, float(start), float(end), float(probability)))
    return RecognisedWindow(
        float(values["speech_seconds"]), float(values["log_probability"]), float(values["compression_ratio"]), checked
    )


def _is_share(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 1


def _require(fits: bool, what: str = "a name of a language") -> None:
    if not fits:
        raise InvalidMessage(what)
