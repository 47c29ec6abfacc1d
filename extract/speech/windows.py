"""The cutting of sound into windows that a model of speech takes, as pure functions of where speech is.

A window is 30 s of speech at most, without the silence between its spans: it was measured that single words far apart
are recognised better side by side, and that it takes less time.
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
        """Return where a word lies in the sound, given where it lies in the window; both in samples.

        It is put into the span that its middle lies in, and cut at the ends of that.
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
    """Return the spans of speech that are complete, and the sample up to which the sound is done with.

    [10..50, 60..100] of 100 samples  ->  [10..50] and 60: the second one may go on in the next part.

    Args:
        spans: Where speech is in a part of the sound.
        num_samples: Length of the part.
        margin: Samples at the end of a silent end that are looked at again: a word may just begin there.
        is_last: Whether no sound follows.
    """
    if is_last:
        return list(spans), num_samples
    if spans and spans[-1].end >= num_samples:
        return (list(spans[:-1]), spans[-1].start) if spans[-1].start > 0 else (list(spans), num_samples)
    return list(spans), max(num_samples - margin, spans[-1].end if spans else 1)


def plan_windows(spans: Sequence[Span], max_samples: int) -> list[SpeechWindow]:
    """Join spans, each of ``max_samples`` at most, to windows of ``max_samples`` at most, in their order."""
    windows: list[list[Span]] = []
    length = 0
    for span in spans:
        length += span.end - span.start
        if not windows or length > max_samples:
            windows.append([])
            length = span.end - span.start
        windows[-1].append(span)
    return [SpeechWindow(window) for window in windows]
