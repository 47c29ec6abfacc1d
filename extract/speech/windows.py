"""Cut sound into windows for a speech model: pure functions of the positions of speech.

A window is at most 30 s of speech, without the silence between its spans. In measurements, distant single words are
recognised better, and in less time, when they are joined.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Samples from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True)
class SpeechWindow:
    """Spans of speech that are recognised together, one after the other."""

    spans: Sequence[Span]

    @property
    def num_samples(self) -> int:
        """Length without the silence between the spans."""
        return sum(span.end - span.start for span in self.spans)

    def original(self, start: float, end: float) -> tuple[float, float]:
        """Map a word's position in the window to its position in the sound; both in samples.

        The word belongs to the span that contains its middle, and is cut at the ends of the span.
        """
        middle, before = (start + end) / 2, 0
        for span in self.spans:
            length = span.end - span.start
            if middle < before + length or span is self.spans[-1]:
                moved = [min(max(at - before, 0), length) + span.start for at in (start, end)]
                return moved[0], moved[1]
            before += length
        raise AssertionError("a window has spans")


def settled_spans(spans: Sequence[Span], num_samples: int, margin: int, *, is_last: bool) -> tuple[list[Span], int]:
    """Return (complete spans of speech, number of processed samples).

    [10..50, 60..100] of 100 samples  ->  [10..50] and 60: the second one may continue in the next part.

    Args:
        spans: Positions of speech in a part of the sound.
        num_samples: Length of the part.
        margin: Number of samples of trailing silence to process again with the next part: a word may begin there.
        is_last: Whether no sound follows.
    """
    if is_last:
        return list(spans), num_samples
    if spans and spans[-1].end >= num_samples:
        return (list(spans[:-1]), spans[-1].start) if spans[-1].start > 0 else (list(spans), num_samples)
    return list(spans), max(num_samples - margin, spans[-1].end if spans else 1)


def plan_windows(spans: Sequence[Span], max_samples: int) -> list[SpeechWindow]:
    """Join spans, each of at most ``max_samples``, into windows of at most ``max_samples``, in their order."""
    windows: list[list[Span]] = []
    length = 0
    for span in spans:
        length += span.end - span.start
        if not windows or length > max_samples:
            windows.append([])
            length = span.end - span.start
        windows[-1].append(span)
    return [SpeechWindow(window) for window in windows]
