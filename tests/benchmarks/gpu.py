"""A GPU under the whole load, in at most 8 minutes: ``python tests/benchmarks/gpu.py FOLDER``.

FOLDER gets videos of 240, 480 and 1080 lines, and a table with the device's name: for each network, precision and size,
windows a second of the network alone, of decoding alone and of both together; steps of TACo's training; and whether the
tests that a pretended GPU passes pass on this one, golden values and a stopped run that goes on among them. Without a
GPU, a short form runs on the CPU with the pretended one. It shows that this program works, and nothing else.
"""

from vlalign.storage.common.threads import limit_spinning

limit_spinning()

import argparse
import datetime
import functools
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from transformers import BertConfig, BertModel

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]

from gpu_rates import Shares, a_batch, calls_a_second, decoding, make_videos, together, waits
from helpers import paper_step
from limits import gpu_of, limit, measure
from vlalign.extract import load_extractor
from vlalign.extract.extractor import DTYPES
from vlalign.extract.models import MODELS
from vlalign.storage.common.device import title_of
from vlalign.storage.common.processes import available_cores
from vlalign.train.config import train_config
from vlalign.train.models.layers import GROUP_SIZES, GroupSize
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.step import backward
from vlalign.train.workers import Workers

GPU_PARTS, CPU_PARTS = 30, 2
"""Length of the videos, in parts of two seconds."""
TRAINED_AFTER, EXTRACTED_AFTER, MOST_SECONDS = 90, 340, 470
"""Seconds after the start at which training and extraction have to be measured, and the tests to end."""
SHORT_NETWORK, SHORT_SECONDS = "clip_vit_b32", 15
SHORT_TESTS = "(golden and resnet152) or (an_extractor and s3d-fp32) or (stopped_run and taco and not both)"
ONE_GROUP = GroupSize(1 << 40, 1 << 40)
EXTRACTION = ["features", "precision", "video", "network, windows/s", "part of its limit", "decoding, windows/s"]
EXTRACTION += [
    "together, windows/s",
    "part of the slower",
    "hours of video an hour",
    "GPU memory, GiB",
    "waits a batch",
]
TRAINING = ["precision", "layers", "groups", "steps/s", "GPU memory, GiB", "waits a step"]


def extraction_rows(videos: dict[str, Path], device: torch.device, end: float) -> Iterator[list[str]]:
    """Yield the rows of ``EXTRACTION``: each network in each precision, with each video."""
    on_gpu = device.type == "cuda"
    names = [name for name in MODELS if name != "s3d_univl"] if on_gpu else [SHORT_NETWORK]
    precisions = ("fp32", "bf16", "fp16") if on_gpu else ("fp32",)
    shares = Shares(end, len(names) * (len(videos) + len(precisions) * (1 + len(videos))))
    for name in names:
        extractor = load_extractor(name, weights="random", device=str(device))
        extractor = extractor if on_gpu else replace(extractor, batch_size=1)
        decoded = {size: decoding(extractor, path, shares.next()) for size, path in videos.items()}
        for precision in precisions:
            profile, dtype = replace(extractor.profile, precision=precision), DTYPES[precision]
            extractor = replace(extractor, profile=profile, network=extractor.network.to(dtype))
            frames = a_batch(extractor)
            alone = extractor.batch_size * calls_a_second(lambda e=extractor, f=frames: e.features(f), shares.next())
            waited = waits(lambda e=extractor, f=frames: e.features(f), device)
            limited = part_of_limit(name, dtype, alone, device)
            for size, path in videos.items():
                if on_gpu:
                    torch.cuda.reset_peak_memory_stats()
                both = together(extractor, path, shares.next())
                hours = both * (profile.stride or profile.window) / profile.fps
                yield [
                    f"`{name}`",
                    precision,
                    size,
                    f"{alone:,.1f}",
                    limited,
                    f"{decoded[size]:,.1f}",
                    f"{both:,.1f}",
                    f"{both / min(alone, decoded[size]):.2f}",
                    f"{hours:,.1f}",
                    f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if on_gpu else "-",
                    waited,
                ]


measured = functools.cache(measure)
"""It takes seconds."""


def part_of_limit(name: str, dtype: torch.dtype, alone: float, device: torch.device) -> str:
    """Return what part of the limit of this GPU (``limits.py``) a network reaches."""
    gpu = gpu_of(title_of(device))
    if gpu is None:
        return "-"
    counted_in = torch.float32 if dtype == torch.float32 else torch.bfloat16
    flops, traffic, _ = measured(name, counted_in)
    return f"{alone / limit(gpu, counted_in, flops, traffic)[0]:.2f}"


def new_model(device: torch.device, precision: str, *, compiled: bool) -> VideoTextModel:
    """Return a model as large as the paper's on a GPU, and a small one on a CPU."""
    width, depth = (768, 12) if device.type == "cuda" else (64, 2)
    shape = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
    bert = BertModel(BertConfig(vocab_size=100, num_hidden_layers=depth, **shape), add_pooling_layer=False)
    model = VideoTextModel(paper_step.FEATURES, bert, num_video_layers=1, num_fusion_layers=2, dropout=0.1)
    model.to(device).train().set_precision(precision)
    if compiled:
        model.compile_layers()
    return model


def training_rows(device: torch.device, end: float) -> Iterator[list[str]]:
    """Yield the rows of ``TRAINING``: TACo's steps, with a batch that is on the device."""
    on_gpu = device.type == "cuda"
    own = GROUP_SIZES[device.type]
    cases = {
        ("fp32", False, "as shipped"): own,
        ("bf16", False, "as shipped"): own,
        ("bf16", False, "as on a CPU"): GROUP_SIZES["cpu"],
        ("bf16", False, "one of all"): ONE_GROUP,
        ("bf16", True, "as shipped"): own,
    }
    cases = cases if on_gpu else {("fp32", False, "as shipped"): own}
    inputs = paper_step.make_inputs(0, paper_step.BATCH if on_gpu else 8)
    config = train_config(dataset="none", features="s3d", batch_size=len(inputs.rows))
    inputs, shares = (inputs.pinned() if on_gpu else inputs).to(device), Shares(end, len(cases))
    for (precision, compiled, groups), size in cases.items():
        until, model = shares.next(), new_model(device, precision, compiled=compiled)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()

        def step(model: VideoTextModel = model, optimizer: torch.optim.Optimizer = optimizer) -> None:
            Workers().mean(backward(model, inputs, config, 0, Workers()))
            optimizer.step()

        with mock.patch.dict(GROUP_SIZES, {device.type: size}):
            steps, waited = calls_a_second(step, until), waits(step, device)
        memory = f"{torch.cuda.max_memory_allocated() / 2**30:.2f}" if on_gpu else "-"
        yield [precision, "compiled" if compiled else "eager", groups, f"{steps:.2f}", memory, waited]


def check(on_gpu: bool, seconds: float) -> tuple[bool, list[str]]:
    """Run the tests of a GPU: all on a real one, a few on a pretended one.

    Returns:
        Whether all passed in time, and lines that say how they went.
    """
    chosen = ["--numprocesses", "8"] if on_gpu else ["-k", SHORT_TESTS]
    call = [sys.executable, "-m", "pytest", "-v", "--tb=line", "-p", "no:cacheprovider", *chosen]
    call.append(str(TESTS / "test_on_gpu.py"))
    try:
        ran = subprocess.run(call, cwd=TESTS.parent, capture_output=True, timeout=max(seconds, 1), check=False)
        said, code = ran.stdout.decode(), ran.returncode
    except subprocess.TimeoutExpired as error:
        said, code = (error.stdout or b"").decode(), None
    counts = {word: len(re.findall(rf"\b{word}\b.*%|%.*\b{word}\b", said)) for word in ("PASSED", "FAILED", "SKIPPED")}
    lines = [", ".join(f"{number} {word.lower()}" for word, number in counts.items())]
    if code is None:
        lines[0] += f"; they did not end within {seconds:.0f} s"
    elif code > 1:
        lines += said.splitlines()[-5:]
    lines += re.findall(r"^(?:FAILED|ERROR|SKIPPED) .*", said, flags=re.MULTILINE)
    return code == 0, lines


def main() -> int:
    """Measure, and print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    on_gpu, start = torch.cuda.is_available(), time.monotonic()
    device = torch.device("cuda" if on_gpu else "cpu")
    name = re.sub(r"[^a-z0-9]+", "-", title_of(device).lower())
    with (folder / f"gpu-{name}.md").open("w", encoding="utf-8") as file:

        def say(*lines: str) -> None:
            for line in lines:
                print(line, flush=True)
                print(line, file=file, flush=True)

        def table(columns: list[str], rows: Iterator[list[str]]) -> None:
            say("", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|")
            for row in rows:
                say(f"| {' | '.join(row)} |")

        say(
            f"# {title_of(device)}",
            "",
            f"{datetime.date.today()}, {available_cores()} cores, torch {torch.__version__}",
        )
        if not on_gpu:
            torch.set_num_threads(1)
            say("", "**No GPU is here.** This short form shows that the program works; its figures say nothing.")
        videos = make_videos(folder, GPU_PARTS if on_gpu else CPU_PARTS)
        table(TRAINING, training_rows(device, start + TRAINED_AFTER if on_gpu else time.monotonic()))
        end = start + EXTRACTED_AFTER if on_gpu else time.monotonic() + SHORT_SECONDS
        table(EXTRACTION, extraction_rows(videos, device, end))
        passed, outcome = check(on_gpu, start + MOST_SECONDS - time.monotonic())
        say("", f"Tests on {'this GPU' if on_gpu else 'a pretended GPU, a few of them'}:", "")
        say(*(f"- {line}" for line in outcome), "", f"All in {time.monotonic() - start:.0f} s.")
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main())
