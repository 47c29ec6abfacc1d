"""A GPU under the whole load, in at most 8 minutes: ``python tests/benchmarks/gpu.py FOLDER``.

FOLDER gets videos of 240, 480 and 1080 lines. For each profile and precision: windows a second of the network alone, of
decoding alone and of both together, and what part together is of the slower one. For training, steps a second of TACo
as large as the paper's. Then the tests that a pretended GPU passes here run on the real one: golden values of
extractors, losses, a stopped run that goes on, evaluation and search. Without a GPU, all of it runs on the CPU in a
short form, which shows that the program works and nothing else.
"""

import argparse
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS)]

from helpers import paper_step
from helpers.videos import encode_frames
from vlalign.extract import load_extractor
from vlalign.extract.decoding.decode import Finished
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.messages import PictureFollows, RowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.engine import extract_videos
from vlalign.extract.extractor import Extractor
from vlalign.extract.jobs import Job, wanted_of
from vlalign.extract.models import MODELS
from vlalign.storage.common.device import memory_used, title_of
from vlalign.storage.common.processes import available_cores
from vlalign.storage.profiles import PROFILES
from vlalign.train.config import train_config
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.step import backward
from vlalign.train.workers import Workers

SIZES = {"240p": (320, 240), "480p": (854, 480), "1080p": (1920, 1080)}
MOST_SECONDS = 8 * 60
SHORT = ("resnet152",)
"""Profiles of the short form."""


def make_videos(folder: Path, seconds: int) -> dict[str, Path]:
    """Write a video of each size, of moving noise, unless it is there; {size: path}."""
    rng, made = np.random.default_rng(0), {}
    for name, (width, height) in SIZES.items():
        path = made[name] = folder / f"{name}-{seconds}s.mp4"
        if not path.exists():
            width -= width % 2
            picture = np.kron(rng.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8), np.ones((8, 8, 1)))
            picture = picture[:height, :width].astype(np.uint8)
            partial = path.with_suffix(".partial.mp4")
            encode_frames(partial, (np.roll(picture, 3 * n, axis=1) for n in range(30 * seconds)), 30)
            partial.replace(path)
    return made


def repeat(call, seconds: float) -> float:
    """Return calls a second, after one that is not counted."""
    call()
    number, started = 0, time.monotonic()
    while time.monotonic() - started < seconds or not number:
        call()
        number += 1
    return number / (time.monotonic() - started)


def alone(extractor: Extractor, seconds: float) -> float:
    """Return windows a second of the network alone, copies to the device and back included."""
    profile = extractor.profile
    side = (profile.crop_px, profile.crop_px) if profile.crop_px else (224, 298)
    window = () if profile.window == 1 else (profile.window,)
    frames = torch.randint(0, 256, (extractor.batch_size, *window, *side, 3), dtype=torch.uint8)
    frames = frames.to(extractor.picture_type)
    return extractor.batch_size * repeat(lambda: extractor.features(frames), seconds)


def decoded(extractor: Extractor, path: Path) -> float:
    """Return windows a second of decoding alone, by one process."""
    wanted = [wanted_of(extractor.profile)]
    process = DecodeProcess(wanted)
    process.start(path, wanted, only_probe=True)  # start-up is not counted
    process.receive()
    number, started = 0, time.monotonic()
    process.start(path, wanted)
    while not isinstance(message := process.receive(), Finished):
        if isinstance(message, RowReady):
            process.take_frames(message, np.empty(message.shape, dtype=np.uint8))
            number += 1
        elif isinstance(message, PictureFollows):
            process.receive_bytes()
    seconds = time.monotonic() - started
    process.close()
    return number / seconds


def together(extractor: Extractor, path: Path, num_videos: int) -> tuple[float, float]:
    """Return windows a second of the whole extraction, and hours of video an hour."""
    jobs = [Job(str(number), path, [extractor]) for number in range(num_videos)]
    number, hours, started = 0, 0.0, time.monotonic()
    for _, result in extract_videos(jobs, [extractor]):
        if isinstance(result, VideoError):
            raise result
        [video] = result.features.values()
        number, hours = number + len(video.features), hours + video.duration_seconds / 3600
    seconds = time.monotonic() - started
    return number / seconds, 3600 * hours / seconds


def extraction_rows(videos: dict[str, Path], device: torch.device, names: list[str], seconds: float) -> Iterator[str]:
    """Yield the lines of the table of extraction."""
    yield "| features | precision | video | network, windows/s | decoding | together | part | hours an hour | memory |"
    yield "|---|---|---|---|---|---|---|---|---|"
    cores = max(available_cores() - 1, 1) if device.type == "cuda" else available_cores()
    for name in names:
        for precision in ("fp32", "bf16", "fp16") if device.type == "cuda" else ("fp32",):
            extractor = load_extractor(name, weights="random", device=str(device), precision=precision)
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            network = alone(extractor, seconds)
            for size, path in videos.items():
                decoding = cores * decoded(extractor, path)
                rate, hours = together(extractor, path, 2 * cores if device.type == "cuda" else 1)
                rates = f"{network:,.1f} | {decoding:,.1f} | {rate:,.1f} | {rate / min(network, decoding):.2f}"
                yield f"| `{name}` | {precision} | {size} | {rates} | {hours:,.1f} | {memory_used(device)} |"


def training_rows(device: torch.device, seconds: float) -> Iterator[str]:
    """Yield the lines of the table of training: TACo's cascade, with and without torch.compile."""
    yield "| layers | steps/s | waits for the device a step |"
    yield "|---|---|---|"
    on_gpu = device.type == "cuda"
    inputs = paper_step.make_inputs(0, paper_step.BATCH if on_gpu else 8)
    config = train_config(dataset="none", features="s3d", batch_size=len(inputs.rows))
    inputs = (inputs.pinned() if on_gpu else inputs).to(device)
    for kind in ("eager", "compiled") if on_gpu else ("eager",):
        width, depth = (768, 12) if on_gpu else (64, 2)
        shape = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 4 * width}
        bert = BertModel(BertConfig(vocab_size=100, num_hidden_layers=depth, **shape), add_pooling_layer=False)
        model = VideoTextModel(paper_step.FEATURES, bert, num_video_layers=1, num_fusion_layers=2, dropout=0.1)
        model.to(device).train().set_precision("bf16")
        if kind == "compiled":
            model.compile_layers()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(model=model, optimizer=optimizer) -> None:
            Workers().mean(backward(model, inputs, config, 0, Workers()))
            optimizer.step()

        rate, waits = repeat(step, seconds), "not counted"
        if on_gpu:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.cuda.set_sync_debug_mode("warn")
                step()
                torch.cuda.set_sync_debug_mode("default")
            waits = str(sum("synchronizing" in str(warning.message) for warning in caught))
        yield f"| {kind} | {rate:.2f} | {waits} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    started, has_gpu = time.monotonic(), torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{title_of(device)}, {available_cores()} cores of {platform.processor() or platform.machine()}")
    print(f"torch {torch.__version__}\n", flush=True)
    videos = make_videos(folder, 20 if has_gpu else 2)
    names = [name for name in PROFILES if name in MODELS] if has_gpu else list(SHORT)
    rows = extraction_rows(videos, device, names, 1.0 if has_gpu else 0.1)
    for table in (training_rows(device, 5.0 if has_gpu else 0.1), rows):
        for line in table:
            print(line, flush=True)
            if time.monotonic() - started > 0.7 * MOST_SECONDS:
                print("\n(cut short: the time is up)")
                break
        print()
    if not has_gpu:
        print("no GPU: its tests are not run")
        return 0
    left = max(MOST_SECONDS - (time.monotonic() - started), 60)
    call = [sys.executable, "-m", "pytest", "-q", str(TESTS / "test_on_gpu.py"), "-m", "not slow"]
    return subprocess.run(["timeout", f"{left:.0f}", *call], check=False, cwd=TESTS.parent).returncode


if __name__ == "__main__":
    sys.exit(main())
