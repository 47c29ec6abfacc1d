"""The optimizer that CLIP4Clip trains with: Adam as BERT was trained with it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

BETAS, EPSILON = (0.9, 0.98), 1e-6
MAX_NORM = 1.0
"""Norm that the whole gradient is clipped to."""
MANY_STEPS = 1e6
"""Step count at which Adam's bias corrections are exactly 1 in float32 and float64, since 0.98 ** 1e6 is 0."""


class BertAdam(torch.optim.AdamW):
    """AdamW without bias correction, with the gradient clipped to norm 1.

    A step is ``p -= lr * (m / (sqrt(v) + 1e-6) + weight_decay * p)`` with ``m = 0.9 m + 0.1 g`` and
    ``v = 0.98 v + 0.02 g * g``, both 0 at first. AdamW computes this if its step counters start at ``MANY_STEPS``.

    CLIP4Clip clips twice: the whole gradient in its training loop, then the gradient of each parameter in its
    optimizer. A parameter's norm is at most that of the whole gradient, so the second clipping has no effect and is
    left out.

    Source: CLIP4Clip, ``prep_optimizer`` and ``train_epoch`` in main_task_retrieval.py, ``BertAdam`` in
    modules/optimization.py.
    """

    def __init__(self, groups: list[dict[str, Any]], *, lr: float, weight_decay: float) -> None:
        """Make the optimizer. The parameters must already be on their device.

        Args:
            groups: Groups of parameters, as for every optimizer of torch.
            lr: Learning rate of groups that have none.
            weight_decay: Weight decay of groups that have none.
        """
        super().__init__(groups, lr=lr, betas=BETAS, eps=EPSILON, weight_decay=weight_decay, fused=True)
        for parameter in filter(lambda parameter: parameter.requires_grad, self._parameters()):
            self.state[parameter] = {
                "step": torch.full((), MANY_STEPS, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Clip the gradient and do a step. Parameters without a gradient are not changed."""
        torch.nn.utils.clip_grad_norm_(self._parameters(), MAX_NORM)
        return super().step(closure)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]
