"""The writer of a folder of shards, here or on a server."""

import contextlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from ..common.writing import remove_file
from ..records import VideoFeatures
from ..remote.store import RemoteStore, refuse_remote, remote_store
from ..shards.format import Provenance
from ..shards.names import NewShardNames
from ..shards.read import read_shard
from ..shards.rewrite import ShardPart, rewrite
from ..shards.write import write_shard
from .feature_store import FeatureStore, shard_files
from .store import StoreWriter, refuse_mixed


class ShardWriter(StoreWriter):
    """Writes one shard per call of ``write`` into a folder; ``flush`` uploads the shards to the linked remote store.

    Any number of processes and machines may write into one folder.
    """

    def __init__(self, folder: str | Path) -> None:
        """Prepare to write into a folder, which is created when it is needed."""
        self.folder = Path(folder)
        self._unsent: list[tuple[RemoteStore, Path]] = []
        self._names: NewShardNames | None = None
        self._some_shard: Path | None = None

    @property
    def where(self) -> str:
        """Path of the folder, for messages."""
        return str(self.folder)

    def provenance(self) -> Provenance | None:
        """Return the provenance of the first shard, which all share; None without shards."""
        with contextlib.suppress(FileNotFoundError):  # it was compacted
            if self._some_shard is not None:
                return read_shard(self._some_shard)
        self._some_shard = next(iter(shard_files(self.folder)), None)  # lists the folder: not for each new shard
        return None if self._some_shard is None else read_shard(self._some_shard)

    def write(self, videos: Sequence[VideoFeatures], provenance: Provenance, *, dtype: str = "float16") -> None:
        """Write a shard; for a remote store, into the folder ``outgoing``, until ``flush`` sends it."""
        refuse_mixed(self, provenance)
        remote = remote_store(self.folder)
        folder = remote.outgoing if remote else self.folder
        if self._names is None or self._names.folder != folder:
            self._names = NewShardNames(folder)
        shard = write_shard(
            folder,
            provenance.profile,
            provenance.weights,
            videos,
            made_with=provenance.made_with,
            origin=provenance.origin,
            dtype=dtype,
            names=self._names,
        )
        if remote:
            self._unsent.append((remote, shard))

    def flush(self) -> None:
        """Send written shards. If this fails, they stay on disk, and the next extraction sends them."""
        unsent, self._unsent = self._unsent, []
        for remote, shard in unsent:
            remote.put(shard)

    def remove(self, video_ids: Collection[str]) -> list[str]:
        """Remove videos from every shard that has them; return the ids that the store did not have.

        New shards are written before old ones are removed.
        """
        refuse_remote(self.folder)
        store = FeatureStore(self.folder)
        gone = np.array([video_id.encode() for video_id in video_ids])
        for shard in store.shards:
            part = ShardPart(shard, np.flatnonzero(~np.isin(shard.videos["video_id"], gone)))
            if not part.is_whole:
                rewrite(self.folder, [part])
                remove_file(shard.path)
        return [video_id for video_id in video_ids if video_id not in store]
