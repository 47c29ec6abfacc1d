"""The records that stages hand to each other. Each is checked when it is made."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from .common.validation import DATASET_NAME, check_text, is_count, is_number

EXACT, NVDEC = "exact", "nvdec"
"""Values of ``Profile.decoding``."""
FRAMES_LAYER = "frames, RGB, before normalisation"
"""``Profile.layer`` of plain frames: the input of networks that are trained on them."""
SHOTS_LAYER = "shots: change and ratio of the frame that begins each"
"""``Profile.layer`` of shots: each row covers the time of one shot."""
SQUARE = ", to a square"
"""In ``Profile.resize``: both sides get the length of the short one, regardless of the image's shape."""
UNKNOWN = "unknown"
UNKNOWN_VALUES: Mapping[str, Any] = {
    "model": UNKNOWN,
    "weights": UNKNOWN,
    "fps": None,
    "window": 1,
    "stride": 1,
    "short_side_px": 0,
    "crop_px": None,
    "resize": UNKNOWN,
    "value_range": UNKNOWN,
    "mean": (0.0, 0.0, 0.0),
    "std": (1.0, 1.0, 1.0),
    "tail": UNKNOWN,
    "layer": UNKNOWN,
    "precision": UNKNOWN,
    "decoding": EXACT,
}
"""{field of ``Profile`` that may be unknown (``Profile.unknown``): its value if it is unknown}"""


@dataclass(frozen=True)
class _Check:
    """The allowed values of a field."""

    expected: str
    allows: Callable[[Any], bool]


_COUNT = _Check("an integer above 0", is_count)
_COLOUR = _Check(
    "three numbers", lambda value: isinstance(value, list | tuple) and len(value) == 3 and all(map(is_number, value))
)
_TEXT = _Check("a text", lambda value: isinstance(value, str))
PROFILE_CHECKS = {
    "name": _Check(
        "letters, digits, '.', '_' and '-', because it names a folder",
        lambda value: isinstance(value, str) and DATASET_NAME.fullmatch(value) is not None,
    ),
    "fps": _Check(
        "a number above 0, or null if rows are spread evenly over the video",
        lambda value: value is None or (is_number(value) and value > 0),
    ),
    "window": _COUNT,
    "stride": _COUNT,
    "short_side_px": _Check(
        "an integer, 0 if it does not apply", lambda value: is_count(value) or (is_number(value) and value == 0)
    ),
    "crop_px": _Check(
        "an integer above 0, or null for the whole frame", lambda value: value is None or is_count(value)
    ),
    "mean": _COLOUR,
    "std": _COLOUR,
    "dimension": _COUNT,
    "unknown": _Check(
        f"a list of facts, each one of {', '.join(UNKNOWN_VALUES)}",
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(n, str) and n in UNKNOWN_VALUES for n in value)
        ),
    ),
}
"""{field of a profile: its allowed values}. All other fields are texts."""
OPTIONAL = ("decoding", "unknown")
"""Fields that a profile's JSON omits if they have their default."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Everything that determines the values of a feature. Any change makes another profile, with another hash.

    A valid profile may describe features that only other programs compute;
    ``extract.encoders.profile_checks.check_extractable`` checks whether this package can compute them.

    Raises:
        ValueError: Fields are wrong; the message names all of them.

    Example:
        >>> from vlalign.storage import Profile, open_store
        >>> profile = open_store("vlalign_data/demo/features/s3d").profile
        >>> profile.name, profile.dimension, profile.window
        ('s3d', 1024, 16)
        >>> Profile.from_json(profile.to_json()) == profile
        True
    """

    name: str
    """Name of the features, such as "s3d"."""
    model: str
    """Name of the network; "none" for frames."""
    weights: str
    """Name of the published weights that the profile is for. A store also records which weights were really used."""
    fps: float | None
    """Frames per second; for sound, the sample rate, as a frame is one sample. None if the frames of one window, or the
    rows of another program, are spread evenly over the whole video. Rows per second if ``stride`` is unknown.
    """
    window: int
    """Number of frames that one feature is computed from."""
    stride: int
    """Number of frames from the start of one window to the start of the next."""
    short_side_px: int
    """Length that the short side of a frame is resized to; 0 if there are no frames."""
    crop_px: int | None
    """Side of the square cut from the centre; None for the whole frame."""
    resize: str
    """Kernel of the resize. Its support grows with the reduction (antialiased)."""
    value_range: str
    """Range of the values of a pixel before ``mean`` and ``std``, such as "0..1"."""
    mean: tuple[float, float, float]
    """Subtracted from each channel of a pixel: red, green, blue."""
    std: tuple[float, float, float]
    """Divides each channel after ``mean`` is subtracted."""
    tail: str
    """Treatment of a last window that is not full."""
    layer: str
    """Output of the network that is used as the feature."""
    dimension: int
    """Number of values of a feature."""
    precision: str = "fp32"
    """Type that the network computes in: fp32, bf16 or fp16. Features may be stored in another type."""
    decoding: str = EXACT
    """"exact": the frames that all decoders give. "nvdec": frames of NVIDIA's video engine, which are nearly the
    same; a store records the decoder of each video. JSON omits "exact", so that older profiles keep their hash."""
    unknown: tuple[str, ...] = ()
    """Names of the fields that are unknown for features of another program, in the order of ``UNKNOWN_VALUES``,
    which has the values of these fields. JSON omits an empty tuple."""

    def __post_init__(self) -> None:
        faults = self.faults(vars(self))
        if not faults and self.unknown != tuple(name for name in UNKNOWN_VALUES if name in self.unknown):
            faults = [f"field 'unknown' is {list(self.unknown)}; expected each fact once, in the order of the fields"]
        if not faults:
            faults = [
                f"field {name!r} is {getattr(self, name)!r}, but listed as unknown; expected {UNKNOWN_VALUES[name]!r}"
                for name in self.unknown
                if getattr(self, name) != UNKNOWN_VALUES[name]
            ]
        if not faults and self.is_frames and self.dimension != math.prod(self.frame_shape):
            size = " x ".join(map(str, self.frame_shape))
            faults = [f"field 'dimension' is {self.dimension}; expected {math.prod(self.frame_shape)}, {size} bytes"]
        if faults:
            raise ValueError(f"profile {self.name!r}: {'; '.join(faults)}")

    @classmethod
    def faults(cls, values: Mapping[str, Any]) -> list[str]:
        """Return the problems of a profile's fields, one sentence for each.

        Args:
            values: Values by field, from a ``Profile`` or from its JSON.
        """
        names = [field.name for field in fields(cls)]
        faults = [f"field {name!r} is unknown; expected {', '.join(names)}" for name in values if name not in names]
        for name in names:
            check = PROFILE_CHECKS.get(name, _TEXT)
            if name in OPTIONAL and name not in values:
                continue
            if name not in values:
                faults.append(f"field {name!r} is missing; expected {check.expected}")
            elif not check.allows(values[name]):
                value = json.dumps(values[name], default=repr)[:80]
                faults.append(f"field {name!r} is {value}; expected {check.expected}")
        return faults

    @property
    def modality(self) -> Literal["frames", "sound"]:
        """The kind of input: frames or sound. Sound has no frame size."""
        return "frames" if self.short_side_px else "sound"

    @property
    def is_frames(self) -> bool:
        """True if rows are frames (``frame_shape``), not features."""
        return self.layer == FRAMES_LAYER

    @property
    def side_px(self) -> int | None:
        """Side of the frames if all are squares of one size; None if they keep the shape of their video."""
        return self.short_side_px if self.crop_px is None and SQUARE in self.resize else self.crop_px

    @property
    def is_shots(self) -> bool:
        """True if rows are shots, which begin and end anywhere."""
        return self.layer == SHOTS_LAYER

    @property
    def frame_shape(self) -> tuple[int, int, int, int]:
        """Shape of a window's RGB bytes: (frames, height, width, 3).

        Raises ``ValueError`` if the frames have no common size.
        """
        if self.side_px is None:
            raise ValueError(f"profile {self.name!r}: its frames have no common size; expected a crop_px")
        return self.window, self.side_px, self.side_px, 3

    @property
    def row_type(self) -> str:
        """The type that extraction stores rows in: uint8 for frames, float16 for features."""
        return "uint8" if self.is_frames else "float16"

    @property
    def row_bytes(self) -> int:
        """Number of bytes of a row, as extraction stores it."""
        return self.dimension * np.dtype(self.row_type).itemsize

    @cached_property
    def hash(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of all fields."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """Return all fields as a JSON object with sorted keys, without the ``OPTIONAL`` ones at their default."""
        values = asdict(self)
        # Stores from before these fields existed keep their profile's hash.
        if self.decoding == EXACT:
            del values["decoding"]
        if not self.unknown:
            del values["unknown"]
        return json.dumps(values, sort_keys=True)

    def facts(self) -> dict[str, Any]:
        """Return the fields for display, with ``"unknown"`` for unknown fields."""
        values = asdict(self) | dict.fromkeys(self.unknown, UNKNOWN)
        del values["unknown"]
        return values

    @classmethod
    def from_json(cls, text: str) -> "Profile":
        """Return the profile that ``to_json`` wrote.

        Args:
            text: A JSON object with all fields.

        Raises:
            ValueError: It is not JSON, or fields are wrong.
        """
        values = json.loads(text)
        tuples = {name: tuple(values[name]) for name in ("mean", "std", "unknown") if name in values}
        return cls(**values | tuples)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights that a model really ran with.

    Example:
        >>> from vlalign.storage import Weights
        >>> Weights(name="random (seed 0)", sha256="").is_random
        True
    """

    name: str
    """File name, or ``random (seed N)``."""
    sha256: str
    """SHA-256 of the file; empty if unknown."""

    @property
    def is_random(self) -> bool:
        """True if the weights were drawn at random."""
        return self.name.startswith("random")


URL_SCHEMES = ("s3", "gs", "gcs", "abfs", "az", "http", "https", "ftp", "sftp", "hdfs", "memory")
"""Schemes of fsspec that a list of videos may use. Schemes of local files and chained addresses are excluded: a
stranger's list cannot name files of this machine.
"""


@dataclass(frozen=True, kw_only=True)
class VideoRecord:
    """A line of ``videos.jsonl``.

    Raises:
        ValueError: The id or the path is empty or cannot be used, or an address has an unknown scheme.

    Example:
        >>> from vlalign.storage import VideoRecord
        >>> VideoRecord(video_id="demo0000", path="videos/demo0000.mp4").url
        ''
        >>> VideoRecord(video_id="film", path="s3://bucket/film.mp4").url
        's3://bucket/film.mp4'
    """

    video_id: str
    """Id of the video in features, captions and results."""
    path: str
    """Absolute, or relative to the folder of the data set; or an address such as ``s3://...``."""
    scene: dict[str, Any] | None = None
    """The content of a rendered video of the demo; None for all other videos."""

    def __post_init__(self) -> None:
        if not self.video_id or not self.path:
            raise ValueError(f"a video needs an id and a path, got {self.video_id!r} and {self.path!r}")
        for text in (self.video_id, self.path):
            check_text(text)
        if "\0" in self.path:
            raise ValueError(f"{self.path!r}: a path cannot contain a zero byte")
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
        """The path if it is an address, else an empty string."""
        return self.path if "://" in self.path else ""


SPLITS = ("train", "validation", "test")
"""Parts of a data set that a caption can be in."""

TAGGED = {"tagged": True}
"""Marks the fields of ``Caption`` that tagging fills in."""
ADDED_LATER = {"added_later": True}
"""Marks the fields of ``Caption`` that older caption tables lack."""


@dataclass(frozen=True, kw_only=True)
class Caption:
    """A sentence about a clip: the part of a video between two times, or the whole video if both are None.

    The columns of the caption table are made from these fields (``storage/captions/files.py``).

    Raises:
        ValueError: An id or the caption is empty, only one of the two times is given, or the times are not valid.

    Example:
        >>> from vlalign.storage import Caption
        >>> caption = Caption(
        ...     video_id="demo0000", caption="cut the onion", split="train", start_seconds=1.0, end_seconds=2.5
        ... )
        >>> caption.clip_id
        'demo0000#1.0-2.5'
    """

    video_id: str
    """Id of the video."""
    caption: str
    """The sentence."""
    split: str
    """One of ``SPLITS``; ``vlalign-preprocess`` omits captions of other splits, and reports them."""
    start_seconds: float | None = None
    """Start of the clip in the video; None for the whole video."""
    end_seconds: float | None = None
    """End of the clip in the video; None for the whole video."""
    words: list[str] = field(default_factory=list, metadata=TAGGED)
    """Words of ``caption``, in order. Empty before tagging."""
    word_starts: list[int] = field(default_factory=list, metadata=TAGGED)
    """Index in ``caption`` of the first character of each word."""
    pos_tags: list[str] = field(default_factory=list, metadata=TAGGED)
    """Universal part-of-speech tag of each word."""
    task: str | None = None
    """The video's subject, if its authors state it: a CrossTask or COIN task, a YouCook2 recipe."""
    step: int | None = None
    """The task's step that the clip shows: its number, from 1 (CrossTask), or its label in the data set (COIN).

    The caption is the text of the step.
    """
    answer: str | None = None
    """The answer, if the caption is a question about the video."""
    question_type: str | None = None
    """Kind of the question, such as "what", if the data set states it."""
    recording: str | None = field(default=None, metadata=ADDED_LATER)
    """Id of the recording of a spoken caption, in the data set's ``logmel`` store. The caption is its transcript."""
    query: str | None = field(default=None, metadata=ADDED_LATER)
    """Id of the query, in data sets with several moments for a query: each moment has a caption (QVHighlights)."""
    saliency: list[int] = field(default_factory=list, metadata=ADDED_LATER)
    """Three annotators' ratings of each 2 s of the clip, in order of time: how well it fits, 0 to 4 (QVHighlights)."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """{column: number} for the user's own columns, without blank numbers. Objectives get the numbers as inputs."""

    def __post_init__(self) -> None:
        if not isinstance(self.video_id, str) or not self.video_id.strip():
            raise ValueError(f"the video is {self.video_id!r}, expected an id")
        for value in (self.video_id, self.caption, self.task, self.answer, self.recording, self.query):
            if value is not None:
                check_text(value)
        if self.recording is not None and not self.recording.strip():
            raise ValueError(f"the recording is {self.recording!r}, expected an id")
        if not self.caption.strip():
            raise ValueError(f"the caption of video {self.video_id!r} is empty")
        if self.start_seconds is None or self.end_seconds is None:
            if self.start_seconds is not self.end_seconds:
                raise ValueError(f"start {self.start_seconds} and end {self.end_seconds}: give both or neither")
        elif not 0 <= self.start_seconds < self.end_seconds:
            raise ValueError(f"from {self.start_seconds} to {self.end_seconds} s: a clip needs 0 <= start < end")
        for name, number in self.extra.items():
            check_text(name)
            if not name.strip() or not is_number(number):
                raise ValueError(f"column {name!r} is {number!r}, expected a name and a finite number")
        if not len(self.words) == len(self.word_starts) == len(self.pos_tags):
            raise ValueError(f"{len(self.words)} words, {len(self.word_starts)} starts and {len(self.pos_tags)} tags")

    @property
    def clip_id(self) -> str:
        """Id of the clip, the same for all captions of the clip."""
        if self.start_seconds is None:
            return self.video_id
        return f"{self.video_id}#{self.start_seconds}-{self.end_seconds}"


@dataclass(frozen=True, kw_only=True)
class StoredVideo:
    """A store's facts about a video, known without reading its rows.

    Example:
        >>> from vlalign.storage import open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> about = store.about("demo0000")
        >>> about.num_rows == len(store.get("demo0000").features)
        True
    """

    video_id: str
    """Id of the video."""
    num_rows: int
    """Number of its rows."""
    duration_seconds: float
    """Time at which the frames, or the sound, end."""
    source: str = ""
    """Identity of the file that was read (``file_identity``)."""
    decoder: str = ""
    """Name and version of the decoder; empty if unknown."""
    partial: str = ""
    """The parts of the video that are missing in its rows or were damaged, with amounts; empty if none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class VideoFeatures:
    """Features of a video or of one of its clips: a row for each window, in order; windows are half-open in time.

    Raises:
        ValueError: Shapes do not fit.

    Example:
        >>> from vlalign.storage import open_store
        >>> store = open_store("vlalign_data/demo/features/s3d")
        >>> clip = store.get("demo0000", start_seconds=0.5, end_seconds=1.2)
        >>> clip.features.shape, clip.start_seconds.tolist(), clip.end_seconds.tolist()
        ((2, 1024), [0.0, 1.0], [1.0, 2.0])
    """

    video_id: str
    """Id of the video."""
    features: np.ndarray
    """[T, D]: float; uint8 if the rows are frames (``Profile.is_frames``)."""
    start_seconds: np.ndarray
    """[T]"""
    end_seconds: np.ndarray
    """[T]"""
    valid_frames: np.ndarray
    """[T]: number of real frames (samples, for sound) in each window. The profile's tail rule added the rest."""
    duration_seconds: float
    """Time at which the frames, or the sound, end."""
    source: str = ""
    """Identity of the file that was read."""
    decoder: str = ""
    """Name and version of the decoder; empty if unknown."""
    partial: str = ""
    """The parts of the video that are missing in these rows or were damaged, with amounts; empty if none."""

    def __post_init__(self) -> None:
        num_rows = len(self.features)
        if self.features.ndim != 2:
            raise ValueError(f"{self.video_id}: features must be [T, D], got {self.features.shape}")
        for name in ("start_seconds", "end_seconds", "valid_frames"):
            if getattr(self, name).shape != (num_rows,):
                raise ValueError(f"{self.video_id}: {name} must be [{num_rows}], got {getattr(self, name).shape}")

    @property
    def about(self) -> StoredVideo:
        """Everything but the rows."""
        return StoredVideo(
            video_id=self.video_id,
            num_rows=len(self.features),
            duration_seconds=self.duration_seconds,
            source=self.source,
            decoder=self.decoder,
            partial=self.partial,
        )

    def __repr__(self) -> str:
        return f"VideoFeatures({self.video_id!r}, features {self.features.shape}, {self.duration_seconds:.2f} s)"


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A line of ``failures.jsonl``: a video that gave no features.

    Example:
        >>> from vlalign.storage import Failure
        >>> failure = Failure(video_id="demo0007", path="videos/demo0007.mp4", kind="unreadable", message="empty file")
        >>> failure.kind
        'unreadable'
    """

    video_id: str
    """Id of the video."""
    path: str
    """Path or address of its file."""
    kind: str
    """Kind of the failure, such as "unreadable": a value of ``accept_failures``."""
    message: str
    """The reason, one line."""
    source: str = ""
    """Identity of the file that failed. A changed file is tried again."""
