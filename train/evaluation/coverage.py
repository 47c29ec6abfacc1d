"""The part of a split that was used, why the rest was not, and whether figures can be compared with published ones."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from ...storage.captions.table import CaptionTable
from ...storage.common.terminal import number_of
from ...storage.records import Caption
from ...storage.stores.store import Store
from ..data.clip_features import ClipFeatures
from ..data.pairs import make_pairs
from ..data.usable_captions import find_exclusions

MIN_COMPARABLE = 100
"""Number of clips or videos. With fewer, a single one moves recall by more than a point."""
NO_FEATURES, NO_RECORDING, TOO_LATE = "video without features", "no recording", "starts after the video's end"
NO_FEATURE_ROWS = "no feature rows"
OTHER = "for another reason"


@dataclass(frozen=True)
class Counts:
    """Numbers of captions, and of their clips and videos."""

    captions: int
    clips: int
    videos: int


class CoverageFigures(TypedDict):
    """Fields of ``metrics.json`` that every task has."""

    num_captions: int
    num_clips: int
    num_videos: int
    num_captions_of_split: int
    num_clips_of_split: int
    num_videos_of_split: int
    unused: dict[str, int]
    """{reason: number of captions}"""
    not_comparable: list[str]
    """Reasons why the figures cannot be compared with published ones."""


@dataclass(frozen=True)
class Coverage:
    """The part of a split that was used. In some tasks captions are questions, steps or segments."""

    used: Counts
    of_split: Counts
    unused: dict[str, int]
    """{reason: number of captions}"""

    def figures(self, caption_name: str, item_name: str) -> CoverageFigures:
        """Return the fields of ``metrics.json``.

        Args:
            caption_name: The name of captions in this task, such as "questions".
            item_name: "clips" or "videos"; ``MIN_COMPARABLE`` of them are needed.
        """
        return {
            "num_captions": self.used.captions,
            "num_clips": self.used.clips,
            "num_videos": self.used.videos,
            "num_captions_of_split": self.of_split.captions,
            "num_clips_of_split": self.of_split.clips,
            "num_videos_of_split": self.of_split.videos,
            "unused": self.unused,
            "not_comparable": list(self._notes(caption_name, item_name)),
        }

    def _notes(self, caption_name: str, item_name: str) -> Iterator[str]:
        if self.unused:
            reasons = ", ".join(f"{reason}: {count:,}" for reason, count in self.unused.items())
            used, whole = f"{self.used.captions:,}", f"{self.of_split.captions:,}"
            yield (
                f"only {used} of {whole} {caption_name} of the split were used ({reasons}); "
                "not comparable with published numbers"
            )
        num_items = self.used.clips if item_name == "clips" else self.used.videos
        if num_items < MIN_COMPARABLE:
            yield (
                f"only {number_of(num_items, item_name)}, fewer than {MIN_COMPARABLE}: "
                "too few to compare with published numbers"
            )


def split_coverage(
    listed: CaptionTable,
    used: CaptionTable,
    features: ClipFeatures,
    recordings: Store | None = None,
    unused_videos: Mapping[str, str] | None = None,
) -> Coverage:
    """Return how much of a split was used, and why the rest was not.

    Args:
        listed: All captions of the split.
        used: The captions that were evaluated.
        features: Of the run's data set.
        recordings: Store of the spoken captions, for a run that uses them.
        unused_videos: {video id: reason} of videos that the task itself skipped.
    """
    num_unused = len(listed) - len(used)
    reasons = _reasons(listed, features, recordings, unused_videos or {}) if num_unused else Counter()
    if num_other := num_unused - sum(reasons.values()):
        reasons[OTHER] = num_other
    return Coverage(_counts(used), _counts(listed), dict(reasons.most_common()))


def split_checksum(captions: Iterable[Caption]) -> str:
    """Return 16 hexadecimal digits of a SHA-256 over the queries and candidates.

    It is the same for the same captions, questions with answers, or recordings of the same clips, in any order.
    """
    rows = sorted("\t".join(filter(None, (c.clip_id, c.caption, c.answer, c.recording))) + "\n" for c in captions)
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:16]


def _counts(captions: CaptionTable) -> Counts:
    num_videos = len(set(captions.codes("video_id")[1].tolist()))
    return Counts(len(captions), len(make_pairs(captions).clips), num_videos)


def _reasons(
    listed: CaptionTable, features: ClipFeatures, recordings: Store | None, unused_videos: Mapping[str, str]
) -> Counter[str]:
    """Count captions by the first reason that applies."""
    exclusions = find_exclusions(listed, features, recordings)
    ids, video = listed.codes("video_id")
    by_task = np.array([video_id in unused_videos for video_id in ids], dtype=bool)[video]
    by_task &= ~(exclusions.without_recording | exclusions.without_features)
    names = list(ids)
    counts = Counter(unused_videos[names[number]] for number in video[by_task].tolist())
    masks = {
        NO_RECORDING: exclusions.without_recording,
        NO_FEATURES: exclusions.without_features,
        TOO_LATE: exclusions.after_video & ~by_task,
        NO_FEATURE_ROWS: exclusions.without_rows & ~by_task,
    }
    counts |= {reason: int(np.count_nonzero(mask)) for reason, mask in masks.items()}
    return Counter({reason: count for reason, count in counts.items() if count})
