"""What ``--verify-against`` says of every real video, made in every way by every network: ``python
tests/benchmarks/verdicts.py [NETWORK...]``. All networks take hours; the slow tests try each video with one."""

import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.made_rows import NETWORKS, real_videos, verdicts_of


def main(networks: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = real_videos(Path(folder))
        for network in networks:
            verdicts = verdicts_of(network, paths, paths, Path(folder))
            right = Counter(verdict.how for verdict in verdicts if verdict.right)
            tried = Counter(verdict.how for verdict in verdicts)
            print(network, ", ".join(f"{how} {right[how]} of {tried[how]}" for how in tried), sep=": ", flush=True)
            for verdict in verdicts:
                if not verdict.right:
                    print("  wrong:", verdict)


if __name__ == "__main__":
    main(sys.argv[1:] or NETWORKS)
