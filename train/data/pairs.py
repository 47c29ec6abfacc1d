"""Captions and the clips that they are about."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...storage.captions import CaptionTable, by_appearance, read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.layout import DatasetFolder
from ...storage.store import Store
from .clip_features import ClipFeatures
from .clips import Clips, Groups


@dataclass(frozen=True)
class Pairs:
    """The clips of a split, and its captions."""

    clips: Clips
    captions: CaptionTable
    clip_of_caption: np.ndarray
    """Index of each caption's clip."""

    def captions_of_clips(self) -> Groups:
        """Return the indices of each clip's captions."""
        return Groups(self.clip_of_caption, len(self.clips))


def make_pairs(captions: CaptionTable) -> Pairs:
    """Return the different clips of captions, in the order of their first captions."""
    video_ids, video = captions.codes("video_id")
    start, end = captions.numbers("start_seconds"), captions.numbers("end_seconds")
    # Stable: a clip's first caption comes first. NaN, for a whole video, sorts behind all times.
    order = np.lexsort((end, start, video))
    columns = [column[order] for column in (video, np.nan_to_num(start, nan=-1), np.nan_to_num(end, nan=-1))]
    is_new = np.ones(len(captions), dtype=bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    clip = np.empty(len(captions), dtype=np.int64)
    clip[order] = np.cumsum(is_new) - 1
    clip_of_caption, firsts = by_appearance(clip, int(np.count_nonzero(is_new)))
    return Pairs(Clips(video_ids, video[firsts], start[firsts], end[firsts]), captions, clip_of_caption)


def without_features(what: str, video_ids: Iterable[str], features: ClipFeatures, problems: Problems) -> set[str]:
    """Return the videos that have no features, and report them.

    Args:
        what: What is left out with a video, such as "captions".
        video_ids: The videos.
        features: Of the data set.
        problems: Gets a line for each of them.
    """
    missing = set(video_ids) - set(features.video_ids())
    for video_id in sorted(missing):
        folder = features.stores[0].where
        problems.add(f"{what} of video {video_id!r}: no features in {folder}; left out (run vlalign-extract)")
    return missing


@dataclass(frozen=True)
class Faults:
    """Why captions cannot be used: bool [num_captions] each, at most one True for a caption."""

    silent: np.ndarray
    """It has no recording, but captions are recordings."""
    unseen: np.ndarray
    """Its video has no features."""
    late: np.ndarray
    """Its clip starts after the video's end."""

    @property
    def usable(self) -> np.ndarray:
        """Captions without a fault."""
        return ~(self.silent | self.unseen | self.late)


def find_faults(captions: CaptionTable, features: ClipFeatures, recordings: Store | None) -> Faults:
    """Return which captions cannot be used and why.

    Args:
        captions: The captions.
        features: Of the data set.
        recordings: Log-mel rows of the captions, if they are recordings.
    """
    silent = np.zeros(len(captions), dtype=bool)
    if recordings is not None:
        ids, recording = captions.codes("recording")
        silent = ~np.array([*(name in recordings for name in ids), False], dtype=bool)[recording]
    video_ids, video = captions.codes("video_id")
    known = set(features.video_ids())
    duration = np.array([features.duration_seconds(v) if v in known else np.nan for v in video_ids])[video]
    unseen = np.isnan(duration) & ~silent
    return Faults(silent, unseen, (captions.numbers("start_seconds") >= duration) & ~silent)


def why_none(dataset: DatasetFolder, features: ClipFeatures, split: str, recordings: Store | None = None) -> str:
    """Return why no caption of a split can be used, or so few: each cause with its count and an example. For
    messages."""
    captions = read_captions(dataset.captions)
    splits, codes = captions.codes("split")
    if split not in splits:
        counts = ", ".join(f"{name} {count:,}" for name, count in zip(splits, np.bincount(codes), strict=True))
        return f"none of its {len(captions):,} captions has split {split!r} ({counts})"
    return _why_none(of_split(captions, split), features, recordings, f" with split {split!r}")


def _why_none(captions: CaptionTable, features: ClipFeatures, recordings: Store | None, which: str = "") -> str:
    faults = find_faults(captions, features, recordings)
    causes = []
    if late := np.flatnonzero(faults.late).tolist():
        first = captions[late[0]]
        duration = features.duration_seconds(first.video_id)
        causes.append(
            f"{len(late):,} start after their video's end ({first.video_id!r}: caption from {first.start_seconds:.1f} "
            f"to {first.end_seconds:.1f} s, video of {duration:.1f} s; are the times in seconds?)"
        )
    if unseen := np.flatnonzero(faults.unseen).tolist():
        known = features.video_ids()
        has = f"it has {len(known):,} videos, such as {min(known)!r}" if known else "it has none"
        what, folder = "of a video" if len(unseen) == 1 else "of videos", features.stores[0].where
        causes.append(
            f"{len(unseen):,} are {what} without features in {folder} ({captions[unseen[0]].video_id!r}; {has})"
        )
    if recordings is not None and (silent := np.count_nonzero(faults.silent)):
        causes.append(f"{silent:,} have no recording in {recordings.where}")
    num_usable = np.count_nonzero(faults.usable)
    usable = (
        f"{num_usable:,} of its {len(captions):,} captions{which} can be used"
        if num_usable
        else (f"none of its {len(captions):,} captions{which} can be used")
    )
    return ": ".join(filter(None, (usable, ", ".join(causes))))


def read_pairs(
    dataset: DatasetFolder, features: ClipFeatures, problems: Problems, recordings: Store | None = None
) -> dict[str, Pairs]:
    """Return {split: pairs}. Captions that cannot be used are reported and left out.

    Args:
        dataset: Has the captions.
        features: Of the data set.
        problems: Gets what is left out.
        recordings: Log-mel rows of the captions, if they are recordings.

    Raises:
        UserError: No caption can be used.
    """
    captions = read_captions(dataset.captions)
    faults = find_faults(captions, features, recordings)
    if recordings is not None and (silent := np.count_nonzero(faults.silent)):
        problems.add(f"{silent:,} of {len(captions):,} captions: no recording in {recordings.where}; left out")
    without_features("captions", captions.take(np.flatnonzero(~faults.silent)).codes("video_id")[0], features, problems)
    for caption in captions.take(np.flatnonzero(faults.late)):
        seconds = features.duration_seconds(caption.video_id)
        problems.add(f"caption {caption.clip_id}: starts after the video's end ({seconds:.1f} s); left out")
    usable = faults.usable
    if not usable.any():
        raise UserError(f"{dataset.captions}: {_why_none(captions, features, recordings)}")
    splits, split = captions.codes("split")
    index_of = {name: index for index, name in enumerate(splits)}
    return {
        name: make_pairs(captions.take(np.flatnonzero(usable & (split == index_of.get(name, -1)))))
        for name in ("train", "validation", "test")
    }


def of_split(captions: CaptionTable, name: str) -> CaptionTable:
    """Return the captions of a split."""
    splits, split = captions.codes("split")
    return captions.take(np.flatnonzero(split == splits.index(name)) if name in splits else [])
