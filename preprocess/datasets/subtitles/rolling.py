"""Rolling captions, as YouTube writes them: each cue repeats the line before, and most lines come twice or three times.

::

    00:00:01.000 --> 00:00:03.000      put the dough
    00:00:03.000 --> 00:00:03.010      put the dough
    00:00:03.010 --> 00:00:05.000      put the dough / into the oven
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from .cues import Cue

MAX_PAUSE_SECONDS = 0.2
"""Maximum pause between a cue and the next one that repeats its lines."""
MIN_REPEATED_SHARE = 0.5
"""Minimum share of neighbouring cues that repeat a line. Other files repeat a line only if it is spoken twice."""
MAX_LINES = 20
"""Maximum number of lines that a cue repeats."""
MIN_PAIRS = 3
"""Minimum number of pairs of neighbouring cues in a file of rolling captions."""


def repeated_lines(before: Cue, cue: Cue) -> int:
    """Return how many of a cue's first lines repeat the last lines of the previous cue; 0 after a pause."""
    if cue.start_seconds - before.end_seconds > MAX_PAUSE_SECONDS:
        return 0
    longest = min(len(before.lines), len(cue.lines), MAX_LINES)
    return next((n for n in range(longest, 0, -1) if before.lines[-n:] == cue.lines[:n]), 0)


def without_repeats(cues: Sequence[Cue]) -> list[Cue]:
    """Return the cues, each with only its new lines if the captions roll.

    A cue without new lines is skipped. Captions that do not roll are returned as they are.

    Args:
        cues: Cues with at least one line each, in time order.
    """
    repeats = [repeated_lines(before, cue) for before, cue in pairwise(cues)]
    if len(repeats) < MIN_PAIRS or sum(map(bool, repeats)) < MIN_REPEATED_SHARE * len(repeats):
        return list(cues)
    new = [replace(cue, lines=cue.lines[n:]) for cue, n in zip(cues, [0, *repeats], strict=True)]
    return [cue for cue in new if cue.lines]
