"""The feature store: a folder of HDF5 shards with one profile. What has a final name is whole.

A shard (schema 1) is readable with nothing but h5py: ``features`` [sum T, D], flat, contiguous, not compressed;
``start_seconds``, ``end_seconds``, ``valid_frames`` [sum T]; ``videos``, a row a video; and attributes that say how it was made.
"""

import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np

from .console import UserError
from .files import written_whole
from .hdf5 import new_hdf5, shard_path
from .records import Profile, VideoFeatures, Weights

SCHEMA = 1
VIDEO_ROW = np.dtype(
    [
        ("video_id", h5py.string_dtype()),
        ("first_row", "i8"),
        ("num_rows", "i8"),
        ("duration_seconds", "f8"),
        ("source", h5py.string_dtype()),
        ("decoder", h5py.string_dtype()),
        ("partial", h5py.string_dtype()),
        ("checksum", "u4"),
    ]
)
COLUMNS = ("features", "start_seconds", "end_seconds", "valid_frames")


def _checksum(columns: Sequence[np.ndarray]) -> int:
    """CRC-32 of a video's rows in all columns."""
    crc = 0
    for column in columns:
        crc = zlib.crc32(np.ascontiguousarray(column).tobytes(), crc)
    return crc


def check_storable(video: VideoFeatures, dtype: str = "float16") -> None:
    """Raises ``ValueError`` for features that are not finite, or that ``dtype`` cannot hold: no store may have such rows."""
    peak = np.abs(video.features).max(initial=0.0)
    if not peak <= np.finfo(dtype).max:
        raise ValueError(f"{video.video_id}: the features reach {peak}, which {dtype} does not hold")


def _storable(video: VideoFeatures, dtype: str) -> list[np.ndarray]:
    check_storable(video, dtype)
    return [
        video.features.astype(dtype),
        video.start_seconds.astype("f8"),
        video.end_seconds.astype("f8"),
        video.valid_frames.astype("i4"),
    ]


def write_shard(
    folder: Path, profile: Profile, weights: Weights, videos: Sequence[VideoFeatures], *, made_with: dict[str, str], dtype: str = "float16"
) -> Path:
    """One shard with all of ``videos``: written under a temporary name, flushed, read back and compared, and only then named.

    Names begin with the time, so that of two shards with the same video the later one counts. ``made_with``: versions of
    the programs that made the features.
    """
    path = shard_path(folder)
    stored = [_storable(video, dtype) for video in videos]
    num_rows = [len(columns[0]) for columns in stored]
    first_rows = np.concatenate([[0], np.cumsum(num_rows)[:-1]]).astype(int)
    checksums = [_checksum(columns) for columns in stored]
    table = np.array(
        [
            (v.video_id, first, num, v.duration_seconds, v.source, v.decoder, v.partial, crc)
            for v, first, num, crc in zip(videos, first_rows, num_rows, checksums, strict=True)
        ],
        dtype=VIDEO_ROW,
    )
    with written_whole(path) as partial:
        with new_hdf5(partial) as file:
            for name, parts in zip(COLUMNS, zip(*stored, strict=True), strict=True):
                file.create_dataset(name, data=np.concatenate(parts))
            file.create_dataset("videos", data=table)
            file.attrs.update(
                schema=SCHEMA,
                profile=profile.to_json(),
                profile_hash=profile.hash,
                weights=weights.name,
                weights_sha256=weights.sha256,
                **made_with,
            )
        # HDF5 may report success on a full disk although bytes are missing: only reading them back shows it.
        with h5py.File(partial, "r") as file:
            for video, first, num, crc in zip(videos, first_rows, num_rows, checksums, strict=True):
                if _checksum([file[name][first : first + num] for name in COLUMNS]) != crc:
                    raise OSError(f"{folder}: the rows of {video.video_id} did not reach the disk as written; is it full?")
    return path


class FeatureStore:
    """Reads a folder of shards. Files are opened when needed, in the process that needs them, so workers may share a store.

    Raises ``UserError`` where there is no store, where a shard has another schema, and where two profiles or weights are mixed.
    """

    MAX_OPEN_SHARDS = 32

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        shards = sorted(self.folder.glob("*.h5"))
        if not shards:
            raise UserError(f"{self.folder}: no feature store (no *.h5); make it with vlalign-extract --features {self.folder.name}")
        self._rows: dict[str, tuple[Path, int, int]] = {}
        self._about: dict[str, tuple[float, str, str, str]] = {}
        self._open: dict[Path, h5py.File] = {}
        self._open_in_process = os.getpid()
        for shard in shards:
            self._read_index(shard)

    def _read_index(self, shard: Path) -> None:
        try:
            with h5py.File(shard, "r") as file:
                schema = file.attrs.get("schema")
                if schema != SCHEMA:
                    raise UserError(f"{shard}: schema {schema}, this vlalign reads {SCHEMA}; extract again with this version")
                profile = Profile.from_json(file.attrs["profile"])
                weights = Weights(name=file.attrs["weights"], sha256=file.attrs["weights_sha256"])
                table = file["videos"][:]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{shard}: not a readable feature shard ({error}); remove it and run vlalign-extract again") from None
        if not self._rows:
            self.profile, self.weights = profile, weights
        elif (profile.hash, weights) != (self.profile.hash, self.weights):
            raise UserError(
                f"{self.folder}: mixed features: {shard.name} has profile {profile.hash} with weights {weights.name} "
                f"({weights.sha256[:12]}), earlier shards {self.profile.hash} with {self.weights.name} ({self.weights.sha256[:12]}); "
                "keep one and remove the other"
            )
        for row in table:
            video_id = row["video_id"].decode()
            self._rows[video_id] = (shard, int(row["first_row"]), int(row["num_rows"]))
            self._about[video_id] = (float(row["duration_seconds"]), *(row[name].decode() for name in ("source", "decoder", "partial")))

    def video_ids(self) -> list[str]:
        return list(self._rows)

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def source(self, video_id: str) -> str:
        """Identity of the file that the features were made from."""
        return self._about[video_id][1]

    def duration_seconds(self, video_id: str) -> float:
        return self._about[video_id][0]

    def partial(self, video_id: str) -> str:
        """What of the video is not in its rows or was damaged; empty where all is well."""
        return self._about[video_id][3]

    def get(self, video_id: str, *, start_seconds: float | None = None, end_seconds: float | None = None) -> VideoFeatures:
        """The rows of a video, or those that touch a clip of it: from the row in which it starts to the one in which it ends.

        At a constant rate of f rows a second these are rows int(s*f) to int(e*f), both included: HowTo100M's rule
        (``youtube_dataloader.py``). A clip that starts after the last row has none; one that ends later ends with it.
        Features come as float32. Raises ``KeyError`` for an unknown video.
        """
        shard, first, num = self._rows[video_id]
        file = self._file(shard)
        duration, source, decoder, partial = self._about[video_id]
        starts, ends = (file[name][first : first + num] for name in ("start_seconds", "end_seconds"))
        low, high = 0, num
        if start_seconds is not None:
            low = max(int(np.searchsorted(starts, start_seconds, side="right")) - 1, 0)
            if num and start_seconds >= ends[-1]:
                low = num
        if end_seconds is not None:
            high = max(int(np.searchsorted(starts, end_seconds, side="right")), low)
        rows = slice(first + low, first + high)
        return VideoFeatures(
            video_id=video_id,
            features=file["features"][rows].astype(np.float32),
            start_seconds=starts[low:high],
            end_seconds=ends[low:high],
            valid_frames=file["valid_frames"][rows],
            duration_seconds=duration,
            source=source,
            decoder=decoder,
            partial=partial,
        )

    def _file(self, shard: Path) -> h5py.File:
        if self._open_in_process != os.getpid():  # forked: HDF5 handles must not be shared with the parent
            self._open, self._open_in_process = {}, os.getpid()
        if shard not in self._open:
            if len(self._open) >= self.MAX_OPEN_SHARDS:
                self._open.pop(next(iter(self._open))).close()
            self._open[shard] = h5py.File(shard, "r")
        return self._open[shard]

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_open": {}}
