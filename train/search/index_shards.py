"""The windows of videos, encoded and written as parts of an index, here or in other processes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path

import numpy as np

from ...storage.common.progress import progress
from ...storage.dataset.folder import DatasetFolder
from ..data.clips import Clip
from .codes import Spread
from .encoder import Encoder, key_of
from .index import WindowIndex, folder_name, open_parts, write_part
from .open_encoder import EncoderSource
from .windows import WINDOW_SECONDS, plan_windows

PART_WINDOWS = 1 << 16
"""Windows in a part, and so in memory at a time: 128 MiB in float32 for 512 values. One video more may fit in."""
BATCH_WINDOWS = 1024
"""Windows that are encoded between two reports of progress."""


@dataclass(frozen=True)
class IndexFolder:
    """The folder of a data set's index for one encoder, and the key that its parts must have."""

    encoder: Encoder
    path: Path
    key: str

    @classmethod
    def of(cls, encoder: Encoder) -> "IndexFolder":
        """Return the index folder of an encoder."""
        key = key_of(encoder, window_seconds=list(WINDOW_SECONDS))
        return cls(encoder, index_folder(encoder.dataset, encoder.name), key)

    def open(self) -> WindowIndex:
        """Open the windows that count now.

        Raises:
            UserError: A part is damaged.
        """
        encoder = self.encoder
        checksums = {video_id: encoder.checksum(video_id) for video_id in encoder.video_ids()}
        return WindowIndex(open_parts(self.path), self.key, checksums)


def index_folder(dataset: DatasetFolder, name: str) -> Path:
    """Return the folder of the index of features or a run."""
    return dataset.path / "index" / folder_name(name)


@dataclass(frozen=True)
class PlannedPart:
    """Videos whose windows will be a part."""

    video_ids: list[str]
    num_windows: int


def add_videos(index: IndexFolder, video_ids: Sequence[str]) -> None:
    """Encode the windows of videos and write them as parts. What is written stays if the work is stopped.

    Args:
        index: Where the parts go.
        video_ids: Videos of the encoder.
    """
    encoder, parts = index.encoder, list(_parts(index.encoder, video_ids))
    encoded = progress(
        (video for part in parts for video in _encoded(encoder, part.video_ids)),
        total=sum(part.num_windows for part in parts),
        what="indexing",
        unit="windows",
        size=lambda done: len(done[1]),
    )
    for part in parts:
        _write(index, dict(islice(encoded, len(part.video_ids))))


def add_videos_elsewhere(index: IndexFolder, video_ids: Sequence[str], source: EncoderSource, spread: Spread) -> None:
    """Do what ``add_videos`` does, each part in another process.

    Args:
        index: Where the parts go.
        video_ids: Videos of the encoder.
        source: Opens the same encoder there.
        spread: Calls a function with each part, and yields the results.
    """
    parts = list(_parts(index.encoder, video_ids))
    sizes = spread(partial(_add_part, source), parts)
    total = sum(part.num_windows for part in parts)
    for _ in progress(sizes, total=total, what="indexing", unit="windows", size=lambda done: done):
        pass


def _add_part(source: EncoderSource, part: PlannedPart) -> int:
    """Write a part; return its number of windows."""
    index = _opened(source)
    _write(index, dict(_encoded(index.encoder, part.video_ids)))
    return part.num_windows


@lru_cache(maxsize=1)
def _opened(source: EncoderSource) -> IndexFolder:
    return IndexFolder.of(source.open())


def _parts(encoder: Encoder, video_ids: Sequence[str]) -> Iterator[PlannedPart]:
    """Divide videos into parts."""
    ids: list[str] = []
    num_windows = 0
    for video_id in video_ids:
        ids.append(video_id)
        num_windows += len(plan_windows(encoder.duration_seconds(video_id)))
        if num_windows >= PART_WINDOWS:
            yield PlannedPart(ids, num_windows)
            ids, num_windows = [], 0
    if ids:
        yield PlannedPart(ids, num_windows)


def _write(index: IndexFolder, done: dict[str, np.ndarray]) -> None:
    """Write the vectors of videos as a part."""
    encoder = index.encoder
    windows = [plan_windows(encoder.duration_seconds(video_id)) for video_id in done]
    write_part(index.path, index.key, {v: encoder.checksum(v) for v in done}, windows, list(done.values()))


def _encoded(encoder: Encoder, video_ids: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the vectors of each video's windows. Several short videos are encoded together."""
    batch: dict[str, np.ndarray] = {}
    for video_id in video_ids:
        batch[video_id] = plan_windows(encoder.duration_seconds(video_id))
        if sum(map(len, batch.values())) >= BATCH_WINDOWS:
            yield from _encode_batch(encoder, batch)
            batch = {}
    if batch:
        yield from _encode_batch(encoder, batch)


def _encode_batch(encoder: Encoder, batch: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    clips = [clip for video_id, windows in batch.items() for clip in clips_of(video_id, windows)]
    vectors = encoder.clip_vectors(clips)
    borders = np.cumsum([len(windows) for windows in batch.values()])[:-1]
    yield from zip(batch, np.split(vectors, borders), strict=True)


def clips_of(video_id: str, windows: np.ndarray) -> list[Clip]:
    """Return the windows of a video as clips; the first is the whole (``plan_windows``)."""
    parts = [Clip(video_id, float(start), float(end)) for start, end in windows[1:].tolist()]
    return [Clip(video_id, None, None), *parts]
