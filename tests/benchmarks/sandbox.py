"""What it costs to hold decoders: ``python tests/benchmarks/sandbox.py VIDEO...``, processor seconds with and without,
by turns."""

import os
import statistics
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "train")]

from helpers.decoding import answers
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.decode import DecodingFinished
from vlalign.extract.decoding.process import DecodeProcess

WITH = decode_process.COMMAND
NOTHING = """
from vlalign.extract.decoding import sandbox
sandbox.confine = sandbox.leave_network = sandbox.limit_files = lambda *arguments: None
"""
WAYS = {"without": NOTHING + WITH, "with": WITH}
TURNS, ROUNDS = 7, 3


def descendants(process_id: int) -> list[int]:
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    return [process_id, *(found for child in children for found in descendants(int(child)))]


def processor_seconds(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(command: str, paths: list[Path]) -> tuple[float, float]:
    """Processor seconds until the first video is decoded, and of all videos after it."""
    decode_process.COMMAND = command
    process = DecodeProcess()
    try:
        used = []
        for path in [paths[0], *(paths * ROUNDS)]:
            assert isinstance(answers(process, path)[-1], DecodingFinished)
            used.append(sum(map(processor_seconds, descendants(process._process.pid))))
        return used[0], used[-1] - used[0]
    finally:
        process.close()


def main(paths: list[Path]) -> None:
    taken = {way: [] for way in WAYS}
    for turn in range(TURNS):
        for way in sorted(WAYS, reverse=turn % 2 == 1):
            taken[way].append(measure(WAYS[way], paths))
    first, rest = ({way: [times[i] for times in taken[way]] for way in WAYS} for i in range(2))
    for what, times in ("start and first video", first), (f"{ROUNDS * len(paths)} videos after it", rest):
        ratio = statistics.median(times["with"]) / statistics.median(times["without"])
        print(
            f"{what}: {statistics.median(times['with']):.2f} / {statistics.median(times['without']):.2f} s = "
            f"{ratio:.3f}"
        )


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:]])
