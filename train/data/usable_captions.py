"""The captions of a data set that can be used with its features, and why the others cannot.

A caption that cannot be used, such as one without feature rows, is reported and skipped, by training and by evaluation
alike (``pairs.read_pairs``; ``skip_without_rows`` for steps and segments). An evaluation does not count it as a miss:
``metrics.json`` says how many were skipped, and that the figures are not comparable with published ones
(``evaluation/coverage.py``).
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...storage.captions.files import MATCH_AGAIN, matched_by_name, read_captions
from ...storage.captions.table import CaptionTable
from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.store import Store
from .clip_features import ClipFeatures, clips_with_rows

NUM_NAMED = 3
"""Captions that a message names."""


def report_videos_without_features(
    what: str, video_ids: Iterable[str], features: ClipFeatures, problems: Problems
) -> set[str]:
    """Return the videos that have no features, or no feature rows, and report them.

    Args:
        what: What is skipped with a video, such as "captions".
        video_ids: The videos.
        features: Of the data set.
        problems: Gets a line for each of them.
    """
    asked = sorted(set(video_ids))
    missing, folder = set(asked) - set(features.video_ids()), features.stores[0].where
    for video_id in sorted(missing):
        problems.add(f"{what} of video {video_id!r}: no features in {folder}; skipped (run vlalign-extract)")
    known = [video_id for video_id in asked if video_id not in missing]
    empty = [known[index] for index in np.flatnonzero(np.isnan(features.spans(known)).any(axis=1))]
    for video_id in empty:
        problems.add(f"{what} of video {video_id!r}: it has no feature rows in {_places(features)}; skipped")
    return missing | set(empty)


def _places(features: ClipFeatures) -> str:
    return " and ".join(store.where for store in features.stores)


@dataclass(frozen=True)
class Exclusions:
    """Reasons why captions cannot be used: bool [num_captions] each, at most one True for a caption."""

    without_recording: np.ndarray
    """It has no recording, although captions are recordings."""
    without_features: np.ndarray
    """Its video has no features."""
    after_video: np.ndarray
    """Its clip starts after the video's end."""
    misplaced: np.ndarray
    """Its times are not 0 <= start < end, as another program may have written them."""
    no_video_rows: np.ndarray
    """A store has no row of its video."""
    after_rows: np.ndarray
    """Its clip starts after the last row of the video."""
    before_rows: np.ndarray
    """Its clip ends before the first row of the video."""

    @property
    def without_rows(self) -> np.ndarray:
        """Captions whose clips have no feature rows, although their videos have features and are long enough."""
        return self.misplaced | self.no_video_rows | self.after_rows | self.before_rows

    @property
    def usable(self) -> np.ndarray:
        """Captions without a fault."""
        return ~(self.without_recording | self.without_features | self.after_video | self.without_rows)


NO_ROWS = {
    "misplaced": "because their times are not 0 <= start < end",
    "no_video_rows": "because their videos have no rows",
    "after_rows": "because they start after the last row",
    "before_rows": "because they end before the first row",
}
"""{field of ``Exclusions``: why captions have no feature rows}"""


def find_exclusions(captions: CaptionTable, features: ClipFeatures, recordings: Store | None) -> Exclusions:
    """Return which captions cannot be used and why.

    Args:
        captions: The captions.
        features: Of the data set.
        recordings: Log-mel rows of the captions, if they are recordings.
    """
    silent = np.zeros(len(captions), dtype=bool)
    if recordings is not None:
        ids, recording = captions.codes("recording")
        has_sound = [name in recordings and recordings.about(name).num_rows > 0 for name in ids]
        silent = ~np.array([*has_sound, False], dtype=bool)[recording]
    video_ids, video = captions.videos()
    listed = list(video_ids)
    is_known = np.array([video_id in features for video_id in listed], dtype=bool)
    known = [video_id for video_id, has_features in zip(listed, is_known, strict=True) if has_features]
    of_videos = np.full((len(listed), 3), np.nan)  # duration, start of the first row, end of the last one
    if known:
        of_videos[is_known, 0] = [features.duration_seconds(video_id) for video_id in known]
        of_videos[is_known, 1:] = features.spans(known)
    duration, spans = of_videos[video, 0], of_videos[video, 1:]
    start, end = captions.numbers("start_seconds"), captions.numbers("end_seconds")
    rest = ~silent

    def first_of(fault: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the captions with this fault and none of the earlier ones."""
        nonlocal rest
        found, rest = np.logical_and(fault, rest), np.logical_and(rest, ~fault)
        return found

    is_whole = np.isnan(start) & np.isnan(end)
    return Exclusions(
        without_recording=silent,
        without_features=first_of(~is_known[video]),
        misplaced=first_of(~is_whole & ~((start >= 0) & (start < end))),
        after_video=first_of(start >= duration),
        no_video_rows=first_of(np.isnan(spans[:, 1])),
        after_rows=first_of(start >= spans[:, 1]),
        before_rows=first_of(~clips_with_rows(spans, start, end)),
    )


def report_without_rows(
    captions: CaptionTable, of_cause: Mapping[str, np.ndarray], features: ClipFeatures, problems: Problems
) -> None:
    """Report captions that are skipped because their clips have no feature rows: a line for each cause.

    Args:
        captions: All captions.
        of_cause: {key of ``NO_ROWS``: indices of its captions}
        features: Of the data set.
        problems: Gets the lines.
    """
    for cause, indices in of_cause.items():
        if len(indices):
            names = ", ".join(clip_names(captions, indices[:NUM_NAMED]))
            which = f"such as {names}" if len(indices) > NUM_NAMED else names
            problems.add(
                f"{len(indices):,} of {number_of(len(captions), 'captions')} ({which}) have no feature rows in "
                f"{_places(features)} {NO_ROWS[cause]}; skipped"
            )


def report_after_video(captions: CaptionTable, features: ClipFeatures, problems: Problems) -> None:
    """Report captions whose clips start after the end of their video, one line each."""
    for caption in captions:
        seconds = features.duration_seconds(caption.video_id)
        problems.add(f"caption {caption.clip_id}: starts after the video's end ({seconds:.1f} s); skipped")


def skip_unusable(captions: CaptionTable, features: ClipFeatures, problems: Problems) -> CaptionTable:
    """Return the captions that can be used; the others are reported."""
    exclusions = find_exclusions(captions, features, None)
    if exclusions.without_features.any():
        unseen = captions.take(np.flatnonzero(exclusions.without_features)).videos()[0]
        report_videos_without_features("captions", unseen, features, problems)
    report_after_video(captions.take(np.flatnonzero(exclusions.after_video)), features, problems)
    causes = {cause: np.flatnonzero(getattr(exclusions, cause)) for cause in NO_ROWS}
    report_without_rows(captions, causes, features, problems)
    return captions.take(np.flatnonzero(exclusions.usable))


def clip_names(captions: CaptionTable, indices: np.ndarray) -> list[str]:
    """Return the ``clip_id`` of captions, including times that are invalid for a ``Caption``."""
    chosen = captions.take(indices)
    video_ids, video = chosen.videos()
    times = zip(*(chosen.numbers(name).tolist() for name in ("start_seconds", "end_seconds")), strict=True)
    return [
        video_ids[number] if math.isnan(start) and math.isnan(end) else f"{video_ids[number]}#{start}-{end}"
        for number, (start, end) in zip(video.tolist(), times, strict=True)
    ]


def skip_without_rows(captions: CaptionTable, features: ClipFeatures, problems: Problems) -> CaptionTable:
    """Return the captions whose clips have feature rows; report the others.

    Captions of videos without any row are kept: the code that reads the videos reports these videos.
    """
    exclusions = find_exclusions(captions, features, None)
    causes = {cause: np.flatnonzero(getattr(exclusions, cause)) for cause in NO_ROWS if cause != "no_video_rows"}
    report_without_rows(captions, causes, features, problems)
    skipped = exclusions.without_rows & ~exclusions.no_video_rows
    return captions.take(np.flatnonzero(~skipped)) if skipped.any() else captions


def why_split_is_unusable(
    dataset: DatasetFolder, features: ClipFeatures, split: str, recordings: Store | None = None
) -> str:
    """Return why no or few captions of a split can be used, for messages: each cause with its count and an example."""
    captions = read_captions(dataset.captions)
    splits, codes = captions.codes("split")
    if split not in splits:
        counts = ", ".join(f"{name} {count:,}" for name, count in zip(splits, np.bincount(codes), strict=True))
        return f"none of its {len(captions):,} captions has split {split!r} ({counts})"
    return why_unusable(captions_of_split(captions, split), features, recordings, f" with split {split!r}")


def why_unusable(captions: CaptionTable, features: ClipFeatures, recordings: Store | None, which: str = "") -> str:
    """Return why captions cannot be used: each cause with its count and an example; ``which`` names a part of them."""
    exclusions = find_exclusions(captions, features, recordings)
    causes = []
    if late := np.flatnonzero(exclusions.after_video).tolist():
        first = captions[late[0]]
        duration = features.duration_seconds(first.video_id)
        causes.append(
            f"{len(late):,} start after their video's end ({first.video_id!r}: caption from {first.start_seconds:.1f} "
            f"to {first.end_seconds:.1f} s, video of {duration:.1f} s; are the times in seconds?)"
        )
    for cause, reason in NO_ROWS.items():
        if len(found := np.flatnonzero(getattr(exclusions, cause))):
            [name] = clip_names(captions, found[:1])
            causes.append(f"{len(found):,} have no feature rows in {_places(features)} {reason} ({name!r})")
    if unseen := np.flatnonzero(exclusions.without_features).tolist():
        known = features.video_ids()
        has = f"it has {len(known):,} videos, such as {min(known)!r}" if known else "it has none"
        what, folder = "of a video" if len(unseen) == 1 else "of videos", features.stores[0].where
        todo = f"; {MATCH_AGAIN}" if matched_by_name(captions.take(unseen).videos()[0], known) else ""
        causes.append(
            f"{len(unseen):,} are {what} without features in {folder} ({captions[unseen[0]].video_id!r}; {has}{todo})"
        )
    if recordings is not None and (silent := np.count_nonzero(exclusions.without_recording)):
        causes.append(f"{silent:,} have no recording in {recordings.where}")
    num_usable = np.count_nonzero(exclusions.usable)
    usable = (
        f"{num_usable:,} of its {len(captions):,} captions{which} can be used"
        if num_usable
        else (f"none of its {len(captions):,} captions{which} can be used")
    )
    return ": ".join(filter(None, (usable, ", ".join(causes))))


def captions_of_split(captions: CaptionTable, name: str) -> CaptionTable:
    """Return the captions of a split."""
    splits, split = captions.codes("split")
    return captions.take(np.flatnonzero(split == splits.index(name)) if name in splits else [])
