"""A limit for work that may never end."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Blocked(BaseException):
    """The work waited, as whoever opens a pipe may do for ever. Not an ``Exception``: nothing takes it for its own."""


@contextmanager
def in_time(seconds: int = 60) -> Iterator[None]:
    """Raise ``Blocked`` when the block takes too long."""

    def give_up(*_: object) -> None:
        raise Blocked

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
