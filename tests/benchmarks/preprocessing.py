"""Tagging against plain spaCy, the memory that a million captions take, and the first pass over a large file.

    python tests/benchmarks/preprocessing.py CAPTIONS.json [speed|memory|first_pass]

CAPTIONS.json is YouCook2's official annotation file. README.md beside this file has earlier results.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.caption_source import choose_source
from vlalign.preprocess.chunks import in_one_process
from vlalign.preprocess.datasets import howto100m
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.preprocess.prepare import prepare_records
from vlalign.preprocess.settings import PreprocessingSettings
from vlalign.preprocess.tables import Preparation
from vlalign.preprocess.tag import load_pipeline
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.system import available_cores
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Caption

MODEL = "en_core_web_sm"
TURNS = 1
TIMES = 10
"""How often the captions are repeated, so that starting a process, 11 s, is a small part of the total."""


def read_texts(path: Path) -> list[str]:
    database = json.loads(path.read_text(encoding="utf-8"))["database"]
    return [clip["sentence"] for video in database.values() for clip in video["annotations"]]


def captions_of(texts: list[str]) -> Iterator[Caption]:
    for number, text in enumerate(texts):
        yield Caption(video_id=f"v{number // 10}", caption=text, split="train")


def plain(texts: list[str]) -> list[list[str]]:
    return [[token.pos_ for token in doc] for doc in load_pipeline(MODEL).pipe(texts)]


def speed(texts: list[str]) -> None:
    """Compare captions per second of the whole step with ``nlp.pipe`` alone, with the same components, in turns."""
    seconds: dict[str, list[float]] = {}
    texts = texts * TIMES
    plain(texts[:100])
    preparing.PART_CAPTIONS = 2500  # enough parts for two processes
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as started:
        list(started.map(len, [""]))  # starts what is started only once
    for _ in range(TURNS):
        for name, workers in (("nlp.pipe", 0), ("prepare, 1 process", 1), ("prepare, 2 processes", 2)):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                if workers:
                    dataset = DatasetFolder(Path(folder), "mine")
                    problems = Problems(quiet=True)
                    prepare_records(
                        Preparation(
                            dataset=dataset,
                            chunks=in_one_process(lambda _: captions_of(texts)),
                            spacy_model=MODEL,
                            problems=problems,
                            num_processes=workers,
                        )
                    )
                else:
                    plain(texts)
                seconds.setdefault(name, []).append(time.perf_counter() - start)
    best = {name: min(values) for name, values in seconds.items()}
    for name, value in best.items():
        print(f"{name:<22}{len(texts) / value:>8,.0f} captions/s{best['nlp.pipe'] / value:>7.2f}", flush=True)


def memory(texts: list[str], count: int = 1_000_000) -> None:
    """Measure the peak memory, with child processes, for ``count`` captions like HowTo100M's, of words from
    ``texts``."""
    words = " ".join(texts).split()
    rng = random.Random(0)
    generated = [" ".join(rng.choices(words, k=rng.randint(2, 8))) for _ in range(20_000)]

    def read(_: Problems) -> Iterator[Caption]:
        for number in range(count):
            yield Caption(
                video_id=f"{number // 113:011d}",
                caption=generated[(number * 7919) % len(generated)],
                split="train",
                start_seconds=4.0 * (number % 113),
                end_seconds=4.0 * (number % 113) + 5,
            )

    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(1.0):
            peak = max(peak, sum(map(proportional_gigabytes, [os.getpid(), *children()])))

    watching = threading.Thread(target=watch)
    watching.start()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        dataset = DatasetFolder(Path(folder), "mine")
        prepare_records(
            Preparation(
                dataset=dataset,
                chunks=in_one_process(read),
                spacy_model=MODEL,
                problems=Problems(),
                num_processes=available_cores(),
            )
        )
        took = time.perf_counter() - start
    done.set()
    watching.join()
    print(
        f"{count:,} captions: {took:,.0f} s, {count / took:,.0f} captions/s; peak {peak:.2f} GB, all processes together"
    )


def first_pass(texts: list[str], num_videos: int = 18_000) -> None:
    """Compare the first pass over a file like HowTo100M's in one process, in two, and again, in processor seconds."""
    words = " ".join(texts).split()
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "caption.json").open("w") as file:
            for number in range(num_videos):
                starts = [4.0 * n for n in range(rng.randint(60, 160))]
                of_video = [" ".join(rng.choices(words, k=rng.randint(2, 8))) for _ in starts]
                video = {"start": starts, "end": [start + 4.5 for start in starts], "text": of_video}
                file.write(f"{', ' if number else '{'}{json.dumps(f'{number:011d}')}: {json.dumps(video)}")
            file.write("}")
        reader = choose_source(PreprocessingSettings(folder / "howto100m", folder))
        read = in_one_process(lambda problems: howto100m.read(Annotations(folder, {}, problems), "captions"))
        one, two = DatasetFolder(folder, "one"), DatasetFolder(folder, "two")
        for what, dataset, chunks, processes in (
            ("nothing kept", one, read, 1),
            ("1 process", one, reader.chunks, 1),
            ("2 processes", two, reader.chunks, 2),
            ("again", two, reader.chunks, 2),
        ):
            before = os.times()
            found = preparing._first_pass(
                Preparation(
                    dataset=dataset,
                    chunks=chunks,
                    spacy_model=MODEL,
                    problems=Problems(quiet=True),
                    num_processes=processes,
                )
            )
            after = os.times()
            own = after.user + after.system - before.user - before.system
            others = after.children_user + after.children_system - before.children_user - before.children_system
            print(
                f"{what:<16}{found.num_captions:>12,} captions: {own:6.1f} s here, {others:6.1f} s in other processes"
            )


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def proportional_gigabytes(pid: int) -> float:
    """Return a process's memory, with its share of memory that it has in common with others; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("captions", type=Path)
    parser.add_argument("part", nargs="?", choices=["speed", "memory", "first_pass"])
    args = parser.parse_args()
    texts = read_texts(args.captions)
    for part in (speed, memory, first_pass):
        if args.part in (None, part.__name__):
            part(texts)


if __name__ == "__main__":
    sys.exit(main())
