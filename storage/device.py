"""Where models run."""

import torch

from .console import UserError


def find_device(name: str) -> torch.device:
    """The device called ``name``. Raises ``UserError`` where this machine has none such."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: not to be had here ({str(error).splitlines()[0]}); expected cpu, cuda or cuda:N") from None
    return device
