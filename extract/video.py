"""Extract the features of one video with any number of extractors, in one decoding pass."""

from collections.abc import Sequence
from pathlib import Path

from ..storage.records import VideoFeatures
from .decoding.errors import VideoError
from .extractor import Extractor
from .pipeline.engine import extract_videos
from .pipeline.video_jobs import VideoJob


def extract_video(
    path: str | Path, extractors: Sequence[Extractor], *, video_id: str | None = None
) -> dict[str, VideoFeatures]:
    """Extract the features of one video, which is decoded once for all extractors and never held in memory as a whole.

    For many videos, ``engine.extract_videos`` starts its processes only once.

    Args:
        path: A video, an image, or, for ``logmel``, a recording.
        extractors: From ``load_extractor``.
        video_id: Id of the video in the result (default: the file's name without suffix).

    Returns:
        {name of the features: the video's features}. ``logmel`` is missing for a file without sound, all others for a
        file without video.

    Raises:
        VideoError: The file gives no features at all.

    Example:
        >>> from vlalign.extract import extract_video, load_extractor
        >>> extractor = load_extractor("clip_vit_b32_frames")
        >>> features = extract_video("vlalign_data/demo/videos/demo0000.mp4", [extractor])["clip_vit_b32_frames"]
        >>> features.video_id, features.features.dtype.name, features.features.shape[1]
        ('demo0000', 'uint8', 150528)
    """
    job = VideoJob(video_id or Path(path).stem, Path(path).absolute(), extractors)
    ((_, result),) = extract_videos([job], extractors)
    if isinstance(result, VideoError):
        raise result
    return result.features
