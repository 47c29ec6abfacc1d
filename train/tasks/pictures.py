"""Frames of clips inside a page. Imports no torch."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...storage.thumbnails import ThumbnailStore


@dataclass(frozen=True)
class Picture:
    """A frame of a video."""

    address: str
    """A data URL with the JPEG."""
    text: str
    """The alternative text."""


def pictures_of(thumbnails: ThumbnailStore, clip: Mapping[str, Any]) -> list[Picture]:
    """Return the thumbnails of a clip: those within its time, or else the video's first."""
    video_id, start, end = clip["video_id"], clip["start_seconds"], clip["end_seconds"]
    frames = thumbnails.get(video_id)
    if start is not None:
        frames = [frame for frame in frames if start <= frame.seconds <= end] or frames[:1]
    return [
        Picture(
            f"data:image/jpeg;base64,{base64.b64encode(frame.jpeg).decode()}",
            f"Frame of video {video_id} at {frame.seconds:.1f} s",
        )
        for frame in frames
    ]
