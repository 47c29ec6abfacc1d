"""Small JPEGs of every video, made during decoding: reports and search then need no video."""

import io
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from ..common.errors import refuse_unreadable
from ..common.terminal import warn
from ..common.threads import map_in_threads
from ..common.writing import atomic_write, check_folders, open_to_read, remove_file
from ..shards.names import NewShardNames, sort_shard_names
from ..untrusted.hdf5 import MAX_HEAP_BYTES, ReadAhead, VlenReader, check_size, inner_dataset, new_hdf5

THUMBNAIL_ROW = np.dtype([("video_id", h5py.string_dtype()), ("seconds", "f8"), ("source", h5py.string_dtype())])
ROW_IN_FILE = np.dtype([("video_id", VlenReader.REFERENCE), ("seconds", "<f8"), ("source", VlenReader.REFERENCE)])
MAX_THUMBNAILS = 16
"""Thumbnails of a video that are read at once. Extraction makes three by default, of at most 360 x 90 pixels."""
MAX_SIDE_PX, MAX_JPEG_BYTES = 2048, 1 << 20
MAX_TEXT_BYTES = 1 << 14
"""Limit of an id or a source."""
MAX_TABLE_BYTES = 1 << 30
"""Limit of a shard's table without its texts."""


@dataclass(frozen=True)
class Thumbnail:
    """A small image of a frame of a video."""

    video_id: str
    seconds: float
    """Time of the frame in the video."""
    jpeg: bytes
    source: str
    """Identity of the file that it was made from."""


def write_thumbnails(folder: Path, thumbnails: list[Thumbnail], names: NewShardNames | None = None) -> None:
    """Write a shard of thumbnails.

    Args:
        folder: The folder of thumbnails.
        thumbnails: What to write.
        names: Names for the new shards of one writer in ``folder``; None to list the folder for this shard.
    """
    with atomic_write((names or NewShardNames(folder)).next()) as partial, new_hdf5(partial) as file:
        rows = [(thumbnail.video_id, thumbnail.seconds, thumbnail.source) for thumbnail in thumbnails]
        file.create_dataset("thumbnails", data=np.array(rows, dtype=THUMBNAIL_ROW))
        jpegs = file.create_dataset("jpegs", shape=len(thumbnails), dtype=h5py.vlen_dtype(np.uint8))
        for index, thumbnail in enumerate(thumbnails):
            jpegs[index] = np.frombuffer(thumbnail.jpeg, dtype=np.uint8)


def remove_thumbnails(folder: Path, video_ids: Collection[str]) -> None:
    """Remove the thumbnails of videos. New shards are written before old ones are removed.

    Raises:
        UserError: A file there is not a shard of thumbnails.
    """
    gone, store = set(video_ids), ThumbnailStore(folder)
    for path in sorted(folder.glob("*.h5")):
        with _opened(path) as shard:
            ids = {shard.text(index, "video_id") for index in range(len(shard.table))}
        if ids & gone:
            current = sorted(video_id for video_id in ids - gone if store.path(video_id) == path)
            numbers = {video_id: len(store.seconds(video_id)) for video_id in current}
            if kept := [each for video, number in numbers.items() for each in store.get(video, max_thumbnails=number)]:
                write_thumbnails(folder, kept)
            remove_file(path)


@dataclass(frozen=True, eq=False)
class _OpenShard:
    table: np.ndarray
    """``ROW_IN_FILE``, a row for each thumbnail."""
    jpegs: np.ndarray
    """``VlenReader.REFERENCE``, a row for each thumbnail."""
    reader: VlenReader

    def text(self, index: int, column: str) -> str:
        return self.reader.value(self.table[index][column], MAX_TEXT_BYTES).decode()


@dataclass(frozen=True, eq=False, slots=True)
class _Rows:
    """The rows of a video's thumbnails in a shard, in time order."""

    path: Path
    indices: np.ndarray
    seconds: np.ndarray
    source: str

    @classmethod
    def of(cls, path: Path, indices: Sequence[int], shard: _OpenShard) -> "_Rows":
        found, seconds = np.array(indices, dtype=np.int64), shard.table["seconds"][indices].astype(np.float64)
        order = np.argsort(seconds, kind="stable")
        order = order[np.isfinite(seconds[order])]
        return cls(path, found[order], seconds[order], shard.text(indices[-1], "source"))


class ThumbnailStore:
    """Reads the thumbnails in a folder; a missing folder has none. If two shards have the same video, the later
    one is used.

    A shard cannot make HDF5 open other files. Thumbnails that are not JPEGs, or are too large, are skipped with a
    warning.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.storage import ThumbnailStore
        >>> ThumbnailStore(Path("vlalign_data/demo/thumbnails")).get("demo0000")  # nothing was extracted yet
        []
    """

    def __init__(self, folder: Path) -> None:
        """Read which thumbnails there are.

        Args:
            folder: Folder of the thumbnails.

        Raises:
            UserError: A file is not a shard of thumbnails.
        """
        self._shards: dict[str, _Rows] = {}
        self._warned: set[Path] = set()
        paths = [folder / name for name in sort_shard_names(path.name for path in folder.glob("*.h5"))]
        for path, file in zip(paths, map_in_threads(_open, paths, calls_per_part=1), strict=True):
            rows: dict[str, list[int]] = {}
            with _shard_in(file, path) as shard:
                for index in range(len(shard.table)):
                    rows.setdefault(shard.text(index, "video_id"), []).append(index)
                for video_id, indices in rows.items():
                    self._shards[video_id] = _Rows.of(path, indices, shard)

    def source(self, video_id: str) -> str | None:
        """Return the identity of the file that a video's thumbnails were made from; None if there are no thumbnails.

        Args:
            video_id: Id of the video.
        """
        return self._shards[video_id].source if video_id in self._shards else None

    def path(self, video_id: str) -> Path | None:
        """Return the shard that a video's thumbnails are read from; None if there are no thumbnails.

        Args:
            video_id: Id of the video.
        """
        return self._shards[video_id].path if video_id in self._shards else None

    def seconds(self, video_id: str) -> np.ndarray:
        """Return the times of a video's thumbnails, float64 [N], ascending, without reading the thumbnails.

        Args:
            video_id: Id of the video.
        """
        return self._shards[video_id].seconds if video_id in self._shards else np.empty(0)

    def get(
        self,
        video_id: str,
        start_seconds: float = -math.inf,
        end_seconds: float = math.inf,
        *,
        max_thumbnails: int = MAX_THUMBNAILS,
    ) -> list[Thumbnail]:
        """Return thumbnails of a video in time order; empty if there are none.

        Args:
            video_id: The video.
            start_seconds: Thumbnails before it are skipped.
            end_seconds: Thumbnails after it are skipped.
            max_thumbnails: Maximum number to return. If there are more, these are spread evenly, including the first
                and the last.
        """
        seconds = self.seconds(video_id)
        places = np.flatnonzero((seconds >= start_seconds) & (seconds <= end_seconds))
        if len(places) > max_thumbnails:
            places = places[np.linspace(0, len(places) - 1, max_thumbnails).round().astype(int)]
        return self._read(video_id, places.tolist())

    def nearest(self, video_id: str, seconds: float) -> Thumbnail | None:
        """Return the thumbnail of a video that is nearest to a time; None if there is none.

        Only this thumbnail is read, unless it is not a small JPEG: then the next nearest ones are read.

        Args:
            video_id: Id of the video.
            seconds: Time in the video.
        """
        by_distance = np.argsort(np.abs(self.seconds(video_id) - seconds), kind="stable")[:MAX_THUMBNAILS]
        return next((found for place in by_distance.tolist() for found in self._read(video_id, [place])), None)

    def _read(self, video_id: str, places: Sequence[int]) -> list[Thumbnail]:
        if video_id not in self._shards:
            return []
        rows = self._shards[video_id]
        with _opened(rows.path) as shard:
            references = shard.jpegs[rows.indices[list(places)]]
            jpegs = [shard.reader.value(reference, MAX_HEAP_BYTES) for reference in references]
        valid = [is_jpeg(jpeg) for jpeg in jpegs]
        if not all(valid) and rows.path not in self._warned:
            self._warned.add(rows.path)
            warn(
                f"warning: {rows.path}: some thumbnails, such as of video {video_id!r}, are not JPEGs or are too "
                "large; skipped"
            )
        return [
            Thumbnail(video_id, float(rows.seconds[place]), jpeg, rows.source)
            for place, jpeg, is_valid in zip(places, jpegs, valid, strict=True)
            if is_valid
        ]


def _refuse_unreadable(path: Path) -> AbstractContextManager[None]:
    return refuse_unreadable(path, "not a readable thumbnail file", "remove it")


def _open(path: Path) -> ReadAhead:
    """Open a shard and read its first bytes. Threads can do this in parallel, but HDF5 reads one file at a time."""
    check_folders(path.parent)  # thumbnails from this folder are shown to others
    with _refuse_unreadable(path):
        return ReadAhead(open_to_read(path, mode="rb", buffering=0))


@contextmanager
def _opened(path: Path) -> Iterator[_OpenShard]:
    with _shard_in(_open(path), path) as shard:
        yield shard


@contextmanager
def _shard_in(content: ReadAhead, path: Path) -> Iterator[_OpenShard]:
    with _refuse_unreadable(path), closing(content), h5py.File(content, "r") as file:
        table, jpegs = inner_dataset(file, "thumbnails"), inner_dataset(file, "jpegs")
        if table.ndim != 1 or table.dtype != THUMBNAIL_ROW:
            raise ValueError("its table has other columns")
        if jpegs.shape != table.shape or h5py.check_vlen_dtype(jpegs.dtype) != np.uint8:
            raise ValueError("it does not have one JPEG for each row")
        reader = VlenReader(file, content)
        rows = reader.rows(check_size(table, MAX_TABLE_BYTES), ROW_IN_FILE)
        yield _OpenShard(rows, reader.rows(check_size(jpegs, MAX_TABLE_BYTES), VlenReader.REFERENCE), reader)


def is_jpeg(content: bytes) -> bool:
    """Return True for a JPEG that is small enough for a thumbnail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns about very many pixels
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
                return max(image.size) <= MAX_SIDE_PX and len(content) <= MAX_JPEG_BYTES
    except Exception:  # Pillow raises almost anything for damaged images
        return False
