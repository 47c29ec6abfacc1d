"""The processes that train one model together, each with its share of every batch.

``processes``, torchrun or Ray Train starts them, one for each GPU.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ..storage.common.device import AUTO, find_device, parse_devices
from ..storage.common.errors import SettingError, UserError

K = TypeVar("K")
T = TypeVar("T")
PATIENCE = timedelta(hours=6)
"""How long the other processes wait while the first one validates."""


class _Gather(torch.autograd.Function):
    """Gathers the rows of all processes, with their gradient.

    The losses of all processes depend on the gathered rows, so the backward pass sums their gradients. An all_gather
    that returned only its own process's gradient would give a fraction of the sum.
    """

    # The methods of torch's class take any arguments.
    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, x: Tensor, rank: int, size: int
    ) -> Tensor:
        counts = _counts(x, size)
        first, longest = sum(counts[:rank]), max(counts)
        ctx.rows = slice(first, first + len(x))
        padded = torch.cat([x, x.new_zeros(longest - len(x), *x.shape[1:])]) if len(x) < longest else x.contiguous()
        parts = [torch.empty_like(padded) for _ in range(size)]
        dist.all_gather(parts, padded)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[ctx.rows], None, None


def _counts(x: Tensor, size: int) -> list[int]:
    """Return how many rows each process has. On GPUs, equal numbers are assumed: an exchange would stall every step."""
    if x.device.type != "cpu":
        return [len(x)] * size
    counts = [torch.empty(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(counts, torch.tensor([len(x)]))
    return [int(count) for count in counts]


@dataclass(frozen=True)
class Workers:
    """This process's rank among the processes that train one model together."""

    rank: int = 0
    size: int = 1
    """Number of processes."""

    @property
    def is_first(self) -> bool:
        """True for the first process, which writes files and messages."""
        return self.rank == 0

    @property
    def on_machine(self) -> "Workers":
        """This process's rank among the processes of its machine."""
        rank, size = os.environ.get("LOCAL_RANK", self.rank), os.environ.get("LOCAL_WORLD_SIZE", self.size)
        return Workers(int(rank), int(size))

    def share(self, num_rows: int) -> slice:
        """Return which rows of a batch are this process's.

        Raises:
            SettingError: The rows cannot be divided evenly among the processes.
        """
        if num_rows % self.size:
            raise SettingError(
                "batch_size",
                num_rows,
                f"cannot be divided evenly among {self.size} processes; expected a multiple of {self.size}",
            )
        num_each = num_rows // self.size
        return slice(self.rank * num_each, (self.rank + 1) * num_each)

    def gather(self, x: Tensor) -> Tensor:
        """Return the rows of all processes with their gradient, [R, ...] -> [sum of all R, ...].

        On GPUs, R must be the same in all processes, as ``share`` makes it: else all_gather silently gives wrong rows.
        """
        return x if self.size == 1 else _Gather.apply(x, self.rank, self.size)

    def gather_list(self, items: list[T]) -> list[T]:
        """Return the items of all processes, in order of rank."""
        if self.size == 1:
            return items
        parts: list[Any] = [None] * self.size
        dist.all_gather_object(parts, items)
        return [item for part in parts for item in part]

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over all processes, with its gradient."""
        return x if self.size == 1 else self.gather(x[None]).sum(dim=0)

    def statistics(self, rows_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the number of rows of all processes, their mean [D] and their variance [D], with their gradients."""
        num_rows = rows_TD.new_full((), float(len(rows_TD)))
        mean_D = rows_TD.sum(dim=0) / num_rows.clamp(min=1)
        squares_D = (rows_TD - mean_D).square().sum(dim=0)
        if self.size == 1:
            return num_rows, mean_D, squares_D / num_rows
        # One call gathers all; the variance is the variance within the processes plus the variance between them.
        of_all_SE = self.gather(torch.cat([num_rows[None], mean_D, squares_D])[None])
        num_S1, mean_SD, squares_SD = of_all_SE.split([1, len(mean_D), len(mean_D)], dim=1)
        total = num_S1.sum()
        mean_D = (num_S1 * mean_SD).sum(dim=0) / total
        return total, mean_D, (squares_SD + num_S1 * (mean_SD - mean_D).square()).sum(dim=0) / total

    def from_first(self, make: Callable[[], T]) -> T:
        """Run ``make`` in the first process and return its result in all processes; the others wait."""
        made = [make() if self.is_first else None]
        if self.size > 1:
            dist.broadcast_object_list(made, src=0, device=_device())
        return cast("T", made[0])

    def largest(self, number: int) -> int:
        """Return the largest of all processes' numbers."""
        if self.size == 1:
            return number
        largest = torch.tensor(number, device=_device())
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def mean(self, values: dict[K, Tensor]) -> dict[K, float]:
        """Return the mean of each value over all processes. The host waits for the device, once."""
        total = torch.stack([value.detach().float() for value in values.values()])
        if self.size > 1:
            dist.all_reduce(total)
        return dict(zip(values, (total / self.size).tolist(), strict=True))

    def wait(self) -> None:
        """Wait until all processes have made this call."""
        if self.size > 1:
            dist.barrier()


def current_workers() -> Workers:
    """Return the processes that this one trains with, for layers that do not receive them as an argument."""
    return Workers(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Workers()


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def is_alone() -> bool:
    """Return whether this process trains alone: it was not started together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) == 1


def _own_device(names: str) -> str:
    """Return the name of this process's device, chosen by its rank on this machine."""
    number, devices = int(os.environ["LOCAL_RANK"]), parse_devices(names)
    if names != AUTO and len(devices) > 1:
        if number >= len(devices):
            raise SettingError(
                "device",
                names,
                f"names {len(devices)} devices, but this is process {number + 1} here; name one for each process",
            )
        return devices[number]
    return f"cuda:{number}" if devices[0].partition(":")[0] == "cuda" else devices[0]


@contextlib.contextmanager
def meet_workers(device_name: str) -> Iterator[None]:
    """Connect the processes of torchrun once for several trainings, each of which calls ``join_workers``."""
    with contextlib.nullcontext() if is_alone() else join_workers(device_name):
        yield


@contextlib.contextmanager
def join_workers(device_name: str) -> Iterator[tuple[Workers, torch.device]]:
    """Yield this process's rank among the processes of torchrun or Ray Train (if alone: 0 of 1), and its device.

    Several trainings in the same processes need one such block around all of them: torchrun's processes connect only
    once, and would wait for each other forever the second time.

    Args:
        device_name: As for ``find_device``. With several processes and "cuda" or "auto", each gets the GPU of its local
            rank; with several devices, separated by commas, the device at that position.

    Raises:
        UserError: The device does not exist, or several processes were not started by torchrun or Ray Train.
    """
    if is_alone():
        yield Workers(), find_device(device_name)
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and not dist.is_initialized():
        raise UserError(
            f"WORLD_SIZE is set without {', '.join(missing)}; start the processes with torchrun, or unset it"
        )
    device = find_device(_own_device(device_name), make_current=True)
    if dist.is_initialized():  # by Ray or ``meet_workers``, which also end it
        yield current_workers(), device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield current_workers(), device
    finally:
        dist.destroy_process_group()
