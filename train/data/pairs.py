"""Clips and their captions: found once and cached in files that are mapped, ``<dataset>/pairs``.

A process has no copy of its own: all processes of a machine share the memory of these files.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.captions.table import CaptionTable, Texts, by_appearance
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.common.tensor_files import SUFFIX, CachedTensors, GrowingTensors, TensorWriter
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import SPLITS
from ...storage.stores.store import Store
from .clip_features import ClipFeatures
from .clips import Clips, Groups
from .stores import facts_of
from .usable_captions import (
    NO_ROWS,
    find_exclusions,
    report_after_video,
    report_videos_without_features,
    report_without_rows,
    why_unusable,
)


@dataclass(frozen=True)
class Pairs:
    """The clips of a split, and its captions. The arrays may be mapped from a file."""

    clips: Clips
    captions: CaptionTable
    clip_of_caption: np.ndarray
    """Index of each caption's clip."""
    captions_of_clips: Groups
    """Indices of each clip's captions."""
    clips_of_videos: Groups
    """Indices of the clips of each of ``clips.video_ids``."""


def make_pairs(captions: CaptionTable) -> Pairs:
    """Return the different clips of captions, in the order of their first captions."""
    video_ids, video = captions.videos()
    start, end = captions.numbers("start_seconds"), captions.numbers("end_seconds")
    # Stable: a clip's first caption comes first. NaN, for a whole video, sorts behind all times.
    order = np.lexsort((end, start, video))
    columns = [column[order] for column in (video, np.nan_to_num(start, nan=-1), np.nan_to_num(end, nan=-1))]
    is_new = np.ones(len(captions), dtype=bool)
    is_new[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    num_clips = int(np.count_nonzero(is_new))
    clip = np.empty(len(captions), dtype=np.int32)
    clip[order] = np.cumsum(is_new, dtype=np.int32) - 1
    clip_of_caption, firsts = by_appearance(clip, num_clips)
    clips = Clips(video_ids, video[firsts], start[firsts], end[firsts])
    clips_of_videos = Groups.of(clips.video, len(video_ids))
    return Pairs(clips, captions, clip_of_caption, Groups.of(clip_of_caption, num_clips), clips_of_videos)


FORMAT = 2
"""Files of format 1 include captions whose clips have no feature vectors."""
CAPTIONS_AT_ONCE = 1 << 19
"""Number of captions whose pairs are made at a time; each takes about 120 bytes of memory."""
SPLIT_TENSORS = {
    "start_seconds": "F64",
    "end_seconds": "F64",
    "rows": "I32",
    "clip_of_caption": "I32",
    "video": "I32",
    "videos": "I32",
    "captions_of_clips.members": "I32",
    "captions_of_clips.starts": "I32",
    "clips_of_videos.members": "I32",
    "clips_of_videos.starts": "I32",
}
"""{tensor of a split: type}"""
SKIPPED = {"num_usable": "I32", "num_silent": "I32", "unseen_videos": "I32", "late": "I32"}
SKIPPED |= dict.fromkeys(NO_ROWS, "I32")
"""{tensor: type}: how many captions can be used or have no recording; videos without features; captions that start
after their video's end; captions whose clips have no feature rows, by cause"""
TYPES = {f"{split}.{name}": (kind, 1) for split in SPLITS for name, kind in SPLIT_TENSORS.items()}
TYPES |= {name: (kind, 1) for name, kind in SKIPPED.items()}


@dataclass(frozen=True)
class FoundPairs:
    """The pairs of each split, and the skipped captions."""

    pairs: Mapping[str, Pairs]
    num_usable: int = 0
    num_without_recording: int = 0
    videos_without_features: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Indices of videos without features, among the videos of the caption table."""
    after_video: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Captions that start after their video's end."""
    without_rows: Mapping[str, np.ndarray] = field(
        default_factory=lambda: dict.fromkeys(NO_ROWS, np.zeros(0, np.int32))
    )
    """{key of ``NO_ROWS``: captions whose clips have no feature vectors for this reason}"""


@dataclass(frozen=True)
class PairSource:
    """Everything that decides pairs."""

    dataset: DatasetFolder
    features: ClipFeatures
    recordings: Store | None = None
    """Log-mel rows of the captions, if they are recordings."""

    def cached(
        self, name: str, captions: CaptionTable, make: Callable[[], Iterable[FoundPairs]], **about: Any
    ) -> FoundPairs:
        """Return pairs from their cache file, which is written first if it is missing or made from other data.

        Args:
            name: Tells the file from others of the same stores; may be empty.
            captions: All captions of the data set.
            make: Makes the pairs, in parts. All captions of a video in the same split are in the same part.
            about: What else decides the pairs.
        """
        stores = [*self.features.stores, *filter(None, [self.recordings])]
        facts = {"captions": captions.key, "stores": [*map(facts_of, stores)], **about}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        file_name = "-".join(filter(None, ("+".join(store.name for store in stores), name)))
        path = self.dataset.pairs / f"{file_name}{SUFFIX}"
        tensors = CachedTensors(path, TYPES, FORMAT, key, lambda writer: _write(writer, make())).open()
        pairs = {split: _pairs(tensors, split, captions) for split in SPLITS}
        counts = int(tensors["num_usable"][0]), int(tensors["num_silent"][0])
        without_rows = {cause: tensors[cause] for cause in NO_ROWS}
        return FoundPairs(pairs, *counts, tensors["unseen_videos"], tensors["late"], without_rows)


def _write(writer: TensorWriter, parts: Iterable[FoundPairs]) -> None:
    """Write the tensors of pairs that are made in parts. Needs the memory of one part."""
    num_usable = num_without_recording = 0
    with GrowingTensors(writer.folder) as tensors:
        splits = {split: _Joined() for split in SPLITS}
        for found in parts:
            num_usable += found.num_usable
            num_without_recording += found.num_without_recording
            _add(
                tensors,
                {"unseen_videos": found.videos_without_features, "late": found.after_video, **found.without_rows},
            )
            for split, pairs in found.pairs.items():
                _add(tensors, {f"{split}.{name}": values for name, values in splits[split].tensors(pairs).items()})
        _add(tensors, {"num_usable": np.array([num_usable]), "num_silent": np.array([num_without_recording])})
        for name in sorted(TYPES, key=lambda name: TYPES[name][0] != "F64"):  # the larger elements first
            tensors.copy(name, writer)


def _add(tensors: GrowingTensors, values: Mapping[str, np.ndarray]) -> None:
    for name, value in values.items():
        tensors.add(name, value.astype(np.float64 if TYPES[name][0] == "F64" else np.int32, copy=False))


@dataclass
class _Joined:
    """The numbers of clips, captions and videos of a split written so far."""

    first_start: int = 0
    """0 for the first part, then 1: the start of the next groups is already written as the end of the last ones."""
    num_clips: int = 0
    num_captions: int = 0
    num_videos: int = 0

    def tensors(self, pairs: Pairs) -> dict[str, np.ndarray]:
        """Return the tensors of the split's next pairs, which follow the pairs written so far."""
        clips, video_ids = pairs.clips, pairs.clips.video_ids
        assert isinstance(video_ids, Texts), "pairs are made of a caption table"
        tensors = {
            "start_seconds": clips.start_seconds,
            "end_seconds": clips.end_seconds,
            "rows": pairs.captions.selected,
            "clip_of_caption": pairs.clip_of_caption + self.num_clips,
            "video": clips.video + self.num_videos,
            "videos": video_ids.selected,
            "captions_of_clips.members": pairs.captions_of_clips.members + self.num_captions,
            "captions_of_clips.starts": pairs.captions_of_clips.starts[self.first_start :] + self.num_captions,
            "clips_of_videos.members": pairs.clips_of_videos.members + self.num_clips,
            "clips_of_videos.starts": pairs.clips_of_videos.starts[self.first_start :] + self.num_clips,
        }
        self.first_start = 1
        self.num_clips += len(clips)
        self.num_captions += len(pairs.captions)
        self.num_videos += len(video_ids)
        return tensors


def _pairs(tensors: Mapping[str, np.ndarray], split: str, captions: CaptionTable) -> Pairs:
    arrays = {name: tensors[f"{split}.{name}"] for name in SPLIT_TENSORS}
    video_ids = captions.video_ids.select(arrays["videos"])
    return Pairs(
        Clips(video_ids, arrays["video"], arrays["start_seconds"], arrays["end_seconds"]),
        captions.take(arrays["rows"]),
        arrays["clip_of_caption"],
        Groups(arrays["captions_of_clips.members"], arrays["captions_of_clips.starts"]),
        Groups(arrays["clips_of_videos.members"], arrays["clips_of_videos.starts"]),
    )


def by_parts_of_videos(captions: CaptionTable) -> Iterator[CaptionTable]:
    """Yield the captions of some videos at a time, and show progress."""
    parts = captions.by_videos(CAPTIONS_AT_ONCE)
    return progress(parts, total=len(captions), what="finding clips", unit="captions", size=len)


def _find(captions: CaptionTable, source: PairSource) -> Iterator[FoundPairs]:
    for part in by_parts_of_videos(captions):
        exclusions = find_exclusions(part, source.features, source.recordings)
        usable, rows = exclusions.usable, part.selected
        splits, split = part.codes("split")
        of_split = {
            name: split == splits.index(name) if name in splits else np.zeros(len(part), bool) for name in SPLITS
        }
        pairs = {name: make_pairs(part.take(np.flatnonzero(usable & is_in))) for name, is_in in of_split.items()}
        without_features = part.take(np.flatnonzero(exclusions.without_features)).videos()[0].selected
        counts = int(np.count_nonzero(usable)), int(np.count_nonzero(exclusions.without_recording))
        without_rows = {cause: rows[getattr(exclusions, cause)] for cause in NO_ROWS}
        yield FoundPairs(pairs, *counts, without_features, rows[exclusions.after_video], without_rows)


def read_pairs(
    dataset: DatasetFolder, features: ClipFeatures, problems: Problems, recordings: Store | None = None
) -> dict[str, Pairs]:
    """Return {split: pairs}. Captions that cannot be used are reported and skipped.

    Args:
        dataset: Has the captions.
        features: Of the data set.
        problems: Gets a message for each item that is skipped.
        recordings: Log-mel rows of the captions, if they are recordings.

    Raises:
        UserError: No caption can be used.
    """
    captions = read_captions(dataset.captions)
    source = PairSource(dataset, features, recordings)
    found = source.cached("", captions, lambda: _find(captions, source))
    if recordings is not None and found.num_without_recording:
        problems.add(
            f"{found.num_without_recording:,} of {len(captions):,} captions: no recording in {recordings.where}; "
            "skipped"
        )
    if len(found.videos_without_features):
        report_videos_without_features(
            "captions", captions.video_ids.select(found.videos_without_features), features, problems
        )
    report_after_video(captions.take(found.after_video), features, problems)
    report_without_rows(captions, found.without_rows, features, problems)
    if not found.num_usable:
        raise UserError(f"{dataset.captions}: {why_unusable(captions, features, recordings)}")
    return dict(found.pairs)
