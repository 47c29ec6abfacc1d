"""Pairs of clips and captions, made once and kept in files that are mapped: ``<dataset>/pairs``.

A process holds nothing for each caption: all processes of a machine share the memory of these files.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.captions.table import CaptionTable, Texts
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.common.tensor_files import SUFFIX, CachedTensors, GrowingTensors, TensorWriter
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import SPLITS
from ...storage.stores.store import Store
from .clip_features import ClipFeatures
from .clips import Clips, Groups
from .pairs import Pairs, make_pairs
from .stores import facts_of
from .usable import NO_ROWS, find_faults, report_without_rows, why_no_caption, without_features

FORMAT = 2
"""Files of format 1 hold captions whose clips have no feature rows."""
CAPTIONS_AT_ONCE = 1 << 19
"""Captions whose pairs are made at a time; each takes about 120 bytes of memory meanwhile."""
OF_SPLIT = {
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
LEFT_OUT = {"num_usable": "I32", "num_silent": "I32", "unseen_videos": "I32", "late": "I32"}
LEFT_OUT |= dict.fromkeys(NO_ROWS, "I32")
"""{tensor: type}: how many captions can be used or have no recording; videos without features; captions that start
after their video's end; captions whose clips have no feature rows, by cause"""
TYPES = {f"{split}.{name}": (kind, 1) for split in SPLITS for name, kind in OF_SPLIT.items()}
TYPES |= {name: (kind, 1) for name, kind in LEFT_OUT.items()}


@dataclass(frozen=True)
class Found:
    """The pairs of each split, of all captions or of some, and what was left out."""

    pairs: Mapping[str, Pairs]
    num_usable: int = 0
    num_silent: int = 0
    unseen_videos: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Numbers of videos without features among those of the caption table."""
    late: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Captions that start after their video's end."""
    without_rows: Mapping[str, np.ndarray] = field(
        default_factory=lambda: dict.fromkeys(NO_ROWS, np.zeros(0, np.int32))
    )
    """{key of ``NO_ROWS``: captions whose clips have no feature rows for this cause}"""


@dataclass(frozen=True)
class PairSource:
    """Everything that decides pairs."""

    dataset: DatasetFolder
    features: ClipFeatures
    recordings: Store | None = None
    """Log-mel rows of the captions, if they are recordings."""

    def keep(self, name: str, captions: CaptionTable, make: Callable[[], Iterable[Found]], **about: Any) -> Found:
        """Return pairs from their file, which is written first if it is missing or of other data.

        Args:
            name: Tells the file from others of the same stores; may be empty.
            captions: All captions of the data set.
            make: Makes the pairs, in parts. Of the captions of a video that one split has, all are in the same part.
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
        return Found(pairs, *counts, tensors["unseen_videos"], tensors["late"], without_rows)


def _write(writer: TensorWriter, parts: Iterable[Found]) -> None:
    """Write the tensors of pairs that are made in parts, with the memory of a part."""
    num_usable = num_silent = 0
    with GrowingTensors(writer.folder) as tensors:
        splits = {split: _Joined() for split in SPLITS}
        for found in parts:
            num_usable, num_silent = num_usable + found.num_usable, num_silent + found.num_silent
            _add(tensors, {"unseen_videos": found.unseen_videos, "late": found.late, **found.without_rows})
            for split, pairs in found.pairs.items():
                _add(tensors, {f"{split}.{name}": values for name, values in splits[split].tensors(pairs).items()})
        _add(tensors, {"num_usable": np.array([num_usable]), "num_silent": np.array([num_silent])})
        for name in sorted(TYPES, key=lambda name: TYPES[name][0] != "F64"):  # the larger elements first
            tensors.copy(name, writer)


def _add(tensors: GrowingTensors, values: Mapping[str, np.ndarray]) -> None:
    for name, of in values.items():
        tensors.add(name, of.astype(np.float64 if TYPES[name][0] == "F64" else np.int32, copy=False))


@dataclass
class _Joined:
    """The numbers of clips, captions and videos of a split that were written so far."""

    first_start: int = 0
    """1 once groups were written: the next ones start where those end."""
    num_clips: int = 0
    num_captions: int = 0
    num_videos: int = 0

    def tensors(self, pairs: Pairs) -> dict[str, np.ndarray]:
        """Return the tensors of the split's next pairs, as they follow those that were written."""
        clips, video_ids = pairs.clips, pairs.clips.video_ids
        assert isinstance(video_ids, Texts), "pairs are made of a caption table"
        tensors = {
            "start_seconds": clips.start_seconds,
            "end_seconds": clips.end_seconds,
            "rows": pairs.captions.rows,
            "clip_of_caption": pairs.clip_of_caption + self.num_clips,
            "video": clips.video + self.num_videos,
            "videos": video_ids.chosen,
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
    of = {name: tensors[f"{split}.{name}"] for name in OF_SPLIT}
    video_ids = captions.video_ids.choose(of["videos"])
    return Pairs(
        Clips(video_ids, of["video"], of["start_seconds"], of["end_seconds"]),
        captions.take(of["rows"]),
        of["clip_of_caption"],
        Groups(of["captions_of_clips.members"], of["captions_of_clips.starts"]),
        Groups(of["clips_of_videos.members"], of["clips_of_videos.starts"]),
    )


def in_parts(captions: CaptionTable) -> Iterator[CaptionTable]:
    """Yield the captions of some videos at a time, and show progress."""
    parts = captions.by_videos(CAPTIONS_AT_ONCE)
    return progress(parts, total=len(captions), what="finding clips", unit="captions", size=len)


def _find(captions: CaptionTable, source: PairSource) -> Iterator[Found]:
    for part in in_parts(captions):
        faults = find_faults(part, source.features, source.recordings)
        usable, rows = faults.usable, part.rows
        splits, split = part.codes("split")
        of_split = {
            name: split == splits.index(name) if name in splits else np.zeros(len(part), bool) for name in SPLITS
        }
        pairs = {name: make_pairs(part.take(np.flatnonzero(usable & is_in))) for name, is_in in of_split.items()}
        unseen = part.take(np.flatnonzero(faults.unseen)).videos()[0].chosen
        counts = int(np.count_nonzero(usable)), int(np.count_nonzero(faults.silent))
        without_rows = {cause: rows[getattr(faults, cause)] for cause in NO_ROWS}
        yield Found(pairs, *counts, unseen, rows[faults.late], without_rows)


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
    source = PairSource(dataset, features, recordings)
    found = source.keep("", captions, lambda: _find(captions, source))
    if recordings is not None and found.num_silent:
        problems.add(
            f"{found.num_silent:,} of {len(captions):,} captions: no recording in {recordings.where}; left out"
        )
    if len(found.unseen_videos):
        without_features("captions", captions.video_ids.choose(found.unseen_videos), features, problems)
    for caption in captions.take(found.late):
        seconds = features.duration_seconds(caption.video_id)
        problems.add(f"caption {caption.clip_id}: starts after the video's end ({seconds:.1f} s); left out")
    report_without_rows(captions, found.without_rows, features, problems)
    if not found.num_usable:
        raise UserError(f"{dataset.captions}: {why_no_caption(captions, features, recordings)}")
    return dict(found.pairs)
