"""How browsers show the videos of a data set."""

from pathlib import Path
from typing import Literal

from ..common.files import IMAGE_SUFFIXES
from ..records import VideoRecord

MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".ogv": "video/ogg",
}
"""{suffix: media type} of files that browsers may play."""
Shown = Literal["file", "clips", "pictures"]
"""A video is shown by its own file, by clips in a format that browsers play, or by pictures alone."""


def how_shown(video: VideoRecord) -> Shown:
    """Return how browsers show a video, by its suffix; only files on this machine are shown as more than pictures."""
    suffix = Path(video.path).suffix.lower()
    if video.url or suffix in IMAGE_SUFFIXES:
        return "pictures"
    return "file" if suffix in MEDIA_TYPES else "clips"
