"""Names of shards, which say when they were written."""

import os
import re
import time
import uuid
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

SHARD_NAME = re.compile(r"(\d{20})-[0-9a-f]{8}\.h5", re.ASCII)
AHEAD_NS = 365 * 24 * 3600 * 10**9
"""So far may a clock have been wrong. No time later than that is believed: nothing could be written after it."""
CLOCKS_DIFFER_NS = 3600 * 10**9
UNDATED_NS = 10**15
"""Two weeks of 1970: names for what is made in place of shards whose names say no time."""


def stamp_of(name: str) -> int:
    """The time in a shard's name, in nanoseconds since 1970; 0 where it says none, or one that cannot be."""
    match = SHARD_NAME.fullmatch(name)
    stamp = int(match[1]) if match else 0
    return stamp if stamp <= time.time_ns() + AHEAD_NS else 0


def in_order(names: Iterable[str]) -> list[str]:
    """Names of shards, of which a later one counts more: by the time in them. Those that say none are the oldest."""
    return sorted(names, key=lambda name: (stamp_of(name) > 0, name))


def shard_path(folder: Path, *, in_place_of: Path | None = None) -> Path:
    """A new shard's name: no other writer has it, and in order it follows all that are there, even if a clock was set back.

    ``in_place_of``: a shard that it follows directly, before any that was made later.
    """
    stamps = [stamp for name in (os.listdir(folder) if folder.exists() else ()) if (stamp := stamp_of(name))]
    if in_place_of is None:
        stamp = max([time.time_ns(), *(stamp + 1 for stamp in stamps)])
    elif replaced := stamp_of(in_place_of.name):
        stamp = replaced + 1
    else:
        stamp = max((stamp for stamp in stamps if stamp < UNDATED_NS), default=0) + 1
    return folder / f"{stamp:020d}-{uuid.uuid4().hex[:8]}.h5"


@lru_cache(maxsize=1 << 16)  # asked for each of the videos in a shard
def written_at_ns(shard: Path) -> int:
    """When a shard was written, in nanoseconds since 1970, as its name says; 0 where it says no time, or one that is still to come."""
    stamp = stamp_of(shard.name)
    return stamp if stamp <= time.time_ns() + CLOCKS_DIFFER_NS else 0
