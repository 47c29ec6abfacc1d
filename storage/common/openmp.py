"""Settings of OpenMP, so that threads of one computation wait for each other well on a shared machine."""

import os
import sys

SPIN_COUNT = "10000"
"""Rounds that a waiting OpenMP thread spins before it sleeps: a fraction of a millisecond.

The default of libgomp, 300,000 rounds, is several milliseconds. If another program holds the core of the thread that is
waited for, spinning uses up this program's own share of the machine. Short waits, such as between the layers of a
network on free cores, still pass without sleep. Measured in ``tests/benchmarks/busy.py``.
"""


def limit_spinning() -> None:
    """Let OpenMP threads sleep after a short wait, in this process and its children.

    Call it before torch is imported, because OpenMP reads its settings when it is loaded. A setting of the user stays.
    Results do not change.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
