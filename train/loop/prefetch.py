"""The inputs of the next steps, made while the model computes."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice

import torch

from ..data.examples import Inputs

NUM_PREFETCHED_BATCHES = 2
"""Batches of inputs that are ready or being made."""
NUM_PREFETCHED_READS, NUM_READER_THREADS = 16, 8
"""Number of batches whose feature vectors are requested ahead from the disk or the store's machine, and number of
parallel requests: an answer can take longer than a step.
"""


class PrefetchedInputs:
    """The inputs of steps, one after the other.

    Some threads ask for the rows of later steps, so that many requests are on their way at once; another makes inputs
    from rows that have arrived. Threads suffice, as stores are memory-mapped and the tokenizer releases Python's GIL.
    """

    def __init__(
        self, steps: range, *, read: Callable[[int], None], make: Callable[[int], Inputs], device: torch.device
    ) -> None:
        """Prepare the threads; reading starts at the first request for inputs.

        Args:
            steps: The steps.
            read: Requests the feature vectors of a step. Its errors are ignored, since ``make`` raises them again.
            make: Makes the inputs of a step, on the CPU.
            device: Device of the inputs.
        """
        self._steps, self._read, self._make, self._device = steps, read, make, device
        self._began, self._waited = time.monotonic(), 0.0

    @property
    def waited_share(self) -> float:
        """Share of the time since the first request that was spent waiting for inputs."""
        return self._waited / max(time.monotonic() - self._began, 1e-9)

    def __iter__(self) -> Iterator[Inputs]:
        self._began, self._waited = time.monotonic(), 0.0
        with ThreadPoolExecutor(NUM_READER_THREADS) as reader, ThreadPoolExecutor(1) as maker:
            reads = ((step, reader.submit(self._read, step)) for step in self._steps)
            read = deque(islice(reads, NUM_PREFETCHED_READS))
            made: deque[Future[Inputs]] = deque()
            while read or made:
                while read and len(made) < NUM_PREFETCHED_BATCHES:
                    made.append(maker.submit(self._make_when_read, *read.popleft()))
                    read.extend(islice(reads, 1))
                asked = time.monotonic()
                inputs = made.popleft().result()
                self._waited += time.monotonic() - asked
                yield inputs.to(self._device)

    def _make_when_read(self, step: int, reading: Future[None]) -> Inputs:
        wait([reading])
        return self._make(step)
