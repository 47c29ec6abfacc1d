"""Video files that browsers may play."""

from pathlib import Path

from .records import VideoRecord

MEDIA_TYPES = {
    ".mp4": "video/mp4",
    ".m4v": "video/mp4",
    ".mov": "video/mp4",
    ".webm": "video/webm",
    ".ogv": "video/ogg",
}
"""{suffix: media type}"""


def is_playable(video: VideoRecord) -> bool:
    """Return whether browsers play this kind of file, and it lies on this machine."""
    return not video.url and Path(video.path).suffix.lower() in MEDIA_TYPES
