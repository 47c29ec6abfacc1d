"""Suffixes of videos, images and sounds, and how browsers show them."""

from pathlib import Path
from typing import Literal

from ..records import VideoRecord

# Files that extract/decoding/ reads. ``.264`` and ``.265`` are excluded: other names also end in a dot and a number.
# fmt: off
VIDEO_SUFFIXES = (
    ".mp4", ".mkv", ".webm", ".avi", ".mov", ".m4v", ".mpg", ".mpeg", ".ts", ".flv", ".wmv", ".ogv", ".3gp",
    ".gif", ".m2ts", ".mts", ".m2t", ".vob", ".mpe", ".m2p", ".m1v", ".m2v", ".mxf", ".asf", ".f4v", ".3g2",
    ".mj2", ".qt", ".ismv", ".mk3d", ".divx", ".ogm", ".rm", ".rmvb", ".dv", ".dif", ".nut", ".ivf", ".y4m",
    ".apng", ".obu", ".h264", ".avc", ".h265", ".hevc",
)
# fmt: on
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif")
SOUND_SUFFIXES = (".wav", ".mp3", ".mp2", ".flac", ".m4a", ".m4b", ".ogg", ".oga", ".opus", ".mka", ".weba", ".wma")
MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".ogv": "video/ogg",
}
"""{suffix: media type} of files that browsers may play."""
Shown = Literal["file", "clips", "thumbnails"]
"""A video is shown by its own file, by clips in a format that browsers play, or by thumbnails alone."""


def how_shown(video: VideoRecord) -> Shown:
    """Return how browsers show a video, by its suffix; only files on this machine are shown as more than thumbnails."""
    suffix = Path(video.path).suffix.lower()
    if video.url or suffix in IMAGE_SUFFIXES:
        return "thumbnails"
    return "file" if suffix in MEDIA_TYPES else "clips"
