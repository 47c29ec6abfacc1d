"""Files of tensors that are mapped into memory, of which nothing is believed before it is checked."""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from ...storage.common.errors import refuse_unreadable
from ...storage.files import check_regular, written_whole

SUFFIX = ".safetensors"
DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I32": "<i4", "I64": "<i8", "U8": "<u1"}
"""{type in a safetensors file: numpy's type}"""
MAX_HEADER_BYTES = 1 << 20


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> None:
    """Write tensors and what is said about them as a safetensors file, whole or not at all."""
    with written_whole(path) as partial:
        partial.write_bytes(save(dict(tensors), dict(about)))


class TensorFile:
    """An open file of tensors. The caller states which ones it must have.

    Args:
        path: The file.
        types: {tensor: type and number of dimensions}, such as ``{"vectors": ("F16", 2)}``. The file has these only.
        version: What its ``format`` must be.
        what: What it should be, for the message.
        todo: What to do if it is not, for the message.

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
                raise ValueError("its tensors are not those of such a file")
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
        raise ValueError("it is cut off")
    header = json.loads(content)
    if not isinstance(header, dict) or not all(isinstance(value, dict) for value in header.values()):
        raise ValueError("its header is no object of objects")
    return header, 8 + length


def _mapped(
    path: Path, first_byte: int, size: int, name: str, about: Mapping[str, Any], kind: str, num_dimensions: int
) -> np.ndarray:
    """Map one tensor after checking that it lies in the file and has the stated type and size."""
    shape, (low, high), dtype = about["shape"], about["data_offsets"], np.dtype(DTYPES[kind])
    if about["dtype"] != kind or not all(type(n) is int and n >= 0 for n in (*shape, low, high)):
        raise ValueError(f"{name}: another type than {kind}, or an impossible size")
    if len(shape) != num_dimensions or high - low != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: shape {shape}, {high - low:,} bytes")
    if high > size:
        raise ValueError("it is cut off")
    if 0 in shape:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", offset=first_byte + low, shape=tuple(shape))


def release(array: np.ndarray) -> None:
    """Give back the memory that a mapped array's pages take in this process; what is needed later is mapped again.

    The system maps the neighbours of a page, too, so that a few thousand scattered rows make gigabytes resident.
    """
    if isinstance(array.base, mmap.mmap):
        array.base.madvise(mmap.MADV_DONTNEED)
