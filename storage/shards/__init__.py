"""Feature shards: their format, and how they are read and written."""

from .format import EXTRACTED, TEXTS, UNKNOWN_FACTS, Provenance, Shard
from .read import ShardRows, read_shard
from .write import check_storable, write_shard

__all__ = [
    "EXTRACTED",
    "TEXTS",
    "UNKNOWN_FACTS",
    "Provenance",
    "Shard",
    "ShardRows",
    "check_storable",
    "read_shard",
    "write_shard",
]
