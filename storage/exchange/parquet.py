"""Parquet files of features: a row for each window, with its video, times and embedding.

vlalign's own files also have the profile, the weights and the stored type in their metadata: importing them restores
the same store. Files of other programs need a column with ids and one with lists of numbers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.writing import atomic_write
from ..records import VideoFeatures
from ..stores.store import Store
from ..untrusted.limits import MAX_ARRAY_BYTES
from ..untrusted.parquet import ParquetReader
from .feature_files import SourceFeatures, refuse_damaged

SUFFIX = ".parquet"
METADATA_KEY = b"vlalign"
FILE_BYTES, GROUP_BYTES = 1_000_000_000, 64 << 20
"""Maximum size of the embeddings in a file, and of a group that is written at once."""
PLACE_BYTES = 300
"""Memory that a ``_Place`` takes, in bytes."""
ID_COLUMNS, EMBEDDING_COLUMNS = ("video_id", "id"), ("embedding", "features", "vector")
"""Names of columns in files of other programs, in the order in which they are tried."""


def export_parquet(store: Store, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
    """Write ``part-00000.parquet`` and so on into a folder: ``video_id``, ``start_seconds``, ``end_seconds``,
    ``valid_frames``, ``duration_seconds``, ``partial`` and ``embedding`` (float32, which all programs read).

    Returns the number of videos. Each video is in one file.
    """
    del problems  # any id can be a value
    num_files = num_videos = 0
    pending = _Pending(iter(videos))
    while pending.video is not None:
        with atomic_write(target / f"part-{num_files:05d}{SUFFIX}") as partial_path:
            num_videos += _write_file(partial_path, store, pending)
        num_files += 1
    return num_videos


class _Pending:
    """The videos that are not written yet."""

    def __init__(self, videos: Iterator[VideoFeatures]) -> None:
        self._videos = videos
        self.video = next(videos, None)

    def take_group(self, dtype: np.dtype[Any]) -> list[VideoFeatures]:
        """Return the next videos that are stored as ``dtype``, up to the size of a group."""
        taken: list[VideoFeatures] = []
        num_bytes = 0
        while self.video is not None and self.video.features.dtype == dtype and num_bytes < GROUP_BYTES:
            taken.append(self.video)
            num_bytes += 4 * self.video.features.size
            self.video = next(self._videos, None)
        return taken


def _write_file(path: Path, store: Store, pending: _Pending) -> int:
    """Write videos of one stored type, up to the size of a file; return their number."""
    assert pending.video is not None
    dtype, dimension = pending.video.features.dtype, store.profile.dimension
    without_rows: list[dict[str, Any]] = []
    num_videos = num_bytes = 0
    with pq.ParquetWriter(path, _schema(dimension)) as writer:
        while num_bytes < FILE_BYTES and (group := pending.take_group(dtype)):
            without_rows += [_facts(video) for video in group if not len(video.features)]
            if rows := [video for video in group if len(video.features)]:
                writer.write_table(_table(rows, dimension))
            num_videos += len(group)
            num_bytes += sum(4 * video.features.size for video in group)
        about = {
            "profile": json.loads(store.profile.to_json()),
            "weights": asdict(store.weights),
            "dtype": dtype.name,
            "without_rows": without_rows,
        }
        writer.add_key_value_metadata({METADATA_KEY: json.dumps(about).encode()})
    return num_videos


def _schema(dimension: int) -> pa.Schema:
    return pa.schema(
        [
            ("video_id", pa.string()),
            ("start_seconds", pa.float64()),
            ("end_seconds", pa.float64()),
            ("valid_frames", pa.int32()),
            ("duration_seconds", pa.float64()),
            ("partial", pa.string()),
            ("embedding", pa.list_(pa.float32(), dimension)),
        ]
    )


def _facts(video: VideoFeatures) -> dict[str, Any]:
    return {"video_id": video.video_id, "duration_seconds": video.duration_seconds, "partial": video.partial}


def _table(videos: Sequence[VideoFeatures], dimension: int) -> pa.Table:
    counts = [len(video.features) for video in videos]
    rows = np.concatenate([video.features for video in videos]).astype(np.float32, copy=False)
    columns = {
        "video_id": np.repeat(np.array([video.video_id for video in videos], dtype=object), counts),
        "start_seconds": np.concatenate([video.start_seconds for video in videos]),
        "end_seconds": np.concatenate([video.end_seconds for video in videos]),
        "valid_frames": np.concatenate([video.valid_frames for video in videos]),
        "duration_seconds": np.repeat([float(video.duration_seconds) for video in videos], counts),
        "partial": np.repeat(np.array([video.partial for video in videos], dtype=object), counts),
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), dimension),
    }
    return pa.table(columns, schema=_schema(dimension))


@dataclass(frozen=True)
class _Place:
    """The place of a video's rows in a file."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True)
class ParquetVideos:
    """The videos in a Parquet file."""

    path: Path
    id_column: str
    embedding_column: str
    places: Sequence[tuple[str, _Place | None]]
    """(id, place of its rows), in order; the place is None for a video without rows, which only vlalign's files have.
    The import skips repeated ids.
    """
    about: Mapping[str, Any] | None
    """The metadata that vlalign wrote; None for files of other programs."""
    _last: dict[int, pa.Table] = field(default_factory=dict, compare=False, repr=False)
    """The last group of rows read; most of the next videos are in the same group."""

    def read(self, index: int) -> SourceFeatures:
        """Read a video. Raises ``UserError`` or a format error unless its rows are number lists of equal length."""
        video_id, place = self.places[index]
        if place is None:
            return self._without_rows(video_id)
        names = [self.embedding_column]
        if self.about is not None:
            names += ["start_seconds", "end_seconds", "valid_frames", "duration_seconds", "partial"]
        table = self._group(place.group, names).slice(place.start, place.stop - place.start)
        rows = _rows(table.column(self.embedding_column))
        if self.about is None:
            return SourceFeatures(rows)
        exported: dict[str, Any] = {
            name: table.column(name).to_numpy() for name in ("start_seconds", "end_seconds", "valid_frames")
        }
        exported |= {name: table.column(name)[0].as_py() for name in ("duration_seconds", "partial")}
        return SourceFeatures(rows.astype(self._dtype(), copy=False), exported | self._made())

    def _group(self, group: int, columns: list[str]) -> pa.Table:
        table = self._last.get(group)
        if table is None:
            self._last.clear()  # before the next group is read: memory holds one group
            with ParquetReader(self.path) as file:
                table = file.read(columns, [group])
            if table.nbytes > MAX_ARRAY_BYTES:
                raise UserError(
                    f"{self.path}: a row group has more than {MAX_ARRAY_BYTES >> 30} GiB; write smaller row groups"
                )
            self._last[group] = table
        return table

    def _without_rows(self, video_id: str) -> SourceFeatures:
        assert self.about is not None
        facts = next(about for about in self.about["without_rows"] if about["video_id"] == video_id)
        nothing = np.zeros(0)
        exported = {"start_seconds": nothing, "end_seconds": nothing, "valid_frames": np.zeros(0, dtype=np.int32)}
        exported |= {name: facts[name] for name in ("duration_seconds", "partial")}
        rows = np.zeros((0, int(self.about["profile"]["dimension"])), dtype=self._dtype())
        return SourceFeatures(rows, exported | self._made())

    def _dtype(self) -> str:
        assert self.about is not None
        if self.about["dtype"] not in ("float16", "float32"):
            raise ValueError(
                f"its metadata has the data type {str(self.about['dtype'])[:40]!r}, expected float16 or float32"
            )
        return self.about["dtype"]

    def _made(self) -> dict[str, str]:
        assert self.about is not None
        return {name: json.dumps(self.about[name]) for name in ("profile", "weights")}


def _rows(column: pa.ChunkedArray) -> np.ndarray:
    """Return lists of numbers as [T, D]. Raises ``ValueError`` for other values."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    is_list = any(test(array.type) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))
    if not is_list or not pa.types.is_floating(array.type.value_type) or array.null_count:
        raise ValueError(f"its embeddings have type {array.type} or missing values, expected lists of numbers")
    flat = array.flatten()
    if flat.null_count or not len(array) or len(flat) % len(array):
        raise ValueError("its embeddings have missing values, or different lengths")
    if not pa.types.is_fixed_size_list(array.type) and len(set(np.diff(array.offsets.to_numpy()).tolist())) > 1:
        raise ValueError("its embeddings have different lengths")
    values = flat.to_numpy(zero_copy_only=False).reshape(len(array), -1)
    return values if values.dtype == np.float16 else values.astype(np.float32)


def open_parquet(path: Path) -> ParquetVideos:
    """Read which videos are in a Parquet file.

    Raises:
        UserError: It is damaged, or has no columns of ids and embeddings.
    """
    with refuse_damaged(path), ParquetReader(path) as file:
        names = file.schema.names
        columns = [next((name for name in known if name in names), None) for known in (ID_COLUMNS, EMBEDDING_COLUMNS)]
        if None in columns:
            raise UserError(
                f"{path}: columns {', '.join(names)[:200]}; expected {' or '.join(ID_COLUMNS)}, and "
                f"{' or '.join(EMBEDDING_COLUMNS)}"
            )
        id_column, embedding_column = map(str, columns)
        about = _about(file)
        places: list[tuple[str, _Place | None]] = []
        for group in range(file.metadata.num_row_groups):
            ids = file.read([id_column], [group], row_bytes=PLACE_BYTES).column(0)
            places += _places(group, ids.to_pylist())
        if about is not None:
            places += [(str(facts["video_id"]), None) for facts in about["without_rows"]]
    return ParquetVideos(path, id_column, embedding_column, places, about)


def _about(file: ParquetReader) -> dict[str, Any] | None:
    text = (file.metadata.metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    about = json.loads(text)
    if not isinstance(about, dict) or not {"profile", "weights", "dtype", "without_rows"} <= about.keys():
        raise ValueError("its metadata was not written by vlalign")
    return about


def _places(group: int, ids: list[Any]) -> Iterator[tuple[str, _Place]]:
    start = 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or ids[stop] != ids[start]:
            yield str(ids[start]), _Place(group, start, stop)
            start = stop
