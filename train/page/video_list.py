"""The videos of a data set for a page without a query: the newest first, as far as it is known when they were made."""

from collections.abc import Sequence

import numpy as np

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.terminal import note_once
from ...storage.dataset.synced import REMEDY, read_file_times, sync_folder
from ..search.search import Search
from .library import VideoLibrary


class VideoList:
    """The videos that are searched, in the order in which the page shows them."""

    def __init__(self, search: Search, library: VideoLibrary) -> None:
        """Order the videos: of a data set that follows folders, those whose files changed last come first."""
        self._video_ids = search.index.video_ids
        dataset, times = search.encoder.dataset, np.zeros(0, np.int64)
        try:
            with refuse_unreadable(sync_folder(dataset) / "files.jsonl", "times that no file has", REMEDY):
                if time_of := read_file_times(dataset):
                    found = [time_of.get(library.file_name(video_id), 0) for video_id in self._video_ids]
                    times = np.array(found, np.int64)
        except UserError as error:  # each sync fails then, but a page needs none
            note_once(f"note: {error}. Until then, the page shows videos in the order of the index")
        self._order = np.argsort(-times, kind="stable").astype(np.int32) if len(times) else None

    def __len__(self) -> int:
        """Return the number of videos."""
        return len(self._video_ids)

    def part(self, offset: int, count: int) -> Sequence[str]:
        """Return the ids of some videos.

        Args:
            offset: Videos to leave out.
            count: Videos to return, at most.
        """
        if self._order is None:
            return self._video_ids[offset : offset + count]
        return [self._video_ids[number] for number in self._order[offset : offset + count].tolist()]
