"""Arrays as a pickle describes them, kept apart from NumPy until the description is checked.

None of these builders is the real thing. A pickle never gets hold of a function or type of NumPy, whose own ways of
restoring a state are made for pickles that one trusts.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

MAX_AXES = 64
"""Limit of NumPy's arrays."""
MAX_NAME_CHARACTERS = 20
"""Limit of the name of a type, an order or an encoding."""


class PickledArray:
    """An array as a pickle describes it."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        """(shape, type, Fortran order, content)"""

    def set_state(self, state: Any) -> None:
        """Take the state that NumPy pickles; a version may come first."""
        self.parts = state[-4:]

    @property
    def num_bytes(self) -> int:
        """Size of the content."""
        content = self.parts[-1] if self.parts else b""
        return len(content) if isinstance(content, str | bytes) else 0

    def array(self) -> np.ndarray:
        """Make the array. Raises ``ValueError`` if its parts do not fit together."""
        shape, dtype, fortran, content = self.parts
        if not (isinstance(dtype, PickledType) and _is_shape(shape)):
            raise ValueError("an array of impossible type or shape")
        kind = dtype.numpy()
        content = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(content, bytes) or math.prod(shape) * kind.itemsize != len(content):
            raise ValueError(f"an array whose content does not have its shape {list(shape)[:8]}")
        if not content:
            return np.empty(shape, kind)
        return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")


def _is_shape(shape: Any) -> bool:
    """Return True for a tuple of few integers, none of which is so long that multiplying takes long."""
    return (
        isinstance(shape, tuple)
        and len(shape) <= MAX_AXES
        and all(isinstance(length, int) and 0 <= length < 1 << 63 for length in shape)
    )


class PickledType:
    """The type of an array's values, before it is known to be one of numbers or texts."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name, self.order = _short_name(name), "="

    def set_state(self, state: Any) -> None:
        """Take the state that NumPy pickles: byte order, and the fields of a structure."""
        self.order, subtype, names, fields = _short_name(state[1]), *state[2:5]
        if (subtype, names, fields) != (None, None, None):
            self.name = "structure"

    def numpy(self) -> np.dtype:
        """Make the type. Raises ``ValueError`` for anything but plain numbers and texts."""
        if not re.fullmatch(r"[biuf]\d{1,2}|[SU]\d{1,6}", self.name) or self.order not in ("<", ">", "=", "|"):
            kind = "Python objects" if self.name.startswith("O") else repr(self.name)
            raise ValueError(f"an array of {kind}; expected numbers")
        return np.dtype(self.order + self.name)


def text_of(key: str | bytes) -> str:
    """Return a key as text."""
    return key.decode() if isinstance(key, bytes) else key


def checked_key(key: Any) -> str | bytes:
    """Return a key of a dict. Integers become texts, whose hashes nobody can foresee.

    Raises:
        ValueError: It is not an integer of 64 bits, a text or bytes.
    """
    if isinstance(key, int):
        if not -(1 << 63) <= key < 1 << 63:
            raise ValueError("a dict with a number of more than 64 bits for a key")
        return str(key)
    if not isinstance(key, str | bytes):
        raise ValueError(f"a dict with a {type(key).__name__} for a key")
    return key


def _short_name(name: Any) -> str:
    """Return the name of a type or encoding."""
    if not isinstance(name, str | bytes) or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError("a type or encoding with an impossible name")
    return text_of(name)


def _scalar(dtype: Any, content: Any) -> Any:
    return PickledArray((1,), dtype, False, content).array()[0].item()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> PickledArray:
    return PickledArray(shape, dtype, order == "F", content)


def _encode(text: Any, encoding: Any) -> bytes:
    if (name := _short_name(encoding)) not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in the encoding {name!r}")
    return text.encode("latin1")


def _ordered(pairs: Iterable[tuple[Any, Any]] = ()) -> dict[str | bytes, Any]:
    return {checked_key(key): value for key, value in pairs}


def _empty(kind: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: kind()


def _never(*_: Any) -> None:
    raise ValueError("an array that is built in an unknown way")


BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _never,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "defaultdict"): lambda *_: {},
    **{
        (f"numpy.{core}.{module}", name): build
        for core in ("core", "_core")
        for module, name, build in (
            ("multiarray", "_reconstruct", lambda *_: PickledArray()),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
    **{
        (module, kind.__name__): _empty(kind)
        for module in ("builtins", "__builtin__")
        for kind in (dict, list, int, float, bytes)
    },
}
"""The ways in which NumPy and Python themselves pickle arrays and plain containers: (module, name) -> what is called
instead.
"""
