"""How much of a split was used, why the rest was not, and whether the numbers can be compared with published ones."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..storage.captions import CaptionTable
from ..storage.feature_store import FeatureStore
from .data import ClipFeatures, make_pairs

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
            notes.append(f"only {used} of {whole} {caption} of the split were used ({reasons}); not comparable with published numbers")
        if self.used[item] < FEWEST:
            notes.append(f"only {self.used[item]:,} {item}, fewer than {FEWEST}: too few to compare with published numbers")
        counts = {f"num_{name}_of_split": number for name, number in self.of_split.items()}
        return {f"num_{name}": number for name, number in self.used.items()} | counts | {"unused": self.unused, "not_comparable": notes}


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
    found: Counter[str] = Counter()
    if recordings is not None:
        ids, recording = listed.codes("recording")
        heard = np.array([*(one in recordings for one in ids), False])[recording]
        found[NO_RECORDING] = int(np.count_nonzero(~heard))
        listed = listed.take(np.flatnonzero(heard))
    ids, video = listed.codes("video_id")
    late = np.bincount(video[listed.numbers("start_seconds") >= _durations(ids, features)[video]], minlength=len(ids))
    for video_id, number, num_late in zip(ids, np.bincount(video, minlength=len(ids)).tolist(), late.tolist(), strict=True):
        if video_id not in features:
            found[NO_FEATURES] += number
        elif video_id in unused_videos:
            found[unused_videos[video_id]] += number
        else:
            found[TOO_LATE] += num_late
    return +found


def _durations(video_ids: list[str], features: ClipFeatures) -> np.ndarray:
    return np.array([features.duration_seconds(one) if one in features else np.inf for one in video_ids])
