"""Rows of features for clips."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...storage.profiles import FRAME_MAPS
from ...storage.records import VideoFeatures
from ...storage.stores.store import Store
from .clips import Clip, Clips, evenly


class ClipFeatures:
    """Rows of features for any clip, from one store or from several that are aligned in time and joined."""

    def __init__(self, stores: Sequence[Store], grid: tuple[int, int, int] | None = None) -> None:
        """Read from open stores.

        Args:
            stores: One or more; their rows are joined.
            grid: (time, height, width) for stores of frame maps: a clip's rows are the means of this many cells of its
                maps, joined cell by cell.
        """
        self.stores, self.grid = list(stores), grid
        self.dim = sum(_channels(store) for store in self.stores)

    def __contains__(self, video_id: str) -> bool:
        return all(video_id in store for store in self.stores)

    def video_ids(self) -> list[str]:
        """Return the videos that all stores have."""
        return [v for v in self.stores[0].video_ids() if v in self]

    def duration_seconds(self, video_id: str) -> float:
        """Return the duration of a video."""
        return self.stores[0].duration_seconds(video_id)

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the start and end of the time in which all stores have rows of each video, in seconds, float64 [N, 2].

        NaN for a video without rows in one of the stores.
        """
        spans = np.stack([store.spans(video_ids) for store in self.stores])
        return np.stack([spans[:, :, 0].max(axis=0), spans[:, :, 1].min(axis=0)], axis=1)

    def has_rows(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return whether each clip has rows in all stores, bool [N] (see ``rows_of_clip``)."""
        table = Clips.of(clips)
        return clips_with_rows(self.spans(table.video_ids)[table.video], table.start_seconds, table.end_seconds)

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the number of each video's shard in the first store."""
        return self.stores[0].shard_of(video_ids)

    def rows(self, clips: Sequence[Clip], max_rows: int) -> list[np.ndarray]:
        """Return the rows [T, D] of each clip; none for a clip past the video's end.

        If there are several stores, the one with the most rows sets the times, and each other store gives the row that
        covers the middle of each time. Do not write to the arrays: they may be the store's own.

        Args:
            clips: The clips.
            max_rows: Upper limit of T; longer clips' rows are evenly chosen.
        """
        return [rows for rows, _ in self.timed_rows(clips, max_rows)]

    def prefetch(self, clips: Sequence[Clip]) -> None:
        """Ask for the clips' rows without waiting for a disk; shards on another machine are fetched."""
        spans = [(clip.video_id, clip.start_seconds, clip.end_seconds) for clip in clips]
        for store in self.stores:
            store.get_rows(store.row_ranges(spans))  # arrays over files: nothing is copied

    def timed_rows(self, clips: Sequence[Clip], max_rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ``rows`` of each clip, and when each starts and ends [T, 2], in seconds."""
        spans = [(clip.video_id, clip.start_seconds, clip.end_seconds) for clip in clips]
        parts = [store.get_clips(spans, dtype=None) for store in self.stores]
        if self.grid is None:
            return [_at_most(*_join(of_clip), max_rows) for of_clip in zip(*parts, strict=True)]
        grid = self.grid
        return [self._cells(of_clip, max_rows, grid) for of_clip in zip(*parts, strict=True)]

    def _cells(
        self, parts: Sequence[VideoFeatures], max_rows: int, grid: tuple[int, int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the cells of a clip's maps [T H W, C], with all stores joined, and the times of each."""
        found = []
        for store, part in zip(self.stores, parts, strict=True):
            rows, times = _at_most(*_join([part]), max_rows)
            found.append(_averaged(rows.reshape(-1, *FRAME_MAPS[store.profile.name]), times, grid))
        if any(not len(cells) for cells, _ in found):
            return np.zeros((0, self.dim), np.float32), found[0][1][:0]
        return np.concatenate([cells for cells, _ in found], axis=1), found[0][1]

    def batch(self, clips: Sequence[Clip], max_rows: int) -> tuple[Tensor, Tensor]:
        """Return features [B, M, D], padded with zeros, and the mask [B, M], True for a row."""
        return pad_rows(self.rows(clips, max_rows), self.dim)

    def pooled(self, clips: Sequence[Clip]) -> np.ndarray:
        """Return the maximum over each clip's rows, or over its maps' cells, float32 [B, D].

        Each store's part is scaled to length 1, as in HowTo100M's loader. A clip past the video's end has zeros.
        """
        spans = [(clip.video_id, clip.start_seconds, clip.end_seconds) for clip in clips]
        return np.concatenate([_pooled(store, spans) for store in self.stores], axis=1)


def clips_with_rows(spans_N2: np.ndarray, start_N: np.ndarray, end_N: np.ndarray) -> np.ndarray:
    """Return whether ``rows_of_clip`` gives a clip any row, bool [N].

    rows from 0 to 10 s: clip 9.9 to 10.3 -> True, 10.0 to 10.3 -> False

    Args:
        spans_N2: When the first row of the clip's video starts, and its last row ends; NaN if it has none.
        start_N: Start of each clip; NaN for the start of the video.
        end_N: End of each clip, not before its start; NaN for the end of the video.
    """
    is_outside = (start_N >= spans_N2[:, 1]) | (end_N < spans_N2[:, 0])
    return ~is_outside & ~np.isnan(spans_N2).any(axis=1)


def _channels(store: Store) -> int:
    """Return the width of a row, or of a cell if rows are frame maps."""
    *_, channels = FRAME_MAPS.get(store.profile.name, (store.profile.dimension,))
    return channels


def _averaged(maps_THWC: np.ndarray, times: np.ndarray, grid: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of a clip's maps in the cells of a grid [T' H' W', C], and the times of each.

    If a grid does not divide the maps evenly, its cells overlap, as in torch's adaptive pooling.
    """
    if not len(maps_THWC):
        return np.zeros((0, maps_THWC.shape[-1]), np.float32), times[:0]
    maps_CTHW = torch.from_numpy(maps_THWC.astype(np.float32)).movedim(-1, 0)
    means_CP = F.adaptive_avg_pool3d(maps_CTHW, grid).flatten(1)
    starts = np.arange(grid[0]) * len(times) // grid[0]
    ends = -(np.arange(1, grid[0] + 1) * -len(times) // grid[0])
    spans = np.stack([times[starts, 0], times[ends - 1, 1]], axis=1)
    return means_CP.T.numpy(), spans.repeat(grid[1] * grid[2], axis=0)


def _pooled(store: Store, clips: Sequence[tuple[str, float | None, float | None]]) -> np.ndarray:
    pooled = np.zeros((len(clips), _channels(store)), dtype=np.float32)
    for index, clip in enumerate(store.get_clips(clips, dtype=None)):
        if len(clip.features):
            pooled[index] = clip.features.reshape(-1, pooled.shape[1]).max(axis=0)
    return pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def pad_rows(rows: Sequence[np.ndarray], dim: int) -> tuple[Tensor, Tensor]:
    """Return rows [B, M, D], padded with zeros to the longest, and the mask [B, M], True for a row.

    A clip without rows has one row of zeros, because a mean or a softmax over nothing is not a number. Rows
    of float16 stay float16, which halves the copy to the device; frames stay bytes.
    """
    kinds = {part.dtype for part in rows}
    kind = np.dtype(np.uint8) if kinds == {np.dtype(np.uint8)} else np.result_type(np.float16, *kinds)
    features = np.zeros((len(rows), max(1, *map(len, rows)), dim), dtype=kind)
    mask = torch.zeros(features.shape[:2], dtype=torch.bool)
    for index, part in enumerate(rows):
        features[index, : len(part)] = part
        mask[index, : max(len(part), 1)] = True
    return torch.from_numpy(features), mask


def _join(parts: Sequence[VideoFeatures]) -> tuple[np.ndarray, np.ndarray]:
    leader = max(parts, key=lambda part: len(part.features))
    times = np.stack([leader.start_seconds, leader.end_seconds], axis=1)
    if len(parts) == 1:
        return leader.features, times
    if any(len(part.features) == 0 for part in parts):
        return np.zeros((0, sum(part.features.shape[1] for part in parts)), dtype=np.float32), times[:0]
    middles = times.mean(axis=1)
    chosen = [np.clip(np.searchsorted(part.start_seconds, middles, side="right") - 1, 0, None) for part in parts]
    return np.concatenate([part.features[rows] for part, rows in zip(parts, chosen, strict=True)], axis=1), times


def _at_most(rows: np.ndarray, times: np.ndarray, max_rows: int) -> tuple[np.ndarray, np.ndarray]:
    if len(rows) <= max_rows:
        return rows, times
    chosen = evenly(len(rows), max_rows)
    return rows[chosen], times[chosen]
