"""Care of a store: its shards looked through, damaged ones dropped, small ones put together, stores merged, videos removed.

All of it makes new shards first and removes old ones only when the new one is whole, so that whatever ends it, every video is there;
the same call then goes on. Extraction and training may go on meanwhile; two calls of these on one store at the same time may not.
"""

import contextlib
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .common.errors import UserError
from .feature_store import FeatureStore, current_shards, shard_files
from .files import written_whole
from .remote.store import refuse_remote, remote_store
from .shard_names import SHARD_NAME, shard_path
from .shards.format import SCHEMA, OtherSchema, Shard, Unreadable, checksum, describe_key
from .shards.read import ShardRows, damaged_videos, read_shard, rest_is_damaged
from .shards.write import attributes_of, room_for, write_rows

COMPACT_BYTES = 256 << 20
UNFINISHED_SECONDS = 3600
"""A temporary file that nobody has written to for so long was left by a writer that was killed: writing one takes seconds."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a shard."""

    path: Path
    message: str
    shard: Shard | None = None
    """None where the file does not even say what is in it."""
    damaged: list[int] = field(default_factory=list)
    """Which videos, by their row in the index."""
    foreign: bool = False
    """Whether it is no damaged shard of this store: of another version or profile, somebody else's file, or not to be read now."""


def look_through(path: Path) -> Finding | None:
    """Every byte of a shard against its checksums. None where all is well."""
    try:
        shard = read_shard(path)
    except FileNotFoundError:
        return (
            Finding(path, f"{path}: a link that leads nowhere", foreign=True) if path.is_symlink() else None
        )  # compacted meanwhile
    except UserError as error:
        foreign = isinstance(error, OtherSchema | Unreadable) or not SHARD_NAME.fullmatch(path.name)
        return Finding(path, str(error), foreign=foreign)
    there = remote_store(path.parent)
    rows = there.rows(shard) if there else ShardRows(shard)
    damaged = damaged_videos(rows)
    if damaged:
        ids = [video_id.decode() for video_id in shard.videos["video_id"][damaged].tolist()]
        some = ", ".join(ids[:5]) + (f" and {len(ids) - 5:,} more" if len(ids) > 5 else "")
        return Finding(
            path,
            f"{path}: the rows of {len(ids):,} of its {len(shard.videos):,} videos are damaged: {some}",
            shard,
            damaged,
        )
    if rest_is_damaged(shard):
        return Finding(path, f"{path}: HDF5's own records in it are damaged, its rows are not", shard)
    return None


def verify(folder: Path) -> Iterator[tuple[Path, Finding | None]]:
    """Looks through every shard; a shard of another profile than the first is a finding, too."""
    first = None
    for path in current_shards(folder):
        finding = look_through(path)
        if finding is None and path.exists():
            shard = read_shard(path)
            first = first or shard
            if shard.key != first.key:
                message = f"{path}: has {describe_key(shard.key)}, {first.path.name} has {describe_key(first.key)}; remove one of them"
                finding = Finding(path, message, foreign=True)
        yield path, finding


def unfinished(folder: Path) -> list[Path]:
    """What writers that were killed left behind."""
    old, found = time.time() - UNFINISHED_SECONDS, []
    for path in sorted(folder.glob(".*.partial")):
        with contextlib.suppress(FileNotFoundError):  # finished meanwhile
            if path.stat().st_mtime < old:
                found.append(path)
    return found


def repair(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Drops what is damaged, and keeps the rest of its shard; (shard, what was done to it) for each, None where all was well.

    What is no shard of this store is left alone.
    """
    refuse_remote(folder)
    for path in unfinished(folder):
        path.unlink(missing_ok=True)
    for path, finding in verify(folder):
        if finding is None:
            yield path, None
        elif finding.foreign:
            yield path, f"{finding.message}; left alone"
        elif finding.shard is None:
            path.unlink()
            yield path, f"{path}: not readable, dropped as a whole"
        else:
            kept = np.setdiff1d(np.arange(len(finding.shard.videos)), finding.damaged)
            _write_again(folder, [(finding.shard, kept)])
            path.unlink()
            yield path, f"{finding.message}; {len(kept):,} videos were kept, {len(finding.damaged):,} dropped"


def compact(folder: Path, *, shard_bytes: int = COMPACT_BYTES) -> Iterator[tuple[int, int]]:
    """Puts small shards together into ones of about ``shard_bytes``, and leaves out what later shards replaced.

    Yields (shards read, shards written) for each new one.
    """
    refuse_remote(folder)
    groups: dict[tuple, list[tuple[Shard, np.ndarray]]] = defaultdict(list)
    for shard, kept in FeatureStore(folder).read_from():
        if not len(kept):
            shard.path.unlink()
            yield 1, 0
        elif shard.num_bytes < shard_bytes / 2 or len(kept) < len(shard.videos):
            groups[shard.dtype.str, tuple(sorted(shard.made_with.items()))].append((shard, kept))
    for group in groups.values():
        for batch in _batches(group, shard_bytes):
            if len(batch) > 1 or len(batch[0][1]) < len(batch[0][0].videos):
                _write_again(folder, batch)
                for shard, _ in batch:
                    shard.path.unlink()
                yield len(batch), 1


def _batches(parts: Sequence[tuple[Shard, np.ndarray]], most_bytes: int) -> Iterator[list[tuple[Shard, np.ndarray]]]:
    batch: list[tuple[Shard, np.ndarray]] = []
    num_bytes = 0
    for shard, kept in parts:
        if batch and num_bytes + shard.num_bytes > most_bytes:
            yield batch
            batch, num_bytes = [], 0
        batch.append((shard, kept))
        num_bytes += shard.num_bytes
    if batch:
        yield batch


def merge(sources: Sequence[Path], folder: Path) -> Iterator[Path]:
    """Copies the shards of other stores into ``folder``, whose store they join or make; each path copied.

    Shards keep their names, so that of two with the same video the one that was made later counts, wherever it was made.
    Raises ``UserError`` where profiles, weights or origins differ, and for a damaged shard, before that one is copied.
    """
    refuse_remote(folder)
    stores = [FeatureStore(source) for source in sources]
    if shard_files(folder):
        stores.insert(0, FeatureStore(folder))
    for store in stores[1:]:
        if store.shards[0].key != stores[0].shards[0].key:
            raise UserError(
                f"{store.folder}: has {describe_key(store.shards[0].key)}, {stores[0].folder} has {describe_key(stores[0].shards[0].key)}; "
                "only stores of one profile and one set of weights can be merged"
            )
    for store in stores:
        for shard in store.shards:
            target = folder / shard.path.name
            if target.exists():
                continue
            if finding := look_through(shard.path):
                raise UserError(f"{finding.message}; run vlalign-store repair {store.folder} first")
            with room_for(shard.num_bytes, folder), written_whole(target) as partial:
                shutil.copyfile(shard.path, partial)
                if look_through(partial):
                    raise OSError("what was read back is not what was written; is the disk broken?")
            yield target


def remove(folder: Path, video_ids: Collection[str]) -> list[str]:
    """Removes videos from every shard that has them; returns those that were not there, removed by an earlier call perhaps."""
    refuse_remote(folder)
    store = FeatureStore(folder)
    gone = np.array([video_id.encode() for video_id in video_ids])
    for shard in store.shards:
        kept = np.flatnonzero(~np.isin(shard.videos["video_id"], gone))
        if len(kept) < len(shard.videos):
            _write_again(folder, [(shard, kept)])
            shard.path.unlink()
    return [video_id for video_id in video_ids if video_id not in store]


def _write_again(folder: Path, parts: Sequence[tuple[Shard, np.ndarray]]) -> None:
    """One new shard with the given videos of others, which follows the last of them in the order of names. Rows are checked on their
    way: damage is never copied under a new checksum."""
    parts = [(shard, kept) for shard, kept in parts if len(kept)]
    if not parts:
        return
    first, last = parts[0][0], parts[-1][0]
    tables = [shard.videos[kept] for shard, kept in parts]
    table = np.concatenate([table.astype(_widest(tables)) for table in tables])
    table["first_row"] = np.cumsum(table["num_rows"]) - table["num_rows"]

    places = [(opened, number) for shard, kept in parts for opened in [ShardRows(shard)] for number in kept]

    def rows_of(place: int) -> tuple[list[np.ndarray], int]:
        opened, number = places[place]
        video, columns = opened.shard.videos[number], opened.of(opened.shard.videos[number])
        if (crc := checksum(columns)) != video["checksum"]:
            raise UserError(
                f"{opened.shard.path}: the rows of {video['video_id'].decode()!r} are damaged; run vlalign-store repair {folder} first"
            )
        return columns, crc

    attributes = attributes_of(first.profile, first.weights, first.origin, first.made_with)
    write_rows(
        shard_path(folder, in_place_of=last.path), attributes, first.profile.dimension, first.dtype.str, table, rows_of
    )


def _widest(tables: Sequence[np.ndarray]) -> np.dtype:
    return np.dtype(
        [(name, max((t.dtype[name] for t in tables), key=lambda kind: kind.itemsize)) for name in tables[0].dtype.names]
    )


def describe(store: FeatureStore) -> dict[str, Any]:
    """What a store holds and how it was made; plain values, for people and programs."""
    videos = [shard.videos[kept] for shard, kept in store.read_from()]
    made_with: dict[str, set[str]] = defaultdict(set)
    for shard in store.shards:
        for name, value in shard.made_with.items():
            made_with[name].add(value)
    decoders = Counter(decoder.decode() for table in videos for decoder in table["decoder"].tolist())
    return {
        "folder": str(store.folder),
        "schema": SCHEMA,
        "origin": store.origin,
        "profile": asdict(store.profile),
        "profile_hash": store.profile.hash,
        "weights": store.weights.name,
        "weights_sha256": store.weights.sha256,
        "made_with": {name: sorted(values) for name, values in sorted(made_with.items())},
        "decoders": dict(sorted(decoders.items())),
        "types": sorted({shard.dtype.name for shard in store.shards}),
        "videos": len(store),
        "partial_videos": sum(int((table["partial"] != b"").sum()) for table in videos),
        "hours": round(sum(float(table["duration_seconds"].sum()) for table in videos) / 3600, 6),
        "rows": sum(int(table["num_rows"].sum()) for table in videos),
        "replaced_videos": sum(len(shard.videos) for shard in store.shards) - len(store),
        "shards": len(store.shards),
        "bytes": sum(shard.num_bytes for shard in store.shards),
    }
