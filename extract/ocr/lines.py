"""Lines of text in frames, and the spans of time in which they are shown."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as shares of the frame's width and height."""
MIN_SIMILARITY = 0.8
"""Minimum similarity of two readings of one line, as a share of common characters: some letters are read differently.
"""
MAX_MISSED_FRAMES = 1
"""Maximum number of consecutive frames in which a line may be missed without ending its span."""


@dataclass(frozen=True)
class TextLine:
    """A line of text in a frame."""

    text: str
    confidence: float
    """0 to 1."""
    box: Box


@dataclass(frozen=True, kw_only=True)
class TextSpan:
    """A line of text and when it is shown."""

    text: str
    """The reading with the highest sum of confidences over the frames."""
    start_seconds: float
    end_seconds: float
    confidence: float
    """Mean confidence of this reading, 0 to 1."""
    box: Box
    """Position in the first frame."""


def similarity(text: str, other: str) -> float:
    """Return the share of characters that two texts have in common, in order: 0 to 1. Case and spaces are ignored.

    >>> similarity("Chapter 3", "chapter3"), similarity("Preheat the oven", "Preheat the 0ven") > 0.8
    (1.0, True)
    """
    first, second = ("".join(each.split()).casefold() for each in (text, other))
    return difflib.SequenceMatcher(None, first, second, autojunk=False).ratio()


class _Track:
    """A line that is being shown."""

    def __init__(self, start_seconds: float, end_seconds: float, line: TextLine) -> None:
        self.start_seconds, self.box = start_seconds, line.box
        self.readings: dict[str, list[float]] = {}
        self.add(end_seconds, line)

    def add(self, end_seconds: float, line: TextLine) -> None:
        self.end_seconds, self.last, self.num_missed = end_seconds, line, 0
        self.readings.setdefault(line.text, []).append(line.confidence)

    def span(self) -> TextSpan:
        text, confidences = max(self.readings.items(), key=lambda reading: sum(reading[1]))
        return TextSpan(
            text=text,
            start_seconds=self.start_seconds,
            end_seconds=self.end_seconds,
            confidence=sum(confidences) / len(confidences),
            box=self.box,
        )


def merge_lines(frames: Iterable[tuple[float, float, Sequence[TextLine]]]) -> list[TextSpan]:
    """Merge matching lines of neighbouring frames into spans; return the spans by start.

    A line joins the span with the most similar last reading, at any position, if the similarity is at least
    ``MIN_SIMILARITY``; of equally similar spans, it joins the nearest. A span may miss ``MAX_MISSED_FRAMES`` frames in
    a row.

    Args:
        frames: (start second, end second, lines) of each frame, in order of time.
    """
    done: list[_Track] = []
    shown: list[_Track] = []
    for start, end, lines in frames:
        pairs = [
            (-alike, _distance(track.last.box, line.box), t, n)
            for t, track in enumerate(shown)
            for n, line in enumerate(lines)
            if (alike := similarity(track.last.text, line.text)) >= MIN_SIMILARITY
        ]
        of_line: dict[int, int] = {}
        for _, _, t, n in sorted(pairs):
            if n not in of_line and t not in of_line.values():
                of_line[n] = t
        for track in shown:
            track.num_missed += 1
        for n, line in enumerate(lines):
            if n in of_line:
                shown[of_line[n]].add(end, line)
            else:
                shown.append(_Track(start, end, line))
        done += [track for track in shown if track.num_missed > MAX_MISSED_FRAMES]
        shown = [track for track in shown if track.num_missed <= MAX_MISSED_FRAMES]
    spans = [track.span() for track in [*done, *shown]]
    return sorted(spans, key=lambda span: (span.start_seconds, span.box[1], span.box[0]))


def _distance(box: Box, other: Box) -> float:
    """Return the distance between the centres of two boxes."""
    across, down = (abs(box[i] + box[i + 2] - other[i] - other[i + 2]) / 2 for i in (0, 1))
    return float(across + down)
