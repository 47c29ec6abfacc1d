"""Try again what a network or a server may have spoiled."""

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import UserError, VlalignError

T = TypeVar("T")


class RetriesFailed(VlalignError):
    """All tries failed. ``error`` is what the last one raised."""

    def __init__(self, error: Exception, num_tries: int) -> None:
        super().__init__(error, num_tries)
        self.error = error
        self.num_tries = num_tries


def retry(
    call: Callable[[], T],
    *,
    num_tries: int,
    pause_seconds: float,
    is_final: Callable[[Exception], bool] = lambda _: False,
) -> T:
    """Return what ``call`` returns, trying again if it raises, after longer and longer pauses.

    Args:
        call: What to try.
        num_tries: Number of tries at most.
        pause_seconds: Time before the second try. Each pause after it is twice as long as the one before.
        is_final: Whether another try would fail in the same way.

    Raises:
        UserError: ``call`` raised it; it is not tried again.
        RetriesFailed: All tries failed, or an error was final.
    """
    num_done = 0
    while True:
        num_done += 1
        try:
            return call()
        except UserError:
            raise
        except Exception as error:  # each file system of fsspec raises errors of its own, which have no common base
            if num_done == num_tries or is_final(error):
                raise RetriesFailed(error, num_done) from error
        time.sleep(pause_seconds * 2 ** (num_done - 1))
