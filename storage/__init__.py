"""What is on disk: records, feature stores, caption tables."""

from .captions import IdfEntry, read_captions, read_idf, write_idf
from .feature_store import FeatureStore
from .memory_store import MemoryStore
from .records import Caption, Failure, Profile, VideoFeatures, VideoRecord, Weights
from .shards import write_shard

__all__ = [
    "Caption",
    "Failure",
    "FeatureStore",
    "IdfEntry",
    "MemoryStore",
    "Profile",
    "VideoFeatures",
    "VideoRecord",
    "Weights",
    "read_captions",
    "read_idf",
    "write_idf",
    "write_shard",
]
