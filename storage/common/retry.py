"""Retry operations that failed because of a network or a server."""

import time
from collections.abc import Callable
from typing import TypeVar

from .errors import UserError, VlalignError

T = TypeVar("T")


class RetriesFailed(VlalignError):
    """All tries failed. ``error`` is the error of the last try."""

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
    """Call a function until it succeeds, with increasing pauses, and return its result.

    Args:
        call: The function.
        num_tries: Maximum number of tries.
        pause_seconds: Time before the second try. Each later pause is twice as long as the previous one.
        is_final: Returns whether another try would fail in the same way.

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
