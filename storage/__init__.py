"""What is on disk: records, feature stores, caption tables."""

from .captions import IdfEntry, read_captions, read_idf, write_captions, write_idf
from .feature_store import FeatureStore, write_shard
from .records import Caption, Failure, Profile, VideoFeatures, VideoRecord, Weights

__all__ = [
    "Caption",
    "Failure",
    "FeatureStore",
    "IdfEntry",
    "Profile",
    "VideoFeatures",
    "VideoRecord",
    "Weights",
    "read_captions",
    "read_idf",
    "write_captions",
    "write_idf",
    "write_shard",
]
