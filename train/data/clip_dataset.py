"""Captions with the feature vectors of their clips, as a PyTorch data set for custom training loops."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...storage.captions.files import caption_table
from ...storage.captions.table import CaptionTable
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.records import Caption
from ...storage.stores.checked_store import checked_store
from ...storage.stores.store import Store
from .clip_features import ClipFeatures, pad_rows
from .clips import Clip
from .usable_captions import captions_of_split, skip_unusable, why_unusable


class ClipItem(TypedDict):
    """A caption and its clip."""

    video_id: str
    clip_id: str
    """The same for all captions of a clip."""
    caption: str
    extra: dict[str, float]
    """The caption's numbers in custom columns."""
    features: Tensor
    """The clip's rows, float32 [T, D]."""


class ClipBatch(TypedDict):
    """Some captions and their clips."""

    video_id: list[str]
    clip_id: list[str]
    caption: list[str]
    extra: dict[str, Tensor]
    """The captions' numbers by column, float32 [B]; NaN where a caption has no number."""
    features: Tensor
    """The clips' rows, float32 [B, M, D], padded with zeros to the longest."""
    mask: Tensor
    """True for a row, False for padding, bool [B, M]."""


class ClipDataset(Dataset[ClipItem]):
    """An item for each caption: its text, and the feature rows of its clip.

    Captions that cannot be used, such as those of videos without features, are reported and left out, as in training.
    If a clip has several captions, it is in several items. If two of these are in one batch, a contrastive loss takes
    each as a negative of the other; ``train`` draws batches of different clips.

    Workers of a loader share the memory of the files. They read a batch's rows in one call, also from another machine.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> from vlalign.storage import open_store, read_captions
        >>> from vlalign.train import ClipDataset
        >>> store, captions = open_store("vlalign_data/demo/features/s3d"), read_captions("vlalign_data/demo/captions")
        >>> clips = ClipDataset(store, captions, split="train", max_rows=32)
        >>> batch = next(iter(DataLoader(clips, batch_size=4, shuffle=True, collate_fn=clips.collate)))
        >>> len(clips), len(batch["caption"]), batch["features"].shape[0], batch["features"].shape[2]
        (12, 4, 4, 1024)
    """

    def __init__(
        self,
        store: Store,
        captions: CaptionTable | Iterable[Caption],
        *,
        split: str | None = None,
        max_rows: int | None = None,
    ) -> None:
        """Find the captions that can be used.

        Args:
            store: The features.
            captions: A table (``read_captions``), or captions in memory.
            split: Take the captions of this split only. None: all.
            max_rows: Upper limit of a clip's rows; the rows of longer clips are evenly chosen. None: all rows.

        Raises:
            UserError: No caption can be used.
        """
        if not isinstance(captions, CaptionTable):
            captions = caption_table(captions)
        self._features = ClipFeatures([checked_store(store)])
        self._max_rows = sys.maxsize if max_rows is None else max_rows
        chosen = captions if split is None else captions_of_split(captions, split)
        which = "" if split is None else f" with split {split!r}"
        with Problems() as problems:
            self.captions = skip_unusable(chosen, self._features, problems)
        """The captions, in the order of the items."""
        self.num_skipped = len(chosen) - len(self.captions)
        """Captions that cannot be used."""
        if not self.captions:
            raise UserError(f"{captions.where}: {why_unusable(chosen, self._features, None, which)}")

    def __len__(self) -> int:
        """Return the number of captions."""
        return len(self.captions)

    def __getitem__(self, index: int) -> ClipItem:
        """Return a caption and its clip."""
        [item] = self.__getitems__([range(len(self))[index]])
        return item

    def __getitems__(self, indices: Sequence[int]) -> list[ClipItem]:
        """Return several captions and their clips, read together; a ``DataLoader`` calls this."""
        captions = list(self.captions.take(np.array(indices, dtype=np.int64)))
        clips = [Clip(c.video_id, c.start_seconds, c.end_seconds) for c in captions]
        of_clips = self._features.rows(clips, self._max_rows)
        return [
            {
                "video_id": caption.video_id,
                "clip_id": caption.clip_id,
                "caption": caption.caption,
                "extra": dict(caption.extra),
                "features": torch.from_numpy(rows.astype(np.float32)),
            }
            for caption, rows in zip(captions, of_clips, strict=True)
        ]

    @staticmethod
    def collate(items: Sequence[ClipItem]) -> ClipBatch:
        """Return items as one batch: for ``DataLoader(collate_fn=...)``.

        Args:
            items: Items of this data set.
        """
        rows = [item["features"].numpy() for item in items]
        features, mask = pad_rows(rows, rows[0].shape[1])
        columns = dict.fromkeys(name for item in items for name in item["extra"])
        return {
            "video_id": [item["video_id"] for item in items],
            "clip_id": [item["clip_id"] for item in items],
            "caption": [item["caption"] for item in items],
            "extra": {name: torch.tensor([item["extra"].get(name, math.nan) for item in items]) for name in columns},
            "features": features,
            "mask": mask,
        }
