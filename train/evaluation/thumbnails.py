"""Frames of clips inside a page, and links to their videos. Imports no torch."""

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...storage.common.errors import UserError
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.media_types import how_shown
from ...storage.dataset.trusted_folders import outside_of_folders
from ...storage.stores.thumbnails import ThumbnailStore

MAX_IMAGES = 3
"""Images of a clip at most, however many thumbnails its video has."""
MAX_IMAGE_BYTES = 1_800_000
"""Limit of the images of a page's clips, in bytes of base64."""


@dataclass(frozen=True)
class EmbeddedImage:
    """A frame of a video, as the attributes of an ``<img>``."""

    src: str
    """A data URL with the JPEG."""
    alt: str


def images_of(thumbnails: ThumbnailStore, clip: Mapping[str, Any]) -> list[EmbeddedImage]:
    """Return up to ``MAX_IMAGES`` thumbnails within a clip's time, or else the video's first one."""
    video_id, start, end = clip["video_id"], clip["start_seconds"], clip["end_seconds"]
    span = () if start is None else (start, end)
    frames = thumbnails.get(video_id, *span, max_thumbnails=MAX_IMAGES)
    if not frames:
        frames = thumbnails.get(video_id, max_thumbnails=1)
    return [
        EmbeddedImage(
            f"data:image/jpeg;base64,{base64.b64encode(frame.jpeg).decode()}",
            f"Frame of video {video_id} at {frame.seconds:.1f} s",
        )
        for frame in frames
    ]


@dataclass(frozen=True)
class ShownClips:
    """Clips with their images and links."""

    clips: list[dict[str, Any]]
    """The clips that were given, each with ``images`` and ``link``; the link is empty if the video cannot be
    linked."""
    notes: list[str]
    """Sentences about missing images."""


def shown_clips(
    dataset: DatasetFolder, thumbnails: ThumbnailStore, folder: Path, clips: Sequence[Mapping[str, Any]]
) -> ShownClips:
    """Add images and links to clips, as far as the page has room.

    Args:
        dataset: Has the videos.
        thumbnails: Of the data set.
        folder: Where the page goes; links are relative to it, so that both can be moved together.
        clips: Have ``video_id``, ``start_seconds`` and ``end_seconds``.
    """
    notes: list[str] = []
    images = [images_of(thumbnails, clip) for clip in clips]
    if _num_bytes(images) > MAX_IMAGE_BYTES:
        images = [of_clip[len(of_clip) // 2 :][:1] for of_clip in images]
        notes.append("The page has room for one image of each clip.")
    left = MAX_IMAGE_BYTES - _num_bytes(images)
    num_without = 0
    while left < 0:
        index = len(images) - 1 - num_without
        left += _num_bytes(images[index : index + 1])
        images[index], num_without = [], num_without + 1
    if num_without:
        notes.append(f"The page has no room for images of {num_without:,} of its {len(clips):,} clips.")
    links = _links(dataset, folder, {clip["video_id"] for clip in clips})
    if num_unlinked := len({clip["video_id"] for clip in clips} - links.keys()):
        notes.append(
            f"{number_of(num_unlinked, 'videos')} cannot be played from this page, because browsers do not play such "
            "files, or the file was removed, or it is outside the folders that may be read."
        )
    shown = [
        {**clip, "images": list(map(asdict, of_clip)), "link": links.get(clip["video_id"], "")}
        for clip, of_clip in zip(clips, images, strict=True)
    ]
    return ShownClips(shown, notes)


def _num_bytes(images: Sequence[Sequence[EmbeddedImage]]) -> int:
    return sum(len(image.src) for of_clip in images for image in of_clip)


def _links(dataset: DatasetFolder, folder: Path, video_ids: set[str]) -> dict[str, str]:
    """Return {video: address of its file relative to a folder} of the videos that browsers play."""
    links: dict[str, str] = {}
    videos = [video for video in dataset.read_videos() if video.video_id in video_ids and how_shown(video) == "file"]
    outside = set(outside_of_folders(dataset, videos))
    for video in videos:
        if video.path in outside:
            continue
        try:
            path = dataset.video_path(video)
        except UserError:
            continue
        if path.is_file():
            links[video.video_id] = quote(os.path.relpath(path.absolute(), folder.absolute()))
    return links
