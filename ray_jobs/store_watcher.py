"""The stores of a data set, watched by the driver while workers write to them."""

import contextlib
import threading
from collections.abc import Iterable

from ..extract.pipeline.pending_work import PendingWork
from ..storage.shards import read_shard
from ..storage.stores.feature_store import FeatureStore, current_shards


class StoreWatcher:
    """Watches the stores of a data set while workers write to them: one that ended may not have reported all."""

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
        """Return all features of each video that got some since the last call.

        Features that were in the stores at the beginning do not count.
        """
        new: set[str] = set()
        with self._lock:
            for name, folder in self._folders.items():
                for path in set(current_shards(folder)) - self._known[name]:
                    with contextlib.suppress(FileNotFoundError):  # compacted in the meantime
                        for video_id in read_shard(path).videos["video_id"].tolist():
                            new.add(video_id.decode())
                            self._features.setdefault(video_id.decode(), set()).add(name)
                    self._known[name].add(path)
            return {video_id: self._features[video_id] for video_id in new}
