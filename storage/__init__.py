"""The files on disk: records, feature stores, caption tables."""

from .captions import read_captions
from .common.errors import UserError, VlalignError
from .feature_store import FeatureStore
from .idf import IdfEntry, read_idf, write_idf
from .memory_store import MemoryStore
from .records import Caption, Failure, Profile, StoredVideo, VideoFeatures, VideoRecord, Weights
from .shards import write_shard
from .store import Store

__all__ = [
    "Caption",
    "Failure",
    "FeatureStore",
    "IdfEntry",
    "MemoryStore",
    "Profile",
    "Store",
    "StoredVideo",
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
