"""Where models run."""

import torch

from .errors import UserError


def find_device(name: str, *, make_current: bool = False) -> torch.device:
    """The device called ``name``. Raises ``UserError`` where this machine has none such.

    ``make_current``: "cuda" means this GPU from now on, set before anything else touches CUDA. The first touch makes a context of
    hundreds of MiB on the current GPU, which is number 0 in every process until another one is set.
    """
    try:
        device = torch.device(name)
        if make_current and device.type == "cuda":
            torch.cuda.set_device(device)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"--device {name}: not to be had here ({str(error).splitlines()[0]}); expected cpu, cuda or cuda:N"
        ) from None
    return device
