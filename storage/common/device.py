"""Choice of the device that a model runs on, its memory, and models that are on none."""

import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import UserError


def find_device(name: str, *, make_current: bool = False) -> torch.device:
    """Return the device called ``name``.

    Args:
        name: ``cpu``, ``cuda`` or ``cuda:N``.
        make_current: Make a CUDA device the current one, before anything else touches CUDA. The first use of CUDA
            creates a context of hundreds of MiB on the current GPU, which is number 0 by default in every process.

    Raises:
        UserError: This machine has no such device.
    """
    try:
        device = torch.device(name)
        if make_current and device.type == "cuda":
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {name}: not available here ({str(error).splitlines()[0]}); expected cpu, cuda or cuda:N"
        ) from None
    return device


def on_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of the CPU on a device. It goes to a GPU by pinned memory, so that the host need not wait."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


@contextmanager
def without_memory() -> Iterator[None]:
    """Make models whose tensors have a shape and nothing else, such as those that a file is compared with."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Leaves out random numbers that nobody sees: torch imports its whole compiler for those of tensors without
    memory, which takes seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, or return its tensor as it is."""
        given = kwargs or {}
        if func is torch.nn.init.normal_:
            return given["tensor"]
        return args[0] if func is torch.Tensor.normal_ else func(*args, **given)


def memory_used(device: torch.device) -> str:
    """Return the peak memory use in words: the GPU's, or this process's on a CPU."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"
