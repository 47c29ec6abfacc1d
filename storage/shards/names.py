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
"""Largest time that a clock may have been ahead. A later time is not believed: nothing could be written after it."""
CLOCKS_DIFFER_NS = 3600 * 10**9
UNDATED_NS = 10**15
"""Two weeks of 1970: times of shards that replace shards without a valid time in their names."""


def stamp_of(name: str) -> int:
    """Return the time in a shard's name, in nanoseconds since 1970; 0 if there is none, or an impossible one."""
    match = SHARD_NAME.fullmatch(name)
    stamp = int(match[1]) if match else 0
    return stamp if stamp <= time.time_ns() + AHEAD_NS else 0


def sort_shard_names(names: Iterable[str]) -> list[str]:
    """Sort names of shards by their time, because a later shard counts more. Names without a valid time come first."""
    return sorted(names, key=lambda name: (stamp_of(name) > 0, name))


def shard_path(folder: Path, *, in_place_of: Path | None = None) -> Path:
    """Return a path for a new shard that no other writer uses.

    Args:
        folder: Folder of the store.
        in_place_of: Shard that the new one follows directly, before any later shard. By default the new shard follows
            all shards in the folder, even if a clock was set back.
    """
    stamps = [stamp for name in (os.listdir(folder) if folder.exists() else ()) if (stamp := stamp_of(name))]
    if in_place_of is None:
        stamp = max([time.time_ns(), *(stamp + 1 for stamp in stamps)])
    elif replaced := stamp_of(in_place_of.name):
        stamp = replaced + 1
    else:
        stamp = max((stamp for stamp in stamps if stamp < UNDATED_NS), default=0) + 1
    return folder / f"{stamp:020d}-{uuid.uuid4().hex[:8]}.h5"


@lru_cache(maxsize=1 << 16)  # called for each video of a shard
def written_at_ns(shard: Path) -> int:
    """Return when a shard was written, in nanoseconds since 1970; 0 if its name has no time, or one in the future."""
    stamp = stamp_of(shard.name)
    return stamp if stamp <= time.time_ns() + CLOCKS_DIFFER_NS else 0
