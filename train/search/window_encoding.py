"""Encode the search windows of videos into shards of an index, and open an index after adding missing windows."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.packages import EXTRAS, install_command
from ...storage.common.progress import progress
from ...storage.common.terminal import number_of, say
from ...storage.common.writing import check_folders
from ...storage.profiles import SHOTS
from .coded_search import CodedIndex, ParallelMap, has_faiss, needs_codes, read_coded_index
from .encoder import SearchEncoder
from .index import IndexFolder, WindowIndex, clips_of, write_index_shard
from .search_source import SearchSource

MAX_WINDOWS_ADDED_BY_SEARCH = 20_000
"""Upper limit of the missing windows that a search encodes itself."""
WINDOWS_PER_SHARD = 1 << 16
"""Windows in a shard, and so in memory at a time: 128 MiB in float32 for 512 values. A shard's last video may
exceed it."""
BATCH_WINDOWS = 1024
"""Windows that are encoded between two reports of progress."""


@dataclass(frozen=True)
class PlannedShard:
    """Videos whose windows will form a shard."""

    video_ids: list[str]
    num_windows: int


def add_videos(folder: IndexFolder, video_ids: Sequence[str]) -> None:
    """Encode the windows of videos and write them as shards. Written shards remain if the work is stopped.

    Args:
        folder: Folder of the shards.
        video_ids: Videos of the encoder.
    """
    _report_without_shots(folder, video_ids)
    shards = list(_plan_shards(folder, video_ids))
    encoded = progress(
        (video for shard in shards for video in _encoded(folder, shard.video_ids)),
        total=sum(shard.num_windows for shard in shards),
        what="indexing",
        unit="windows",
        size=lambda done: len(done[1]),
    )
    for shard in shards:
        _write(folder, dict(islice(encoded, len(shard.video_ids))))


def add_videos_in_parallel(
    folder: IndexFolder, video_ids: Sequence[str], source: SearchSource, parallel_map: ParallelMap
) -> None:
    """Encode windows as ``add_videos`` does, each shard in another process.

    Args:
        folder: Folder of the shards.
        video_ids: Videos of the encoder.
        source: Opens the same encoder in the other processes.
        parallel_map: Calls a function with each shard, and yields the results.
    """
    _report_without_shots(folder, video_ids)
    shards = list(_plan_shards(folder, video_ids))
    sizes = parallel_map(partial(_add_shard, source, time.time_ns()), shards)
    total = sum(shard.num_windows for shard in shards)
    for _ in progress(sizes, total=total, what="indexing", unit="windows", size=lambda done: done):
        pass


def _add_shard(source: SearchSource, call: int, shard: PlannedShard) -> int:
    """Write a shard; return its number of windows."""
    folder = _open_once(source, call)
    _write(folder, dict(_encoded(folder, shard.video_ids)))
    return shard.num_windows


@lru_cache(maxsize=1)
def _open_once(source: SearchSource, call: int) -> IndexFolder:
    """Open the encoder once for each call of ``build_index``: long-lived processes then see new features."""
    del call
    return IndexFolder.of(source.open_encoder())


def _report_without_shots(folder: IndexFolder, video_ids: Sequence[str]) -> None:
    """Print how many videos lack shots, if windows should be shots."""
    if lacking := sum(map(folder.lacks_shots, video_ids)):
        say(
            f"note: {number_of(lacking, 'videos')} without shots have windows of fixed lengths; for shots, run "
            f"vlalign-extract --dataset {folder.encoder.dataset.name} --features {SHOTS}, then vlalign-index"
        )


def _plan_shards(folder: IndexFolder, video_ids: Sequence[str]) -> Iterator[PlannedShard]:
    """Divide videos into shards."""
    ids: list[str] = []
    num_windows = 0
    for video_id in video_ids:
        ids.append(video_id)
        num_windows += len(folder.windows(video_id))
        if num_windows >= WINDOWS_PER_SHARD:
            yield PlannedShard(ids, num_windows)
            ids, num_windows = [], 0
    if ids:
        yield PlannedShard(ids, num_windows)


def _write(folder: IndexFolder, done: dict[str, np.ndarray]) -> None:
    """Write the vectors of videos as a shard."""
    windows = [folder.windows(video_id) for video_id in done]
    write_index_shard(folder.path, folder.key, {v: folder.checksum(v) for v in done}, windows, list(done.values()))


def _encoded(folder: IndexFolder, video_ids: Sequence[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the vectors of each video's windows. Several short videos are encoded together."""
    batch: dict[str, np.ndarray] = {}
    for video_id in video_ids:
        batch[video_id] = folder.windows(video_id)
        if sum(map(len, batch.values())) >= BATCH_WINDOWS:
            yield from _encode_batch(folder.encoder, batch)
            batch = {}
    if batch:
        yield from _encode_batch(folder.encoder, batch)


def _encode_batch(encoder: SearchEncoder, batch: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    clips = [clip for video_id, windows in batch.items() for clip in clips_of(video_id, windows)]
    vectors = encoder.encode_clips(clips)
    borders = np.cumsum([len(windows) for windows in batch.values()])[:-1]
    yield from zip(batch, np.split(vectors, borders), strict=True)


def open_index(folder: IndexFolder) -> WindowIndex:
    """Open the index for a search; add missing windows if they are few.

    Raises:
        UserError: There is no index or too many windows are missing, or a shard is damaged.
    """
    encoder, index = folder.encoder, folder.open()
    missing = index.state.missing
    if not missing:
        return index
    num_missing = 0
    for video_id in missing:
        num_missing += len(folder.windows(video_id))
        if num_missing > MAX_WINDOWS_ADDED_BY_SEARCH:
            break
    if num_missing <= MAX_WINDOWS_ADDED_BY_SEARCH:
        check_folders(folder.path)
        add_videos(folder, missing)
        return folder.open()
    todo = f"run vlalign-index --dataset {encoder.dataset.name}"
    if not index.num_windows:
        old = (
            f" ({len(index.state.other):,} index files are from another model or version)" if index.state.other else ""
        )
        raise UserError(f"{folder.path}: {len(missing):,} videos are not indexed yet{old}; {todo} first")
    say(f"note: {len(missing):,} videos are not in the index {folder.path} and were not searched; {todo}")
    return index


def open_coded_index(folder: IndexFolder, index: WindowIndex) -> CodedIndex | None:
    """Open the codes of an index's windows; None if searches compare all windows. A note is printed if this is slow.

    Raises:
        UserError: A file of codes is damaged.
    """
    coded = read_coded_index(index, folder.path)
    if coded is None and needs_codes(index):
        todo = "" if has_faiss() else f"install FAISS ({install_command(*EXTRAS['index'])}), then "
        say(
            f"note: each search compares all {index.num_windows:,} windows, which takes seconds; {todo}"
            f"run vlalign-index --dataset {folder.encoder.dataset.name}"
        )
    return coded
