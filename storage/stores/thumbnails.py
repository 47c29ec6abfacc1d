"""A few small JPEGs of every video, made while it is decoded, so that reports and search need no video."""

import io
import math
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from ..common.errors import refuse_unreadable
from ..common.terminal import warn
from ..common.writing import atomic_write, check_folders, open_to_read, remove_file
from ..shards.names import shard_path, sort_shard_names
from ..untrusted.hdf5 import MAX_HEAP_BYTES, VlenReader, check_size, inner_dataset, new_hdf5

THUMBNAIL_ROW = np.dtype([("video_id", h5py.string_dtype()), ("seconds", "f8"), ("source", h5py.string_dtype())])
ROW_IN_FILE = np.dtype([("video_id", VlenReader.REFERENCE), ("seconds", "<f8"), ("source", VlenReader.REFERENCE)])
MAX_THUMBNAILS = 16
"""Thumbnails of a video that are read. Extraction makes three, of at most 360 x 90 pixels."""
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
    jpeg: bytes
    source: str
    """Identity of the file that it shows."""


def write_thumbnails(folder: Path, thumbnails: list[Thumbnail]) -> None:
    """Write a shard of thumbnails."""
    with atomic_write(shard_path(folder)) as partial, new_hdf5(partial) as file:
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
            if kept := [thumbnail for video_id in current for thumbnail in store.get(video_id)]:
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


class ThumbnailStore:
    """Reads the thumbnails in a folder; a missing folder has none. Of two shards with the same video the later one
    counts.

    A shard cannot make HDF5 open other files. Thumbnails that are not JPEGs, or are too large, are skipped with a
    warning.
    """

    def __init__(self, folder: Path) -> None:
        """Read which thumbnails there are. Raises ``UserError`` for a file that is not a shard of thumbnails."""
        self._shards: dict[str, tuple[Path, list[int]]] = {}
        self._sources: dict[str, str] = {}
        self._warned: set[Path] = set()
        for path in (folder / name for name in sort_shard_names(path.name for path in folder.glob("*.h5"))):
            rows: dict[str, list[int]] = {}
            with _opened(path) as shard:
                for index in range(len(shard.table)):
                    video_id = shard.text(index, "video_id")
                    rows.setdefault(video_id, []).append(index)
                    self._sources[video_id] = shard.text(index, "source")
            self._shards |= {video_id: (path, indices) for video_id, indices in rows.items()}

    def source(self, video_id: str) -> str | None:
        """Return the identity of the file that a video's thumbnails show; None if it has none."""
        return self._sources.get(video_id)

    def path(self, video_id: str) -> Path | None:
        """Return the shard that a video's thumbnails are read from; None if it has none."""
        return self._shards[video_id][0] if video_id in self._shards else None

    def get(self, video_id: str) -> list[Thumbnail]:
        """Return the first ``MAX_THUMBNAILS`` thumbnails of a video, in time order; none if it has none."""
        if video_id not in self._shards:
            return []
        path, indices = self._shards[video_id]
        with _opened(path) as shard:
            thumbnails = [
                Thumbnail(
                    video_id,
                    float(shard.table[index]["seconds"]),
                    shard.reader.value(shard.jpegs[index], MAX_HEAP_BYTES),
                    self._sources[video_id],
                )
                for index in indices[:MAX_THUMBNAILS]
            ]
        valid = [thumbnail for thumbnail in thumbnails if math.isfinite(thumbnail.seconds) and is_jpeg(thumbnail.jpeg)]
        if len(valid) < len(thumbnails) and path not in self._warned:
            self._warned.add(path)
            warn(
                f"warning: {path}: thumbnails in it, such as of video {video_id!r}, are not JPEGs or are too large; "
                "they are skipped"
            )
        return sorted(valid, key=lambda thumbnail: thumbnail.seconds)


@contextmanager
def _opened(path: Path) -> Iterator[_OpenShard]:
    check_folders(path.parent)  # what is shown to others comes from here
    with (
        refuse_unreadable(path, "not a readable thumbnail file", "remove it"),
        open_to_read(path, mode="rb") as content,
        h5py.File(content, "r") as file,
    ):
        table, jpegs = inner_dataset(file, "thumbnails"), inner_dataset(file, "jpegs")
        if table.ndim != 1 or table.dtype != THUMBNAIL_ROW:
            raise ValueError("its table has other columns")
        if jpegs.shape != table.shape or h5py.check_vlen_dtype(jpegs.dtype) != np.uint8:
            raise ValueError("it does not have one JPEG for each row")
        reader = VlenReader(file, content)
        rows = reader.rows(check_size(table, MAX_TABLE_BYTES), ROW_IN_FILE)
        yield _OpenShard(rows, reader.rows(check_size(jpegs, MAX_TABLE_BYTES), VlenReader.REFERENCE), reader)


def is_jpeg(content: bytes) -> bool:
    """Return True for a JPEG of the size of a thumbnail."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns about very many pixels
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
                return max(image.size) <= MAX_SIDE_PX and len(content) <= MAX_JPEG_BYTES
    except Exception:  # Pillow raises almost anything for damaged images
        return False
