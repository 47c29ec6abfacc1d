"""The files on disk: records, feature stores, caption tables.

Public names are imported at their first use: each decoding process imports this package, but neither HDF5 nor Parquet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .common.lazy import lazy_names

if TYPE_CHECKING:
    from types import ModuleType

    from .public import *

__all__ = [
    "Caption",
    "DatasetFolder",
    "Failure",
    "FeatureStore",
    "IdfEntry",
    "MemoryStore",
    "Profile",
    "Provenance",
    "RowTimes",
    "Store",
    "StoreWriter",
    "StoredVideo",
    "ThumbnailStore",
    "UserError",
    "VideoFeatures",
    "VideoRecord",
    "VlalignError",
    "Weights",
    "WritableStore",
    "check_storable",
    "open_store",
    "open_writer",
    "read_captions",
    "read_idf",
    "refuse_mixed",
    "write_idf",
    "write_shard",
]


def _public() -> ModuleType:
    from . import public

    return public


__getattr__ = lazy_names(__name__, __all__, _public)
