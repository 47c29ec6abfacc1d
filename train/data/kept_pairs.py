"""Pairs of clips and captions, made once and kept in files that are mapped: ``<dataset>/pairs``.

A process holds nothing for each caption: all processes of a machine share the memory of these files.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...storage.caption_table import CaptionTable, Texts
from ...storage.captions import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.layout import DatasetFolder
from ...storage.mapped import SUFFIX, KeptTensors, TensorWriter
from ...storage.records import SPLITS
from ...storage.store import Store
from .clip_features import ClipFeatures
from .clips import Clips, Groups
from .pairs import Pairs, make_pairs
from .stores import facts_of
from .usable import find_faults, why_no_caption, without_features

FORMAT = 1
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
"""{tensor: type}: how many captions can be used or have no recording; videos without features; captions that start
after their video's end"""
TYPES = {f"{split}.{name}": (kind, 1) for split in SPLITS for name, kind in OF_SPLIT.items()}
TYPES |= {name: (kind, 1) for name, kind in LEFT_OUT.items()}


@dataclass(frozen=True)
class Found:
    """The pairs of each split, and what was left out."""

    pairs: Mapping[str, Pairs]
    num_usable: int = 0
    num_silent: int = 0
    unseen_videos: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Numbers of videos without features among those of the caption table."""
    late: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Captions that start after their video's end."""


@dataclass(frozen=True)
class PairSource:
    """Everything that decides pairs."""

    dataset: DatasetFolder
    features: ClipFeatures
    recordings: Store | None = None
    """Log-mel rows of the captions, if they are recordings."""

    def keep(self, name: str, captions: CaptionTable, make: Callable[[], Found], **about: Any) -> Found:
        """Return pairs from their file, which is written first if it is missing or of other data.

        Args:
            name: Tells the file from others of the same stores; may be empty.
            captions: All captions of the data set.
            make: Makes the pairs.
            about: What else decides the pairs.
        """
        stores = [*self.features.stores, *filter(None, [self.recordings])]
        facts = {"captions": captions.key, "stores": [*map(facts_of, stores)], **about}
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        file_name = "-".join(filter(None, ("+".join(store.name for store in stores), name)))
        path = self.dataset.pairs / f"{file_name}{SUFFIX}"
        tensors = KeptTensors(path, TYPES, FORMAT, key, lambda writer: _write(writer, make())).open()
        pairs = {split: _pairs(tensors, split, captions) for split in SPLITS}
        counts = int(tensors["num_usable"][0]), int(tensors["num_silent"][0])
        return Found(pairs, *counts, tensors["unseen_videos"], tensors["late"])


def _write(writer: TensorWriter, found: Found) -> None:
    left_out = {"num_usable": np.array([found.num_usable]), "num_silent": np.array([found.num_silent])}
    tensors = {**left_out, "unseen_videos": found.unseen_videos, "late": found.late}
    for split, pairs in found.pairs.items():
        tensors |= {f"{split}.{name}": values for name, values in _tensors(pairs).items()}
    for name in sorted(TYPES, key=lambda name: TYPES[name][0] != "F64"):  # the larger elements first
        writer.append(name, tensors[name].astype(np.float64 if TYPES[name][0] == "F64" else np.int32, copy=False))


def _tensors(pairs: Pairs) -> dict[str, np.ndarray]:
    clips, video_ids = pairs.clips, pairs.clips.video_ids
    assert isinstance(video_ids, Texts), "pairs are made of a caption table"
    return {
        "start_seconds": clips.start_seconds,
        "end_seconds": clips.end_seconds,
        "rows": pairs.captions.rows,
        "clip_of_caption": pairs.clip_of_caption,
        "video": clips.video,
        "videos": video_ids.chosen,
        "captions_of_clips.members": pairs.captions_of_clips.members,
        "captions_of_clips.starts": pairs.captions_of_clips.starts,
        "clips_of_videos.members": pairs.clips_of_videos.members,
        "clips_of_videos.starts": pairs.clips_of_videos.starts,
    }


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


def _find(captions: CaptionTable, source: PairSource) -> Found:
    faults = find_faults(captions, source.features, source.recordings)
    usable = faults.usable
    splits, split = captions.codes("split")
    index_of = {name: index for index, name in enumerate(splits)}
    chosen = {name: np.flatnonzero(usable & (split == index_of.get(name, -1))) for name in SPLITS}
    pairs = {name: make_pairs(captions.take(rows)) for name, rows in chosen.items()}
    unseen = captions.take(np.flatnonzero(faults.unseen)).videos()[0].chosen
    counts = int(np.count_nonzero(usable)), int(np.count_nonzero(faults.silent))
    return Found(pairs, *counts, unseen, np.flatnonzero(faults.late))


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
    if not found.num_usable:
        raise UserError(f"{dataset.captions}: {why_no_caption(captions, features, recordings)}")
    return dict(found.pairs)
