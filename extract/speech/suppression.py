"""Suppress unreliable text: a model also writes fluent text for noise, music and unknown languages.

Three earlier steps prevent most of it. A voice detector (Silero's) removes silence, noise and music. Windows are
recognised without the text of the previous one, which prevents endless repetition. Decoding is beam search, without
sampling. The rest is judged here by the model's confidence. ``docs/speech.md`` reports how
often text is still invented, and how often speech is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .messages import RecognisedPart, RecognisedWindow

RULES_VERSION = 1
"""Part of ``SpeechModel.key``: increase it when other text is kept."""
MAX_COMPRESSION = 2.4
"""Whisper's own limit (Radford et al. 2022, section 4.5): a text that is compressed better repeats itself."""
MIN_LOG_PROBABILITY = -1.0
"""Whisper's own limit, for multilingual models."""
MIN_LOG_PROBABILITY_OF_ENGLISH, MIN_WORD_PROBABILITY_OF_ENGLISH = -0.7, 0.55
"""Thresholds for English-only models, which write English for every language: calibrated in
``tests/benchmarks/speech.py``.
"""
MAX_FOREIGN_SHARE = 0.5
"""If an English-only model was unsure of a larger share of a video's speech, the video is not English and all text is
dropped.
"""

REPEATED, UNSURE, NOT_ENGLISH = "text that repeats itself", "the model was unsure", "not English"
"""Reasons for dropping speech."""


@dataclass(frozen=True)
class KeptSpeech:
    """The recognised speech of a video, without dropped text."""

    words: list[tuple[str, float, float, float]] = field(default_factory=list)
    """(word, start, end, probability), in order."""
    languages: dict[str, float] = field(default_factory=dict)
    """{language: seconds of speech}, the longest first."""
    language_probability: float | None = None
    left_out: dict[str, float] = field(default_factory=dict)
    """{reason: seconds of speech}"""


def why_left_out(window: RecognisedWindow, *, is_multilingual: bool) -> str:
    """Return the reason why a window's text is dropped; empty if it is kept."""
    if window.compression_ratio > MAX_COMPRESSION:
        return REPEATED
    if window.log_probability < (MIN_LOG_PROBABILITY if is_multilingual else MIN_LOG_PROBABILITY_OF_ENGLISH):
        return UNSURE
    mean = sum(word[3] for word in window.words) / max(len(window.words), 1)
    if window.words and not is_multilingual and mean < MIN_WORD_PROBABILITY_OF_ENGLISH:
        return UNSURE
    return ""


def keep_speech(parts: Sequence[tuple[float, RecognisedPart]], *, is_multilingual: bool) -> KeptSpeech:
    """Return the reliable speech of a video.

    Args:
        parts: (start second, recognised speech) of each part.
        is_multilingual: Whether the model recognises languages other than English.
    """
    words: list[tuple[str, float, float, float]] = []
    languages: dict[str, float] = {}
    left_out: dict[str, float] = {}
    probability = 0.0
    for begin, part in parts:
        for window in part.windows:
            if reason := why_left_out(window, is_multilingual=is_multilingual):
                left_out[reason] = left_out.get(reason, 0.0) + window.speech_seconds
            elif window.words:
                languages[part.language] = languages.get(part.language, 0.0) + window.speech_seconds
                probability += window.speech_seconds * part.language_probability
                words += [(word, begin + start, begin + end, sure) for word, start, end, sure in window.words]
    spoken, unsure = sum(languages.values()), sum(left_out.values())
    if not is_multilingual and unsure > MAX_FOREIGN_SHARE * (spoken + unsure):
        return KeptSpeech(left_out={NOT_ENGLISH: round(spoken + unsure, 2)})
    return KeptSpeech(
        words=words,
        languages=_most_first(languages),
        language_probability=round(probability / spoken, 4) if is_multilingual and spoken else None,
        left_out=_most_first(left_out),
    )


def _most_first(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds[name], 2) for name in sorted(seconds, key=lambda name: -seconds[name])}
