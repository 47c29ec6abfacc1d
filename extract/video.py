"""One video -> features of any number of extractors, in one decode."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..storage.files import file_identity
from ..storage.records import VideoFeatures
from ..storage.thumbnails import Thumbnail
from .decode import VideoInfo, probe_video, read_frames
from .extractor import Extractor
from .sampling import sample_frames, window_times

THUMBNAIL_PLACES = (0.1, 0.5, 0.9)
THUMBNAIL_HEIGHT_PX = 90


class _Windows:
    """Collects one extractor's frames; computes as soon as a batch of windows is full, so that few frames are held."""

    def __init__(self, extractor: Extractor, info: VideoInfo) -> None:
        self.extractor = extractor
        self.info = info
        self.indices, self.first_slot = sample_frames(info.pts, info.end, info.time_base, extractor.profile.fps)
        self._next = 0
        self._frames: list[Tensor] = []
        self._rows: list[Tensor] = []

    def add(self, index: int, frame: np.ndarray) -> None:
        times = int(np.searchsorted(self.indices, index, side="right")) - self._next
        if times <= 0:
            return
        self._next += times
        prepared = self.extractor.prepare(frame)
        profile = self.extractor.profile
        for _ in range(times):
            self._frames.append(prepared)
            if len(self._frames) == profile.window * self.extractor.batch_size:
                self._compute()

    def _compute(self) -> None:
        frames, window = torch.stack(self._frames), self.extractor.profile.window
        self._frames = []
        self._rows.append(self.extractor.features(frames if window == 1 else frames.unflatten(0, (-1, window))))

    def finish(self, video_id: str, source: str, decoder: str) -> VideoFeatures:
        profile = self.extractor.profile
        if missing := -len(self._frames) % profile.window:
            self._frames += [torch.zeros_like(self._frames[0])] * missing  # the tail rule of the windowed profiles: black frames
        if self._frames:
            self._compute()
        starts, ends, valid = window_times(len(self.indices), self.first_slot, profile.window, profile.fps, self.info.duration_seconds)
        return VideoFeatures(
            video_id=video_id,
            features=torch.cat(self._rows).numpy(),
            start_seconds=starts,
            end_seconds=ends,
            valid_frames=valid,
            duration_seconds=self.info.duration_seconds,
            source=source,
            decoder=decoder,
        )


def extract_video(path: str | Path, extractors: Sequence[Extractor], *, video_id: str | None = None) -> dict[str, VideoFeatures]:
    """{features name: features of the video}. The video is decoded once for all of ``extractors``, and never held whole.

    Raises ``VideoError`` for a file that gives no features.
    """
    return extract_with_thumbnails(Path(path), extractors, video_id or Path(path).stem)[0]


def extract_with_thumbnails(path: Path, extractors: Sequence[Extractor], video_id: str) -> tuple[dict[str, VideoFeatures], list[Thumbnail]]:
    """As ``extract_video``, with a few small pictures of the video, which cost no further decoding."""
    source = file_identity(path)
    info = probe_video(path.absolute())
    windows = [_Windows(extractor, info) for extractor in extractors]
    wanted = np.unique(np.concatenate([w.indices for w in windows]))
    pictured = {int(wanted[int(place * (len(wanted) - 1) + 0.5)]) for place in THUMBNAIL_PLACES}
    decoder, frames = read_frames(info, wanted)
    thumbnails = []
    for index, frame in frames:
        for window in windows:
            window.add(index, frame)
        if index in pictured:
            seconds = float(info.pts[index] * info.time_base)
            thumbnails.append(Thumbnail(video_id, seconds, _jpeg(frame), source))
    return {w.extractor.profile.name: w.finish(video_id, source, decoder) for w in windows}, thumbnails


def _jpeg(frame: np.ndarray) -> bytes:
    picture = Image.fromarray(np.ascontiguousarray(frame))
    picture.thumbnail((4 * THUMBNAIL_HEIGHT_PX, THUMBNAIL_HEIGHT_PX))
    packed = io.BytesIO()
    picture.save(packed, "JPEG", quality=80)
    return packed.getvalue()
