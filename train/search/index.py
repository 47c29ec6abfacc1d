"""The index of a data set: its search windows, and their vectors in files that are mapped into memory.

An index shard is one safetensors file with the windows of some videos. A shard that has its final name is complete and
never changes. Which windows are current is decided when an index is opened: those whose video still has the rows that
they were made from. So a video is added by another shard, and removed by removing it from the store.
"""

import hashlib
import json
import math
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.tensor_files import SUFFIX, TensorFile, release, write_tensors
from ...storage.common.writing import remove_file
from ...storage.dataset.folder import DatasetFolder
from ...storage.stores.store import Store
from ..data.clips import Clip
from .encoder import SearchEncoder
from .shot_windows import (
    MAX_WINDOW_SECONDS,
    MIN_WINDOW_SECONDS,
    WindowKind,
    open_shots,
    plan_shot_windows,
    read_window_kind,
)

SEARCH_WINDOW_SECONDS = (4.0, 8.0, 16.0)
"""Lengths of windows. Windows of one length overlap by half."""
ROUNDING_SECONDS = 1e-6
FORMAT = 1
TYPES = {
    "vectors": ("F16", 2),
    "spans": ("F64", 2),
    "video": ("I32", 1),
    "first": ("I64", 1),
    "ids": ("U8", 1),
    "checksums": ("I64", 1),
}
"""{tensor: type, dimensions}: vectors [W, D]; spans [W, 2] in seconds; index of each window's video [W]; where each id
begins in ``ids``, and its end [V + 1]; all ids in UTF-8; checksums of the rows that the videos had [V]."""
DAMAGE, REMEDY = "not a shard of a search index", "remove it and run vlalign-index"


def plan_search_windows(duration_seconds: float, lengths: tuple[float, ...] = SEARCH_WINDOW_SECONDS) -> np.ndarray:
    """Return the windows of a video: the whole video, then windows of each shorter length, in order of time.

    The last window of a length ends with the video.

    >>> plan_search_windows(7.0, (4.0, 8.0)).tolist()
    [[0.0, 7.0], [0.0, 4.0], [2.0, 6.0], [3.0, 7.0]]

    Args:
        duration_seconds: When the video ends.
        lengths: Lengths of windows in seconds, ascending.

    Returns:
        Start and end of each window in seconds, float64 [W, 2].
    """
    windows = [np.array([[0.0, duration_seconds]])]
    for length in lengths:
        if length >= duration_seconds - ROUNDING_SECONDS:
            break
        stride = length / 2
        num_inside = math.floor((duration_seconds - length) / stride + ROUNDING_SECONDS) + 1
        starts = stride * np.arange(num_inside)
        if starts[-1] + length < duration_seconds - ROUNDING_SECONDS:
            starts = np.append(starts, duration_seconds - length)
        windows.append(np.stack([starts, starts + length], axis=1))
    return np.concatenate(windows)


def clips_of(video_id: str, windows: np.ndarray) -> list[Clip]:
    """Return the windows of a video as clips; the first is the whole video (``plan_search_windows``)."""
    parts = [Clip(video_id, float(start), float(end)) for start, end in windows[1:].tolist()]
    return [Clip(video_id, None, None), *parts]


@dataclass(frozen=True)
class IndexShard:
    """The windows of some videos."""

    path: Path
    key: str
    """Everything that the vectors depend on, as JSON."""
    vectors: np.ndarray
    """float16 [W, D], mapped."""
    spans: np.ndarray
    """float64 [W, 2], in seconds, mapped."""
    video: np.ndarray
    """int32 [W]: index of each window's video."""
    video_ids: list[str]
    checksums: np.ndarray
    """int64 [V]"""


def write_index_shard(
    folder: Path,
    key: str,
    videos: Mapping[str, int],
    windows: Sequence[np.ndarray],
    vectors: Sequence[np.ndarray],
) -> Path:
    """Write a shard, whole or not at all; return its path.

    Args:
        folder: Folder of the index.
        key: What the vectors depend on, as JSON.
        videos: {video id: checksum of its rows}
        windows: Start and end in seconds of each video's windows [W, 2].
        vectors: Vectors of each video's windows [W, D].
    """
    ids = [video_id.encode() for video_id in videos]
    tensors = {
        "vectors": np.concatenate(vectors).astype(np.float16),
        "spans": np.concatenate(windows).astype(np.float64),
        "video": np.repeat(np.arange(len(ids), dtype=np.int32), [len(of_video) for of_video in windows]),
        "first": np.cumsum([0, *map(len, ids)], dtype=np.int64),
        "ids": np.frombuffer(b"".join(ids), dtype=np.uint8),
        "checksums": np.array(list(videos.values()), dtype=np.int64),
    }
    path = folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}{SUFFIX}"
    write_tensors(path, tensors, {"format": str(FORMAT), "key": key})
    return path


def shard_files(folder: Path) -> list[Path]:
    """Return the files of all shards, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if not path.name.startswith("."))


def read_index_shard(path: Path) -> IndexShard:
    """Open a shard. Its vectors are mapped, not read.

    Raises:
        UserError: The file is cut, damaged, or not a shard of an index.
    """
    file = TensorFile(path, TYPES, FORMAT, DAMAGE, REMEDY)
    with refuse_unreadable(path, DAMAGE, REMEDY):
        return _checked(path, str(file.about["key"]), file.arrays)


def _checked(path: Path, key: str, arrays: Mapping[str, np.ndarray]) -> IndexShard:
    """Return a shard after checking that its columns match. Raises ``ValueError`` otherwise."""
    vectors, spans, video, first = (arrays[name] for name in ("vectors", "spans", "video", "first"))
    num_videos, num_windows = len(arrays["checksums"]), len(vectors)
    if spans.shape != (num_windows, 2) or video.shape != (num_windows,) or first.shape != (num_videos + 1,):
        raise ValueError("its columns have different lengths")
    video, first = np.array(video), np.array(first)
    if num_windows and not (video.min() >= 0 and video.max() < num_videos):
        raise ValueError("a window of an unlisted video")
    if (np.diff(video) < 0).any():
        raise ValueError("windows of a video that are not together")
    if not np.isfinite(spans).all() or (spans[:, 0] > spans[:, 1]).any() or (spans < 0).any():
        raise ValueError("a window without a valid time")
    ids = arrays["ids"].tobytes()
    if first[0] != 0 or first[-1] != len(ids) or (np.diff(first) <= 0).any():
        raise ValueError("its list of videos is damaged")
    borders = first.tolist()
    video_ids = [ids[low:high].decode() for low, high in pairwise(borders)]
    return IndexShard(path, key, vectors, spans, video, video_ids, np.array(arrays["checksums"]))


@dataclass(frozen=True)
class IndexState:
    """The difference between an index and the current features."""

    num_current: int
    """Number of videos with current windows."""
    missing: list[str]
    """Videos without current windows, sorted."""
    num_outdated: int
    """Number of videos whose features changed or were removed after their windows were made."""
    other: list[Path]
    """Shards that were made from another model or with other settings."""


class WindowIndex:
    """The current windows of the shards in a folder."""

    def __init__(
        self, shards: Sequence[IndexShard], key: str, checksums: Mapping[str, int], has_shots: bool = False
    ) -> None:
        """Take shards from ``read_index_shard``.

        Args:
            shards: All shards, oldest first. If two have the same video, the later one is used.
            key: Key of the shards to use; other shards are skipped.
            checksums: {video id: checksum of its rows now}
            has_shots: True if windows are shots.
        """
        self.has_shots = has_shots
        fitting = [shard for shard in shards if shard.key == key]
        self.video_ids = list(checksums)
        self._number_of = {video_id: number for number, video_id in enumerate(checksums)}
        newest: dict[str, int] = {}
        num_outdated = 0
        for index, shard in enumerate(fitting):
            for video_id, checksum in zip(shard.video_ids, shard.checksums.tolist(), strict=True):
                if checksums.get(video_id) == checksum:
                    newest[video_id] = index
                else:
                    num_outdated += 1
        self.shards: list[IndexShard] = []
        video: list[np.ndarray] = [np.zeros(0, np.int32)]
        for index, shard in enumerate(fitting):
            # -1 for a video that is gone or changed, or whose windows are in a later shard.
            numbers = [self._number_of[v] if newest.get(v) == index else -1 for v in shard.video_ids]
            if max(numbers, default=-1) >= 0:
                self.shards.append(shard)
                video.append(np.array(numbers, dtype=np.int32)[shard.video])
        self.video = np.concatenate(video)
        """Index of each window's video among ``video_ids``; -1 for a window that is not current."""
        self._first_of, self._end_of = self._ranges()
        self.is_live = self.video >= 0
        self.num_windows = int(self.is_live.sum())
        self.first_row = np.cumsum([0, *(len(shard.vectors) for shard in self.shards)])
        missing = sorted(checksums.keys() - newest.keys())
        self.state = IndexState(len(newest), missing, num_outdated, [p.path for p in shards if p.key != key])

    @property
    def dim(self) -> int:
        """Width of a vector; 0 without windows."""
        return self.shards[0].vectors.shape[1] if self.shards else 0

    def blocks(self, num_rows: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first window, vectors float16 [N, D]) of up to ``num_rows`` windows at a time, in order."""
        for first, shard in zip(self.first_row.tolist(), self.shards, strict=False):
            for low in range(0, len(shard.vectors), num_rows):
                yield first + low, shard.vectors[low : low + num_rows]

    def rows_of(self, video_id: str) -> np.ndarray:
        """Return the indices of a video's windows."""
        number = self._number_of.get(video_id)
        return np.arange(0) if number is None else np.arange(self._first_of[number], self._end_of[number])

    def rows_of_all(self, video_ids: Iterable[str]) -> np.ndarray:
        """Return the indices of the windows of some videos, ascending; unknown ids have none."""
        known = (number for video_id in set(video_ids) if (number := self._number_of.get(video_id)) is not None)
        numbers = np.fromiter(known, np.int64)
        first, counts = self._first_of[numbers], (self._end_of - self._first_of)[numbers]
        before = np.cumsum(counts) - counts
        return np.sort(np.repeat(first - before, counts) + np.arange(counts.sum()))

    def of_video(self, video_id: str) -> tuple[np.ndarray, np.ndarray]:
        """Return spans float64 [N, 2] and vectors float16 [N, D] of a video's windows: mapped, not read, since all lie
        in one shard."""
        rows = self.rows_of(video_id)
        if not len(rows):
            return np.zeros((0, 2)), np.zeros((0, self.dim), np.float16)
        number = int(np.searchsorted(self.first_row, rows[0], side="right")) - 1
        first, shard = int(rows[0] - self.first_row[number]), self.shards[number]
        return shard.spans[first : first + len(rows)], shard.vectors[first : first + len(rows)]

    def _ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (first row, end) of each video's windows, which are contiguous."""
        first = np.flatnonzero(np.diff(self.video, prepend=-2))
        end = np.append(first[1:], len(self.video))
        live = self.video[first] >= 0
        numbers = self.video[first[live]]
        first_of, end_of = np.zeros((2, len(self.video_ids)), np.int64)
        first_of[numbers], end_of[numbers] = first[live], end[live]
        return first_of, end_of

    def whole_videos(self) -> np.ndarray:
        """Return the index of each video's first window, which is the whole video (see ``plan_search_windows``)."""
        live = np.flatnonzero(self.is_live)
        return live[np.unique(self.video[live], return_index=True)[1]]

    def vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors of some windows, float32 [N, D]."""
        return self.halves_of(rows).astype(np.float32)

    def halves_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the stored vectors of some windows, float16 [N, D]."""
        vectors = np.zeros((len(rows), self.dim), dtype=np.float16)
        for chosen, shard, in_shard in self._by_shard(rows):
            vectors[chosen] = shard.vectors[in_shard]
            release(shard.vectors)
        return vectors

    def spans_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the starts and ends of some windows in seconds, float64 [N, 2]."""
        spans = np.zeros((len(rows), 2))
        for chosen, shard, in_shard in self._by_shard(rows):
            spans[chosen] = shard.spans[in_shard]
        return spans

    def _by_shard(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, IndexShard, np.ndarray]]:
        """Yield (mask of the rows in a shard, the shard, their positions in it)."""
        shard_of = np.searchsorted(self.first_row, rows, side="right") - 1
        for number in np.unique(shard_of).tolist():
            chosen = shard_of == number
            yield chosen, self.shards[number], rows[chosen] - self.first_row[number]


def open_index_shards(folder: Path) -> list[IndexShard]:
    """Open all shards in a folder. A shard that was removed meanwhile is skipped.

    Raises:
        UserError: A shard is damaged.
    """
    shards = []
    for path in shard_files(folder):
        try:
            shards.append(read_index_shard(path))
        except UserError:
            if path.exists():
                raise
    return shards


def remove_index_shards(paths: Sequence[Path]) -> None:
    """Remove shards; missing ones are ignored."""
    for path in paths:
        remove_file(path, missing_ok=True)


@dataclass(frozen=True)
class IndexFolder:
    """The folder of a data set's index for one encoder, and the key that its shards must have."""

    encoder: SearchEncoder
    path: Path
    key: str
    shots: Store | None = None
    """The shots that are the windows; None for windows of fixed lengths."""

    @classmethod
    def of(cls, encoder: SearchEncoder, windows: WindowKind | None = None) -> "IndexFolder":
        """Return the index folder of an encoder.

        Args:
            encoder: The encoder.
            windows: Kind of windows that the index should have; None: the kind that it has.

        Raises:
            UserError: Windows should be shots, but the data set has no shots.
        """
        path, shots = index_folder(encoder.dataset, encoder.name), None
        rule: dict[str, Any] = {"window_seconds": list(SEARCH_WINDOW_SECONDS)}
        if (windows or read_window_kind(path)) == "shots":
            shots = open_shots(encoder.dataset)
            rule["shots"] = [shots.profile.hash, MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS]
        return cls(encoder, path, json.dumps(encoder.identity | rule, sort_keys=True), shots)

    def lacks_shots(self, video_id: str) -> bool:
        """Return whether windows should be shots, but a video has none."""
        return self.shots is not None and video_id not in self.shots

    def windows(self, video_id: str) -> np.ndarray:
        """Return the windows of a video, the whole first: float64 [W, 2] in seconds.

        They are its shots if the index has shots; otherwise, or if its shots are missing, they have fixed lengths.
        """
        duration = self.encoder.duration_seconds(video_id)
        if self.shots is None or video_id not in self.shots:
            return plan_search_windows(duration)
        return plan_shot_windows(duration, self.shots.row_times(video_id).start_seconds)

    def checksum(self, video_id: str) -> int:
        """Return a checksum of all rows that decide a video's windows and their vectors, 0 to 2**63 - 1."""
        rows = self.encoder.checksum(video_id)
        if self.shots is None or video_id not in self.shots:
            return rows
        both = f"{rows} {self.shots.checksum(video_id)}".encode()
        return int.from_bytes(hashlib.sha256(both).digest()[:8], "little") >> 1

    def open(self) -> WindowIndex:
        """Open the current windows.

        Raises:
            UserError: A shard is damaged.
        """
        encoder = self.encoder
        checksums = {video_id: self.checksum(video_id) for video_id in encoder.video_ids()}
        return WindowIndex(open_index_shards(self.path), self.key, checksums, has_shots=self.shots is not None)


def index_folder(dataset: DatasetFolder, name: str) -> Path:
    """Return the folder of the index of features or a run."""
    safe = "".join(c if c.isalnum() or c in "._+-" else "_" for c in name).lstrip(".") or "_"
    return dataset.path / "index" / safe
