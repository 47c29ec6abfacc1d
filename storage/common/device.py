"""Choice of the device that a model runs on."""

import torch

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
