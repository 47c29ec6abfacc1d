"""What a decoding process is asked and what it answers, as JSON over a socket.

An answer comes from a process that holds a file which anybody may have made: ``parse`` believes its form only where it has the fields and
types that it should have, and whoever takes it checks the figures (``Nonsense``).
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, get_type_hints

from .decode import Finished, Started, Wanted
from .probe import LONGEST_SIDE
from .sound import Heard

MOST_LETTERS, MOST_VALUES, LARGEST_NUMBER = 1 << 16, 64, 1 << 53


class Nonsense(ValueError):
    """An answer that no decoder gives."""


@dataclass(frozen=True)
class Request:
    path: str
    wanted: list[Wanted]
    sound: bool = False
    without: list[str] = field(default_factory=list)
    """Decoders that are not to be tried."""
    seconds: float | None = None
    """Only the first part, where given."""
    only_probe: bool = False
    elsewhere: bool = False
    """Whether decoders that open the file by its path are asked."""

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Request":
        about = json.loads(content)
        return cls(**about | {"wanted": [Wanted(**each) for each in about["wanted"]]})


@dataclass(frozen=True)
class Beat:
    """The work goes on."""


@dataclass(frozen=True)
class Failed:
    """The video, or what was wanted of its pictures. ``kind``: as in ``VideoError``."""

    kind: str
    words: str


@dataclass(frozen=True)
class Unheard:
    """Its sound failed; its pictures go on."""

    kind: str
    words: str


@dataclass(frozen=True)
class SoundProbed:
    num_rows: int
    duration_seconds: float


@dataclass(frozen=True)
class PicturesProbed:
    codec: str
    width: int
    height: int
    duration_seconds: float
    missing: str
    """What the container says is not there; empty: nothing."""
    num_frames: list[int]
    """That would be sampled, for each of ``wanted``."""


@dataclass(frozen=True)
class RowFollows:
    """Next come the frames of a row, uint8 ``shape``: [window, H, W, 3], or [H, W, 3] where the window is one frame."""

    wanted: int
    """Its place in the request's ``wanted``."""
    shape: list[int]

    def check(self, asked: Sequence[Wanted]) -> None:
        """Raises ``Nonsense`` for a row that was not asked for."""
        if not 0 <= self.wanted < len(asked):
            raise Nonsense("a row that nobody wants")
        wanted = asked[self.wanted]
        *window, height, width, channels = self.shape if len(self.shape) > 2 else [0, 0, 0]
        short, long = min(height, width), max(height, width)
        fits = (
            (short, long) == (wanted.crop_px,) * 2
            if wanted.crop_px
            else short == wanted.short_side_px and long <= LONGEST_SIDE * short
        )
        if window != [wanted.window] * (wanted.window > 1) or channels != 3 or not fits:
            raise Nonsense(f"frames of {self.shape}")


@dataclass(frozen=True)
class PictureFollows:
    """Next comes a small JPEG."""

    seconds: float


@dataclass(frozen=True)
class SoundFollows:
    """Next come so many rows of sound (``sound.ROW``)."""

    num_rows: int


Message = (
    Beat
    | Failed
    | Unheard
    | SoundProbed
    | PicturesProbed
    | Started
    | RowFollows
    | PictureFollows
    | SoundFollows
    | Heard
    | Finished
)
LAST = Failed, Finished, PicturesProbed
"""One of these is the last answer, or, where only sound was asked for, ``Heard``, ``SoundProbed`` or ``Failed``."""
_TYPES = {kind.__name__: kind for kind in Message.__args__}
_FIELDS = {name: get_type_hints(kind) for name, kind in _TYPES.items()}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode()


def parse(content: bytes) -> Message:
    """Raises ``Nonsense`` for anything that ``encode`` does not make."""
    try:
        about = json.loads(content)
        name = about.pop("type")
        fields = _FIELDS[name]
        if about.keys() != fields.keys() or not all(_is(about[each], kind) for each, kind in fields.items()):
            raise Nonsense(f"a {name} with other fields")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Nonsense(str(error)[:200] or type(error).__name__) from None
    return _TYPES[name](**about)


def _is(value: Any, kind: Any) -> bool:
    if kind is str:
        return isinstance(value, str) and len(value) <= MOST_LETTERS
    if kind is int:
        return type(value) is int and abs(value) < LARGEST_NUMBER
    if kind is float:
        return type(value) in (int, float) and math.isfinite(value)
    return isinstance(value, list) and len(value) <= MOST_VALUES and all(_is(each, int) for each in value)  # list[int]
