"""What two busy neighbours cost: ``python tests/benchmarks/busy.py [train taco evaluate extract]``, on a machine with
two cores, else quiet.

Each part runs alone and beside two programs that never rest, by turns: with the threads' waiting as the libraries have
it, as the commands set it (``storage/cli/command.py``), and with one thread. Two programs on two cores leave half of
the machine: a ratio of 2 is what sharing it costs, and one thread, which gets two thirds of a core, can reach 2.4 where
two threads are 1.6 times as fast.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("", "train")]

WAYS = {
    "as libraries have it": {"GOMP_SPINCOUNT": "300000"},
    "as the commands set it": {},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
TURNS = 2
SECONDS = 12.0
NEIGHBOUR = "while True: pass"


def make_trainer(recipe: str | None):
    """Return a trainer for pairs as short as a demo's. None: TACo with the settings' own defaults."""
    import torch
    from helpers.toy import make_toy
    from helpers.training import make_trainer
    from vlalign.train.distributed import Workers
    from vlalign.train.recipes.recipes import make_config

    folder = Path(tempfile.mkdtemp())
    config = make_config(recipe, {"dataset": "toy", "features": "s3d", "num_steps": 10_000})
    dataset = make_toy(folder, num_videos=400)
    return make_trainer(dataset, config, folder / "run", Workers(), torch.device("cpu"))


def training(recipe: str | None = "default") -> Callable[[], None]:
    """A step."""
    trainer = make_trainer(recipe)
    stream = iter(trainer.prefetched_inputs(0))
    return lambda: trainer.train_step(next(stream))


def evaluation() -> Callable[[], None]:
    """All stages' scores of 100 captions and 100 clips."""
    from vlalign.train.scoring.scorer import stage_scores

    trainer = make_trainer(None)
    pairs = trainer.examples.pairs["validation"]
    return lambda: stage_scores(trainer.scorer, pairs.captions, pairs.clips)


def extraction() -> Callable[[], None]:
    """S3D on two short videos, with their decoding."""
    from helpers.videos import scene
    from vlalign.extract import load_extractor
    from vlalign.extract.pipeline.engine import extract_videos
    from vlalign.extract.pipeline.video_jobs import VideoJob
    from vlalign.extract.videos.demo import render_video

    paths = [Path(tempfile.mkdtemp()) / f"{number}.mp4" for number in range(2)]
    for path in paths:
        render_video(scene(1.4), path)
    extractor = load_extractor("s3d", weights="random")
    return lambda: list(extract_videos([VideoJob(path.name, path, [extractor]) for path in paths], [extractor]))


PARTS = {"train": training, "taco": lambda: training(None), "evaluate": evaluation, "extract": extraction}


def child(part: str) -> None:
    """Prints the median seconds of a turn of ``part``."""
    from vlalign.storage.cli.command import limit_spinning

    limit_spinning()
    run, times = PARTS[part](), []
    run()
    started = time.monotonic()
    while time.monotonic() - started < SECONDS or len(times) < 3:
        before = time.monotonic()
        run()
        times.append(time.monotonic() - before)
    print(statistics.median(times), flush=True)
    os._exit(0)  # threads that make inputs ahead need not end first


def measure(part: str, environment: dict[str, str], num_neighbours: int) -> float:
    # Sessions of their own: Linux then shares the machine between this program and each of the others as a desktop
    # does.
    call = [sys.executable, "-c", NEIGHBOUR]
    neighbours = [subprocess.Popen(call, start_new_session=True) for _ in range(num_neighbours)]
    try:
        here = [sys.executable, __file__, "--child", part]
        done = subprocess.run(
            here, env=os.environ | environment, capture_output=True, text=True, check=True, start_new_session=True
        )
        return float(done.stdout.split()[-1])
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def main(parts: list[str]) -> None:
    print(f"{'':<10}{'':<24}{'quiet s':>9}{'busy s':>9}{'busy/quiet':>12}{'quiet/libraries':>17}")
    for part in parts or PARTS:
        quiet, busy = {way: [] for way in WAYS}, {way: [] for way in WAYS}
        for _ in range(TURNS):
            for way, environment in WAYS.items():
                quiet[way].append(measure(part, environment, 0))
                busy[way].append(measure(part, environment, 2))
        usual = min(quiet["as libraries have it"])
        for way in WAYS:
            alone, beside = min(quiet[way]), statistics.mean(busy[way])
            print(
                f"{part:<10}{way:<24}{alone:>9.3f}{beside:>9.3f}{beside / usual:>12.2f}{alone / usual:>17.2f}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2])
    else:
        main(sys.argv[1:])
