"""The videos of a data set for a page without a query: the newest first, as far as it is known when they were made."""

from collections.abc import Sequence

import numpy as np

from ...storage.common.errors import UserError
from ...storage.dataset.synced import read_file_times
from ..search.search import Search
from .library import VideoLibrary


class VideoList:
    """The videos that are searched, in the order in which the page shows them."""

    def __init__(self, search: Search, library: VideoLibrary) -> None:
        """Order the videos: of a data set that follows folders, those whose files changed last come first."""
        self._video_ids = search.index.video_ids
        try:
            time_of = read_file_times(search.encoder.dataset)
            times = [time_of.get(library.file_name(video_id), 0) for video_id in self._video_ids] if time_of else []
        except UserError:  # the next sync says what is wrong with its record
            times = []
        self._order = np.argsort(-np.array(times, np.int64), kind="stable").astype(np.int32) if times else None

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
