"""The processes that train one model together, one a GPU, started by torchrun or by Ray: each has its share of every batch."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..storage.common.device import find_device
from ..storage.common.errors import UserError

PATIENCE = timedelta(hours=6)
"""The others wait while the first one validates."""


class _Gather(torch.autograd.Function):
    """The other processes' losses depend on what is gathered here, so their gradients are summed on the way back; an all_gather that
    returns the own part alone gives a fraction of the gradient."""

    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, x: Tensor, rank: int, size: int) -> Tensor:
        context.own = slice(rank * len(x), (rank + 1) * len(x))
        parts = [torch.empty_like(x) for _ in range(size)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(context: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient[context.own], None, None


@dataclass(frozen=True)
class Workers:
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def share(self, num_rows: int) -> slice:
        """Which rows of a batch are this process's. Raises ``UserError`` where they cannot be shared evenly."""
        if num_rows % self.size:
            raise UserError(f"--batch-size: a batch of {num_rows} cannot be shared evenly by {self.size} processes")
        each = num_rows // self.size
        return slice(self.rank * each, (self.rank + 1) * each)

    def gather(self, x: Tensor) -> Tensor:
        """[R, ...] of every process -> [size * R, ...], with its gradient."""
        return x if self.size == 1 else _Gather.apply(x, self.rank, self.size)

    def sum(self, x: Tensor) -> Tensor:
        """Of all processes, with its gradient."""
        return x if self.size == 1 else self.gather(x[None]).sum(dim=0)

    def statistics(self, rows_TD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Number, mean [D] and variance [D] of the rows of all processes, with their gradients."""
        number = self.sum(torch.tensor(float(len(rows_TD)), device=rows_TD.device))
        mean_D = self.sum(rows_TD.sum(dim=0)) / number
        return number, mean_D, self.sum((rows_TD - mean_D).square().sum(dim=0)) / number

    def largest(self, number: int) -> int:
        if self.size == 1:
            return number
        found = torch.tensor(number, device=_device())
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def mean(self, values: dict[str, Tensor]) -> dict[str, float]:
        """Of all processes."""
        found = torch.stack([value.detach().float() for value in values.values()])
        if self.size > 1:
            dist.all_reduce(found)
        return dict(zip(values, (found / self.size).tolist(), strict=True))

    def sum_gradients(self, model: nn.Module) -> None:
        """In one call, so that many small ones need not wait for each other."""
        if self.size == 1:
            return
        with_gradient = [p for p in model.parameters() if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in with_gradient]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for parameter, gradient in zip(with_gradient, flat.split([p.numel() for p in with_gradient]), strict=True):
            parameter.grad = gradient.view_as(parameter)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier()


def current_workers() -> Workers:
    """Those that this process trains with, where it can be told by nothing else: in a layer."""
    return Workers(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else Workers()


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


@contextlib.contextmanager
def join_workers(device_name: str) -> Iterator[tuple[Workers, torch.device]]:
    """This process's place among those of torchrun or Ray, and its device; alone where there is neither.

    Of several processes, each has the GPU of its local rank. Raises ``UserError`` where this machine has no such device, and where
    several processes were not started by one of the two.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Workers(), find_device(device_name)
        return
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing and not dist.is_initialized():
        raise UserError(
            f"WORLD_SIZE is set without {', '.join(missing)}; start the processes with torchrun, or unset it"
        )
    if device_name.partition(":")[0] == "cuda":
        device_name = f"cuda:{os.environ['LOCAL_RANK']}"
    device = find_device(device_name, make_current=True)
    if dist.is_initialized():  # by Ray, which also ends it
        yield current_workers(), device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
    try:
        yield current_workers(), device
    finally:
        dist.destroy_process_group()
