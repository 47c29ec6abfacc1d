"""What a pretended GPU counts: operators, and the places at which the host waits for the device.

On a real GPU, the host gives out work ahead of the device. It cannot where it asks for a value, or for a size that
depends on values, or copies between the two by ordinary memory. A loop that waits often leaves the device idle.
"""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import vlalign.train
from torch import Tensor

ROOT = Path(vlalign.train.__file__).resolve().parents[1]
FOLDERS = ("extract", "train", "storage", "preprocess", "ray_jobs")
OF_SIZE_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount"}
"""Operators that wait to learn the size of their result."""
OF_HOST = {"equal", "is_nonzero", "_local_scalar_dense"}
"""Operators that give the host a value."""
BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}
VIEWS = {"view", "t", "transpose", "permute", "expand", "select", "slice", "unsqueeze", "squeeze", "detach", "alias"}
VIEWS |= {"unbind", "split", "narrow", "_unsafe_view", "split_with_sizes", "chunk", "flatten", "unflatten", "diagonal"}
VIEWS |= {"as_strided", "_reshape_alias", "movedim", "empty_like"}
"""Operators that launch no kernel."""
OF_DROPOUT = {"bernoulli_", "div_"}
"""Dropout is one kernel of CUDA. A CPU draws, divides and multiplies: what multiplies is counted."""


class GpuCounts:
    """Counts of one pretended GPU. Those of a stretch of code: ``clear`` before it."""

    def __init__(self) -> None:
        self.waits: Counter[str] = Counter()
        """{"place: why": times}; a place is a file, a function of it, and what of PyTorch or transformers was on."""
        self.num_operators = 0
        """Kernels that were launched, more or less: operators that are no views, and dropout as one."""
        self._pinned: dict[int, Tensor] = {}  # kept: the address of a freed tensor would become another's
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Begin to count anew."""
        self.waits.clear()
        self.num_operators = 0

    def wait(self, why: str) -> None:
        """Note that the host waits here."""
        with self._lock:
            self.waits[f"{_place()}: {why}"] += 1

    def pin(self, x: Tensor) -> Tensor:
        """Return a copy in pinned memory."""
        copied = x.clone()
        self._pinned[copied.untyped_storage().data_ptr()] = copied
        return copied

    def is_pinned(self, x: Tensor) -> bool:
        """Return whether the tensor is in pinned memory."""
        return x.untyped_storage().data_ptr() in self._pinned

    def copy_to_device(self, x: Tensor, *, non_blocking: bool) -> None:
        """Note a copy from the host."""
        if x.numel() and not (non_blocking and self.is_pinned(x)):
            self.wait("copy from memory that is not pinned" if non_blocking else "copy to the device")

    def operator(self, name: str, overload: str, args: tuple, kwargs: dict[str, Any], *, on_host: list[Tensor]) -> None:
        """Note an operator with at least one tensor of the device.

        Args:
            name: Of the operator.
            overload: Which of those with this name.
            args: Its arguments.
            kwargs: Its arguments by name.
            on_host: Those of its tensors that are not on the device.
        """
        self.num_operators += name not in VIEWS | OF_DROPOUT
        if name == "copy_":
            target, source = args[:2]
            if any(source is x for x in on_host):
                self.copy_to_device(
                    source, non_blocking=args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
                )
            elif any(target is x for x in on_host):
                self.wait("copy to the host")
        elif name in OF_HOST:
            self.wait("a value for the host")
        elif name in OF_SIZE_BY_VALUES:
            self.wait(f"size of {name}")
        elif name == "repeat_interleave" and "int" not in overload and kwargs.get("output_size") is None:
            self.wait("size of repeat_interleave")
        elif name in BY_INDEX:
            indices = [x for x in args[1] if x is not None]
            if any(x is index for x in on_host for index in indices):
                self.wait("indices on the host")
            if any(x.dtype in (torch.bool, torch.uint8) for x in indices):
                self.wait("indices by a mask")


def _place() -> str:
    """Return where the host is: the innermost function of the package that is running."""
    via = ""
    for frame in _frames():
        file = Path(frame.f_code.co_filename)
        if not via and "transformers" in file.parts:
            via = f", transformers' {frame.f_code.co_name}"
        if frame.f_code.co_name == "_engine_run_backward":
            via = ", in backward"
        if file.is_relative_to(ROOT) and file.relative_to(ROOT).parts[0] in FOLDERS:
            return f"{file.relative_to(ROOT).as_posix()} {frame.f_code.co_name}{via}"
    return f"the test{via}"


def _frames() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back
