"""Custom inputs, declared by an objective or an encoder (``settings.CaptionColumn``, ``FeatureRows``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.table import CaptionTable
from ...storage.common.errors import UserError
from ...storage.common.terminal import number_of, say
from ...storage.profiles import FRAME_MAPS
from ...storage.records import Caption
from ...storage.stores.store import Store
from ..settings import CaptionColumn, ExtraInput, FeatureRows
from .clip_features import ClipFeatures, pad_rows
from .clips import Clip, Clips


class BatchIds(NamedTuple):
    """The members of a batch, for objectives that need to know (``Objective.needs_ids``)."""

    videos: list[str]
    """The video of each clip."""
    clips: list[str]
    """The ``clip_id`` of each clip."""
    captions: list[str]
    """The number of each caption among all the data set's captions, in the order of ``storage.read_captions``."""

    @classmethod
    def of(cls, clips: Sequence[Clip], captions: CaptionTable) -> BatchIds:
        """Return the ids of clips and captions."""
        return cls([c.video_id for c in clips], [c.clip_id for c in clips], [*map(str, captions.selected.tolist())])


class ExtraInputs:
    """Makes the declared inputs of captions and clips: tensors by name."""

    def __init__(
        self, declared: Mapping[str, ExtraInput] | None = None, stores: Mapping[str, Store] | None = None
    ) -> None:
        """Prepare the inputs that a run declares; none by default.

        Args:
            declared: {name of the input: its declaration}
            stores: {features: store} of all ``FeatureRows``.

        Raises:
            UserError: The rows of a store are frame maps.
        """
        declared, stores = declared or {}, stores or {}
        for store in stores.values():
            if store.profile.name in FRAME_MAPS:
                raise UserError(f"{store.where}: its rows are frame maps; expected vectors for an input of your own")
        self._columns = {name: of.column for name, of in declared.items() if isinstance(of, CaptionColumn)}
        self._rows = {
            name: (ClipFeatures([stores[of.features]]), of.max_rows)
            for name, of in declared.items()
            if isinstance(of, FeatureRows)
        }
        self.stores = list(stores.values())
        """The stores that are read."""

    def of_captions(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return {name: float32 [B]}, without the columns in which one of the captions has no number."""
        return {
            name: torch.tensor([caption.extra[column] for caption in captions], dtype=torch.float32)
            for name, column in self._columns.items()
            if all(column in caption.extra for caption in captions)
        }

    def of_clips(self, clips: Sequence[Clip]) -> dict[str, Tensor]:
        """Return {name: rows [B, M, F]} and {name_mask: bool [B, M]}, as ``pad_rows`` makes them."""
        tensors = {}
        for name, (features, max_rows) in self._rows.items():
            found = iter(features.rows(_known(clips, features), max_rows))
            none = np.zeros((0, features.dim), np.float16)
            rows = [next(found) if clip.video_id in features else none for clip in clips]
            tensors[name], tensors[f"{name}_mask"] = pad_rows(rows, features.dim)
        return tensors

    def prefetch(self, clips: Sequence[Clip]) -> None:
        """Ask for the clips' rows, as ``ClipFeatures.prefetch``."""
        for features, _ in self._rows.values():
            features.prefetch(_known(clips, features))

    def check_captions(self, captions: CaptionTable) -> None:
        """Raise ``UserError`` unless each training caption has a number in each column."""
        for name, column in self._columns.items():
            if column not in captions.extra_columns:
                has = ", ".join(captions.extra_columns) or "none"
                raise UserError(
                    f"{captions.where}: no column {column!r} for the input {name!r}; it has {has}; add this column "
                    "of numbers to the caption file, and run vlalign-preprocess again"
                )
            lacking = np.flatnonzero(np.isnan(captions.extra_numbers(column)))
            if len(lacking):
                first = captions[int(lacking[0])]
                raise UserError(
                    f"{captions.where}: {len(lacking):,} of {number_of(len(captions), 'training captions')} have no "
                    f"number in column {column!r}, such as {first.caption[:60]!r} of {first.clip_id}; fill in the "
                    "caption file, and run vlalign-preprocess again"
                )

    def report_clips(self, clips: Clips) -> None:
        """Report how many clips have no rows in a store: they have one row of zeros."""
        for name, (features, _) in self._rows.items():
            known = np.array([video_id in features for video_id in clips.video_ids], dtype=bool)[clips.video]
            has_rows = features.has_rows([clips[index] for index in np.flatnonzero(known).tolist()])
            num_lacking = len(clips) - int(np.count_nonzero(has_rows))
            if num_lacking:
                say(
                    f"note: {features.stores[0].where}: {num_lacking:,} of {number_of(len(clips), 'training clips')} "
                    f"have no rows: their input {name!r} is one row of zeros"
                )


def _known(clips: Iterable[Clip], features: ClipFeatures) -> list[Clip]:
    return [clip for clip in clips if clip.video_id in features]
