"""One video -> features of any number of extractors, in one decode."""

from collections.abc import Sequence
from pathlib import Path

from ..storage.records import VideoFeatures
from .decoding.probe import VideoError
from .engine import Job, extract_videos
from .extractor import Extractor


def extract_video(
    path: str | Path, extractors: Sequence[Extractor], *, video_id: str | None = None
) -> dict[str, VideoFeatures]:
    """{features name: features of the video}. The video is decoded once for all of ``extractors``, and never held whole.

    Of a file without sound, ``logmel`` is left out, and of one without pictures all else. For many videos ``engine.extract_videos``
    starts its processes once. Raises ``VideoError`` for a file that gives no features at all.
    """
    job = Job(video_id or Path(path).stem, Path(path).absolute(), extractors)
    ((_, result),) = extract_videos([job], extractors)
    if isinstance(result, VideoError):
        raise result
    return result.features
