"""A few small JPEGs of every video, made while it is decoded anyway, so that reports and search results need no video."""

import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from .files import written_whole

THUMBNAIL_ROW = np.dtype([("video_id", h5py.string_dtype()), ("seconds", "f8")])


@dataclass(frozen=True)
class Thumbnail:
    video_id: str
    seconds: float
    jpeg: bytes


def write_thumbnails(folder: Path, thumbnails: list[Thumbnail]) -> None:
    with written_whole(folder / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.h5") as partial, h5py.File(partial, "w") as file:
        file.create_dataset("thumbnails", data=np.array([(t.video_id, t.seconds) for t in thumbnails], dtype=THUMBNAIL_ROW))
        jpegs = file.create_dataset("jpegs", shape=len(thumbnails), dtype=h5py.vlen_dtype(np.uint8))
        for index, thumbnail in enumerate(thumbnails):
            jpegs[index] = np.frombuffer(thumbnail.jpeg, dtype=np.uint8)


class ThumbnailStore:
    """Reads the thumbnails in a folder; one that does not exist has none."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, list[tuple[Path, int, float]]] = {}
        for shard in sorted(folder.glob("*.h5")):
            with h5py.File(shard, "r") as file:
                for index, row in enumerate(file["thumbnails"][:]):
                    self._places.setdefault(row["video_id"].decode(), []).append((shard, index, float(row["seconds"])))

    def __contains__(self, video_id: str) -> bool:
        return video_id in self._places

    def get(self, video_id: str) -> list[Thumbnail]:
        """Those of a video, in time order; none where it has none."""
        found = {}
        for shard, index, seconds in self._places.get(video_id, []):
            with h5py.File(shard, "r") as file:
                found[seconds] = Thumbnail(video_id, seconds, file["jpegs"][index].tobytes())
        return [found[seconds] for seconds in sorted(found)]
