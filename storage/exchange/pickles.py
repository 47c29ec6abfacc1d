"""Pickles from elsewhere, of arrays and plain containers of them; nothing in them is executed."""

import math
import mmap
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..common.errors import UserError

MOST_BYTES = 2 << 30
"""Of one video's array: a small file may claim, or be packed from, more than any memory holds."""
MOST_TIMES = 8
"""All arrays of a pickle together take so many times its size at most. What is there once takes 4 times: a number is 2 bytes in a list
and 8 in an array."""
MOST_AXES = 64
"""Of NumPy's arrays."""
MOST_LETTERS = 20
"""Of the name of a type, an order or an encoding."""
Read = Callable[[], np.ndarray | None]
"""Reads an array; None for what is none, or none of numbers."""
Tree = Mapping[str, "Read | Tree"]
"""What is in a file: arrays by name, or one level of groups of them."""


class _Array:
    """What a pickle says of an array; made into one only when asked for, and only where all of it fits together."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts
        """(shape, type, in Fortran's order, content)"""

    def set_state(self, state: Any) -> None:
        self.parts = state[-4:]  # a version may stand before

    @property
    def num_bytes(self) -> int:
        content = self.parts[-1] if self.parts else b""
        return len(content) if isinstance(content, str | bytes) else 0

    def array(self) -> np.ndarray:
        shape, dtype, fortran, content = self.parts
        if not (isinstance(dtype, _Type) and _is_shape(shape)):
            raise ValueError("an array of impossible type or shape")
        kind = dtype.numpy()
        content = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(content, bytes) or math.prod(shape) * kind.itemsize != len(content):
            raise ValueError(f"an array whose content does not have its shape {list(shape)[:8]}")
        return (
            np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")
            if content
            else np.empty(shape, kind)
        )


def _is_shape(shape: Any) -> bool:
    """Of few axes, and none so long that their product takes long."""
    return (
        isinstance(shape, tuple)
        and len(shape) <= MOST_AXES
        and all(isinstance(n, int) and 0 <= n < 1 << 63 for n in shape)
    )


class _Type:
    """The type of an array's values, before it is known to be one of numbers or texts."""

    def __init__(self, name: Any, *_: Any) -> None:
        self.name, self.order = _short(name), "="

    def set_state(self, state: Any) -> None:
        self.order, subtype, names, fields = _short(state[1]), *state[2:5]
        if (subtype, names, fields) != (None, None, None):
            self.name = "structure"

    def numpy(self) -> np.dtype:
        if not re.fullmatch(r"[biuf]\d{1,2}|[SU]\d{1,6}", self.name) or self.order not in ("<", ">", "=", "|"):
            raise ValueError(
                f"an array of {'Python objects' if self.name.startswith('O') else repr(self.name)}; expected numbers"
            )
        return np.dtype(self.order + self.name)


def _scalar(dtype: Any, content: Any) -> Any:
    return _Array((1,), dtype, False, content).array()[0].item()


def _from_buffer(content: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(shape, dtype, order == "F", content)


def _encode(text: Any, encoding: Any) -> bytes:
    if (name := _short(encoding)) not in ("latin1", "latin-1"):
        raise ValueError(f"bytes in the encoding {name!r}")
    return text.encode("latin1")


def _ordered(pairs: Any = ()) -> dict:
    return {_key(key): value for key, value in pairs}


def _no_more(kind: Callable[[], Any]) -> Callable[..., Any]:
    return lambda: kind()


def _never(*_: Any) -> None:
    raise ValueError("an array that is built in no known way")


# Only the ways in which NumPy and Python themselves pickle these. None of it is the real thing: a pickle gets no hold of any function
# or type of NumPy's, whose own ways of taking up a state are made for pickles that one trusts.
_BUILDERS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _never,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    ("collections", "OrderedDict"): _ordered,
    ("collections", "defaultdict"): lambda *_: {},
    **{
        (f"numpy.{core}.{module}", name): build
        for core in ("core", "_core")
        for module, name, build in (
            ("multiarray", "_reconstruct", lambda *_: _Array()),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
    **{
        (module, kind.__name__): _no_more(kind)
        for module in ("builtins", "__builtin__")
        for kind in (dict, list, int, float, bytes)
    },
}

_OPCODES = """PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING
BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 EMPTY_DICT EMPTY_LIST
APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL"""


class _Memo(dict):
    """By texts, whose hashes nobody can foresee: of numbers, a pickle could choose those that have the same one."""

    def __setitem__(self, place: int, value: Any) -> None:
        super().__setitem__(str(place), value)

    def __getitem__(self, place: int) -> Any:
        return super().__getitem__(str(place))


class _PlainUnpickler(pickle._Unpickler):
    """Builds numbers, texts, bytes, tuples, lists, dicts and ``_Array``; refuses the rest by name. Takes time and memory in
    proportion to the file.

    Python's own implementation and not the one in C, which cannot be kept from what needs no import: a place in the memo numbered
    2**31 takes 32 GB, a key of 60 nested pairs takes years to hash, and attributes may be set on anything.
    """

    def __init__(self, content: mmap.mmap, path: Path) -> None:
        super().__init__(content, encoding="bytes")  # of Python 2: without a second copy, and ids may be UTF-8
        self.path, self.memo = path, _Memo()
        self.left = MOST_TIMES * len(content)
        """So many bytes and items may still be given to functions: one from the memo costs a file next to nothing."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in _BUILDERS:
            full_name = f"{module}.{name}"[:200]
            raise UserError(f"{self.path}: wants to build {full_name}; only numpy arrays and plain containers are read")
        return _BUILDERS[module, name]

    def reduce(self) -> None:
        args, build = self.stack.pop(), self.stack.pop()
        if build not in _BUILDERS.values():
            raise pickle.UnpicklingError("it calls what is no function")
        if not isinstance(args, tuple):
            raise pickle.UnpicklingError("it calls with no tuple of arguments")
        self.left -= len(args) + sum(len(arg) for arg in args if isinstance(arg, str | bytes | list | tuple | dict))
        if self.left < 0:
            raise pickle.UnpicklingError("it builds the same again and again")
        self.append(build(*args))

    def build(self) -> None:
        state, built = self.stack.pop(), self.stack[-1]
        if not isinstance(built, _Array | _Type):
            raise pickle.UnpicklingError(f"it sets attributes of a {type(built).__name__}")
        built.set_state(state)

    def set_items(self) -> None:
        items = self.pop_mark()
        self._update(self.stack[-1], items)

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._update(self.stack[-1], [key, value])

    def new_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._update(self.stack[-1], items)

    def _update(self, target: Any, items: Sequence[Any]) -> None:
        if not isinstance(target, dict):
            raise pickle.UnpicklingError(f"it sets items of a {type(target).__name__}")
        target.update(zip(map(_key, items[::2]), items[1::2], strict=True))

    def instance(self) -> None:
        self.find_class(*(self.readline()[:-1].decode() for _ in range(2)))
        self.refuse()

    def refuse(self) -> None:
        raise UserError(
            f"{self.path}: has objects in it that are neither numpy arrays nor plain containers; only those are read"
        )

    dispatch = (
        dict.fromkeys(pickle._Unpickler.dispatch, refuse)
        | {
            code[0]: pickle._Unpickler.dispatch[code[0]]
            for code in (getattr(pickle, name) for name in _OPCODES.split())
        }
        | {pickle.REDUCE[0]: reduce, pickle.BUILD[0]: build, pickle.DICT[0]: new_dict, pickle.SETITEM[0]: set_item}
        | {pickle.SETITEMS[0]: set_items, pickle.INST[0]: instance}
        # as bytes: a bytearray of the size that the file claims would be filled with zeros before the file is read
        | {pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]]}
    )


def pickle_tree(path: Path) -> Tree:
    """A pickled dict {video id: array, list of arrays, or dict of them}. Raises ``UserError`` for what is none, or wants to build more.

    An array may have several names. Those that are read together take ``MOST_TIMES`` the size of the file; the others are refused.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        loaded, left = _PlainUnpickler(content, path).load(), MOST_TIMES * len(content)
    if not isinstance(loaded, dict):
        raise UserError(f"{path}: a pickled {type(loaded).__name__.lstrip('_')}; expected a dict {{video id: array}}")
    leaves, sizes, tree = {}, _Sizes(), {}
    for key, value in loaded.items():
        left -= sizes.of(value)
        if id(value) not in leaves:
            leaves[id(value)] = _leaf(value)
        tree[_text(key)] = leaves[id(value)] if left >= 0 else _too_often
    return tree


class _Sizes:
    """How many bytes values take as arrays. Each is looked at once, however many names it has."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, value: Any, *, inside: bool = False) -> int:
        """``inside``: of what stands in another dict; a dict there is no array."""
        if inside and isinstance(value, dict):
            return 0
        if id(value) not in self._known:
            is_group = isinstance(value, dict)
            self._known[id(value)] = (
                sum(8 + self.of(v, inside=True) for v in value.values()) if is_group else _size(value)
            )
        return self._known[id(value)]


def _size(value: Any) -> int:
    """Of an array, or of a list of arrays, of numbers, or of lists of them."""
    if isinstance(value, _Array):
        return value.num_bytes
    if not isinstance(value, list | tuple):
        return 0
    return sum(
        part.num_bytes if isinstance(part, _Array) else 8 * len(part) if isinstance(part, list | tuple) else 8
        for part in value
    )


def _too_often() -> None:
    raise ValueError("it names the same arrays again and again; expected each once")


def _leaf(value: Any) -> "Read | Tree":
    if isinstance(value, dict):
        return {_text(key): partial(_pickled_array, inner) for key, inner in value.items()}
    return partial(_pickled_array, value)


def _pickled_array(value: Any) -> np.ndarray | None:
    """An array; or the rows of a list of arrays or of lists of numbers."""
    if isinstance(value, _Array):
        return value.array()
    if not isinstance(value, list | tuple) or not value:
        return None
    if _are_numbers(value):
        return np.array(value, np.float64)
    parts = [part.array() if isinstance(part, _Array) else part for part in value]
    if not all(isinstance(part, np.ndarray | list | tuple) for part in parts):
        return None
    # One list may stand in another a million times and take no room in the pickle.
    if sum(part.nbytes if isinstance(part, np.ndarray) else 8 * len(part) for part in parts) > MOST_BYTES:
        raise ValueError(f"a list of arrays with more than {MOST_BYTES >> 30} GiB")
    if not all(isinstance(part, np.ndarray) or _are_numbers(part) for part in parts):
        return None
    return np.concatenate([np.atleast_2d(part) for part in parts])


def _are_numbers(value: Sequence[Any]) -> bool:
    return all(isinstance(number, int | float) for number in value)


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _short(name: Any) -> str:
    """What NumPy and Python call types and encodings."""
    if not isinstance(name, str | bytes) or len(name) > MOST_LETTERS:
        raise ValueError("a type or encoding with an impossible name")
    return _text(name)


def _key(key: Any) -> str | bytes:
    """Numbers as texts, which they become as ids anyhow, and whose hashes nobody can foresee."""
    if isinstance(key, int):
        if not -(1 << 63) <= key < 1 << 63:
            raise pickle.UnpicklingError("a dict with a number of more than 64 bits for a key")
        return str(key)
    if not isinstance(key, str | bytes):
        raise pickle.UnpicklingError(f"a dict with a {type(key).__name__} for a key")
    return key
