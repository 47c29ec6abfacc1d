"""Maintenance of stores: verify, repair, compact and merge them, and remove videos.

Each function writes new shards first and removes old ones only when the new ones are complete. If a function is
stopped, no video is lost, and the same call continues. Extraction and training may run at the same time; two of these
functions on one store may not.
"""

import contextlib
import shutil
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.progress import Listener, progress, report_progress_to
from ..common.terminal import number_of, say
from ..common.writing import atomic_write, remove_file
from ..remote.store import refuse_remote, remote_store
from ..shards.format import OtherSchema, Shard, Unreadable
from ..shards.names import SHARD_NAME
from ..shards.read import ShardRows, damaged_videos, read_shard, rest_is_damaged
from ..shards.rewrite import ShardPart, rewrite
from ..shards.write import require_disk_space
from .feature_store import current_shards, shard_files
from .opening import open_store, open_writer

COMPACT_BYTES = 256 << 20
UNFINISHED_SECONDS = 3600
"""A temporary file that was not written for this long belongs to a writer that was killed: writing one takes seconds.
"""


@dataclass(frozen=True)
class ShardDamage:
    """The damage of a shard."""

    path: Path
    message: str
    shard: Shard | None = None
    """None if the shard's metadata cannot be read."""
    index_rows: list[int] = field(default_factory=list)
    """The rows of the damaged videos in the shard's index."""
    foreign: bool = False
    """True if it is not a damaged shard of this store: another version or profile, another program's file, or
    unreadable now."""


@dataclass(frozen=True)
class Repaired:
    """The repair of a damaged shard."""

    path: Path
    message: str


@dataclass(frozen=True)
class Compacted:
    """One step of ``compact``."""

    num_read: int
    """Shards that were replaced."""
    num_written: int
    """Shards that replace them: one, or none if all videos were replaced later."""


def find_damage(path: Path) -> ShardDamage | None:
    """Compare every byte of a shard with its checksums; return the damage, or None."""
    try:
        shard = read_shard(path)
    except FileNotFoundError:  # compacted in the meantime, unless it is a symlink
        return ShardDamage(path, f"{path}: a symlink without a target", foreign=True) if path.is_symlink() else None
    except UserError as error:
        foreign = isinstance(error, OtherSchema | Unreadable) or not SHARD_NAME.fullmatch(path.name)
        return ShardDamage(path, str(error), foreign=foreign)
    remote = remote_store(path.parent)
    damaged = damaged_videos(remote.rows(shard) if remote else ShardRows(shard))
    if damaged:
        ids = [video_id.decode() for video_id in shard.videos["video_id"][damaged].tolist()]
        some = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
        message = f"{path}: the rows of {len(ids):,} of its {len(shard.videos):,} videos are damaged: {some}"
        return ShardDamage(path, message, shard, damaged)
    if rest_is_damaged(shard):
        return ShardDamage(path, f"{path}: HDF5's own records in it are damaged, its rows are not", shard)
    return None


def verify(folder: Path, *, problems: Problems | None = None, on_progress: Listener | None = None) -> list[ShardDamage]:
    """Compare every byte of a store with its checksums.

    Shards with another profile or other weights than the first shard are also returned.

    Args:
        folder: Folder of the store.
        problems: Receives the message of each damaged shard at once.
        on_progress: Called after each shard.
    """
    found = []
    with report_progress_to(on_progress):
        for damage in _examine_shards(folder, "verifying"):
            if damage is not None:
                found.append(damage)
                if problems is not None:
                    problems.add(damage.message)
    return found


def _examine_shards(folder: Path, what: str) -> Iterator[ShardDamage | None]:
    """Yield the damage of each shard, or None."""
    first = None
    paths = current_shards(folder)
    for path in progress(paths, total=len(paths), what=what, unit="shards"):
        damage = find_damage(path)
        if damage is None and path.exists():
            shard = read_shard(path)
            first = first or shard
            if shard.key != first.key:
                message = (
                    f"{path}: has {shard.describe()}, {first.path.name} has {first.describe()}; remove one of them"
                )
                damage = ShardDamage(path, message, foreign=True)
        yield damage


def unfinished(folder: Path) -> list[Path]:
    """Return the temporary files that killed writers left."""
    oldest, paths = time.time() - UNFINISHED_SECONDS, []
    for path in sorted(folder.glob(".*.partial")):
        with contextlib.suppress(FileNotFoundError):  # finished in the meantime
            if path.stat().st_mtime < oldest:
                paths.append(path)
    return paths


def repair(folder: Path, *, on_progress: Listener | None = None) -> list[Repaired]:
    """Drop damaged videos and keep the rest of their shards; also remove temporary files that killed writers left.

    Files that are not shards of this store stay. Each change is logged.

    Args:
        folder: Folder of the store.
        on_progress: Called after each shard.

    Returns:
        One entry for each shard that ``verify`` would report, even if it was not changed.
    """
    refuse_remote(folder)
    for path in unfinished(folder):
        remove_file(path, missing_ok=True)
    repaired = []
    with report_progress_to(on_progress):
        for damage in _examine_shards(folder, "repairing"):
            if damage is not None:
                repaired.append(Repaired(damage.path, _repair(folder, damage)))
                say(repaired[-1].message)
    return repaired


def _repair(folder: Path, damage: ShardDamage) -> str:
    """Drop the damaged videos of a shard; return a description of the repair."""
    if damage.foreign:
        return f"{damage.message}; not changed"
    if damage.shard is None:
        remove_file(damage.path)
        return f"{damage.path}: not readable; removed"
    kept = np.setdiff1d(np.arange(len(damage.shard.videos)), damage.index_rows)
    rewrite(folder, [ShardPart(damage.shard, kept)])
    remove_file(damage.path)
    return f"{damage.message}; {number_of(len(kept), 'videos')} kept, {len(damage.index_rows):,} dropped"


def compact(folder: Path, *, shard_bytes: int = COMPACT_BYTES, on_progress: Listener | None = None) -> list[Compacted]:
    """Combine small shards, and drop videos that later shards replaced. Each step is logged.

    Args:
        folder: Folder of the store.
        shard_bytes: Approximate maximum size of the new shards.
        on_progress: Called after each step.
    """
    refuse_remote(folder)
    with report_progress_to(on_progress):
        batches = _compactable(folder, shard_bytes)
        return [
            _compact(folder, batch) for batch in progress(batches, total=len(batches), what="compacting", unit="steps")
        ]


def _compactable(folder: Path, shard_bytes: int) -> list[list[ShardPart]]:
    """Return which shards to replace together."""
    batches: list[list[ShardPart]] = []
    groups: dict[tuple[str, tuple[tuple[str, str], ...]], list[ShardPart]] = defaultdict(list)
    for part in open_store(folder).shard_parts():
        if not len(part.selected):
            batches.append([part])
        elif part.shard.num_bytes < shard_bytes / 2 or not part.is_whole:
            groups[part.shard.dtype.str, tuple(sorted(part.shard.made_with.items()))].append(part)
    for group in groups.values():
        batches += [batch for batch in _batches(group, shard_bytes) if len(batch) > 1 or not batch[0].is_whole]
    return batches


def _batches(parts: Sequence[ShardPart], max_bytes: int) -> Iterator[list[ShardPart]]:
    batch: list[ShardPart] = []
    num_bytes = 0
    for part in parts:
        if batch and num_bytes + part.shard.num_bytes > max_bytes:
            yield batch
            batch, num_bytes = [], 0
        batch.append(part)
        num_bytes += part.shard.num_bytes
    if batch:
        yield batch


def _compact(folder: Path, batch: Sequence[ShardPart]) -> Compacted:
    written = rewrite(folder, batch)
    for part in batch:
        remove_file(part.shard.path)
    step = Compacted(len(batch), int(written is not None))
    say(f"{folder}: {number_of(step.num_read, 'shards')} combined into {step.num_written:,}")
    return step


def merge(sources: Sequence[Path], folder: Path, *, on_progress: Listener | None = None) -> list[Path]:
    """Copy the shards of other stores into a store.

    Shards keep their names: if two have the same video, the later one is used, whatever its source.

    Args:
        sources: Folders of stores.
        folder: Folder of the store that receives the shards; created if missing.
        on_progress: Called after each shard.

    Returns:
        The new shards.

    Raises:
        UserError: Profiles, weights or origins differ, or a shard is damaged, which is then not copied.
    """
    refuse_remote(folder)
    stores = [open_store(source) for source in sources]
    if shard_files(folder):
        stores.insert(0, open_store(folder))
    for store in stores[1:]:
        shard, first = store.shards[0], stores[0].shards[0]
        if shard.key != first.key:
            raise UserError(
                f"{store.folder}: has {shard.describe()}, {stores[0].folder} has {first.describe()}; only stores of "
                "one profile and the same weights can be merged"
            )
    shards = [shard for store in stores for shard in store.shards if not (folder / shard.path.name).exists()]
    with report_progress_to(on_progress):
        copied = (_copy(shard, folder) for shard in progress(shards, total=len(shards), what="merging", unit="shards"))
        return [path for path in copied if path is not None]


def _copy(shard: Shard, folder: Path) -> Path | None:
    """Copy a shard; return None if another source had it also."""
    target = folder / shard.path.name
    if target.exists():
        return None
    if damage := find_damage(shard.path):
        raise UserError(f"{damage.message}; run vlalign-store repair {shard.path.parent} first")
    with require_disk_space(shard.num_bytes, folder), atomic_write(target) as partial:
        shutil.copyfile(shard.path, partial)
        if find_damage(partial):
            raise OSError("the data read back differ from what was written; check the disk")
    return target


def remove(folder: Path, video_ids: Collection[str]) -> list[str]:
    """Remove videos from every shard that has them.

    Args:
        folder: Folder of the store.
        video_ids: Ids of the videos.

    Returns:
        The ids that the store did not have.
    """
    return open_writer(folder).remove(video_ids)
