"""Kernels and waits of a training step of TACo on a pretended GPU: ``python tests/benchmarks/gpu/training_step.py``.

The paper's batch of 128, with lengths like YouCook2's, and 12 text, 1 video and 2 fusion layers; all are narrow, since
neither count depends on the width.
"""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from helpers.paper_step import count


def main() -> None:
    for negatives, micro_batch_size in (("cascade", 0), ("cascade", 64), ("all", 0)):
        loss, counts = count(negatives, micro_batch_size)
        print(
            f"{negatives}, micro-batches of {micro_batch_size}: loss {loss:.4f}, {counts.num_operators:,} kernels, "
            f"{counts.waits.total()} waits"
        )
        for place, number in counts.waits.most_common():
            print(f"  {number:>3}  {place}")


if __name__ == "__main__":
    main()
