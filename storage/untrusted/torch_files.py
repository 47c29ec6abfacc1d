"""Read untrusted files of torch.save: tensors, and plain containers of them. torch itself does not read them.

Nothing in the files is executed. Both formats are read: the zip that torch writes since 1.6, and the older sequence of
pickles.
"""

import io
import math
import mmap
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from .limits import MAX_ARRAY_BYTES, ArrayGroup
from .pickles import BUILDERS, MAX_AXES, PickledArray, PlainUnpickler, group_of

TORCH_SUFFIXES = (".pth", ".pt")
MAGIC_NUMBER, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The first two pickles of a file in the format before torch 1.6."""
LOCAL_HEADER_BYTES = 30
"""Size of the header before a zip member's name."""
BFLOAT16 = "bfloat16"
STORAGE_TYPES = {
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "DoubleStorage": "<f8",
    "BFloat16Storage": BFLOAT16,
    "ByteStorage": "|u1",
    "CharStorage": "|i1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
    "BoolStorage": "|b1",
}
"""NumPy's type for each of torch's types of storages; NumPy has no bfloat16."""


@dataclass(frozen=True)
class _StorageType:
    dtype: str

    def __call__(self, *_: Any) -> None:
        raise ValueError("it calls a storage type; expected only its name")

    @property
    def itemsize(self) -> int:
        return 2 if self.dtype == BFLOAT16 else np.dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False)
class _Storage:
    """A storage in the file: numbers that tensors share."""

    key: str
    kind: _StorageType
    num_values: int
    content: "_Content"

    def values(self) -> np.ndarray:
        """Return the numbers, as a view of the file except for bfloat16."""
        num_bytes = self.num_values * self.kind.itemsize
        offset, available = self.content.places.get(self.key, (0, -1))
        if available != num_bytes:
            raise ValueError(f"its storage {self.key[:80]!r} is missing, or does not have {num_bytes:,} bytes")
        if self.kind.dtype == BFLOAT16:
            bits = np.frombuffer(self.content.file, "<u2", self.num_values, offset)
            return (bits.astype("<u4") << 16).view("<f4")
        return np.frombuffer(self.content.file, self.kind.dtype, self.num_values, offset)


@dataclass(frozen=True, eq=False)
class _Content:
    file: mmap.mmap
    places: dict[str, tuple[int, int]]
    """Offset and size of each storage, by its key."""


class _Tensor(PickledArray):
    """A tensor as a file describes it; ``parts`` are its storage, offset, shape and strides."""

    @property
    def num_bytes(self) -> int:
        """Size of the tensor as an array, in which one number of the storage may occur many times."""
        storage, _, shape, _ = self.parts
        return math.prod(shape) * storage.kind.itemsize

    def array(self) -> np.ndarray:
        """Make the array. Raises ``ValueError`` if the tensor ends outside its storage."""
        storage, offset, shape, strides = self.parts
        if self.num_bytes > MAX_ARRAY_BYTES:
            raise ValueError(f"a tensor of more than {MAX_ARRAY_BYTES >> 30} GiB")
        if 0 in shape:
            return np.empty(shape, np.float32)
        values = storage.values()
        last = offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if last >= len(values):
            raise ValueError(f"a tensor of shape {list(shape)[:8]} that is larger than its storage")
        steps = [stride * values.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(values[offset:], shape, steps).copy()


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    counts = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (-1,)
    is_possible = all(type(count) is int and 0 <= count < 1 << 63 for count in counts)
    if not (isinstance(storage, _Storage) and is_possible and len(shape) == len(strides) <= MAX_AXES):
        raise ValueError("a tensor of impossible shape")
    return _Tensor(storage, offset, shape, strides)


def _parameter(tensor: Any, *_: Any) -> _Tensor:
    if not isinstance(tensor, _Tensor):
        raise ValueError("a parameter that is not a tensor")
    return tensor


class _TorchUnpickler(PlainUnpickler):
    """Builds tensors, and all objects of ``PlainUnpickler``."""

    builders: ClassVar[Mapping[tuple[str, str], Callable[..., Any]]] = BUILDERS | {
        ("torch._utils", "_rebuild_tensor_v2"): _tensor,
        ("torch._utils", "_rebuild_parameter"): _parameter,
        **{("torch", name): _StorageType(dtype) for name, dtype in STORAGE_TYPES.items()},
    }
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = (  # pyright: ignore[reportIncompatibleVariableOverride]
        PlainUnpickler.dispatch | {pickle.BINPERSID[0]: pickle._Unpickler.dispatch[pickle.BINPERSID[0]]}
    )

    def __init__(self, content: io.BytesIO | mmap.mmap, num_bytes: int, path: Path, storages: _Content) -> None:
        super().__init__(content, num_bytes, path)
        self._storages = storages

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the storage that a tensor names."""
        match pid:
            case ("storage", _StorageType() as kind, str(key), str(), int(num_values), *views) if (
                all(view is None for view in views) and 0 <= num_values < 1 << 60
            ):
                return _Storage(key, kind, num_values, self._storages)
        raise ValueError("it names a storage in an unknown way")


@contextmanager
def open_torch(path: Path) -> Iterator[ArrayGroup]:
    """Yield the tensors in a file of torch.save, which stays open in the block.

    Returns:
        The arrays by their keys, as ``open_pickle`` does; bfloat16 as float32.

    Raises:
        UserError: It holds neither a tensor nor a dict of them, or wants to build anything else.
        ValueError, zipfile.BadZipFile: It is damaged, or torch would not have written it.
    """
    with path.open("rb") as file:
        # Never closed: a tensor's view of the map may outlive this block in the traceback of an error.
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    storages = _Content(content, {})
    load = _load_zip if content[:4] == b"PK\x03\x04" else _load_sequence
    yield group_of(load(storages, path), len(content), path)


def _load_zip(content: _Content, path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        members = sorted(archive.infolist(), key=lambda member: member.header_offset)
        if any(one.header_offset + one.compress_size >= two.header_offset for one, two in pairwise(members)):
            raise ValueError("a zip with overlapping members")
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("a zip with compressed members, which torch.save never writes")
        by_name = {str(PurePosixPath(*PurePosixPath(member.filename).parts[1:])): member for member in members}
        if len(by_name) != len(members) or "data.pkl" not in by_name:
            raise ValueError("a zip that torch.save has not written")
        if "byteorder" in by_name and archive.read(by_name["byteorder"]) != b"little":
            raise ValueError("its numbers are big-endian")
        for name, member in by_name.items():
            if name.startswith("data/"):
                content.places[name.removeprefix("data/")] = (_data_offset(content.file, member), member.file_size)
        pickled = archive.read(by_name["data.pkl"])
    return _TorchUnpickler(io.BytesIO(pickled), len(pickled), path, content).load()


def _data_offset(content: mmap.mmap, member: zipfile.ZipInfo) -> int:
    header = content[member.header_offset : member.header_offset + LOCAL_HEADER_BYTES]
    if len(header) < LOCAL_HEADER_BYTES:
        raise ValueError("it is truncated")
    lengths = (int.from_bytes(header[start : start + 2], "little") for start in (26, 28))  # of the name, and of extras
    return member.header_offset + LOCAL_HEADER_BYTES + sum(lengths)


def _load_sequence(content: _Content, path: Path) -> Any:
    """Load the format before torch 1.6: magic number, protocol, system, object, storage keys, storages."""
    file = content.file

    def load() -> Any:
        return _TorchUnpickler(file, len(file), path, content).load()

    if file[:2] != b"\x80\x02" or (load(), load()) != (MAGIC_NUMBER, PROTOCOL):
        raise ValueError("not a file of torch.save")
    load()
    loaded, keys = load(), load()
    storages = _storages_in(loaded)
    for key in keys if isinstance(keys, list) else ():
        num_values, offset = int.from_bytes(file.read(8), "little"), file.tell()
        if not isinstance(key, str) or (storage := storages.get(key)) is None or storage.num_values != num_values:
            raise ValueError("its storages do not match its tensors")
        num_bytes = num_values * storage.kind.itemsize
        if offset + num_bytes > len(file):
            raise ValueError("it is truncated")
        content.places[key] = (offset, num_bytes)
        file.seek(offset + num_bytes)
    return loaded


def _storages_in(loaded: Any) -> dict[str, _Storage]:
    """Return the storages of all tensors in plain containers. Each container is visited once."""
    found: dict[str, _Storage] = {}
    waiting, seen = [loaded], set[int]()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _Tensor):
            found[value.parts[0].key] = value.parts[0]
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, list | tuple):
            waiting += value
    return found
