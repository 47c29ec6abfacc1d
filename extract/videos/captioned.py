"""A comparison of a data set's captions with its list of videos, before hours of extraction."""

from collections.abc import Sequence

from ...storage.common.errors import UserError
from ...storage.common.terminal import number_of, say, warn
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import VideoRecord

FEW = 0.1
"""If captions and the list share fewer ids than this part of the smaller one, their ids probably differ."""
MAX_PARTS = 100
"""Number of parts of the captions to read: half a million captions. They stand for all parts."""


def warn_of_unlisted(dataset: DatasetFolder, videos: Sequence[VideoRecord]) -> None:
    """Warn if captions and videos should be matched (see ``unlisted_problem``).

    Args:
        dataset: The data set, with its captions and its list of videos.
        videos: More videos that count as listed.
    """
    try:
        problem = unlisted_problem(dataset, videos)
    except UserError as error:
        say(f"note: captions are not compared with the videos: {error}")
        return
    if problem:
        warn(f"warning: {problem}")


def unlisted_problem(dataset: DatasetFolder, videos: Sequence[VideoRecord] = ()) -> str:
    """Return a line about captions and videos that should be matched; empty if there are none.

    The line is about videos whose file names are ids in captions, or about captions and videos that have hardly any ids
    in common. Captions of many more videos, or of few of the videos, are no problem.

    Args:
        dataset: The data set, with its captions and its list of videos.
        videos: More videos that count as listed.

    Raises:
        UserError: The captions are damaged.
    """
    if not dataset.captions.is_dir():
        return ""
    from ...storage.captions.files import MATCH_AGAIN, caption_parts, matched_by_name, named_videos  # pyarrow

    parts = caption_parts(dataset)
    step = 1 + len(parts) // MAX_PARTS
    named = named_videos(parts[::step])
    listed = {video.video_id for video in (*dataset.read_videos(), *videos)}
    unlisted, others = named - listed, listed - named
    num_listed = len(named) - len(unlisted)
    matched = matched_by_name(unlisted, others)
    if step * num_listed >= FEW * min(step * len(named), len(listed)):
        if not matched:
            return ""
        return (
            f"{dataset.videos_file}: no caption names {number_of(len(matched), 'listed videos')}, such as "
            f"{matched[0]!r}, whose file name is an id in captions; {MATCH_AGAIN}"
        )
    todo = "name the video files after the ids in the captions, or their captions are not used"
    if matched:
        todo = MATCH_AGAIN
    count = f"only {num_listed:,}" if num_listed else "none"
    has = f"it has {len(listed):,}" + (f", such as {min(others)!r}" if others else "")
    return (
        f"{dataset.videos_file}: lists {count} of {len(named):,} videos that captions name, such as {min(unlisted)!r}; "
        f"{has}; {todo}"
    )
