"""Compare a loss and its gradient with a plain implementation."""

import torch


def similarities(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def same(ours: torch.Tensor, plain: torch.Tensor, *inputs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(torch.autograd.grad(ours, inputs), torch.autograd.grad(plain, inputs))
