"""Search by captions: the rank of the right subtitle in five languages, and the time with many captions.

    python tests/benchmarks/caption_search.py [--captions 200000] [--queries 100]

Each language is a data set of its own, and all five together are one more. Captions for the time are made of common
English words (by Zipf's law), nine on average, and of three stop words.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
from helpers.spoken_lines import LINES, QUESTIONS
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Caption
from vlalign.train.search.caption_index import open_caption_index

CAPTIONS_PER_PART = 5000
STOP_WORDS = (
    "the",
    "a",
    "of",
    "in",
    "to",
    "and",
    "is",
    "it",
    "with",
    "on",
    "where",
    "does",
    "this",
    "that",
    "he",
    "she",
)
VOCABULARY = 20_000


def write(root: Path, name: str, texts: dict[str, list[str]]) -> DatasetFolder:
    """Write a data set with the lines of videos as captions of four seconds each."""
    dataset = DatasetFolder(root, name)
    captions = [
        Caption(video_id=v, caption=text, split="test", start_seconds=4.0 * n, end_seconds=4.0 * n + 3)
        for v, lines in texts.items()
        for n, text in enumerate(lines)
    ]
    for part, first in enumerate(range(0, len(captions), CAPTIONS_PER_PART)):
        write_part(dataset.captions, part, captions[first : first + CAPTIONS_PER_PART], {})
    write_captions_about(dataset.captions, {})
    return dataset


def rank_row(name: str, dataset: DatasetFolder, languages: list[str]) -> None:
    """Print a row of the table: where the right subtitles are, and how many others are shown."""
    index = open_caption_index(dataset)
    ranks, num_others = [], 0
    for language in languages:
        for question, right in QUESTIONS[language].items():
            found = [match.text for match in index.find(question, 50, LINES)]
            text = LINES[language][right]
            ranks.append(found.index(text) + 1 if text in found else 0)
            num_others += len(found) - (text in found)
    first, later, missed = sum(r == 1 for r in ranks), sum(r > 1 for r in ranks), ranks.count(0)
    print(f"| {name} | {len(ranks)} | {first} | {later} | {missed} | {num_others} |", flush=True)


def made_captions(count: int, rng: np.random.Generator) -> dict[str, list[str]]:
    """Return the lines of videos, twenty each."""
    letters = np.array(list("bcdfglmnprst"))
    words = ["".join(rng.choice(letters, 3)) + str(rng.choice(["ing", "ed", "er", "s", ""])) for _ in range(VOCABULARY)]
    share = 1 / np.arange(1, VOCABULARY + 1)
    numbers = rng.choice(VOCABULARY, (count, 6), p=share / share.sum())
    stops = rng.choice(STOP_WORDS, (count, 3))
    lines = [
        " ".join([s[0], words[n[0]], words[n[1]], s[1], words[n[2]], words[n[3]], s[2], words[n[4]], words[n[5]]])
        for n, s in zip(numbers, stops, strict=True)
    ]
    return {f"v{n:06d}": lines[20 * n : 20 * n + 20] for n in range(count // 20)}


def measure_time(root: Path, num_captions: int, num_queries: int) -> None:
    """Print the time of making an index, of opening it, and of a query with and without stop words."""
    rng = np.random.default_rng(0)
    videos = made_captions(num_captions, rng)
    dataset = write(root, "many", videos)
    times = [time.process_time()]
    open_caption_index(dataset)
    times.append(time.process_time())
    index = open_caption_index(dataset)
    times.append(time.process_time())
    size = index.path.stat().st_size / 2**20
    print(
        f"{num_captions:,} captions: made in {times[1] - times[0]:.2f} s, opened in {times[2] - times[1]:.4f} s, ",
        end="",
    )
    print(f"{size:.0f} MiB")
    lines = [line.split() for line in videos[f"v{num_captions // 40:06d}"]]
    for kind, positions in {"content words": (1, 4, 7), "with stop words": (0, 1, 3, 4, 6, 7)}.items():
        seconds = []
        for n in range(num_queries):
            query = " ".join(lines[n % len(lines)][position] for position in positions)
            start = time.process_time()
            index.find(query, 10, videos.keys())
            seconds.append(time.process_time() - start)
        p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
        print(f"query, {kind}: p50 {p50:.1f} ms, p95 {p95:.1f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captions", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=100)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        print(
            "| captions in | questions | right first | right later | missed | others shown |\n|---|---|---|---|---|---|"
        )
        for language, lines in LINES.items():
            rank_row(language, write(root, language, {language: lines}), [language])
        rank_row("all five together", write(root, "all", LINES), list(LINES))
        if args.captions:
            measure_time(root, args.captions, args.queries)


if __name__ == "__main__":
    main()
