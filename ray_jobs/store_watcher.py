"""The stores of a data set, watched by the driver while workers write to them."""

import threading
from collections.abc import Iterable
from pathlib import Path

from ..extract.pipeline.pending_work import PendingWork
from ..storage.common.threads import map_in_threads
from ..storage.shards import read_shard
from ..storage.stores.feature_store import SHARDS_PER_THREAD, FeatureStore, current_shards


class StoreWatcher:
    """Watches the stores of a data set while workers write to them: ended workers may not have reported all videos."""

    def __init__(self, pending: PendingWork, features: Iterable[str]) -> None:
        """Remember the shards that exist now.

        Args:
            pending: The data set and its stores.
            features: Names of the stores to watch.
        """
        self._folders = {name: pending.dataset.features(name) for name in features}
        stores = {name: pending.stores.get(name) for name in self._folders}
        self._known = {
            name: {shard.path for shard in store.shards} if isinstance(store, FeatureStore) else set()
            for name, store in stores.items()
        }
        self._features: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def poll(self) -> dict[str, set[str]]:
        """Return the videos with new features since the last call, and the names of all features of each.

        Features that were in the stores at the beginning are not included.
        """
        new: set[str] = set()
        with self._lock:
            for name, folder in self._folders.items():
                unknown = set(current_shards(folder)) - self._known[name]
                for video_ids in map_in_threads(_videos_in, unknown, calls_per_part=SHARDS_PER_THREAD):
                    new.update(video_ids)
                    for video_id in video_ids:
                        self._features.setdefault(video_id, set()).add(name)
                self._known[name] |= unknown
            return {video_id: self._features[video_id] for video_id in new}


def _videos_in(shard: Path) -> list[str]:
    """Return the ids of the videos in a shard; none if it was compacted in the meantime."""
    try:
        return [video_id.decode() for video_id in read_shard(shard).videos["video_id"].tolist()]
    except FileNotFoundError:
        return []
