"""Feature stores on disk: folders of shards with one profile. A shard with its final name is complete (``shards``)."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from ..common.errors import UserError
from ..common.terminal import note_once
from ..common.threads import map_in_threads
from ..profiles import BUILT_IN
from ..records import StoredVideo, VideoFeatures
from ..remote.store import RemoteStore, is_stub, remote_store
from ..shards.format import Shard
from ..shards.names import sort_shard_names, stamp_of, written_at_ns
from ..shards.read import ShardRows, read_shard
from ..shards.rewrite import ShardPart
from .store import ClipSpan, RowRange, RowTimes, Store, checksum_of_all, clip_record, rows_of_clip

T = TypeVar("T")

ROW_MASK = 0xFFFFFFFF
PREFETCHED_BYTES = 1 << 30
"""After this many prefetched bytes, earlier prefetches are taken as evicted from the page cache: their rows are
requested again when they are read. A request takes half as long as copying.
"""
NO_ROWS, NO_TIMES = np.empty((0, 0)), np.empty(0)
TIMES_AT_ONCE = 32
"""Number of remote shards whose times are requested in parallel."""
SHARDS_PER_THREAD = 16
"""Indexes that a thread reads in a row when a store is opened. Most stores have fewer shards."""


def shard_files(folder: Path) -> list[Path]:
    """Return the shards in a folder, oldest first: later shards replace videos of earlier ones."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(".h5") and not entry.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in sort_shard_names(names)]


def current_shards(folder: Path) -> list[Path]:
    """Return a store's shards, oldest first; for a remote store, the shards that it has now."""
    return remote.update() if (remote := remote_store(folder)) else shard_files(folder)


def is_store(folder: Path) -> bool:
    """Return True if the folder, or the remote store that it is linked to, has shards."""
    try:
        return bool(shard_files(folder) or ((remote := remote_store(folder)) and remote.names()))
    except UserError:  # opening the store reports why it cannot be read
        return True


def stores_in(folder: Path) -> list[str]:
    """Return the names of the folders in ``folder`` that are stores."""
    return sorted(path.name for path in folder.glob("*") if is_store(path))


class FeatureStore(Store):
    """Features in a folder of shards (see ``Store``). Threads, forked and spawned processes may share a store.

    Files are opened when they are needed. If two shards have the same video, the one with the later name is used.
    Names begin with the time of writing; shards whose names have no valid time are the oldest.

    Example:
        >>> from vlalign.storage import FeatureStore
        >>> store = FeatureStore("vlalign_data/demo/features/s3d")
        >>> len(store.video_ids()), "demo0000" in store
        (24, True)
        >>> store.get("demo0000", end_seconds=0.5).features.shape  # the first row
        (1, 1024)
    """

    MAX_OPEN_SHARDS = 128

    def __init__(self, folder: str | Path, *, check_rows: bool = False) -> None:
        """Open a store.

        Args:
            folder: The folder of the shards, or one that is linked to a remote store.
            check_rows: Compare a video with its checksum at every read, which reads all rows of the video.

        Raises:
            UserError: There is no store, a shard has another schema, or profiles or weights are mixed. With
                ``check_rows``, reading raises it for damaged rows.
        """
        self.folder = Path(folder)
        self.check_rows = check_rows
        self._snapshot = Snapshot(self.folder, self.MAX_OPEN_SHARDS)
        first = self._snapshot.shards[0]
        self.profile, self.weights, self.origin = first.profile, first.weights, first.origin

    @property
    def name(self) -> str:
        """Name of the store's folder."""
        return self.folder.name

    @property
    def where(self) -> str:
        """Path of the store's folder, for messages."""
        return str(self.folder)

    @property
    def shards(self) -> list[Shard]:
        """All shards, in order."""
        return self._snapshot.shards

    def video_ids(self) -> list[str]:
        """Return the ids of all videos."""
        return list(self._snapshot.positions)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._snapshot.positions

    def __len__(self) -> int:
        return len(self._snapshot.positions)

    def locate(self, video_id: str) -> tuple[Shard, np.void]:
        """Return the shard that a video is read from, and its entry in that shard's index.

        Args:
            video_id: Id of the video.
        """
        shard, index = self._snapshot.locate(video_id)
        return shard, shard.videos[index]

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, float64 [N, 2].

        From shards on another machine, only the times are fetched.

        Args:
            video_ids: Ids of N videos.
        """
        return self._read(lambda snapshot: snapshot.spans(video_ids))

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the index in ``shards`` of the shard that each video is read from, int64 [N].

        Args:
            video_ids: Ids of N videos.
        """
        return self._snapshot.shard_of(video_ids)

    def shard_parts(self) -> list[ShardPart]:
        """Return every shard with its videos that are in use; later shards replaced the others."""
        return self._snapshot.parts()

    @property
    def made_with(self) -> dict[str, set[str]]:
        """All values of ``Provenance.made_with`` in the shards, such as versions of programs."""
        made_with: dict[str, set[str]] = defaultdict(set)
        for shard in self.shards:
            for name, value in shard.made_with.items():
                made_with[name].add(value)
        return dict(made_with)

    def checksum(self, video_id: str) -> int:
        """Return the CRC-32 of a video's rows, as stored in its shard.

        Args:
            video_id: Id of the video.
        """
        return int(self.locate(video_id)[1]["checksum"])

    def rows_checksum(self) -> int:
        """Return a checksum of all videos and their rows, which does not depend on how they are split into shards."""
        checksums: dict[bytes, int] = {}
        for table in (part.videos for part in self.shard_parts()):
            checksums.update(zip(table["video_id"].tolist(), table["checksum"].tolist(), strict=True))
        return checksum_of_all(checksums)

    def about(self, video_id: str) -> StoredVideo:
        """Return the facts about a video, without reading its rows.

        Args:
            video_id: Id of the video.
        """
        return self._snapshot.about(video_id)

    def source(self, video_id: str) -> str:
        """Return the identity of the file that the features were made from.

        Args:
            video_id: Id of the video.
        """
        return self.locate(video_id)[1]["source"].decode()

    def duration_seconds(self, video_id: str) -> float:
        """Return the time at which the frames, or the sound, end.

        Args:
            video_id: Id of the video.
        """
        return float(self.locate(video_id)[1]["duration_seconds"])

    def partial(self, video_id: str) -> str:
        """Return a text that names missing or damaged parts of the video; empty if it is complete.

        Args:
            video_id: Id of the video.
        """
        return self.locate(video_id)[1]["partial"].decode()

    def written_at_ns(self, video_id: str) -> int:
        """Return when the shard of a video was written, in nanoseconds since 1970; 0 if its name has no time.

        Args:
            video_id: Id of the video.
        """
        return written_at_ns(self.locate(video_id)[0].path)

    def get_clips(self, clips: Sequence[ClipSpan], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """Return the rows of many clips, in the order of ``clips``. With ``dtype`` None, the arrays are read-only.

        Frames are then read from disk only when the caller accesses them, page by page, since few of a clip's many
        frames are used. ``get_rows`` requests all frames of its ranges at once.

        Args:
            clips: Video id, start and end in seconds of each clip; None for the start or the end of the video.
            dtype: Type of the features; None for the type that they are stored in.
        """

        def read(snapshot: Snapshot) -> list[VideoFeatures]:
            ranges = snapshot.row_ranges(clips)
            rows = snapshot.get_rows(ranges, check=self.check_rows, is_prefetched=not self.profile.is_frames)
            return [
                clip_record(snapshot.about(row_range[0]), snapshot.row_times(row_range[0]), row_range, features, dtype)
                for row_range, features in zip(ranges, rows, strict=True)
            ]

        return self._read(read)

    def row_times(self, video_id: str) -> RowTimes:
        """Return the times of a video's rows.

        Args:
            video_id: Id of the video.
        """
        return self._read(lambda snapshot: snapshot.row_times(video_id))

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches (``rows_of_clip``), without reading features.

        Args:
            clips: Video id, start and end in seconds of each clip; None for the start or the end of the video.
        """
        return self._read(lambda snapshot: snapshot.row_ranges(clips))

    def get_rows(self, ranges: Sequence[RowRange]) -> list[np.ndarray]:
        """Return the features [T, D] of each range as they are stored: read-only arrays over the files.

        All rows are requested from the disk at once, in their order on it.

        Args:
            ranges: Video id, first row and the row after the last, of each range.
        """
        return self._read(lambda snapshot: snapshot.get_rows(ranges, check=self.check_rows))

    def _read(self, read: Callable[[Snapshot], T]) -> T:
        """Read an answer from one snapshot, so that threads may read while the store is compacted."""
        while True:
            snapshot = self._snapshot
            try:
                return read(snapshot)
            except FileNotFoundError:  # the store was compacted: the same rows are in other shards now
                self._snapshot = Snapshot(self.folder, self.MAX_OPEN_SHARDS)


class Snapshot:
    """The shards of a store at one time, and the position of each video in them.

    A snapshot does not change, except for its open files and the record of requested rows.
    """

    def __init__(self, folder: Path, max_open_shards: int) -> None:
        """Read the index of every shard.

        Raises ``UserError`` if there are none, or if two profiles or weights are mixed.
        """
        self.folder, self.max_open_shards = folder, max_open_shards
        self.remote = remote_store(folder)
        self.shards = _read_shards(folder, self.remote)
        self._check()
        # Shard number and place in its index in one integer, so that a million videos need little memory.
        self.positions: dict[str, int] = {}
        for number, shard in enumerate(self.shards):
            first = number << 32
            ids = [video_id.decode() for video_id in shard.videos["video_id"].tolist()]
            self.positions.update(zip(ids, range(first, first + len(ids)), strict=True))
        self._open: dict[int, ShardRows] = {}
        self._prefetched: dict[str, tuple[int, int, int, ShardRows]] = {}
        """{video: (low, high, first row, rows)}: the recently requested rows [low, high), and the video's first row in
        its shard.
        """
        self._prefetched_bytes = 0

    def _check(self) -> None:
        if undated := [shard.path.name for shard in self.shards if not stamp_of(shard.path.name)]:
            note_once(
                f"note: {self.folder}: {len(undated):,} shards, such as {undated[0]!a}, have no valid time in their "
                "names; they count as the oldest"
            )
        first = self.shards[0]
        for shard in self.shards:
            if shard.key != first.key:
                raise UserError(
                    f"{self.folder}: mixed features: {shard.path.name} has {shard.describe()}, {first.path.name} has "
                    f"{first.describe()}; keep one and remove the other"
                )

    def locate(self, video_id: str) -> tuple[Shard, int]:
        """Return the shard that a video is read from, and its place in that shard's index."""
        position = self.positions[video_id]
        return self.shards[position >> 32], position & ROW_MASK

    def shard_of(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return the number of the shard that each video is read from."""
        return np.fromiter((self.positions[video_id] >> 32 for video_id in video_ids), np.int64, len(video_ids))

    def spans(self, video_ids: Sequence[str]) -> np.ndarray:
        """Return when the first row of each video starts and its last row ends, float64 [N, 2]."""
        positions = np.fromiter((self.positions[video_id] for video_id in video_ids), np.int64, len(video_ids))
        numbers, of_positions = np.unique(positions >> 32, return_inverse=True)
        groups = np.split(np.argsort(of_positions, kind="stable"), np.cumsum(np.bincount(of_positions))[:-1])

        def read(place: int) -> tuple[np.ndarray, np.ndarray]:
            shard = self.shards[numbers[place]]
            of_videos = shard.videos[positions[groups[place]] & ROW_MASK]
            first, num_rows = of_videos["first_row"], of_videos["num_rows"]
            has_rows = num_rows > 0
            spans = np.full((len(of_videos), 2), np.nan)
            starts, ends = self._times(shard, int(numbers[place])) if has_rows.any() else (NO_TIMES, NO_TIMES)
            spans[has_rows, 0] = starts[first[has_rows]]
            spans[has_rows, 1] = ends[(first + num_rows)[has_rows] - 1]
            return groups[place], spans

        spans = np.full((len(positions), 2), np.nan)
        with ThreadPoolExecutor(TIMES_AT_ONCE if self.remote else 1) as pool:
            for group, of_group in pool.map(read, range(len(numbers))):
                spans[group] = of_group
        return spans

    def _times(self, shard: Shard, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return when each row of a shard starts and ends, without fetching the other columns of a remote shard."""
        if number not in self._open and self.remote and is_stub(shard.path):
            return self.remote.times(shard)
        columns = self._rows_of(number).columns
        return columns["start_seconds"], columns["end_seconds"]

    def parts(self) -> list[ShardPart]:
        """Return every shard with its videos that are in use; later shards replaced the others."""
        positions = np.sort(np.fromiter(self.positions.values(), np.int64, len(self.positions)))
        borders = np.searchsorted(positions, np.arange(len(self.shards) + 1) << 32)
        kept = (positions[low:high] & ROW_MASK for low, high in pairwise(borders))
        return [ShardPart(shard, rows) for shard, rows in zip(self.shards, kept, strict=True)]

    def about(self, video_id: str) -> StoredVideo:
        """Return the facts about a video in the index."""
        shard, index = self.locate(video_id)
        video = shard.videos[index]
        return StoredVideo(
            video_id=video_id,
            num_rows=int(video["num_rows"]),
            duration_seconds=float(video["duration_seconds"]),
            source=video["source"].decode(),
            decoder=video["decoder"].decode(),
            partial=video["partial"].decode(),
        )

    def rows(self, video_id: str) -> tuple[ShardRows, int]:
        """Return the open shard that a video is read from, and its place in that shard's index."""
        position = self.positions[video_id]
        return self._rows_of(position >> 32), position & ROW_MASK

    def _rows_of(self, number: int) -> ShardRows:
        rows = self._open.get(number)
        if rows is None:
            shard = self.shards[number]
            rows = self._open[number] = self.remote.rows(shard) if self.remote else ShardRows(shard)
            if shard.profile.is_frames:
                rows.expect_few_rows()
            while len(self._open) > self.max_open_shards:
                with contextlib.suppress(StopIteration, RuntimeError):  # another thread was faster
                    self._open.pop(next(iter(self._open)), None)  # closes once no array refers to it
                self._prefetched.clear()
        return rows

    def _columns(self, video_id: str, *names: str) -> list[np.ndarray]:
        rows, index = self.rows(video_id)
        first, num_rows = rows.first_rows[index], rows.num_rows[index]
        return [rows.columns[name][first : first + num_rows] for name in names]

    def row_ranges(self, clips: Sequence[ClipSpan]) -> list[RowRange]:
        """Return the rows that each clip touches."""
        if self.remote:  # fetches several shards at once
            numbers = {self.positions[video_id] >> 32 for video_id, _, _ in clips} - self._open.keys()
            self.remote.fetch_all(self.shards[number].path for number in numbers)
        for video_id, _, _ in clips:
            self.rows(video_id)  # opens all shards, which requests their times, before any is waited for
        ranges = []
        for video_id, start_seconds, end_seconds in clips:
            starts, ends = self._columns(video_id, "start_seconds", "end_seconds")
            part = rows_of_clip(starts, ends, start_seconds, end_seconds)
            ranges.append((video_id, part.start, part.stop))
        return ranges

    def get_rows(self, ranges: Sequence[RowRange], *, check: bool, is_prefetched: bool = True) -> list[np.ndarray]:
        """Return the features of each range.

        Rows that were not recently requested are requested from the disk together, in their order on it.

        Args:
            ranges: The rows to return.
            check: Compare the rows of each video with their checksum; raises ``UserError`` for damage.
            is_prefetched: Request the rows from the disk; if false, they are read on access.
        """
        parts: list[np.ndarray] = [NO_ROWS] * len(ranges)
        new = []
        prefetched = self._prefetched
        for index, (video_id, low, high) in enumerate(ranges):  # hot loop: 20 us a range, 16 of them to copy it
            known = prefetched.get(video_id)
            if not is_prefetched:
                rows, place = self.rows(video_id)
                parts[index] = rows.features[rows.first_rows[place] + low : rows.first_rows[place] + high]
            elif known is None or low < known[0] or high > known[1]:
                new.append((self.positions[video_id], index))
            else:
                first = known[2]
                parts[index] = known[3].features[first + low : first + high]
        for _, index in sorted(new):
            parts[index] = self._prefetch(*ranges[index])
        if check:
            for video_id, _, _ in ranges:
                self._check_rows(video_id)
        return parts

    def _prefetch(self, video_id: str, low: int, high: int) -> np.ndarray:
        """Request rows [low, high) of a video from the disk, except rows that were already requested."""
        rows, index = self.rows(video_id)
        first = rows.first_rows[index]
        known_low, known_high, _, _ = self._prefetched.get(video_id, (low, low, first, rows))
        if low > known_high or high < known_low:  # no row in common: remember only the new rows
            known_low = known_high = low
        self._prefetched_bytes += rows.prefetch(first + low, first + known_low)
        self._prefetched_bytes += rows.prefetch(first + known_high, first + high)
        if self._prefetched_bytes > PREFETCHED_BYTES:
            self._prefetched_bytes = 0
            self._prefetched.clear()
        self._prefetched[video_id] = min(low, known_low), max(high, known_high), first, rows
        return rows.features[first + low : first + high]

    def _check_rows(self, video_id: str) -> None:
        rows, index = self.rows(video_id)
        first = rows.first_rows[index]
        rows.prefetch(first, first + rows.num_rows[index])
        if rows.is_damaged(index):
            raise UserError(
                f"{rows.shard.path}: the rows of {video_id!r} are damaged; drop them with vlalign-store repair "
                f"{self.folder}, then run vlalign-extract again"
            )

    def row_times(self, video_id: str) -> RowTimes:
        """Return the times of a video's rows."""
        return RowTimes(*self._columns(video_id, *RowTimes._fields))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_prefetched": {}}


def _read_shards(folder: Path, remote: RemoteStore | None) -> list[Shard]:
    """Read all shards; list them again if some were compacted between listing and reading."""
    missing = None
    while True:
        try:
            paths = remote.update() if remote else shard_files(folder)
            shards = list(map_in_threads(read_shard, paths, calls_per_part=SHARDS_PER_THREAD))
        except FileNotFoundError as error:
            if error.filename == missing:
                raise UserError(f"{missing}: a symlink without a target; remove it") from None
            missing = error.filename
            continue
        if not shards:
            named = folder.name if folder.name in BUILT_IN else "NAME, or hf:ORG/MODEL for a hub model"
            raise UserError(f"{folder}: no feature store (no *.h5); make it with vlalign-extract --features {named}")
        if remote or shard_files(folder) == [shard.path for shard in shards]:
            return shards
