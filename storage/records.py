"""The records that stages hand to each other. Each is checked when it is made."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

DATASET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""What names a folder: of a data set, of features."""


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


_COUNT = ("a whole number above 0", _whole)
_COLOURS = (
    "three numbers",
    lambda value: isinstance(value, list | tuple) and len(value) == 3 and all(map(_number, value)),
)
_TEXT = ("a text", lambda value: isinstance(value, str))
_PROFILE_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": (
        "letters, digits, '.', '_' and '-', as it names a folder",
        lambda v: isinstance(v, str) and DATASET_NAME.fullmatch(v),
    ),
    "fps": (
        "a number above 0, or null where rows are spread over the video",
        lambda v: v is None or (_number(v) and v > 0),
    ),
    "window": _COUNT,
    "stride": _COUNT,
    "short_side_px": (
        "a whole number, 0 where it has no meaning",
        lambda value: _whole(value) or (_number(value) and value == 0),
    ),
    "crop_px": ("a whole number above 0, or null for the whole frame", lambda value: value is None or _whole(value)),
    "mean": _COLOURS,
    "std": _COLOURS,
    "dimension": _COUNT,
}
"""{field: (what is expected, whether a value is that)}; the others are texts."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything that decides the numbers of a feature. Any change is another profile, with another hash.

    Raises ``ValueError`` with all fields that are no such value. Those that are may still describe features that only others make: what
    this package can extract with, ``extract.extractor.check_extractable`` says.
    """

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
    """Frames from the beginning of one window to that of the next: fewer than ``window`` where windows overlap, more where frames between
    them are left out."""
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

    def __post_init__(self) -> None:
        if faults := self.faults(vars(self)):
            raise ValueError(f"profile {self.name!r}: {'; '.join(faults)}")

    @classmethod
    def faults(cls, values: Mapping[str, Any]) -> list[str]:
        """What is wrong with the fields, whose values may be as JSON has them: a sentence for each."""
        names = [one.name for one in fields(cls)]
        wrong = [f"field {name!r} is not known; expected {', '.join(names)}" for name in values if name not in names]
        for name in names:
            expected, is_right = _PROFILE_FIELDS.get(name, _TEXT)
            if name not in values:
                wrong.append(f"field {name!r} is missing; expected {expected}")
            elif not is_right(values[name]):
                wrong.append(f"field {name!r} is {json.dumps(values[name], default=repr)[:80]}; expected {expected}")
        return wrong

    @property
    def modality(self) -> Literal["pictures", "sound"]:
        """What the features are computed from. Sound has no picture size."""
        return "pictures" if self.short_side_px else "sound"

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
        for text in (self.video_id, self.path):
            _check_text(text)
        if "\0" in self.path:
            raise ValueError(f"{self.path!r}: expected a path, and none has a zero byte")
        if self.scene is not None and not isinstance(self.scene, dict):
            raise ValueError(
                f"the scene of video {self.video_id!r} is {self.scene!r}, expected what vlalign-preprocess wrote"
            )
        if self.url and (self.url.partition("://")[0] not in URL_SCHEMES or "::" in self.url):
            raise ValueError(
                f"{self.path!r}: expected a path, or an address that begins with one of {', '.join(URL_SCHEMES)}"
            )

    @property
    def url(self) -> str:
        """The path, where it is an address; else empty."""
        return self.path if "://" in self.path else ""


def is_text(value: Any) -> bool:
    """Whether it is one that can be written: JSON and HDF5 may hold halves of letters."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def _check_text(value: Any) -> None:
    if not is_text(value):
        raise ValueError(f"{value!r} is no text; expected valid Unicode")


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
