"""A program that writes what a remote store lacks, as extraction does, a shard for each video."""

import sys
from pathlib import Path

from vlalign.storage import FeatureStore
from vlalign.storage.remote.store import link_store

from helpers.store_life import make
from helpers.stores import write


def main(folder: Path, address: str, num_videos: int) -> None:
    remote = link_store(folder, address)
    remote.check()
    remote.send()
    known = set(FeatureStore(folder).video_ids()) if remote.names() else set()
    for video_id in (f"v{number}" for number in range(num_videos)):
        if video_id not in known:
            remote.put(write(remote.outgoing, make(video_id)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
