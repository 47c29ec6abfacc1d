"""What is on disk, whoever wrote it: a worker that ended may not have said so."""

import contextlib
import threading
from collections.abc import Iterable

from ..extract.work import WorkList
from ..storage.feature_store import current_shards
from ..storage.shards import read_shard


class Written:
    """What comes to the stores while workers write to them."""

    def __init__(self, work: WorkList, features: Iterable[str]) -> None:
        self._folders = {name: work.dataset.features(name) for name in features}
        stores = {name: work.stores.get(name) for name in self._folders}
        self._known = {
            name: {shard.path for shard in store.shards} if store else set() for name, store in stores.items()
        }
        self._features: dict[str, set[str]] = {}
        self._one_at_a_time = threading.Lock()

    def look(self) -> dict[str, set[str]]:
        """{video: the features of it that came to the stores since the call began}, of those that had some since the
        last look."""
        new: set[str] = set()
        with self._one_at_a_time:
            for name, folder in self._folders.items():
                for path in set(current_shards(folder)) - self._known[name]:
                    with contextlib.suppress(FileNotFoundError):  # compacted since
                        for video_id in read_shard(path).videos["video_id"].tolist():
                            new.add(video_id.decode())
                            self._features.setdefault(video_id.decode(), set()).add(name)
                    self._known[name].add(path)
            return {video_id: self._features[video_id] for video_id in new}
