"""Gradients summed over several processes while the backward pass runs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn

from ..distributed import Workers

BUCKET_BYTES = 25 * 2**20
"""Gradients are sent in parts of about this size, as in PyTorch's DistributedDataParallel: the first parts are on their
way while the backward pass computes the next ones."""


class _Bucket:
    """Parameters whose gradients are summed in one call."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters, self.num_missing = parameters, len(parameters)

    def begin(self) -> None:
        """Start the sum. A gradient that this process lacks is sent as 0, since another process may have it.

        The number of processes that have each gradient is also summed.
        """
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        missing = [index for index, parameter in enumerate(self.parameters) if parameter.grad is None]
        self._lacks_some = bool(missing)
        counts = gradients[0].new_ones(len(gradients))
        for index in missing:
            counts[index] = 0
        self._flat = torch.cat([*(gradient.flatten() for gradient in gradients), counts])
        self._work = dist.all_reduce(self._flat, async_op=True)
        for parameter in self.parameters:
            parameter.grad = None  # it was copied

    def finish(self) -> None:
        """Wait for the sum, and set it as the parameters' gradients.

        A parameter for which no process has a gradient gets none, as in a single process: an optimizer would let a
        gradient of 0 decay it.
        """
        assert self._work is not None, "only processes outside of the group get none"
        self._work.wait()
        *parts, counts = self._flat.split([*(parameter.numel() for parameter in self.parameters), len(self.parameters)])
        is_there = counts.bool().tolist() if self._lacks_some else [True] * len(parts)  # the host waits only if it must
        for parameter, gradient, there in zip(self.parameters, parts, is_there, strict=True):
            parameter.grad = gradient.view_as(parameter) if there else None


def _buckets(model: nn.Module) -> list[_Bucket]:
    """Return buckets of all trained parameters, the last ones first: roughly the order of the backward pass."""
    parts: list[list[nn.Parameter]] = [[]]
    size = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        if size >= BUCKET_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return [_Bucket(parameters) for parameters in parts]


@contextlib.contextmanager
def summed_gradients(model: nn.Module, workers: Workers) -> Iterator[None]:
    """Sum a model's gradients over all processes.

    Run the backward pass inside the context; when it ends, the gradients are the sums. The processes must do the same
    computation with their shares of a batch, so that all exchanges of the backward pass start in the same order.

    Args:
        model: A model whose gradients are None.
        workers: The processes.
    """
    if workers.size == 1:
        yield
        return
    buckets = _buckets(model)
    waiting = deque(buckets)  # begun in this order, whichever is complete first

    def computed(bucket: _Bucket) -> None:
        bucket.num_missing -= 1
        while waiting and not waiting[0].num_missing:
            waiting.popleft().begin()

    hooks = [
        parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: computed(bucket))
        for bucket in buckets
        for parameter in bucket.parameters
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    for bucket in waiting:
        bucket.begin()
    for bucket in buckets:
        bucket.finish()
