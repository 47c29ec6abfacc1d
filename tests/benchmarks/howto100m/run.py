"""The benchmark as one call: make the data set, run all stages, check what they wrote, and print one table."""

import argparse
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from benchmarks.howto100m.checks import check_captions, check_features, check_index, check_run
from benchmarks.howto100m.local_ray import LocalRay, disk_bytes
from benchmarks.howto100m.real_costs import NUM_MACHINES, SOURCES, worked_out
from benchmarks.howto100m.stages import Killer, Measured, Stage, run_stage
from benchmarks.howto100m.synthetic import (
    FEATURES,
    HELD_OUT_NAME,
    MODULE,
    STUBBED,
    TAGGER,
    SyntheticDataset,
    write_stubs,
)
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import new_parser
from vlalign.storage.common.errors import EXIT_DONE, SettingError
from vlalign.storage.common.system import available_cores
from vlalign.storage.common.terminal import number_of, say, show
from vlalign.storage.dataset.folder import DatasetFolder

DATASET, RUN = "howto100m", "benchmark"
NUM_STEPS, BATCH_SIZE = 20, 64
EMBEDDING_SIZE = 32
"""Small, so that the index of 200,000 videos fits on a disk."""
START_SECONDS = 10.0
VIDEOS_A_SECOND = {"plan": 500.0, "extract": 300.0, "preprocess": 180.0, "train": 1000.0, "index": 170.0}
"""About what two quiet cores do, to choose when to kill: a kill that comes too late is left to the next stage."""
HEADER = (
    "stage",
    "time",
    "processor",
    "memory",
    "disk",
    "rate",
    "kills survived",
    "real: time",
    "memory",
    "disk",
    "GPU hours",
    "dollars",
    "sources",
)


def plan_stages(
    root: Path, made: SyntheticDataset, num_captions: int, profile: Path, vectors: Path, num_cores: int
) -> list[Stage]:
    """Return the stages, in order."""
    extracting = ["--features", str(profile), "--trust", MODULE, "--workers", str(num_cores), "--cpus-per-worker", "1"]
    training = ["--features", FEATURES, "--recipe", "ssml-small", "--run-name", RUN, "--workers", "1"]
    training += ["--num-steps", str(NUM_STEPS), "--batch-size", str(BATCH_SIZE), "--validate-every", "5"]
    training += ["--embedding-size", str(EMBEDDING_SIZE), "--validation-share", "0.1"]
    tagging = ["--spacy-model", TAGGER, "--word-vectors", str(vectors)]
    calls = {
        "plan": ("ray_jobs.extract_howto100m", [*extracting, "--plan"], made.num_videos, "videos"),
        "extract": ("ray_jobs.extract_howto100m", extracting, made.num_videos, "videos"),
        "preprocess": ("ray_jobs.preprocess", tagging, num_captions, "captions"),
        "train": ("ray_jobs.train", training, NUM_STEPS, "steps"),
        "index": ("ray_jobs.index", [RUN], made.num_videos, "videos"),
        "evaluate": ("train.cli.evaluate", [RUN, "--on", HELD_OUT_NAME], made.num_held_out, "captions"),
    }
    at = ["--root", str(root), "--dataset", DATASET]
    return [
        Stage(
            name,
            module,
            [*at, *options],
            count,
            unit,
            START_SECONDS + (made.num_videos / VIDEOS_A_SECOND[name] if name in VIDEOS_A_SECOND else 0.0),
            on_ray=module.startswith("ray_jobs"),
        )
        for name, (module, options, count, unit) in calls.items()
    ]


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of all stages: it finds the stubs, and keeps nothing outside of ``folder``."""
    found = [str(folder / "stubs"), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(found), "XDG_STATE_HOME": str(folder / "state"), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **own}


def run_benchmark(folder: Path, num_videos: int, num_kills: int, seed: int, num_cores: int) -> list[Measured]:
    """Make the data set in ``folder``, run all stages, and check what they wrote.

    Raises:
        UserError: A stage failed, or something is lost, twice or wrong.
    """
    root, log = folder / "data", folder / "log.txt"
    dataset, made = DatasetFolder(root, DATASET), SyntheticDataset(num_videos, seed)
    folder.mkdir(parents=True, exist_ok=True)
    profile = write_stubs(folder / "stubs")
    num_captions = made.write(dataset)
    table, vectors = made.write_held_out(dataset), made.write_word_vectors(folder / "stubs" / "vectors.txt")
    say(f"howto100m: {num_videos:,} videos and {num_captions:,} captions made, {disk_bytes(root) / 1e6:,.0f} MB")
    stages = plan_stages(root, made, num_captions, profile, vectors, num_cores)
    ray = LocalRay(num_cores, environment(folder))
    killer, measured = Killer(num_kills, stages, random.Random(seed)), []
    at = ["--root", str(root), "--dataset", HELD_OUT_NAME]
    options = [*at, "--annotations", str(table), "--spacy-model", TAGGER]
    try:
        ray.start()
        for stage in stages:
            if stage.name == "evaluate":
                captions = Stage("captions to evaluate on", "ray_jobs.preprocess", options, 1, "table", 1.0)
                run_stage(captions, ray, Killer(0, [captions], random.Random(seed)), root, log)
            measured.append(run_stage(stage, ray, killer, root, log))
    finally:
        ray.stop()
    if killer.num_left_over:
        say(f"note: {killer.num_left_over:,} of {num_kills:,} kills were not made; the stages ended sooner")
    show(check_features(dataset, made))
    show(check_captions(dataset, made))
    show(check_index(dataset, made, RUN))
    show(check_run(dataset.runs / RUN, NUM_STEPS, made.num_held_out))
    return measured


def table_of(measured: Sequence[Measured], num_captions: int) -> str:
    """Return the table in Markdown, and where the numbers of the real thing come from."""
    taken = {each.stage.name: each.disk_bytes for each in measured}
    real = worked_out(taken["preprocess"] / num_captions)
    lines = [_row(HEADER), _row(["---"] * len(HEADER))]
    for each in measured:
        its = real[each.stage.name]
        killed = [(what, each.kills.count(what)) for what in ("driver", "worker") if what in each.kills]
        kills = ", ".join(number_of(count, f"{what}s") for what, count in killed) or "0"
        figures = [f"{each.seconds:,.0f} s", f"{each.processor_seconds:,.0f} s", f"{each.memory_bytes / 1e9:.1f} GB"]
        figures += [f"{each.disk_bytes / 1e6:,.0f} MB", f"{each.rate:,.1f} {each.stage.unit}/s", kills]
        worked = [its.time, its.memory, its.disk, its.gpu_hours, its.dollars, ", ".join(map(str, its.sources))]
        lines.append(_row([each.stage.name, *figures, *worked]))
    lines += ["", f"Real: 1.2 million videos, 136 million captions; {NUM_MACHINES} machines with 16 cores and an L4."]
    return "\n".join(lines + [f"{number}. {source}" for number, source in enumerate(SOURCES, start=1)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def benchmark_command(args: argparse.Namespace) -> int:
    """Run the command."""
    for name, value, least in (("videos", args.videos, 2), ("kills", args.kills, 0), ("cores", args.cores, 1)):
        if value < least:
            raise SettingError(name, value, f"expected {least} or more")
    folder: Path = args.folder.absolute()
    if folder.exists() and any(folder.iterdir()):
        raise SettingError("folder", folder, "not empty; expected a new folder, which is removed in the end")
    show(f"stubbed: {STUBBED}; everything else is the real program")
    measured = run_benchmark(folder, args.videos, args.kills, args.seed, args.cores)
    num_captions = next(each.stage.count for each in measured if each.stage.name == "preprocess")
    show(table_of(measured, num_captions))
    shutil.rmtree(folder)
    return EXIT_DONE


def main(argv: list[str] | None = None) -> int:
    """Run the command ``run.py`` and return its exit code."""
    parser = new_parser(
        "howto100m",
        "A benchmark of HowTo100M on this machine: make videos and captions with its statistics, run plan, extraction, "
        "preprocessing, training, indexing and evaluation on a Ray of its own, kill drivers and workers meanwhile, "
        "check that nothing is lost or twice, and print what it took beside what the real thing takes.",
        "python tests/benchmarks/howto100m/run.py --videos 2000 --kills 4",
    )
    parser.add_argument("--videos", type=int, default=2000, help="number of videos (default: 2000)")
    parser.add_argument("--kills", type=int, default=4, help="SIGKILLs at random moments of random stages (default: 4)")
    parser.add_argument("--seed", type=int, default=0, help="decides the data set and the kills (default: 0)")
    parser.add_argument("--cores", type=int, default=available_cores(), help="cores that Ray may use (default: all)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("vlalign_howto100m"),
        help="new folder for everything, removed if all went well (default: ./vlalign_howto100m). For each video it "
        "takes about 0.25 MB",
    )
    return run_command(benchmark_command, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
