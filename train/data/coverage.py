"""How much of a split was used, why the rest was not, and whether the numbers can be compared with published ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...storage.captions import CaptionTable
from ...storage.feature_store import FeatureStore
from .pairs import ClipFeatures, find_faults, make_pairs

FEWEST = 100
"""Of clips or videos. With fewer, one of them moves recall by more than a point."""
NO_FEATURES, NO_RECORDING, TOO_LATE = "video without features", "no recording", "starts after the video's end"
OTHER = "for another reason"


@dataclass(frozen=True)
class Coverage:
    """What of a split was used. Captions are questions, steps or segments where those are asked for."""

    used: dict[str, int]
    """Numbers of captions, clips and videos."""
    of_split: dict[str, int]
    unused: dict[str, int]
    """{reason: captions}"""

    def result(self, *, caption: str = "captions", item: str = "clips") -> dict[str, Any]:
        """Fields of ``metrics.json``. ``caption``: what captions are called here; ``item``: which number must not be small."""
        notes = []
        if self.unused:
            reasons = ", ".join(f"{reason}: {number:,}" for reason, number in self.unused.items())
            used, whole = f"{self.used['captions']:,}", f"{self.of_split['captions']:,}"
            notes.append(
                f"only {used} of {whole} {caption} of the split were used ({reasons}); not comparable with published numbers"
            )
        if self.used[item] < FEWEST:
            notes.append(
                f"only {self.used[item]:,} {item}, fewer than {FEWEST}: too few to compare with published numbers"
            )
        counts = {f"num_{name}_of_split": number for name, number in self.of_split.items()}
        return (
            {f"num_{name}": number for name, number in self.used.items()}
            | counts
            | {"unused": self.unused, "not_comparable": notes}
        )


def measure(
    listed: CaptionTable,
    used: CaptionTable,
    features: ClipFeatures,
    recordings: FeatureStore | None = None,
    unused_videos: Mapping[str, str] | None = None,
) -> Coverage:
    """``listed``: all captions of a split; ``used``: those that were asked. ``unused_videos``: {video id: reason}, of a task's own."""
    counts = _counts(listed), _counts(used)
    missing = len(listed) - len(used)
    reasons = _reasons(listed, features, recordings, unused_videos or {}) if missing else Counter()
    if other := missing - sum(reasons.values()):
        reasons[OTHER] = other
    return Coverage(counts[1], counts[0], dict(reasons.most_common()))


def _counts(captions: CaptionTable) -> dict[str, int]:
    clips = make_pairs(captions).clips
    return {"captions": len(captions), "clips": len(clips), "videos": len(set(captions.codes("video_id")[1].tolist()))}


def _reasons(
    listed: CaptionTable, features: ClipFeatures, recordings: FeatureStore | None, unused_videos: Mapping[str, str]
) -> Counter[str]:
    """The first reason that holds for each caption."""
    faults = find_faults(listed, features, recordings)
    found = Counter({NO_RECORDING: np.count_nonzero(faults.silent), NO_FEATURES: np.count_nonzero(faults.unseen)})
    ids, video = listed.codes("video_id")
    there, late = (
        np.bincount(video[chosen], minlength=len(ids)).tolist()
        for chosen in (~(faults.silent | faults.unseen), faults.late)
    )
    for video_id, number, num_late in zip(ids, there, late, strict=True):
        if video_id in unused_videos:
            found[unused_videos[video_id]] += number
        else:
            found[TOO_LATE] += num_late
    return Counter({reason: int(number) for reason, number in found.items() if number})
