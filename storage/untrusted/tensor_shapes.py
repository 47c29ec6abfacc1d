"""Checks of tensors in weight files: of their shapes before they are allocated, and of their values afterwards."""

from collections.abc import Mapping
from typing import Any


def shapes_in(file: Any, prefix: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a safetensors file.

    Args:
        file: The open file. The library has checked the shapes against its size.
        prefix: Only tensors whose names begin with this; it is removed from the names in the result.
    """
    names = [name for name in file.offset_keys() if name.startswith(prefix)]
    return {name.removeprefix(prefix): tuple(file.get_slice(name).get_shape()) for name in names}


def shape_difference(expected: Mapping[str, tuple[int, ...]], there: Mapping[str, tuple[int, ...]]) -> str | None:
    """Describe the first tensor with an unexpected shape; None if all shapes are as expected."""
    names = sorted(name for name in expected.keys() | there.keys() if expected.get(name) != there.get(name))
    if not names:
        return None
    shapes = (list(shape) if (shape := tensors.get(names[0])) is not None else "none" for tensors in (expected, there))
    return "{}: expected {}, found {}".format(names[0], *shapes)


def check_finite(tensors: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a PyTorch tensor contains complex, infinite or NaN values."""
    if not all(not tensor.is_complex() and tensor.isfinite().all() for tensor in tensors.values()):
        raise ValueError("it has complex, infinite or NaN values")
