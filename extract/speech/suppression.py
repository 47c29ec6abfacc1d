"""The decision which recognised text is kept: a model also writes fluent text about noise, music and languages that it
does not know.

Before it comes to this, a detector of voices (Silero's) has left out silence, noise and music; no window is told what
the one before said, so that nothing is repeated over and over; and the most probable text is taken, none is drawn.
What remains is judged here by how sure the model was. ``docs/speech.md`` has the rates of both errors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .messages import RecognisedPart, RecognisedWindow

RULES_VERSION = 1
"""Part of what identifies a transcript's maker: raise it if other text is kept."""
MAX_COMPRESSION = 2.4
"""Whisper's own limit (Radford et al. 2022, section 4.5): a text that is compressed better repeats itself."""
MIN_LOG_PROBABILITY = -1.0
"""Whisper's own limit, for models that know many languages."""
MIN_LOG_PROBABILITY_OF_ENGLISH, MIN_WORD_PROBABILITY_OF_ENGLISH = -0.7, 0.55
"""For models that know English only, which make English of every language: calibrated in
``tests/benchmarks/speech.py``."""
MAX_FOREIGN_SHARE = 0.5
"""If such a model was unsure of more of a video's speech than this, the video is not English, and nothing is kept."""

REPEATED, UNSURE, NOT_ENGLISH = "text that repeats itself", "the model was unsure", "not English"
"""Why speech is left out."""


@dataclass(frozen=True)
class KeptSpeech:
    """What was recognised in a video, without what was left out."""

    words: list[tuple[str, float, float, float]] = field(default_factory=list)
    """(word, start, end, probability), in order."""
    languages: dict[str, float] = field(default_factory=dict)
    """{language: seconds of speech}, the most spoken one first."""
    language_probability: float | None = None
    left_out: dict[str, float] = field(default_factory=dict)
    """{reason: seconds of speech}"""


def why_left_out(window: RecognisedWindow, *, is_multilingual: bool) -> str:
    """Return why the text of a window is not kept; empty if it is."""
    if window.compression_ratio > MAX_COMPRESSION:
        return REPEATED
    if window.log_probability < (MIN_LOG_PROBABILITY if is_multilingual else MIN_LOG_PROBABILITY_OF_ENGLISH):
        return UNSURE
    mean = sum(word[3] for word in window.words) / max(len(window.words), 1)
    if window.words and not is_multilingual and mean < MIN_WORD_PROBABILITY_OF_ENGLISH:
        return UNSURE
    return ""


def keep_speech(parts: Sequence[tuple[float, RecognisedPart]], *, is_multilingual: bool) -> KeptSpeech:
    """Return what is kept of a video.

    Args:
        parts: The second at which each part begins, and what was recognised in it.
        is_multilingual: Whether the model knows other languages than English.
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
