"""A few small JPEGs of every video, made while it is decoded anyway, so that reports and search results need no video."""

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from .common.errors import UserError
from .common.terminal import say
from .files import check_regular, written_whole
from .hdf5 import MOST_HEAP_BYTES, VlenReader, check_size, new_hdf5, own_dataset
from .shard_names import in_order, shard_path

THUMBNAIL_ROW = np.dtype([("video_id", h5py.string_dtype()), ("seconds", "f8"), ("source", h5py.string_dtype())])
ROW_IN_FILE = np.dtype([("video_id", VlenReader.REFERENCE), ("seconds", "<f8"), ("source", VlenReader.REFERENCE)])
MOST_PICTURES = 16
"""Of a video. Extraction makes three, of 360 x 90 pixels at most."""
MOST_SIDE_PX, MOST_JPEG_BYTES = 2048, 1 << 20
MOST_TEXT_BYTES = 1 << 14
"""Of an id or a source."""
MOST_BYTES = 1 << 30
"""Of a shard's table without its texts."""


@dataclass(frozen=True)
class Thumbnail:
    video_id: str
    seconds: float
    jpeg: bytes
    source: str
    """Identity of the file that it shows."""


def write_thumbnails(folder: Path, thumbnails: list[Thumbnail]) -> None:
    with written_whole(shard_path(folder)) as partial, new_hdf5(partial) as file:
        file.create_dataset(
            "thumbnails", data=np.array([(t.video_id, t.seconds, t.source) for t in thumbnails], dtype=THUMBNAIL_ROW)
        )
        jpegs = file.create_dataset("jpegs", shape=len(thumbnails), dtype=h5py.vlen_dtype(np.uint8))
        for index, thumbnail in enumerate(thumbnails):
            jpegs[index] = np.frombuffer(thumbnail.jpeg, dtype=np.uint8)


class ThumbnailStore:
    """Reads the thumbnails in a folder; one that does not exist has none. Of two shards with the same video the later one counts.

    Nothing in a shard makes another file be opened. Raises ``UserError`` for a file that is no shard of thumbnails; pictures that are no
    JPEGs of a thumbnail's size are left out, which is said once a shard.
    """

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, list[int]]] = {}
        self._sources: dict[str, str] = {}
        self._told: set[Path] = set()
        for shard in (folder / name for name in in_order(path.name for path in folder.glob("*.h5"))):
            rows: dict[str, list[int]] = {}
            with _opened(shard) as (table, _, reader):
                for index, row in enumerate(table):
                    video_id = reader.value(row["video_id"], MOST_TEXT_BYTES).decode()
                    rows.setdefault(video_id, []).append(index)
                    self._sources[video_id] = reader.value(row["source"], MOST_TEXT_BYTES).decode()
            self._places |= {video_id: (shard, indices) for video_id, indices in rows.items()}

    def source(self, video_id: str) -> str | None:
        """Identity of the file that a video's thumbnails show; None where it has none."""
        return self._sources.get(video_id)

    def get(self, video_id: str) -> list[Thumbnail]:
        """The first ``MOST_PICTURES`` of a video, in time order; none where it has none."""
        if video_id not in self._places:
            return []
        shard, indices = self._places[video_id]
        with _opened(shard) as (table, jpegs, reader):
            found = [
                Thumbnail(
                    video_id,
                    float(table[index]["seconds"]),
                    reader.value(jpegs[index], MOST_HEAP_BYTES),
                    self._sources[video_id],
                )
                for index in indices[:MOST_PICTURES]
            ]
        shown = [thumbnail for thumbnail in found if math.isfinite(thumbnail.seconds) and is_jpeg(thumbnail.jpeg)]
        if len(shown) < len(found) and shard not in self._told:
            self._told.add(shard)
            say(
                f"warning: {shard}: pictures in it, such as of video {video_id!r}, are no JPEGs of a thumbnail's size and are left out"
            )
        return sorted(shown, key=lambda thumbnail: thumbnail.seconds)


@contextmanager
def _opened(shard: Path) -> Iterator[tuple[np.ndarray, np.ndarray, VlenReader]]:
    """Its table and its pictures, a row a thumbnail, and what reads the texts and pictures that they refer to."""
    check_regular(shard)
    try:
        with h5py.File(shard, "r") as file:
            table, jpegs = own_dataset(file, "thumbnails"), own_dataset(file, "jpegs")
            if table.ndim != 1 or table.dtype != THUMBNAIL_ROW:
                raise ValueError("its table has other columns")
            if jpegs.shape != table.shape or h5py.check_vlen_dtype(jpegs.dtype) != np.uint8:
                raise ValueError("it has no picture for each row")
            reader = VlenReader(file, shard)
            rows = reader.rows(check_size(table, MOST_BYTES), ROW_IN_FILE)
            yield rows, reader.rows(check_size(jpegs, MOST_BYTES), VlenReader.REFERENCE), reader
    except (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        what = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{shard}: not a readable thumbnail file ({what}); remove it") from None


def is_jpeg(content: bytes) -> bool:
    """Whether it is a JPEG of a thumbnail's size."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Pillow warns of pictures of very many pixels
            with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
                return max(image.size) <= MOST_SIDE_PX and len(content) <= MOST_JPEG_BYTES
    except Exception:  # Pillow raises nearly everything on damaged pictures
        return False
