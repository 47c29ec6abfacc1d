"""How threads of one computation wait for each other on a machine that other programs use, too."""

import os
import sys

SPIN_COUNT = "10000"
"""Rounds: a fraction of a millisecond. By default, a thread that waits for the others of its team spins for milliseconds (libgomp: 300,000
rounds). Where another program holds the core of the thread it waits for, it spins in vain and uses up its own share of the machine. Short
waits, as between the layers of a network on free cores, still pass without going to sleep. Measured in ``tests/benchmarks/busy.py``."""


def limit_spinning() -> None:
    """Has OpenMP's threads sleep after a short wait, in this process and those that it starts. To be called before torch is imported:
    OpenMP reads its settings when it is loaded. What the user has set stays. Results do not depend on it."""
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
