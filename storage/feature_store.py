"""The feature store: a folder of shards with one profile. What has a final name is whole (``shards.py`` says how)."""

import contextlib
import os
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import DTypeLike

from .common.errors import UserError
from .common.terminal import note_once
from .records import VideoFeatures
from .remote.store import RemoteStore, remote_store
from .shard_names import in_order, stamp_of
from .shards.format import Shard, checksum, describe_key
from .shards.read import ShardRows, read_shard

T = TypeVar("T")
ROW_MASK = 0xFFFFFFFF
NEVER_ASKED = (1, -1, 0, None)
REMEMBERED_BYTES = 1 << 30
"""What was asked for within so many bytes is taken to be in memory still; asking again would take longer than half a copy of it."""
Clip = tuple[str, float | None, float | None]
"""Video id, start and end in seconds; None: from the video's beginning, to its end."""
Window = tuple[str, int, int]
"""Video id, first row, and the row after the last, counted in the video."""


def rows_of_clip(starts: np.ndarray, ends: np.ndarray, start_seconds: float | None, end_seconds: float | None) -> slice:
    """The rows that touch a clip: from the row in which it starts to the one in which it ends.

    At a constant rate of f rows a second these are rows int(s*f) to int(e*f), both included: HowTo100M's rule
    (``youtube_dataloader.py``). A clip that starts at or after the end of the last row has none; one that ends before the first row
    starts has none; one that ends later than the last row ends with it; one that ends before it starts has none.
    """
    low, high = 0, len(starts)
    if start_seconds is not None:
        low = (
            high if high and start_seconds >= ends[-1] else max(int(starts.searchsorted(start_seconds, "right")) - 1, 0)
        )
    if end_seconds is not None:
        high = max(int(starts.searchsorted(end_seconds, "right")), low)
    return slice(low, high)


class FeatureStore:
    """Reads a folder of shards. A store may be shared by threads, forked and spawned processes; files are opened when needed.

    Of two shards with the same video the one whose name comes later counts; names begin with the time of writing, and those that say
    no time that can be are the oldest.
    ``check_rows``: every read compares the checksum of the video's rows, all of which are then read.
    Raises ``UserError`` where there is no store, where a shard has another schema, where two profiles or weights are mixed, and,
    with ``check_rows``, where rows are damaged.
    """

    MAX_OPEN_SHARDS = 128

    def __init__(self, folder: str | Path, *, check_rows: bool = False) -> None:
        self.folder = Path(folder)
        self.check_rows = check_rows
        self._snapshot = _Snapshot(self.folder, self.MAX_OPEN_SHARDS)
        first = self._snapshot.shards[0]
        self.profile, self.weights, self.origin = first.profile, first.weights, first.origin

    @property
    def shards(self) -> list[Shard]:
        return self._snapshot.shards

    def video_ids(self) -> list[str]:
        return list(self._snapshot.places)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._snapshot.places

    def __len__(self) -> int:
        return len(self._snapshot.places)

    def place(self, video_id: str) -> tuple[Shard, np.void]:
        """The shard that a video is read from, and its row in that shard's index. Raises ``KeyError`` for an unknown video."""
        return self._snapshot.place(video_id)

    def read_from(self) -> list[tuple[Shard, np.ndarray]]:
        """Every shard, with the rows of its index whose videos are read from it; those of the others were replaced later."""
        snapshot = self._snapshot
        places = np.sort(np.fromiter(snapshot.places.values(), np.int64, len(snapshot.places)))
        borders = np.searchsorted(places, np.arange(len(snapshot.shards) + 1) << 32)
        kept = (places[low:high] & ROW_MASK for low, high in pairwise(borders))
        return list(zip(snapshot.shards, kept, strict=True))

    def rows_checksum(self) -> int:
        """Of all videos and their rows: the same for two stores that hold the same, however they lie in shards."""
        tables = [shard.videos[kept] for shard, kept in self.read_from()]
        pairs = (
            pair
            for table in tables
            for pair in zip(table["video_id"].tolist(), table["checksum"].tolist(), strict=True)
        )
        return sum(zlib.crc32(video_id, checksum) for video_id, checksum in pairs) % 2**63

    def source(self, video_id: str) -> str:
        """Identity of the file that the features were made from."""
        return self.place(video_id)[1]["source"].decode()

    def duration_seconds(self, video_id: str) -> float:
        return float(self.place(video_id)[1]["duration_seconds"])

    def partial(self, video_id: str) -> str:
        """What of the video is not in its rows or was damaged; empty where all is well."""
        return self.place(video_id)[1]["partial"].decode()

    def get(
        self,
        video_id: str,
        *,
        start_seconds: float | None = None,
        end_seconds: float | None = None,
        dtype: DTypeLike | None = np.float32,
    ) -> VideoFeatures:
        """The rows of a video, or those that touch a clip of it (``rows_of_clip``). ``dtype`` None: as they are stored.

        Raises ``KeyError`` for an unknown video.
        """
        return self.get_clips([(video_id, start_seconds, end_seconds)], dtype=dtype)[0]

    def get_clips(self, clips: Sequence[Clip], *, dtype: DTypeLike | None = np.float32) -> list[VideoFeatures]:
        """The rows of many clips at once, in the order asked for. ``dtype`` None: as they are stored, in memory that cannot be written.

        Raises ``KeyError`` for an unknown video.
        """

        def read(snapshot: _Snapshot) -> list[VideoFeatures]:
            windows = snapshot.windows(clips)
            rows = snapshot.get_rows(windows, self.check_rows)
            return [
                snapshot.record(*window, features if dtype is None else features.astype(dtype))
                for window, features in zip(windows, rows, strict=True)
            ]

        return self._read(read)

    def windows(self, clips: Sequence[Clip]) -> list[Window]:
        """The rows that touch each clip (``rows_of_clip``)."""
        return self._read(lambda snapshot: snapshot.windows(clips))

    def get_rows(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Features [T, D] of each window as they are stored, in the order asked for: arrays over the file itself, not to be written.

        They are asked of the disk all at once and in the order in which they lie there.
        """
        return self._read(lambda snapshot: snapshot.get_rows(windows, self.check_rows))

    def _read(self, read: "Callable[[_Snapshot], T]") -> T:
        """All of one answer comes from one snapshot, so that threads may ask while the store is compacted."""
        while True:
            snapshot = self._snapshot
            try:
                return read(snapshot)
            except FileNotFoundError:  # the store was compacted since it was opened: the same rows lie elsewhere now
                self._snapshot = _Snapshot(self.folder, self.MAX_OPEN_SHARDS)


class _Snapshot:
    """The shards that are there at a time, and where in them each video lies; nothing of it changes but which files are open."""

    def __init__(self, folder: Path, most_open: int) -> None:
        self.folder, self.most_open = folder, most_open
        self.remote = remote_store(folder)
        self.shards = _read_shards(folder, self.remote)
        if undated := [shard.path.name for shard in self.shards if not stamp_of(shard.path.name)]:
            told = f"{len(undated):,} shards, {undated[0]!a} for one, have names that say no possible time of writing"
            note_once(f"note: {folder}: {told}; they count as the oldest")
        first = self.shards[0]
        for shard in self.shards:
            if shard.key != first.key:
                raise UserError(
                    f"{folder}: mixed features: {shard.path.name} has {describe_key(shard.key)}, {first.path.name} has "
                    f"{describe_key(first.key)}; keep one and remove the other"
                )
        # A video's place is its shard's number and its row in that shard's index, in one integer: a million take little room.
        self.places: dict[str, int] = {}
        for number, shard in enumerate(self.shards):
            base = number << 32
            ids = [video_id.decode() for video_id in shard.videos["video_id"].tolist()]
            self.places.update(zip(ids, range(base, base + len(ids)), strict=True))
        self.open: dict[int, ShardRows] = {}
        self.asked: dict[str, tuple[int, int, int, ShardRows]] = {}
        """Which of a video's rows the disk was asked for lately, and of those the first one's number in which open shard."""
        self.asked_bytes = 0

    def place(self, video_id: str) -> tuple[Shard, np.void]:
        place = self.places[video_id]
        shard = self.shards[place >> 32]
        return shard, shard.videos[place & ROW_MASK]

    def rows(self, video_id: str) -> tuple[ShardRows, int]:
        """The shard that a video is read from, and its row in that shard's index."""
        place = self.places[video_id]
        number = place >> 32
        rows = self.open.get(number)
        if rows is None:
            shard = self.shards[number]
            rows = self.open[number] = self.remote.rows(shard) if self.remote else ShardRows(shard)
            while len(self.open) > self.most_open:
                with contextlib.suppress(StopIteration, RuntimeError):  # another thread was faster
                    self.open.pop(next(iter(self.open)), None)  # closed once nobody has an array over it
                self.asked.clear()
        return rows, place & ROW_MASK

    def columns(self, video_id: str, *names: str) -> list[np.ndarray]:
        rows, row = self.rows(video_id)
        first, num = rows.first_rows[row], rows.num_rows[row]
        return [rows.columns[name][first : first + num] for name in names]

    def windows(self, clips: Sequence[Clip]) -> list[Window]:
        found = []
        if self.remote:  # several at once
            numbers = {self.places[video_id] >> 32 for video_id, _, _ in clips} - self.open.keys()
            self.remote.need(self.shards[number].path for number in numbers)
        for video_id, _, _ in clips:
            self.rows(video_id)  # opened, and the times asked for, of all before any is waited for
        for video_id, start_seconds, end_seconds in clips:
            part = rows_of_clip(*self.columns(video_id, "start_seconds", "end_seconds"), start_seconds, end_seconds)
            found.append((video_id, part.start, part.stop))
        return found

    def get_rows(self, windows: Sequence[Window], check: bool) -> list[np.ndarray]:
        found: list[np.ndarray | None] = []
        new = []
        asked = self.asked
        for i, (video_id, low, high) in enumerate(windows):
            asked_low, asked_high, first, rows = asked.get(video_id, NEVER_ASKED)
            if low < asked_low or high > asked_high:
                new.append((self.places[video_id], i))
                found.append(None)
            else:  # as short as it can be: of 20 microseconds for a window, copying it takes 16
                found.append(rows.features[first + low : first + high])
        for _, i in sorted(new):  # as they lie on the disk
            found[i] = self._ask(*windows[i])
        if check:
            for video_id, _, _ in windows:
                self._check(video_id)
        return found

    def _ask(self, video_id: str, low: int, high: int) -> np.ndarray:
        """Has the disk asked for rows [low, high) of a video, but for those that it was asked for."""
        rows, row = self.rows(video_id)
        first = rows.first_rows[row]
        asked_low, asked_high, _, _ = self.asked.get(video_id, NEVER_ASKED)
        if low > asked_high or high < asked_low:  # no row in common: the new ones alone are remembered
            asked_low = asked_high = low
        self.asked_bytes += rows.expect(first + low, first + asked_low) + rows.expect(first + asked_high, first + high)
        if self.asked_bytes > REMEMBERED_BYTES:
            self.asked_bytes = 0
            self.asked.clear()
        self.asked[video_id] = min(low, asked_low), max(high, asked_high), first, rows
        return rows.features[first + low : first + high]

    def _check(self, video_id: str) -> None:
        rows, row = self.rows(video_id)
        if checksum(rows.of(rows.shard.videos[row])) != rows.shard.videos[row]["checksum"]:
            raise UserError(
                f"{rows.shard.path}: the rows of {video_id!r} are damaged; drop them with vlalign-store repair {self.folder}, then run "
                "vlalign-extract again"
            )

    def record(self, video_id: str, low: int, high: int, features: np.ndarray) -> VideoFeatures:
        _, video = self.place(video_id)
        starts, ends, valid = self.columns(video_id, "start_seconds", "end_seconds", "valid_frames")
        return VideoFeatures(
            video_id=video_id,
            features=features,
            start_seconds=starts[low:high],
            end_seconds=ends[low:high],
            valid_frames=valid[low:high],
            duration_seconds=float(video["duration_seconds"]),
            source=video["source"].decode(),
            decoder=video["decoder"].decode(),
            partial=video["partial"].decode(),
        )

    def __getstate__(self) -> dict:
        return self.__dict__ | {"open": {}, "asked": {}}


def _read_shards(folder: Path, there: RemoteStore | None) -> list[Shard]:
    """Raises ``UserError`` where there is none. What is compacted between the listing and the reading is listed again."""
    absent = None
    while True:
        try:
            shards = [read_shard(path) for path in (there.update() if there else shard_files(folder))]
        except FileNotFoundError as error:
            if error.filename == absent:
                raise UserError(f"{absent}: a link that leads nowhere; remove it") from None
            absent = error.filename
            continue
        if not shards:
            raise UserError(
                f"{folder}: no feature store (no *.h5); make it with vlalign-extract --features {folder.name}"
            )
        if there or shard_files(folder) == [shard.path for shard in shards]:
            return shards


def is_store(folder: Path) -> bool:
    """Whether there is something to read in a folder, or where it stands for."""
    try:
        return bool(shard_files(folder) or ((there := remote_store(folder)) and there.names()))
    except UserError:  # whoever opens it hears why it cannot be read
        return True


def stores_in(folder: Path) -> list[str]:
    """Names of the folders there that are stores."""
    return sorted(f.name for f in folder.glob("*") if is_store(f))


def current_shards(folder: Path) -> list[Path]:
    """Those that count, in order: of a folder that stands for a store elsewhere, the ones that are there now."""
    return there.update() if (there := remote_store(folder)) else shard_files(folder)


def shard_files(folder: Path) -> list[Path]:
    """Those in a folder, in order: a later one counts more."""
    try:
        with os.scandir(folder) as entries:
            names = in_order(
                entry.name for entry in entries if entry.name.endswith(".h5") and not entry.name.startswith(".")
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names]
