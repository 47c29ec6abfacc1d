"""The files that a search of a data set was opened from: if they change, it should be opened again."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...storage.captions.files import caption_parts
from ...storage.dataset.folder import DatasetFolder
from ...storage.dataset.synced import sync_folder
from ...storage.stores.feature_store import shard_files
from ..search.caption_index import FILE_NAME as CAPTION_INDEX
from ..search.index import index_folder

SYNC_FILES = "files.jsonl", "removed.jsonl"
"""Files of the record that a page reads: file times, and removed videos. A change of the synchronised folders also
changes these.
"""
FileIdentity = tuple[str, int, int, int]
"""Path, inode, size and time of the last change."""


@dataclass(frozen=True)
class SearchedFiles:
    """The files behind a search, identified without reading them."""

    inputs: frozenset[FileIdentity | str]
    """List of videos, record of the sync, captions; and shards of features, by their paths alone: a shard never
    changes, and fetching a server's shard replaces the local file."""
    index: frozenset[FileIdentity]
    """Files of the index."""

    @classmethod
    def of(cls, dataset: DatasetFolder, features: Sequence[str], model: str) -> "SearchedFiles":
        """Return the files that exist now.

        Args:
            dataset: The data set.
            features: Names of the features that are searched.
            model: Name of the features or of the run that the index is for.
        """
        record = sync_folder(dataset)
        inputs = [dataset.videos_file, *(record / name for name in SYNC_FILES), *caption_parts(dataset)]
        shards = (str(path) for name in features for path in shard_files(dataset.features(name)))
        index = index_folder(dataset, model)
        made = [index.parent / CAPTION_INDEX]
        for folder, _, names in os.walk(index):
            made += [Path(folder, name) for name in names if not name.startswith(".")]  # hidden files are not whole
        return cls(frozenset([*_identities(inputs), *shards]), frozenset(_identities(made)))


def _identities(paths: Iterable[Path]) -> list[FileIdentity]:
    """Return the identities of the files that exist."""
    found = []
    for path in paths:
        try:
            about = path.stat()
        except OSError:
            continue
        found.append((str(path), about.st_ino, about.st_size, about.st_mtime_ns))
    return found
