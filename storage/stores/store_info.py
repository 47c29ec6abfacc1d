"""Descriptions of a store's content and origin, for people and programs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..common.terminal import number_of
from ..shards.format import schema_of
from .feature_store import FeatureStore


@dataclass(frozen=True, kw_only=True)
class StoreInfo:
    """A store's content and origin."""

    folder: str
    schema: int
    origin: str
    profile: Mapping[str, Any]
    """All facts of the profile; "unknown" for unknown ones."""
    profile_hash: str
    weights: str
    weights_sha256: str
    made_with: Mapping[str, list[str]]
    """Versions of each program that made features."""
    decoders: Mapping[str, int]
    """Number of videos that each decoder read."""
    types: list[str]
    """Types that features are stored in."""
    videos: int
    partial_videos: int
    """Number of videos with missing or damaged parts."""
    hours: float
    rows: int
    replaced_videos: int
    """Number of outdated copies of videos, which later shards replaced."""
    shards: int
    bytes: int

    def lines(self) -> list[str]:
        """Return the facts as lines of text."""

        def several(values: Mapping[str, str]) -> str:
            return ", ".join(f"{name} {value}" for name, value in values.items())

        replaced = f", {self.replaced_videos:,} replaced" if self.replaced_videos else ""
        sha256 = f" (sha256 {self.weights_sha256 or 'not known'})" if self.weights != "none" else ""
        decoders = self.decoders.items()
        facts = {
            "videos": f"{self.videos:,} ({self.partial_videos:,} partial or damaged{replaced}), {self.hours:,.2f} "
            "hours",
            "rows": f"{self.rows:,} of {self.profile['dimension']:,} values, {' and '.join(self.types)}",
            "on disk": f"{number_of(self.shards, 'shards')}, {self.bytes / 1e6:,.1f} MB, schema {self.schema}",
            "origin": self.origin,
            "weights": self.weights + sha256,
            "made with": several({name: " and ".join(versions) for name, versions in self.made_with.items()}),
            "decoders": several({name or "none": f"({number_of(count, 'videos')})" for name, count in decoders}),
            "profile": self.profile_hash,
        }
        facts |= {f"  {name}": value for name, value in self.profile.items()}
        return [self.folder, *(f"  {name:<20}{value}" for name, value in facts.items())]


def describe(store: FeatureStore) -> StoreInfo:
    """Return the content and the origin of a store."""
    tables = [part.videos for part in store.shard_parts()]
    decoders = Counter(decoder.decode() for table in tables for decoder in table["decoder"].tolist())
    return StoreInfo(
        folder=str(store.folder),
        schema=schema_of(store.profile),
        origin=store.origin,
        profile=store.profile.facts(),
        profile_hash=store.profile.hash,
        weights=store.weights.name,
        weights_sha256=store.weights.sha256,
        made_with={name: sorted(versions) for name, versions in sorted(store.made_with.items())},
        decoders=dict(sorted(decoders.items())),
        types=sorted({shard.dtype.name for shard in store.shards}),
        videos=len(store),
        partial_videos=sum(int((table["partial"] != b"").sum()) for table in tables),
        hours=round(sum(float(table["duration_seconds"].sum()) for table in tables) / 3600, 6),
        rows=sum(int(table["num_rows"].sum()) for table in tables),
        replaced_videos=sum(len(shard.videos) for shard in store.shards) - len(store),
        shards=len(store.shards),
        bytes=sum(shard.num_bytes for shard in store.shards),
    )
