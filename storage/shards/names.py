"""Names of shards: the time of writing in nanoseconds since 1970, and a random part."""

import os
import re
import time
import uuid
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

SHARD_NAME = re.compile(r"(\d{20})-[0-9a-f]{8}\.h5", re.ASCII)
AHEAD_NS = 365 * 24 * 3600 * 10**9
"""How far in the future the time in a name may be. A later time is ignored, since no new shard could follow it."""
CLOCKS_DIFFER_NS = 3600 * 10**9
UNDATED_NS = 10**15
"""Times below this, in January 1970, are used for shards that replace shards without a valid time in their names."""


def stamp_of(name: str) -> int:
    """Return the time in a shard's name, in nanoseconds since 1970; 0 if it is missing or impossible."""
    match = SHARD_NAME.fullmatch(name)
    stamp = int(match[1]) if match else 0
    return stamp if stamp <= time.time_ns() + AHEAD_NS else 0


def sort_shard_names(names: Iterable[str]) -> list[str]:
    """Sort shard names by time, since later shards replace earlier ones. Names without a valid time come first."""
    return sorted(names, key=lambda name: (stamp_of(name) > 0, name))


class NewShardNames:
    """Unique names for the shards that one writer adds to a folder.

    They follow all shards that were in the folder when the first name was made, even if a clock was set back. The
    folder is listed only at that time, since it may contain many thousands of shards.
    """

    def __init__(self, folder: Path) -> None:
        """Take the folder, which need not exist yet."""
        self.folder = folder
        self._latest: int | None = None

    def next(self) -> Path:
        """Return the path of a new shard."""
        latest = max(_stamps_in(self.folder), default=0) if self._latest is None else self._latest
        self._latest = max(time.time_ns(), latest + 1)
        return _named(self.folder, self._latest)


def shard_path(folder: Path) -> Path:
    """Return a unique path for a new shard that follows all shards in the folder."""
    return NewShardNames(folder).next()


def path_after(shard: Path) -> Path:
    """Return a path for a new shard that follows ``shard`` directly, before any later one."""
    if replaced := stamp_of(shard.name):
        return _named(shard.parent, replaced + 1)
    undated = (stamp for stamp in _stamps_in(shard.parent) if stamp < UNDATED_NS)
    return _named(shard.parent, max(undated, default=0) + 1)


def _stamps_in(folder: Path) -> list[int]:
    return [stamp for name in (os.listdir(folder) if folder.exists() else ()) if (stamp := stamp_of(name))]


def _named(folder: Path, stamp: int) -> Path:
    return folder / f"{stamp:020d}-{uuid.uuid4().hex[:8]}.h5"


@lru_cache(maxsize=1 << 16)  # called for each video of a shard
def written_at_ns(shard: Path) -> int:
    """Return when a shard was written, in nanoseconds since 1970; 0 if its name has no time, or one in the future."""
    stamp = stamp_of(shard.name)
    return stamp if stamp <= time.time_ns() + CLOCKS_DIFFER_NS else 0
