"""The videos of a data set for a page without a query, the newest first if their times are known."""

from collections.abc import Collection, Sequence

import numpy as np

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.terminal import note_once
from ...storage.dataset.synced import REMEDY, read_file_times, sync_folder
from ..search.search import Search
from .library import VideoLibrary


class VideoList:
    """The videos that are searched, in the order in which the page shows them."""

    def __init__(self, search: Search, library: VideoLibrary) -> None:
        """Order the videos. If the data set follows folders, the last changed files come first."""
        self._encoder, self._video_ids = search.encoder, search.index.video_ids
        self._lost: frozenset[str] = frozenset()
        """Known videos whose features are missing."""
        dataset, times = search.encoder.dataset, np.zeros(0, np.int64)
        try:
            with refuse_unreadable(sync_folder(dataset) / "files.jsonl", "has impossible file times", REMEDY):
                if time_of := read_file_times(dataset):
                    found = [time_of.get(library.file_path(video_id), 0) for video_id in self._video_ids]
                    times = np.array(found, np.int64)
        except UserError as error:  # syncs fail then, but a page works without the times
            note_once(f"note: {error}; until then, the page shows videos in the order of the index")
        if len(times):
            order = np.argsort(-times, kind="stable").tolist()
            self._video_ids = [self._video_ids[number] for number in order]

    def part(self, offset: int, count: int, videos: Collection[str] | None = None) -> tuple[dict[str, float], int]:
        """Return {id: duration in seconds} of some videos with features, and the number of all videos with features.

        Args:
            offset: Videos to skip.
            count: Videos to return, at most.
            videos: Ids of the videos to choose from; None for all.
        """
        while True:
            found: dict[str, float] = {}
            ids = self._chosen(videos)
            for video_id in ids[offset : offset + count]:
                try:
                    found[video_id] = self._encoder.duration_seconds(video_id)
                except KeyError:  # its features were removed meanwhile
                    self._lost |= {video_id}
            if self._lost.isdisjoint(ids[offset : offset + count]):
                return found, len(ids)

    def _chosen(self, videos: Collection[str] | None) -> Sequence[str]:
        """Return the ids of some videos, in the order of the list."""
        if videos is None and not self._lost:
            return self._video_ids
        return [v for v in self._video_ids if v not in self._lost and (videos is None or v in videos)]
