"""The videos in progress: the requested features of each job, and the data received so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, TypeVar

import numpy as np
from torch import Tensor

from ...storage.records import Profile, VideoFeatures
from ...storage.stores.thumbnails import MAX_JPEG_BYTES, MAX_THUMBNAILS, Thumbnail
from ..decoding.backends import BACKENDS
from ..decoding.decode import MAX_DENSE_BYTES, MAX_DENSE_THUMBNAILS, DecodingFinished
from ..decoding.errors import VideoError
from ..decoding.log_mel import HOP, RATE, ROW, row_times
from ..decoding.messages import InvalidMessage
from ..decoding.sampling import MAX_VIDEO_SECONDS, FrameSpec, num_windows, window_times
from ..decoding.shots import MIN_SHOT_SECONDS
from ..decoding.shots import ROW as SHOT
from ..decoding.sound import SoundFinished
from ..extractor import Extractor
from .pending_work import KnownThumbnails
from .rows import Rows, new_rows

MAX_SOUND_ROWS = MAX_VIDEO_SECONDS * RATE // HOP + RATE
"""Maximum number of sound rows: sound that begins before time zero or outlasts the frames may have a few more than the
longest video.
"""

MAX_SHOTS = int(MAX_VIDEO_SECONDS / MIN_SHOT_SECONDS) + 2
"""Maximum number of shots: the last shot may be shorter than the others, and the longest video a second too long."""

T_co = TypeVar("T_co", covariant=True)


class ClosableIterator(Protocol[T_co]):
    """An iterator with a ``close`` method, such as a generator."""

    def __iter__(self) -> Iterator[T_co]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> T_co:
        """Return the next item."""
        ...

    def close(self) -> None:
        """Stop the work and release its resources."""
        ...


class End(Enum):
    """The type of ``END``."""

    END = "end"


END: Final = End.END
"""Marks the end of a source of jobs. (None means that it has no job at the moment.)"""


@dataclass(frozen=True)
class VideoJob:
    """A video to extract."""

    video_id: str
    path: Path
    extractors: Sequence[Extractor]
    seconds: float | None = None
    """If given, extract only the first seconds of the video."""
    url: str = ""
    """Address of the video, if it must be downloaded first; ``path`` is then the local copy (see ``download.py``)."""
    thumbnails_every: float | None = None
    """Seconds between thumbnails; None for three thumbnails in all."""
    known_thumbnails: KnownThumbnails | None = None
    """The stored thumbnails of the video; None if they are not known."""
    frames_folder: Path | None = None
    """Folder for requested frames until they are written; None for the system's folder of temporary files."""


@dataclass(frozen=True)
class Extracted:
    """The result of a job."""

    features: dict[str, VideoFeatures]
    """Features by the name of their profile."""
    thumbnails: list[Thumbnail]
    failures: dict[str, VideoError] = field(default_factory=dict)
    """Reasons why some features are missing although others exist: the file has no sound, or no frames."""
    remark: str = ""
    """Reason why the profiles' decoder was replaced by another; empty if it was not."""
    note: str = ""
    """Peculiarities of the file and their treatment; empty if there are none."""


def frame_spec_of(profile: Profile) -> FrameSpec:
    """Return the part of a profile that the decoder needs to make frames."""
    return FrameSpec(
        profile.fps,
        profile.window,
        profile.short_side_px,
        profile.crop_px,
        profile.tail,
        profile.resize,
        profile.stride,
    )


@dataclass
class WindowBatch:
    """Successive windows of one video, all of one size, for one extractor."""

    video: "VideoInProgress"
    index: int
    """Index of the extractor in ``video.frame_extractors``."""
    frames: Tensor
    """[B, (T,) H, W, 3]; the first ``num_rows`` windows are filled."""
    attempt: int
    """The video's ``attempt`` when the batch was begun."""
    first_row: int
    num_rows: int = 0
    windows: np.ndarray = field(init=False)
    """The same memory as ``frames``; indexing a NumPy array is faster."""

    def __post_init__(self) -> None:
        self.windows = self.frames.numpy()

    @property
    def extractor(self) -> Extractor:
        """The extractor that computes the batch."""
        return self.video.frame_extractors[self.index]


@dataclass
class VideoInProgress:
    """A video that is being decoded and computed, with all data received so far.

    A decoder may fail halfway; the next one then starts from the first frame. ``attempt`` counts these starts, and the
    results of earlier attempts are dropped. Sound is decoded first and only once.
    """

    job: VideoJob
    source: str
    sound_result: SoundFinished | None = None
    """The decoder's summary of the sound. It is set after the last block."""
    sound_failure: VideoError | None = None
    """Reason why the video has no sound features."""
    sound: list[np.ndarray] = field(default_factory=list)
    """Blocks of rows of sound (``log_mel.ROW``), in order."""
    attempt: int = 0
    decoder: str = ""
    """The decoder of this attempt; empty before it has begun."""
    excluded_decoders: list[str] = field(default_factory=list)
    """Decoders that did not survive the video."""
    rows: list[Rows] = field(default_factory=list)
    """The feature vectors for each of ``frame_extractors``."""
    filling: dict[int, WindowBatch] = field(default_factory=dict)
    """The batch that is not full yet, by index of its extractor."""
    num_pending: int = 0
    """Number of windows whose features are not computed yet."""
    thumbnails: list[Thumbnail] = field(default_factory=list)
    num_thumbnail_bytes: int = 0
    shots: np.ndarray | None = None
    """The shots (``shots.ROW``); None until they are received."""
    shot_detector: str = ""
    """Name and version of the library that found the shots."""
    finished: DecodingFinished | None = None
    failure: VideoError | None = None
    """Failure of the frames in the first decoder: later decoders fail too, with less informative errors."""

    @cached_property
    def frame_extractors(self) -> list[Extractor]:
        """The extractors that need windows of frames."""
        return [e for e in self.job.extractors if e.profile.modality == "frames" and not e.profile.is_shots]

    @cached_property
    def specs(self) -> list[FrameSpec]:
        """The request to the decoder, for each of ``frame_extractors``."""
        return [frame_spec_of(extractor.profile) for extractor in self.frame_extractors]

    @cached_property
    def sound_features(self) -> str:
        """Name of the requested sound features; empty if there are none."""
        return next((e.profile.name for e in self.job.extractors if e.profile.modality == "sound"), "")

    @cached_property
    def shots_features(self) -> str:
        """Name of the requested features that are shots; empty if there are none."""
        return next((e.profile.name for e in self.job.extractors if e.profile.is_shots), "")

    @property
    def needs_frames(self) -> bool:
        """True if features of the frames are requested."""
        return bool(self.frame_extractors or self.shots_features)

    @property
    def needs_sound(self) -> bool:
        """True if sound is requested and not complete."""
        return bool(self.sound_features) and self.sound_result is None and self.sound_failure is None

    @property
    def complete(self) -> bool:
        """True if all feature vectors have arrived and are computed."""
        if not self.needs_frames:
            return self.sound_result is not None
        return self.finished is not None and self.num_pending == 0

    def begin(self, decoder: str) -> None:
        """Start a new attempt with ``decoder`` and drop the results of the previous one.

        Raises:
            InvalidMessage: ``decoder`` is not allowed for this video.
        """
        if decoder not in BACKENDS or decoder in self.excluded_decoders:  # else it could begin again forever
            raise InvalidMessage(f"beginning with {decoder[:20]!r}")
        self.attempt += 1
        self.decoder, self.num_pending, self.finished = decoder, 0, None
        self.filling.clear()
        self.rows = [new_rows(extractor.profile, self.job.frames_folder) for extractor in self.frame_extractors]
        self.thumbnails, self.num_thumbnail_bytes, self.shots = [], 0, None

    def add_thumbnail(self, seconds: float, jpeg: bytes) -> None:
        """Keep a thumbnail.

        Raises:
            InvalidMessage: The decoder sent more or larger thumbnails than it should.
        """
        max_thumbnails = MAX_DENSE_THUMBNAILS if self.job.thumbnails_every else MAX_THUMBNAILS
        self.num_thumbnail_bytes += len(jpeg)
        is_too_large = len(jpeg) > MAX_JPEG_BYTES or self.num_thumbnail_bytes > MAX_DENSE_BYTES
        if len(self.thumbnails) >= max_thumbnails or is_too_large:
            raise InvalidMessage("more thumbnails, or larger ones, than are made")
        self.thumbnails.append(Thumbnail(self.job.video_id, seconds, jpeg, self.source))

    def add_sound_block(self, content: bytes) -> None:
        """Add the next rows of sound (``log_mel.ROW``).

        Raises:
            InvalidMessage: There are too many rows, or the last one is incomplete.
        """
        num_rows, rest = divmod(len(content), ROW.itemsize)
        if rest or not 0 < num_rows <= MAX_SOUND_ROWS - sum(map(len, self.sound)):
            raise InvalidMessage(f"{len(content):,} more bytes of sound")
        self.sound.append(np.frombuffer(content, dtype=ROW))

    def take_shots(self, content: bytes, detector: str) -> None:
        """Store the shots.

        Args:
            content: Rows of ``shots.ROW``.
            detector: Name and version of the library that found them.

        Raises:
            InvalidMessage: The shots are impossible or were not requested.
        """
        num_rows, rest = divmod(len(content), SHOT.itemsize)
        if rest or not 0 < num_rows <= MAX_SHOTS or not self.decoder or not self.shots_features:
            raise InvalidMessage(f"{len(content):,} bytes of shots")
        rows = np.frombuffer(content, dtype=SHOT)
        starts, ends = rows["start_seconds"], rows["end_seconds"]
        if starts[0] != 0 or (starts[1:] != ends[:-1]).any() or not (starts < ends).all():
            raise InvalidMessage("shots that do not follow each other")
        if not np.isfinite(rows["features"]).all() or (rows["num_frames"] < 0).any():
            raise InvalidMessage("shots with impossible numbers")
        self.shots, self.shot_detector = rows, detector

    def finish_sound(self, result: SoundFinished) -> None:
        """Store the summary at the end of the sound.

        Raises:
            InvalidMessage: The summary does not match the received rows.
        """
        num_rows = sum(map(len, self.sound))
        if num_rows == 0 or num_rows != result.num_rows:
            raise InvalidMessage(f"{result.num_rows:,} rows of sound")
        if not 0 <= result.duration_seconds <= MAX_VIDEO_SECONDS + 1:
            raise InvalidMessage(f"sound of {result.duration_seconds} s")
        self.sound_result = result

    def finish_frames(self, finished: DecodingFinished) -> None:
        """Store the summary at the end of the frames.

        Raises:
            InvalidMessage: The summary does not match the received windows.
        """
        pairs = zip(finished.num_frames, self.specs, strict=False)
        counts = [num_windows(frames, spec.window, spec.stride or spec.window) for frames, spec in pairs]
        if len(finished.num_frames) != len(self.specs) or counts != [len(rows) for rows in self.rows]:
            raise InvalidMessage("the end of another video")
        if not 0 <= finished.duration_seconds <= MAX_VIDEO_SECONDS + 1:
            raise InvalidMessage(f"a video of {finished.duration_seconds} s")
        if self.shots_features and (self.shots is None or self.shots["end_seconds"][-1] > MAX_VIDEO_SECONDS + 1):
            raise InvalidMessage("the end of a video before its shots")
        self.finished = finished

    def result(self) -> Extracted:
        """Return the features of sound and frames, and the reasons for missing ones."""
        features: dict[str, VideoFeatures] = {}
        failures: dict[str, VideoError] = {}
        if self.sound_result:
            features[self.sound_features] = self._features_of_sound(self.sound_result)
        if self.sound_failure:
            failures[self.sound_features] = self.sound_failure
        if self.finished:
            features |= self._features_of_frames(self.finished)
        elif self.failure:
            failures |= {e.profile.name: self.failure for e in self.job.extractors if e.profile.modality == "frames"}
        if self.finished is None:
            return Extracted(features, [], failures)
        return Extracted(features, self.thumbnails, failures, self.finished.fallback_reason, self.finished.note)

    def _features_of_sound(self, result: SoundFinished) -> VideoFeatures:
        rows = np.concatenate(self.sound)
        self.sound.clear()
        starts, ends = row_times(result.first_row, len(rows))
        return VideoFeatures(
            video_id=self.job.video_id,
            features=rows["features"],
            start_seconds=starts,
            end_seconds=ends,
            valid_frames=rows["valid"],
            duration_seconds=result.duration_seconds,
            source=self.source,
            decoder=result.decoder,
            partial=result.partial,
        )

    def _features_of_frames(self, finished: DecodingFinished) -> dict[str, VideoFeatures]:
        features = {}
        for extractor, spec, num_frames, rows in zip(
            self.frame_extractors, self.specs, finished.num_frames, self.rows, strict=True
        ):
            profile, seconds = extractor.profile, finished.duration_seconds
            starts, ends, valid = window_times(num_frames, 0, spec.window, spec.fps, seconds, stride=profile.stride)
            features[profile.name] = VideoFeatures(
                video_id=self.job.video_id,
                features=rows.stacked(),
                start_seconds=starts,
                end_seconds=ends,
                valid_frames=valid,
                duration_seconds=seconds,
                source=self.source,
                decoder=finished.decoder,
                partial=finished.partial,
            )
        if self.shots is not None:
            features[self.shots_features] = VideoFeatures(
                video_id=self.job.video_id,
                features=self.shots["features"],
                start_seconds=self.shots["start_seconds"],
                end_seconds=self.shots["end_seconds"],
                valid_frames=self.shots["num_frames"],
                duration_seconds=finished.duration_seconds,
                source=self.source,
                decoder=f"{finished.decoder}, {self.shot_detector}",
                partial=finished.partial,
            )
        return features
