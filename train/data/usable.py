"""Which captions of a data set can be used with its features, and why the others cannot."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...storage.caption_table import CaptionTable
from ...storage.captions import read_captions
from ...storage.common.problems import Problems
from ...storage.layout import DatasetFolder
from ...storage.store import Store
from .clip_features import ClipFeatures


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
    video_ids, video = captions.videos()
    duration = np.array([features.duration_seconds(v) if v in features else np.nan for v in video_ids])[video]
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
    return why_no_caption(of_split(captions, split), features, recordings, f" with split {split!r}")


def why_no_caption(captions: CaptionTable, features: ClipFeatures, recordings: Store | None, which: str = "") -> str:
    """Return why captions cannot be used: each cause with its count and an example; ``which`` names a part of them."""
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


def of_split(captions: CaptionTable, name: str) -> CaptionTable:
    """Return the captions of a split."""
    splits, split = captions.codes("split")
    return captions.take(np.flatnonzero(split == splits.index(name)) if name in splits else [])
