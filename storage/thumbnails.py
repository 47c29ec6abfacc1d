"""A few small JPEGs of every video, made while it is decoded anyway, so that reports and search results need no video."""

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from .console import UserError
from .files import written_whole
from .hdf5 import new_hdf5, shard_path

THUMBNAIL_ROW = np.dtype([("video_id", h5py.string_dtype()), ("seconds", "f8"), ("source", h5py.string_dtype())])


@dataclass(frozen=True)
class Thumbnail:
    video_id: str
    seconds: float
    jpeg: bytes
    source: str
    """Identity of the file that it shows."""


def write_thumbnails(folder: Path, thumbnails: list[Thumbnail]) -> None:
    with written_whole(shard_path(folder)) as partial, new_hdf5(partial) as file:
        file.create_dataset("thumbnails", data=np.array([(t.video_id, t.seconds, t.source) for t in thumbnails], dtype=THUMBNAIL_ROW))
        jpegs = file.create_dataset("jpegs", shape=len(thumbnails), dtype=h5py.vlen_dtype(np.uint8))
        for index, thumbnail in enumerate(thumbnails):
            jpegs[index] = np.frombuffer(thumbnail.jpeg, dtype=np.uint8)


class ThumbnailStore:
    """Reads the thumbnails in a folder; one that does not exist has none. Of two shards with the same video the later one counts."""

    def __init__(self, folder: Path) -> None:
        self._places: dict[str, tuple[Path, list[int]]] = {}
        self._sources: dict[str, str] = {}
        for shard in sorted(folder.glob("*.h5")):
            rows: dict[str, list[int]] = {}
            try:
                with h5py.File(shard, "r") as file:
                    table = file["thumbnails"][:]
            except (OSError, KeyError) as error:
                raise UserError(f"{shard}: not a readable thumbnail file ({error}); remove it") from None
            for index, row in enumerate(table):
                rows.setdefault(row["video_id"].decode(), []).append(index)
                self._sources[row["video_id"].decode()] = row["source"].decode()
            self._places |= {video_id: (shard, indices) for video_id, indices in rows.items()}

    def source(self, video_id: str) -> str | None:
        """Identity of the file that a video's thumbnails show; None where it has none."""
        return self._sources.get(video_id)

    def get(self, video_id: str) -> list[Thumbnail]:
        """Those of a video, in time order; none where it has none."""
        if video_id not in self._places:
            return []
        shard, indices = self._places[video_id]
        with h5py.File(shard, "r") as file:
            rows = file["thumbnails"]
            found = [Thumbnail(video_id, float(rows[i]["seconds"]), file["jpegs"][i].tobytes(), self._sources[video_id]) for i in indices]
        return sorted(found, key=lambda thumbnail: thumbnail.seconds)
