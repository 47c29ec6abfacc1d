"""The content of an export: the moments of a search, one after the other, with their names."""

import os
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from ...storage.common.terminal import one_line
from ..search.moments import Moment

MAX_LABEL_CHARACTERS, MAX_NAME_CHARACTERS = 120, 60


@dataclass(frozen=True)
class Result:
    """A moment of an export."""

    number: int
    """From 1, in the order of the search."""
    moment: Moment
    label: str
    """One-line label of the moment: the caption that matched, or else the query."""


def results_of(moments: Iterable[Moment], query: str = "") -> list[Result]:
    """Return the moments of an export. Each video's occurrences replace its best moment.

    Args:
        moments: The found moments.
        query: The text that was searched for.
    """
    every = [one for moment in moments for one in (moment.occurrences if len(moment.occurrences) > 1 else (moment,))]
    return [Result(number, moment, label_of(moment, query, number)) for number, moment in enumerate(every, start=1)]


def label_of(moment: Moment, query: str, number: int) -> str:
    """Return the label of a moment: one line of printable characters."""
    text = moment.caption or query.strip() or f"moment {number}"
    return one_line(" ".join(text.split()))[:MAX_LABEL_CHARACTERS]


def safe_name(video_id: str) -> str:
    """Return a file name similar to a video's id, with letters, digits, ".", "-" and "_" only.

    >>> safe_name("../../Höhle 1.mp4")
    'Hohle_1'
    """
    base = os.path.splitext(re.split(r"[/\\]", video_id)[-1])[0]
    plain = unicodedata.normalize("NFKD", base).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "_", plain).strip("._-")[:MAX_NAME_CHARACTERS] or "video"
