"""The feature store: a folder of shards with one profile. What has a final name is whole (``shards.py`` says how)."""

import os
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from .console import UserError
from .records import VideoFeatures
from .shards import Shard, ShardRows, checksum, describe_key, read_shard

ROW_MASK = 0xFFFFFFFF
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
        low = high if high and start_seconds >= ends[-1] else max(int(starts.searchsorted(start_seconds, "right")) - 1, 0)
    if end_seconds is not None:
        high = max(int(starts.searchsorted(end_seconds, "right")), low)
    return slice(low, high)


class FeatureStore:
    """Reads a folder of shards. A store may be shared by threads, forked and spawned processes; files are opened when needed.

    Of two shards with the same video the one whose name comes later counts; names begin with the time of writing.
    ``check_rows``: every read compares the checksum of the video's rows, all of which are then read.
    Raises ``UserError`` where there is no store, where a shard has another schema, where two profiles or weights are mixed, and,
    with ``check_rows``, where rows are damaged.
    """

    MAX_OPEN_SHARDS = 128

    def __init__(self, folder: str | Path, *, check_rows: bool = False) -> None:
        self.folder = Path(folder)
        self.check_rows = check_rows
        self._load()

    def _load(self) -> None:
        self._open: OrderedDict[int, ShardRows] = OrderedDict()
        while True:
            try:
                self.shards = [read_shard(path) for path in shard_files(self.folder)]
                break
            except FileNotFoundError:  # compacted between the listing and the reading
                continue
        if not self.shards:
            raise UserError(f"{self.folder}: no feature store (no *.h5); make it with vlalign-extract --features {self.folder.name}")
        first = self.shards[0]
        self.profile, self.weights, self.origin = first.profile, first.weights, first.origin
        for shard in self.shards:
            if shard.key != first.key:
                raise UserError(
                    f"{self.folder}: mixed features: {shard.path.name} has {describe_key(shard.key)}, {first.path.name} has "
                    f"{describe_key(first.key)}; keep one and remove the other"
                )
        # A video's place is its shard's number and its row in that shard's index, in one integer: a million take little room.
        self._places: dict[str, int] = {}
        for number, shard in enumerate(self.shards):
            base = number << 32
            ids = [video_id.decode() for video_id in shard.videos["video_id"].tolist()]
            self._places.update(zip(ids, range(base, base + len(ids)), strict=True))

    def video_ids(self) -> list[str]:
        return list(self._places)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._places

    def __len__(self) -> int:
        return len(self._places)

    def place(self, video_id: str) -> tuple[Shard, np.void]:
        """The shard that a video is read from, and its row in that shard's index. Raises ``KeyError`` for an unknown video."""
        place = self._places[video_id]
        shard = self.shards[place >> 32]
        return shard, shard.videos[place & ROW_MASK]

    def read_from(self) -> list[tuple[Shard, np.ndarray]]:
        """Every shard, with the rows of its index whose videos are read from it; those of the others were replaced later."""
        places = np.sort(np.fromiter(self._places.values(), np.int64, len(self._places)))
        borders = np.searchsorted(places, np.arange(len(self.shards) + 1) << 32)
        return [(shard, places[low:high] & ROW_MASK) for shard, low, high in zip(self.shards, borders[:-1], borders[1:], strict=True)]

    def rows_checksum(self) -> int:
        """Of all videos and their rows: the same for two stores that hold the same, however they lie in shards."""
        tables = [shard.videos[kept] for shard, kept in self.read_from()]
        pairs = (pair for table in tables for pair in zip(table["video_id"].tolist(), table["checksum"].tolist(), strict=True))
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
        windows = self.windows(clips)
        return [
            self._record(video_id, low, high, features if dtype is None else features.astype(dtype))
            for (video_id, low, high), features in zip(windows, self.get_rows(windows), strict=True)
        ]

    def windows(self, clips: Sequence[Clip]) -> list[Window]:
        """The rows that touch each clip (``rows_of_clip``)."""
        found = []
        for video_id, start_seconds, end_seconds in clips:
            starts, ends = self._of_video(video_id, "start_seconds", "end_seconds")
            part = rows_of_clip(starts, ends, start_seconds, end_seconds)
            found.append((video_id, part.start, part.stop))
        return found

    def get_rows(self, windows: Sequence[Window]) -> list[np.ndarray]:
        """Features [T, D] of each window as they are stored, in the order asked for: arrays over the file itself, not to be written.

        They are asked of the disk all at once and in the order in which they lie there.
        """
        places = [self._places[video_id] for video_id, _, _ in windows]
        found: list[np.ndarray | None] = [None] * len(windows)
        for i in sorted(range(len(windows)), key=places.__getitem__):
            video_id, low, high = windows[i]
            rows, row = self._rows(video_id)
            first = rows.first_rows[row]
            rows.expect(first + low, first + high)
            if self.check_rows:
                self._check(rows, row)
            found[i] = rows.features[first + low : first + high]
        return found

    def _of_video(self, video_id: str, *columns: str) -> list[np.ndarray]:
        rows, row = self._rows(video_id)
        first, num = rows.first_rows[row], rows.num_rows[row]
        return [rows.columns[name][first : first + num] for name in columns]

    def _record(self, video_id: str, low: int, high: int, features: np.ndarray) -> VideoFeatures:
        _, video = self.place(video_id)
        starts, ends, valid = self._of_video(video_id, "start_seconds", "end_seconds", "valid_frames")
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

    def _check(self, rows: ShardRows, row: int) -> None:
        video = rows.shard.videos[row]
        if checksum(rows.of(video)) != video["checksum"]:
            raise UserError(
                f"{rows.shard.path}: the rows of {video['video_id'].decode()!r} are damaged; drop them with vlalign-store repair "
                f"{self.folder}, then run vlalign-extract again"
            )

    def _rows(self, video_id: str) -> tuple[ShardRows, int]:
        """The shard that a video is read from, and its row in that shard's index."""
        place = self._places[video_id]
        number = place >> 32
        try:
            self._open.move_to_end(number)
            return self._open[number], place & ROW_MASK
        except KeyError:
            pass
        try:
            rows = self._open[number] = ShardRows(self.shards[number])
        except FileNotFoundError:  # the store was compacted since it was opened: the same rows lie elsewhere now
            self._load()
            return self._rows(video_id)
        if len(self._open) > self.MAX_OPEN_SHARDS:
            self._open.popitem(last=False)  # closed once nobody has an array over it
        return rows, place & ROW_MASK

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_open": OrderedDict()}


def shard_files(folder: Path) -> list[Path]:
    """In the order of their names, in which a later one counts more."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".h5") and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names]
