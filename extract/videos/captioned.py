"""A comparison of a data set's captions with its list of videos, before hours of extraction."""

from collections.abc import Sequence
from os.path import basename, splitext

from ...storage.common.errors import UserError
from ...storage.common.terminal import say, warn
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import VideoRecord

FEW = 0.1
"""Share of the captioned videos. If fewer are listed, the ids of captions and videos probably differ."""
MAX_PARTS = 100
"""Number of parts of the captions to read: half a million captions."""


def warn_of_unlisted(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Warn if there are captions, and none or few of their videos are among the listed ones and ``videos``."""
    if not dataset.captions.is_dir():
        return
    from ...storage.captions.files import caption_parts, named_videos  # imports pyarrow

    parts = caption_parts(dataset)
    try:
        named = named_videos(parts[:: 1 + len(parts) // MAX_PARTS])
    except UserError as error:
        say(f"note: captions are not compared with the videos: {error}")
        return
    listed = {video.video_id for video in (*dataset.read_videos(), *videos)}
    unlisted, others = named - listed, listed - named
    num_listed = len(named) - len(unlisted)
    if num_listed >= FEW * len(named):
        return
    names = {name for path in map(basename, unlisted) for name in (path, splitext(path)[0])}
    todo = "name the video files after the ids in the captions, or their captions are not used"
    if not names.isdisjoint(map(basename, others)):
        todo = "run vlalign-preprocess again, which matches captions to listed videos by file names"
    count = f"only {num_listed:,}" if num_listed else "none"
    has = f"it has {len(listed):,}" + (f", such as {min(others)!r}" if others else "")
    warn(
        f"warning: {dataset.videos_file}: lists {count} of {len(named):,} videos that captions name, such as "
        f"{min(unlisted)!r}; {has}; {todo}"
    )
