"""The files on disk: records, feature stores, caption tables.

Public names are imported at their first use: each decoding process imports this package, but neither HDF5 nor Parquet.
"""

from typing import TYPE_CHECKING

from .common.lazy import names_from

if TYPE_CHECKING:
    from .captions import read_captions
    from .common.errors import UserError, VlalignError
    from .feature_store import FeatureStore
    from .idf import IdfEntry, read_idf, write_idf
    from .layout import DatasetFolder
    from .memory_store import MemoryStore
    from .records import Caption, Failure, Profile, StoredVideo, VideoFeatures, VideoRecord, Weights
    from .shards import write_shard
    from .store import Store
    from .thumbnails import ThumbnailStore

__all__ = [
    "Caption",
    "DatasetFolder",
    "Failure",
    "FeatureStore",
    "IdfEntry",
    "MemoryStore",
    "Profile",
    "Store",
    "StoredVideo",
    "ThumbnailStore",
    "UserError",
    "VideoFeatures",
    "VideoRecord",
    "VlalignError",
    "Weights",
    "read_captions",
    "read_idf",
    "write_idf",
    "write_shard",
]

__getattr__ = names_from(
    __name__,
    {
        "Caption": "records",
        "DatasetFolder": "layout",
        "Failure": "records",
        "FeatureStore": "feature_store",
        "IdfEntry": "idf",
        "MemoryStore": "memory_store",
        "Profile": "records",
        "Store": "store",
        "StoredVideo": "records",
        "ThumbnailStore": "thumbnails",
        "UserError": "common.errors",
        "VideoFeatures": "records",
        "VideoRecord": "records",
        "VlalignError": "common.errors",
        "Weights": "records",
        "read_captions": "captions",
        "read_idf": "idf",
        "write_idf": "idf",
        "write_shard": "shards",
    },
)
