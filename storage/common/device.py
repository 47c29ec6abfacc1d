"""Choice of the device that a model runs on, memory use, and models without data (on the meta device)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .errors import SettingError
from .system import peak_memory_bytes

AUTO = "auto"
"""The default device of commands and calls."""

TF32 = {"none": (False, False), "convolutions": (True, False), "all": (True, True)}
"""{where TF32 is used: (in convolutions, in matrix products)}; "convolutions" is PyTorch's default."""


def parse_devices(names: str, *, apple: bool = False) -> list[str]:
    """Return the names of one or more devices.

    Args:
        names: "auto" means all GPUs of this machine, or its CPU if there are none. Otherwise names, separated by
            commas.
        apple: "auto" includes Apple's GPU ("mps"). Only for work whose result is then compared with the CPU's.
    """
    if names != AUTO:
        return [name.strip() for name in names.split(",")]
    if torch.cuda.is_available():
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["mps" if apple and torch.backends.mps.is_available() else "cpu"]


def first_device(names: str) -> str:
    """Return the first device of ``names`` (``parse_devices``), for work that uses one device.

    Raises:
        SettingError: ``names`` lists several devices.
    """
    first, *others = parse_devices(names)
    if others and names != AUTO:
        raise SettingError("device", names, "this work uses one device; expected one name")
    return first


def device_title(device: torch.device) -> str:
    """Return the name of a device for people and records, such as "NVIDIA L4" or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def describe_devices(names: Sequence[str]) -> str:
    """Describe devices, for example "2 devices: cuda:0 (NVIDIA L4), cuda:1 (NVIDIA L4)"."""
    each = [_described(name) for name in names]
    return each[0] if len(each) == 1 else f"{len(each)} devices: {', '.join(each)}"


def _described(name: str) -> str:
    if name.partition(":")[0] != "cuda":
        return name
    try:
        return f"{name} ({torch.cuda.get_device_name(name)})"
    except (RuntimeError, AssertionError):  # its first use reports the reason
        return name


def use_tf32(where: str) -> None:
    """Set where NVIDIA GPUs compute fp32 in TF32 (10-bit mantissa) in this process: ``where`` is a key of ``TF32``."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = TF32[where]


def tf32_in_use() -> str:
    """Return the last argument of ``use_tf32``; before the first call, PyTorch's default."""
    now = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    return next((where for where, flags in TF32.items() if flags == now), "products")


def find_device(name: str, *, make_current: bool = False) -> torch.device:
    """Return the device called ``name``.

    Args:
        name: ``auto`` (the first GPU, or the CPU), ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        make_current: Make a CUDA device the current one, before any other use of CUDA. The first use of CUDA creates a
            context of hundreds of MiB on the current GPU, which is number 0 by default in every process.

    Raises:
        SettingError: This machine has no such device.
    """
    name = first_device(name)
    try:
        device = torch.device(name)
        if make_current and device.type == "cuda":
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        problem = f"not available here ({str(error).splitlines()[0]}); expected auto, cpu, cuda or cuda:N"
        raise SettingError("device", name, problem) from None
    return device


def on_device(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device, through pinned memory for a GPU: the host does not wait."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Create models whose tensors have a shape but no data, for example for comparison with a file."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Skips random numbers for tensors without data: for these, torch would import its whole compiler, which takes
    seconds.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, or return its tensor unchanged."""
        given = kwargs or {}
        if func is torch.nn.init.normal_:
            return given["tensor"]
        return args[0] if func is torch.Tensor.normal_ else func(*args, **given)


def memory_used(device: torch.device) -> str:
    """Return the peak memory use in words: the GPU's, or this process's on a CPU."""
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 2**30:.1f} GiB on the GPU"
    peak_bytes = peak_memory_bytes()
    return "" if peak_bytes is None else f"{peak_bytes / 2**30:.1f} GiB"
