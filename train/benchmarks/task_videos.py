"""The features of a task's videos: computed from decoded videos, or looked up in the stores of a data set."""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ...extract.decoding.errors import VideoError
from ...extract.extractor import Extractor
from ...extract.pipeline.engine import extract_videos
from ...extract.pipeline.video_jobs import VideoJob
from ...storage.common.progress import progress
from ...storage.common.temporary_folder import TemporaryFolder
from ...storage.records import VideoFeatures
from ...storage.stores.store import Store

Features = dict[str, VideoFeatures]
"""{name of the features: the features of one video}"""


class VideoSource(Protocol):
    """Gives the features of videos."""

    def features(self, videos: "TaskVideos", problems: list[str]) -> Iterator[tuple[int, Features]]:
        """Yield (number of a video in the task, its features); add a line to ``problems`` for each other video."""
        ...


@dataclass(frozen=True)
class TaskVideos:
    """The videos of one side of a task."""

    ids: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    """{"path": path or None, "bytes": contents or None} of each video, read on access and not decoded."""


@dataclass(frozen=True)
class StoredVideos:
    """Looks videos up by their ids in stores of a data set."""

    stores: Mapping[str, Store]

    def features(self, videos: TaskVideos, problems: list[str]) -> Iterator[tuple[int, Features]]:
        """Yield the features of the videos that all stores have."""
        for number, video_id in enumerate(videos.ids):
            if lacking := [store.where for store in self.stores.values() if video_id not in store]:
                problems.append(f"video {video_id}: not in {lacking[0]}")
                continue
            of_video = {name: store.get(video_id) for name, store in self.stores.items()}
            if empty := [name for name, features in of_video.items() if not len(features.features)]:
                problems.append(f"video {video_id}: has no rows of {empty[0]}")
                continue
            yield number, of_video


@dataclass(frozen=True)
class DecodedVideos:
    """Decodes videos in the confined process and computes their features, as ``vlalign-extract`` does."""

    extractors: Mapping[str, Extractor]
    """{features: extractor}"""

    def features(self, videos: TaskVideos, problems: list[str]) -> Iterator[tuple[int, Features]]:
        """Yield the features of the videos that can be decoded, in the order in which they are ready."""
        extractors = list(self.extractors.values())
        names = [(extractor.profile.name, name) for name, extractor in self.extractors.items()]
        with contextlib.closing(TemporaryFolder("vlalign-mteb-")) as folder:
            jobs = _jobs(videos, extractors, folder.path, problems)
            results = contextlib.closing(extract_videos(jobs, extractors))
            with results as ready:
                for job, result in progress(ready, total=len(videos.ids), what="extracting", unit="videos"):
                    number = int(job.video_id)
                    if job.path.parent == folder.path:
                        job.path.unlink(missing_ok=True)
                    if isinstance(result, VideoError):
                        problems.append(f"video {videos.ids[number]}: {result}")
                    elif lacking := [of for of, _ in names if of not in result.features]:
                        problems.append(f"video {videos.ids[number]}: no {lacking[0]}: {result.failures[lacking[0]]}")
                    else:
                        yield number, {name: _stored(result.features[of], self.extractors[name]) for of, name in names}


def _jobs(
    videos: TaskVideos, extractors: Sequence[Extractor], folder: Path, problems: list[str]
) -> Iterator[VideoJob | None]:
    """Yield a job for each video. Videos given as bytes are written into ``folder``; their own names are not used."""
    for number, video_id in enumerate(videos.ids):
        row = videos.rows[number]
        if row.get("bytes") is not None:
            path = folder / str(number)
            path.write_bytes(row["bytes"])
        elif row.get("path") and os.path.isfile(row["path"]):
            path = Path(row["path"]).absolute()
        else:
            problems.append(f"video {video_id}: its file is not on this machine ({str(row.get('path'))[:80]!r})")
            continue
        yield VideoJob(str(number), path, extractors)


def _stored(rows: VideoFeatures, extractor: Extractor) -> VideoFeatures:
    """Return features in the data type of a store."""
    return replace(rows, features=rows.features.astype(extractor.profile.row_type))
