"""Files of tensors that are mapped into memory. They are untrusted and fully checked.

They are safetensors files. Processes that map the same file share its pages.
"""

import contextlib
import json
import math
import mmap
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .errors import UserError, refuse_unreadable
from .files import check_regular, remove_unfinished
from .locks import file_lock
from .system import advise
from .terminal import say
from .writing import NOT_WRITABLE, atomic_write

SUFFIX = ".safetensors"
DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "<u1"}
"""{type in a safetensors file: numpy's type}"""
KINDS = {np.dtype(dtype): kind for kind, dtype in DTYPES.items()}
MAX_HEADER_BYTES = 1 << 20
FIRST_BYTE = 1 << 13
"""Offset of the tensors in a file that is written here; the header is padded, because it is written last."""
COPIED_BYTES = 1 << 24
"""Bytes that are copied at a time."""


class TensorWriter:
    """A tensor file that is being written. Tensors with larger elements come first, which aligns all of them."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self.folder = path.parent
        self._tensors: dict[str, tuple[np.dtype, list[int], int]] = {}
        """{name: type, shape, first byte}"""
        self.size = 0
        """Bytes of all tensors so far."""

    def reserve(self, name: str, kind: str, length: int) -> None:
        """Add a tensor [length] to be filled in by ``fill``."""
        dtype = np.dtype(DTYPES[kind])
        self._tensors[name] = dtype, [length], self.size
        self.size += length * dtype.itemsize

    def fill(self, name: str, first: int, values: np.ndarray) -> None:
        """Fill in the elements of a tensor from ``first`` on."""
        dtype, (length,), first_byte = self._tensors[name]
        if first + len(values) > length:
            raise ValueError(f"{name}: {first + len(values):,} elements in room for {length:,}")
        self._write(first_byte + first * dtype.itemsize, values.astype(dtype, copy=False))

    def append(self, name: str, values: np.ndarray) -> None:
        """Add a tensor, or append rows to the last tensor if it has this name."""
        dtype, shape, _ = self._tensors.setdefault(name, (values.dtype, [0, *values.shape[1:]], self.size))
        if next(reversed(self._tensors)) != name or [dtype, *shape[1:]] != [values.dtype, *values.shape[1:]]:
            raise ValueError(f"{name}: cannot grow by {values.dtype} {values.shape}")
        self._write(self.size, values)
        shape[0] += len(values)
        self.size += values.nbytes

    def _write(self, at: int, values: np.ndarray) -> None:
        self._file.seek(FIRST_BYTE + at)
        self._file.write(np.ascontiguousarray(values).data)

    def finish(self, about: Mapping[str, str]) -> None:
        """Write the header, with the metadata of the tensors."""
        header: dict[str, Any] = {"__metadata__": dict(about)}
        for name, (dtype, shape, first) in self._tensors.items():
            last = first + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": KINDS[dtype], "shape": shape, "data_offsets": [first, last]}
        content = json.dumps(header).encode().ljust(FIRST_BYTE - 8)
        if len(content) != FIRST_BYTE - 8:
            raise ValueError(f"{self._path}: a header of {len(content):,} bytes")
        self._file.truncate(FIRST_BYTE + self.size)
        self._file.seek(0)
        self._file.write((FIRST_BYTE - 8).to_bytes(8, "little") + content)


class GrowingTensors:
    """Tensors [N] that grow at the same time, each in a temporary file. Use it in a ``with`` statement."""

    def __init__(self, folder: Path) -> None:
        """Keep the files in ``folder``."""
        self._folder, self._files = folder, contextlib.ExitStack()
        self._file_of: dict[str, tuple[BinaryIO, np.dtype]] = {}

    def __enter__(self) -> "GrowingTensors":
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, name: str, values: np.ndarray) -> None:
        """Add elements [M] to a tensor."""
        if name not in self._file_of:
            file = self._files.enter_context(tempfile.TemporaryFile(dir=self._folder))  # noqa: SIM115
            self._file_of[name] = file, values.dtype
        file, dtype = self._file_of[name]
        file.write(np.ascontiguousarray(values, dtype).data)

    def copy(self, name: str, writer: TensorWriter) -> None:
        """Write a tensor into a file of tensors."""
        file, dtype = self._file_of[name]
        file.seek(0)
        writer.append(name, np.zeros(0, dtype))
        while content := file.read(COPIED_BYTES):
            writer.append(name, np.frombuffer(content, dtype))


@contextlib.contextmanager
def writing_tensors(path: Path, about: Mapping[str, str]) -> Iterator[TensorWriter]:
    """Write tensors and their metadata as a safetensors file, whole or not at all."""
    with atomic_write(path) as partial, partial.open("w+b") as file:
        writer = TensorWriter(partial, file)
        yield writer
        writer.finish(about)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write whole tensors as a safetensors file, whole or not at all."""
    with writing_tensors(path, about) as writer:
        for name, values in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
            writer.append(name, values)


class TensorFile:
    """An open file of tensors. The caller states the required tensors.

    Args:
        path: The file.
        types: {tensor: type and number of dimensions}, such as ``{"vectors": ("F16", 2)}``. The file may have no
            others.
        version: The required value of ``format``.
        what: The expected kind of file, for the message.
        todo: The remedy, for the message.

    Raises:
        UserError: The file is cut, damaged, or of another kind.
    """

    def __init__(self, path: Path, types: Mapping[str, tuple[str, int]], version: int, what: str, todo: str) -> None:
        check_regular(path)
        with refuse_unreadable(path, what, todo):
            header, first_byte = _read_header(path)
            self.about: dict[str, Any] = header.pop("__metadata__", {})
            if self.about.get("format") != str(version):
                raise ValueError(f"format {str(self.about.get('format'))[:20]}, this version reads {version}")
            if header.keys() != types.keys():
                raise ValueError("it has other tensors than expected")
            size = path.stat().st_size - first_byte
            self.arrays = {
                name: _mapped(path, first_byte, size, name, header[name], *kind) for name, kind in types.items()
            }
            """{tensor: array}, mapped"""


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length:,} bytes")
        content = file.read(length)
    if len(content) < length:
        raise ValueError("it is truncated")
    header = json.loads(content)
    if not isinstance(header, dict) or not all(isinstance(value, dict) for value in header.values()):
        raise ValueError("its header is not an object of objects")
    return header, 8 + length


def _mapped(
    path: Path, first_byte: int, size: int, name: str, about: Mapping[str, Any], kind: str, num_dimensions: int
) -> np.ndarray:
    """Map one tensor after checking that it is inside the file and has the stated type and size."""
    shape, (low, high), dtype = about["shape"], about["data_offsets"], np.dtype(DTYPES[kind])
    if about["dtype"] != kind or not all(type(n) is int and n >= 0 for n in (*shape, low, high)):
        raise ValueError(f"{name}: another type than {kind}, or an impossible size")
    if len(shape) != num_dimensions or high - low != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: shape {shape}, {high - low:,} bytes")
    if high > size:
        raise ValueError("it is truncated")
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset=first_byte + low, shape=tuple(shape))


def release(array: np.ndarray) -> None:
    """Release the memory of a mapped array's pages; pages that are needed later are mapped again.

    The system also maps neighbouring pages: a few thousand scattered rows would keep gigabytes in memory.
    """
    if isinstance(array.base, mmap.mmap):
        advise(array.base, "MADV_DONTNEED")


class CachedTensors:
    """A cache file of tensors, made from other files when it is missing or when they have changed.

    Args:
        path: The file.
        types: As for ``TensorFile``.
        version: Version of the file's format.
        key: Key of the other files' content.
        make: Writes the file. Only one process at a time calls it.
    """

    def __init__(
        self,
        path: Path,
        types: Mapping[str, tuple[str, int]],
        version: int,
        key: str,
        make: Callable[[TensorWriter], None],
    ) -> None:
        self.path, self._types, self._version, self._key, self._make = path, types, version, key, make

    def open(self) -> dict[str, np.ndarray]:
        """Return the tensors by name, mapped.

        In a read-only folder, each process makes its own temporary file.
        """
        arrays, _ = self._read(self.path)
        if arrays is not None:
            return arrays
        try:
            return self._open_made()
        except OSError as error:
            if error.errno not in NOT_WRITABLE:
                raise
        with tempfile.TemporaryDirectory() as folder:
            return self._written(Path(folder) / self.path.name)  # mapped files remain readable

    def _open_made(self) -> dict[str, np.ndarray]:
        with file_lock(self.path, seconds=math.inf):
            arrays, problem = self._read(self.path)  # another process may have made it meanwhile
            if arrays is not None:
                return arrays
            if problem:
                say(f"note: {problem}; it is written again")
            remove_unfinished(self.path)
            return self._written(self.path)

    def _written(self, path: Path) -> dict[str, np.ndarray]:
        with writing_tensors(path, {"format": str(self._version), "key": self._key}) as writer:
            self._make(writer)
        arrays, problem = self._read(path)
        if arrays is None:
            raise UserError(f"{path}: changed while it was written ({problem}); run the command again")
        return arrays

    def _read(self, path: Path) -> tuple[dict[str, np.ndarray] | None, str]:
        """Return (tensors, ""), or (None, problem); the problem is empty if there is no file."""
        if not path.exists():
            return None, ""
        try:
            file = TensorFile(path, self._types, self._version, "changed since it was written", "")
        except UserError as error:
            return None, str(error).removesuffix("; ")
        if file.about.get("key") != self._key:
            return None, f"{path}: the files that it was made from have changed"
        return {name: array.view(np.ndarray) for name, array in file.arrays.items()}, ""
