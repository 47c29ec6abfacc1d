"""Pickles from strangers, of arrays and plain containers of them. Nothing in them is executed.

Arrays are separate from NumPy until their description is checked. A pickle never gets access to a function or type of
NumPy, since NumPy restores state as if every pickle were trusted.
"""

import math
import mmap
import pickle
import pickletools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

import numpy as np

from ..common.errors import UserError
from .limits import MAX_ARRAY_BYTES, ArrayGroup, ReadArray

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
            raise ValueError(f"an array whose content does not fit its shape {list(shape)[:8]}")
        if not content:
            return np.empty(shape, kind)
        return np.frombuffer(content, kind).reshape(shape, order="F" if fortran else "C")


def _is_shape(shape: Any) -> bool:
    """Return True for a tuple of at most ``MAX_AXES`` integers of 64 bits. Longer integers take long to multiply."""
    return (
        isinstance(shape, tuple)
        and len(shape) <= MAX_AXES
        and all(isinstance(length, int) and 0 <= length < 1 << 63 for length in shape)
    )


class PickledType:
    """The type of an array's values, which may turn out to be neither numbers nor texts."""

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
            kind = f"{self.name!r}, Python objects" if self.name.startswith("O") else repr(self.name)
            raise ValueError(f"an array of {kind}; expected numbers")
        return np.dtype(self.order + self.name)


def text_of(key: str | bytes) -> str:
    """Return a key as text."""
    return key.decode() if isinstance(key, bytes) else key


def checked_key(key: Any) -> str | bytes:
    """Return a key of a dict. Integers become texts, whose hashes are unpredictable.

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
    raise ValueError("it calls numpy.ndarray; expected numpy.core.multiarray._reconstruct")


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
"""{(module, name) in pickles of arrays and plain containers by NumPy and Python: function called instead}."""


MAX_EXPANSION = 8
"""Limit of the size of all arrays of a pickle relative to the file. Numbers that occur once take 4 times the size: 2
bytes in a pickled list, 8 in an array.
"""

_OPCODES = """PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG LONG1 LONG4
FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 BINBYTES
SHORT_BINBYTES BINBYTES8 EMPTY_DICT EMPTY_LIST APPEND APPENDS LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 PUT BINPUT
LONG_BINPUT MEMOIZE GET BINGET LONG_BINGET GLOBAL STACK_GLOBAL"""


class _Memo(dict[str, Any]):
    """The memo with texts for keys. A pickle could choose integers that have the same hash."""

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(str(index), value)

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(str(index))


def _refuser(code: int) -> Callable[[Any], None]:
    [opcode] = [opcode.name for opcode in pickletools.opcodes if ord(opcode.code) == code]
    return lambda unpickler: unpickler.refuse(opcode)


class PlainUnpickler(pickle._Unpickler):
    """Builds numbers, texts, bytes, tuples, lists, dicts and ``PickledArray``, and refuses everything else by name.

    Time and memory are in proportion to the file. This is Python's own implementation rather than the one in C, which
    can be attacked without any import: memo index 2**31 takes 32 GB, a key of 60 nested pairs takes years to hash, and
    attributes may be set on anything.
    """

    # Set by pickle._Unpickler.load; its stub does not list them.
    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    readline: Callable[[], bytes]

    builders: ClassVar[Mapping[tuple[str, str], Callable[..., Any]]] = BUILDERS

    def __init__(self, content: BinaryIO | mmap.mmap, num_bytes: int, path: Path) -> None:
        """Prepare to read a pickle of at most ``num_bytes`` from ``content``; ``path`` is for messages."""
        super().__init__(content, encoding="bytes")  # texts of Python 2 as bytes: not copied, and ids may be UTF-8
        self.path, self.memo = path, _Memo()
        self.left = MAX_EXPANSION * num_bytes
        """Bytes and items that builders may still receive. Passing one from the memo costs almost no bytes."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        """Return a builder. Raises ``UserError`` for anything that is not in ``builders``."""
        if (module, name) not in self.builders:
            full_name = f"{module}.{name}"[:200]
            raise UserError(
                f"{self.path}: would build {full_name}; expected numpy arrays and plain containers; save them as .npz"
            )
        return self.builders[module, name]

    def reduce(self) -> None:
        """Call a builder."""
        args, build = self.stack.pop(), self.stack.pop()
        if build not in self.builders.values():
            raise ValueError(f"it calls a {type(build).__name__}; expected a function")
        if not isinstance(args, tuple):
            raise ValueError(f"it calls with a {type(args).__name__}; expected a tuple of arguments")
        self.left -= len(args) + sum(len(arg) for arg in args if isinstance(arg, str | bytes | list | tuple | dict))
        if self.left < 0:
            raise ValueError("it builds the same object too often")
        self.append(build(*args))

    def build(self) -> None:
        """Set the state of an array or type."""
        state, target = self.stack.pop(), self.stack[-1]
        if not isinstance(target, PickledArray | PickledType):
            raise ValueError(f"it sets attributes of a {type(target).__name__}")
        target.set_state(state)

    def set_items(self) -> None:
        """Add items to a dict."""
        items = self.pop_mark()
        self._update(self.stack[-1], items)

    def set_item(self) -> None:
        """Add one item to a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self._update(self.stack[-1], [key, value])

    def new_dict(self) -> None:
        """Make a dict of items."""
        items = self.pop_mark()
        self.append({})
        self._update(self.stack[-1], items)

    def _update(self, target: Any, items: Sequence[Any]) -> None:
        if not isinstance(target, dict):
            raise ValueError(f"it sets items of a {type(target).__name__}")
        target.update(zip(map(checked_key, items[::2]), items[1::2], strict=True))

    def instance(self) -> None:
        """Refuse an instance of a class; name the class unless it is a builder."""
        self.find_class(*(self.readline()[:-1].decode() for _ in range(2)))
        self.refuse("INST")

    def refuse(self, opcode: str) -> NoReturn:
        """Refuse an opcode, given by its name."""
        raise UserError(
            f"{self.path}: contains objects ({opcode}); expected numpy arrays and plain containers; save them as .npz"
        )

    # The stub asks for functions of Unpickler alone.
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        {code: _refuser(code) for code in pickle._Unpickler.dispatch}
        | {
            code[0]: pickle._Unpickler.dispatch[code[0]]
            for code in (getattr(pickle, name) for name in _OPCODES.split())
        }
        | {pickle.REDUCE[0]: reduce, pickle.BUILD[0]: build, pickle.DICT[0]: new_dict, pickle.SETITEM[0]: set_item}
        | {pickle.SETITEMS[0]: set_items, pickle.INST[0]: instance}
        # As bytes: a bytearray of the size that the file claims would be filled with zeros before the file is read.
        | {pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]]}
    )


def open_pickle(path: Path) -> ArrayGroup:
    """Read a pickled array, or a dict {video id: array, list of arrays, or dict of them}.

    An array may have several names. All arrays together take at most ``MAX_EXPANSION`` times the size of the file;
    arrays beyond this limit are refused when they are read.

    Returns:
        The arrays by their keys; a single array by the name of the file.

    Raises:
        UserError: The pickle is neither, or wants to build anything else.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return group_of(PlainUnpickler(content, len(content), path).load(), len(content), path)


def group_of(loaded: Any, num_bytes: int, path: Path) -> ArrayGroup:
    """Return the arrays in the content of a pickle of ``num_bytes`` by name; see ``open_pickle``."""
    left = MAX_EXPANSION * num_bytes
    if isinstance(loaded, PickledArray):
        return {path.stem: partial(_array_of, loaded) if loaded.num_bytes <= left else _refuse_repeated}
    if not isinstance(loaded, dict):
        kind = type(loaded).__name__
        raise UserError(f"{path}: a pickled {kind}; expected an array, or a dict {{video id: array}}")
    leaves: dict[int, ReadArray | ArrayGroup] = {}
    sizes, arrays = _Sizes(), {}
    for key, value in loaded.items():
        left -= sizes.of(value)
        if id(value) not in leaves:
            leaves[id(value)] = _leaf(value)
        arrays[text_of(key)] = leaves[id(value)] if left >= 0 else _refuse_repeated
    return arrays


class _Sizes:
    """Sizes of values as arrays, in bytes. Each value is visited once, however many names it has."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, value: Any, *, inside: bool = False) -> int:
        """Return the size of a value. A dict that is ``inside`` another dict is not read and has size 0."""
        if inside and isinstance(value, dict):
            return 0
        if id(value) not in self._known:
            if isinstance(value, dict):
                self._known[id(value)] = sum(8 + self.of(inner, inside=True) for inner in value.values())
            else:
                self._known[id(value)] = _size(value)
        return self._known[id(value)]


def _size(value: Any) -> int:
    """Return the size of an array, or of a list of arrays, numbers or lists of numbers."""
    if isinstance(value, PickledArray):
        return value.num_bytes
    if not isinstance(value, list | tuple):
        return 0
    return sum(
        part.num_bytes if isinstance(part, PickledArray) else 8 * len(part) if isinstance(part, list | tuple) else 8
        for part in value
    )


def _refuse_repeated() -> NoReturn:
    raise ValueError("it names the same arrays too often; expected each once")


def _leaf(value: Any) -> ReadArray | ArrayGroup:
    if isinstance(value, dict):
        return {text_of(key): partial(_array_of, inner) for key, inner in value.items()}
    return partial(_array_of, value)


def _array_of(value: Any) -> np.ndarray | None:
    """Return an array, or the rows of a list of arrays or of lists of numbers; None for anything else."""
    if isinstance(value, PickledArray):
        return value.array()
    if not isinstance(value, list | tuple) or not value:
        return None
    if _are_numbers(value):
        return np.array(value, np.float64)
    parts = [part.array() if isinstance(part, PickledArray) else part for part in value]
    if not all(isinstance(part, np.ndarray | list | tuple) for part in parts):
        return None
    # A list may occur in another one a million times and take no room in the pickle.
    if sum(part.nbytes if isinstance(part, np.ndarray) else 8 * len(part) for part in parts) > MAX_ARRAY_BYTES:
        raise ValueError(f"a list of arrays with more than {MAX_ARRAY_BYTES >> 30} GiB")
    if not all(isinstance(part, np.ndarray) or _are_numbers(part) for part in parts):
        return None
    return np.concatenate([np.atleast_2d(part) for part in parts])


def _are_numbers(value: Sequence[Any]) -> bool:
    return all(isinstance(number, int | float) for number in value)
