"""CUDA graphs: the kernels of a call, recorded once and launched together."""

import logging
import threading
from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3
"""Number of calls before the recording: in its first calls, a library chooses kernels and allocates memory."""

logger = logging.getLogger("vlalign")


def supports_cuda_graphs(device: torch.device) -> bool:
    """Return whether kernels can be recorded on a device."""
    return device.type == "cuda" and torch.cuda.is_available()


class CudaGraphCall:
    """A function of one tensor of fixed shape, run as a CUDA graph: its kernels are launched together.

    Launching S3D's 621 kernels one by one takes the host longer than the GPU needs to compute them
    (``tests/benchmarks/README.md``, "A GPU in one command"). The result is identical. The memory of a whole call stays
    allocated.
    """

    def __init__(self, call: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """Prepare a function that takes and returns tensors on ``device`` and does not synchronise."""
        self._call, self._device = call, device
        self._graph: torch.cuda.CUDAGraph | None = None
        self._input = self._output = torch.empty(0)
        self._lock = threading.Lock()
        self._is_refused = False

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the result, on the CPU, for a tensor on the CPU; None if the GPU cannot record the function."""
        with self._lock, torch.cuda.device(self._device):
            if self._graph is None and not self._is_refused:
                self._record(x)
            if self._graph is None:
                return None
            self._input.copy_(x.pin_memory(), non_blocking=True)
            self._graph.replay()
            return self._output.cpu()

    def _record(self, x: Tensor) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            self._input = torch.zeros_like(x, device=self._device)
            beside = torch.cuda.Stream(self._device)  # PyTorch's documentation asks for another stream
            beside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(beside):
                for _ in range(WARM_UPS):
                    self._call(self._input)
            torch.cuda.current_stream(self._device).wait_stream(beside)
            # Other threads may allocate memory meanwhile.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._output = self._call(self._input)
        except RuntimeError as error:
            self._is_refused, self._input = True, torch.empty(0)
            reason = str(error).splitlines()[0]
            logger.warning("%s does not record kernels (%s); they are launched one by one", self._device, reason)
        else:
            self._graph = graph
