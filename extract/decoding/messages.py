"""The requests to a decoder process and its answers, as JSON over a socket.

An answer comes from a process that reads a file of unknown origin. ``parse`` accepts it only if it has the expected
fields and types; the receiver checks the values. Both raise ``InvalidMessage``.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_args, get_type_hints

from .clip_file import ClipWritten
from .decode import DecodingFinished, DecodingStarted
from .sampling import MAX_SIDE_RATIO, FrameSpec
from .sound import SamplesFinished, SoundFinished
from .span import SpanProbed

MAX_TEXT, MAX_LIST, MAX_INT = 1 << 16, 64, 1 << 53


class InvalidMessage(ValueError):
    """An answer that no decoder gives."""


@dataclass(frozen=True)
class Request:
    """A request to decode a file."""

    path: str
    specs: list[FrameSpec]
    """The frames that each profile needs; empty for sound, shots, a clip or a single frame."""
    sound: bool = False
    """Decode the sound also."""
    shots: bool = False
    """Find the shots also, in all frames."""
    samples: bool = False
    """If true, send only the sound, as samples."""
    excluded_decoders: list[str] = field(default_factory=list)
    """Decoders not to use."""
    seconds: float | None = None
    """If given, read only the first seconds of the video."""
    thumbnails_every: float | None = None
    """Seconds between thumbnails; None for three thumbnails."""
    only_probe: bool = False
    """Read the packets without decoding."""
    clip: tuple[float, float] | None = None
    """If given, send only the part between two seconds, as WebM."""
    frame_at: float | None = None
    """If given, send only the frame at this second, as JPEG."""
    as_pixels: bool = False
    """Send the frame of ``frame_at`` as pixels, which the receiver need not decode."""
    span: tuple[float, float] | None = None
    """If given, send only the facts about the part between two seconds, or this part as a file."""
    clip_kind: str = ""
    """"copy" or "exact" for a clip of ``span`` (``clip_file``); empty for its facts."""
    path_decoders_only: bool = False
    """Use the decoders that open the file by its path instead of those that read its descriptor."""
    folders: Sequence[str] | None = None
    """If given, one of these folders must contain the file when it is opened."""

    @property
    def needs_frames(self) -> bool:
        """True if the request is about the frames of the whole video."""
        return bool(self.specs) or self.shots

    def to_json(self) -> bytes:
        """Return the request as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Request":
        """Parse a request, which comes from this program."""
        values = json.loads(content)
        spans = {name: values[name] and tuple(values[name]) for name in ("clip", "span")}
        return cls(**values | {"specs": [FrameSpec(**spec) for spec in values["specs"]]} | spans)


@dataclass(frozen=True)
class Heartbeat:
    """The work continues."""


@dataclass(frozen=True)
class Failed:
    """Decoding failed. ``kind`` is the ``kind`` of a ``VideoError``."""

    kind: str
    words: str


@dataclass(frozen=True)
class SoundFailed:
    """The sound failed; the frames follow."""

    kind: str
    words: str


@dataclass(frozen=True)
class SoundProbed:
    """The approximate number of rows of the sound, and its end."""

    num_rows: int
    duration_seconds: float


@dataclass(frozen=True)
class VideoProbed:
    """Properties of the video's frames, read from its packets."""

    codec: str
    width: int
    height: int
    duration_seconds: float
    missing: str
    """The parts that are missing in the file; empty if it is complete."""
    num_frames: list[int]
    """Frames that would be sampled, for each of ``specs``."""


@dataclass(frozen=True)
class WindowReady:
    """A window's frames are in the shared memory (``process_link.py``).

    They are [window, H, W, 3], or [H, W, 3] if the window is one frame, in the type of the profile's kernel.
    """

    spec_index: int
    """Index into the request's ``specs``."""
    shape: list[int]
    offset: int
    """The byte of the memory at which the frames begin."""

    def check(self, specs: Sequence[FrameSpec]) -> None:
        """Raise ``InvalidMessage`` for a window that was not requested, or whose shape is wrong."""
        if not 0 <= self.spec_index < len(specs):
            raise InvalidMessage("a window that was not requested")
        expected = specs[self.spec_index]
        *window, height, width, channels = self.shape if len(self.shape) > 2 else [0, 0, 0]
        short, long = min(height, width), max(height, width)
        fits = (
            (short, long) == (expected.crop_px,) * 2
            if expected.crop_px
            else short == expected.short_side_px and long <= MAX_SIDE_RATIO * short
        )
        if window != [expected.window] * (expected.window > 1) or channels != 3 or not fits:
            raise InvalidMessage(f"frames of {self.shape}")


@dataclass(frozen=True)
class ThumbnailFollows:
    """The next message holds a thumbnail, as JPEG."""

    seconds: float


@dataclass(frozen=True)
class SoundFollows:
    """The next message holds rows of sound (``log_mel.ROW``)."""


@dataclass(frozen=True)
class ShotsFollow:
    """The next message holds the shots (``shots.ROW``)."""

    detector: str
    """Name and version of the library that found them."""


@dataclass(frozen=True)
class SamplesFollow:
    """The next message holds samples of sound: int16, mono, at ``log_mel.RATE``."""


@dataclass(frozen=True)
class ClipFollows:
    """The next message holds a part of the video, as WebM."""


@dataclass(frozen=True)
class FrameFollows:
    """The next message holds the requested frame, as JPEG."""

    seconds: float
    """The frame's time."""


@dataclass(frozen=True)
class PixelsFollow:
    """The next message holds the requested frame as pixels, uint8 [height, width, 3] RGB."""

    seconds: float
    """The frame's time."""
    height: int
    width: int


@dataclass(frozen=True)
class ClipPart:
    """The next message holds bytes of a clip."""

    offset: int
    """The byte of the clip at which they begin."""


Message = (
    Heartbeat
    | Failed
    | SoundFailed
    | SoundProbed
    | VideoProbed
    | DecodingStarted
    | WindowReady
    | ThumbnailFollows
    | SoundFollows
    | ShotsFollow
    | SamplesFollow
    | ClipFollows
    | FrameFollows
    | PixelsFollow
    | SpanProbed
    | ClipPart
    | ClipWritten
    | SoundFinished
    | SamplesFinished
    | DecodingFinished
)
LAST = Failed, DecodingFinished, VideoProbed
"""Types of the last answer to a request for frames. Other requests end with: sound: ``SoundFinished`` or
``SoundProbed``; samples: ``SamplesFinished``; a clip: ``ClipFollows``; a part: ``SpanProbed`` or ``ClipWritten``; a
frame: ``FrameFollows`` or ``PixelsFollow``. Each may end with ``Failed`` instead.
"""
_TYPES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}
_FIELDS = {name: get_type_hints(kind) for name, kind in _TYPES.items()}


def encode(message: Message) -> bytes:
    """Return a message as JSON."""
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode()


def parse(content: bytes) -> Message:
    """Read a message.

    Raises:
        InvalidMessage: ``encode`` does not write this.
    """
    try:
        values = json.loads(content)
        name = values.pop("type")
        fields = _FIELDS[name]
        if values.keys() != fields.keys() or not all(_has_type(values[key], kind) for key, kind in fields.items()):
            raise InvalidMessage(f"a {name} with other fields")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidMessage(str(error)[:200] or type(error).__name__) from None
    return _TYPES[name](**values)


def _has_type(value: Any, kind: object) -> bool:
    if kind is str:
        return isinstance(value, str) and len(value) <= MAX_TEXT and "\0" not in value and value.encode() is not None
    if kind is int:
        return type(value) is int and abs(value) < MAX_INT
    if kind is float:
        return type(value) in (int, float) and abs(value) < MAX_INT
    return isinstance(value, list) and len(value) <= MAX_LIST and all(_has_type(item, int) for item in value)
