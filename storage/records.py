"""The records that stages hand to each other. Each is checked when it is made."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything that decides the numbers of a feature. Any change is another profile, with another hash."""

    name: str
    model: str
    weights: str
    """Name of the published weights that the profile is for; a store says beside it which ones were really used."""
    fps: float | None
    """Of the frames; of sound, whose samples are its frames, the sample rate. None, in what others made: rows are spread evenly over
    the video."""
    window: int
    """Frames of one feature."""
    stride: int
    short_side_px: int
    """0, where there are no pictures."""
    crop_px: int | None
    """Side of the square cut from the middle; None: the whole frame."""
    resize: str
    """Kernel; its support grows with the reduction (antialiased)."""
    value_range: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tail: str
    """What becomes of a last window that is not full."""
    layer: str
    dimension: int
    precision: str = "fp32"
    """What the network computes in: fp32, bf16 or fp16. Features are kept in the store's own type."""

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits of the SHA-256 of all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        values = json.loads(text)
        return cls(**values | {"mean": tuple(values["mean"]), "std": tuple(values["std"])})


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Which weights a model really ran with."""

    name: str
    """File name, or ``random (seed N)``."""
    sha256: str

    @property
    def is_random(self) -> bool:
        return self.name.startswith("random")


URL_SCHEMES = ("s3", "gs", "gcs", "abfs", "az", "http", "https", "ftp", "sftp", "hdfs", "memory")
"""Of fsspec's. None of local files and nothing chained: an address in somebody's list names no file of this machine."""


@dataclass(frozen=True, kw_only=True)
class VideoRecord:
    """A line of ``videos.jsonl``."""

    video_id: str
    path: str
    """Absolute, or relative to the data set's folder; or an address such as ``s3://...``."""
    scene: dict[str, Any] | None = None
    """Where the video is rendered rather than recorded: what it shows (the demo set)."""

    def __post_init__(self) -> None:
        if not self.video_id or not self.path:
            raise ValueError(f"a video needs an id and a path, got {self.video_id!r} and {self.path!r}")
        if self.url and (self.url.partition("://")[0] not in URL_SCHEMES or "::" in self.url):
            raise ValueError(f"{self.path!r}: expected a path, or an address that begins with one of {', '.join(URL_SCHEMES)}")

    @property
    def url(self) -> str:
        """The path, where it is an address; else empty."""
        return self.path if "://" in self.path else ""


def _check_text(value: Any) -> None:
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{value!r} is no text; expected valid Unicode") from None


@dataclass(frozen=True, kw_only=True)
class Caption:
    """A sentence about a clip: the part of a video between two times, or all of it where they are None."""

    video_id: str
    caption: str
    split: str
    start_seconds: float | None = None
    end_seconds: float | None = None
    words: list[str] = field(default_factory=list)
    word_starts: list[int] = field(default_factory=list)
    """Character at which each word begins in ``caption``."""
    pos_tags: list[str] = field(default_factory=list)
    """Universal part-of-speech tag of each word."""
    task: str | None = None
    """What the video is about, where its authors say: a CrossTask or COIN task, a YouCook2 recipe."""
    step: int | None = None
    """Which step of the task the clip shows, from 1 (CrossTask), or which label of the data set (COIN); the caption is its text."""
    answer: str | None = None
    """Where the caption is a question about the video."""
    question_type: str | None = None
    recording: str | None = None
    """Where the caption was spoken: the recording's id, in the data set's ``logmel`` store; the caption is its transcript."""

    def __post_init__(self) -> None:
        if not isinstance(self.video_id, str) or not self.video_id.strip():
            raise ValueError(f"the video is {self.video_id!r}, expected an id")
        for value in (self.video_id, self.caption, self.task, self.answer, self.recording):
            if value is not None:
                _check_text(value)
        if self.recording is not None and not self.recording.strip():
            raise ValueError(f"the recording is {self.recording!r}, expected an id")
        if not self.caption.strip():
            raise ValueError(f"the caption of video {self.video_id!r} is empty")
        if (self.start_seconds is None) != (self.end_seconds is None):
            raise ValueError(f"{self.start_seconds=} and {self.end_seconds=}: give both or neither")
        if self.start_seconds is not None and not 0 <= self.start_seconds < self.end_seconds:
            raise ValueError(f"{self.start_seconds=}, {self.end_seconds=}: a clip needs 0 <= start < end")
        if not len(self.words) == len(self.word_starts) == len(self.pos_tags):
            raise ValueError(f"{len(self.words)} words, {len(self.word_starts)} starts and {len(self.pos_tags)} tags")

    @property
    def clip_id(self) -> str:
        """The same for all captions of a clip."""
        if self.start_seconds is None:
            return self.video_id
        return f"{self.video_id}#{self.start_seconds}-{self.end_seconds}"


@dataclass(frozen=True, kw_only=True, eq=False)
class VideoFeatures:
    """Features of one video, or of one clip of it: a row a window, half-open in time, in order."""

    video_id: str
    features: np.ndarray
    """[T, D], float."""
    start_seconds: np.ndarray
    """[T]"""
    end_seconds: np.ndarray
    """[T]"""
    valid_frames: np.ndarray
    """[T]: how many frames (of sound: samples) of the window were real; the rest is the profile's tail rule."""
    duration_seconds: float
    """Of the pictures, or of the sound, whose features these are: when they end."""
    source: str = ""
    """Identity of the file that was read."""
    decoder: str = ""
    partial: str = ""
    """What of the video is not in these rows or was damaged, with figures; empty where all is well."""

    def __post_init__(self) -> None:
        num_rows = len(self.features)
        if self.features.ndim != 2:
            raise ValueError(f"{self.video_id}: features must be [T, D], got {self.features.shape}")
        for name in ("start_seconds", "end_seconds", "valid_frames"):
            if getattr(self, name).shape != (num_rows,):
                raise ValueError(f"{self.video_id}: {name} must be [{num_rows}], got {getattr(self, name).shape}")

    def __repr__(self) -> str:
        return f"VideoFeatures({self.video_id!r}, features {self.features.shape}, {self.duration_seconds:.2f} s)"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A line of ``failures.jsonl``: one video that gave no features."""

    video_id: str
    path: str
    kind: str
    message: str
    source: str = ""
    """Identity of the file that failed; a changed file is tried anew."""
