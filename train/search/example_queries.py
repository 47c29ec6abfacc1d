"""Queries without words: a part of a video, or a picture."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ...storage.dataset.media_types import IMAGE_SUFFIXES

PART = re.compile(r"(?P<video_id>.+)@(?P<start>\d+(?:\.\d+)?)-(?P<end>\d+(?:\.\d+)?)", re.DOTALL)


@dataclass(frozen=True)
class VideoPart:
    """A part of a video of the data set."""

    video_id: str
    start_seconds: float | None = None
    """None: from the start of the video."""
    end_seconds: float | None = None
    """None: to its end."""


Example = VideoPart | Path
"""A part of a video, or the path of a picture."""


def parse_example(text: str) -> Example:
    """Return what ``--like`` means.

    >>> parse_example("cat@12.5-18")
    VideoPart(video_id='cat', start_seconds=12.5, end_seconds=18.0)

    Args:
        text: ``VIDEO@START-END`` in seconds, ``VIDEO``, or the path of a picture.
    """
    if text.lower().endswith(IMAGE_SUFFIXES) and os.path.isfile(text):  # False for any text, however long
        return Path(text)
    if match := PART.fullmatch(text):
        return VideoPart(match["video_id"], float(match["start"]), float(match["end"]))
    return VideoPart(text)
