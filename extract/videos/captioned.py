"""A comparison of a data set's captions with its list of videos, before hours of extraction."""

from collections.abc import Sequence
from os.path import basename, splitext

from ...storage.common.errors import UserError
from ...storage.common.terminal import say, warn
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import VideoRecord

FEW = 0.1
"""If captions and the list share fewer ids than this part of the smaller one, their ids probably differ."""
MAX_PARTS = 100
"""Number of parts of the captions to read: half a million captions. They stand for all parts."""


def warn_of_unlisted(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Warn if captions and videos have hardly any ids in common.

    Captions of many more videos, or of few of the videos, are no reason for a warning.

    Args:
        dataset: The data set, with its captions and its list of videos.
        videos: More videos that count as listed.
    """
    if not dataset.captions.is_dir():
        return
    from ...storage.captions.files import caption_parts, named_videos  # imports pyarrow

    parts = caption_parts(dataset)
    step = 1 + len(parts) // MAX_PARTS
    try:
        named = named_videos(parts[::step])
    except UserError as error:
        say(f"note: captions are not compared with the videos: {error}")
        return
    listed = {video.video_id for video in (*dataset.read_videos(), *videos)}
    unlisted, others = named - listed, listed - named
    num_listed = len(named) - len(unlisted)
    if step * num_listed >= FEW * min(step * len(named), len(listed)):
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
