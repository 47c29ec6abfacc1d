"""What it costs to tune CLIP ViT-B/32 on frames: ``python tests/benchmarks/finetuning.py FOLDER [--device cuda]``.

Both towers have random weights and their published sizes; frames are noise. Each case runs in a process of its own,
whose peak memory is printed, with the clips a second of whole steps and the share of the two networks in them.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]
from helpers.clips_of_text import save_clip, word_tokenizer
from helpers.frames import caption_of, write_captions, write_frames
from helpers.training import make_trainer
from transformers import CLIPConfig, CLIPModel
from vlalign.storage import VideoFeatures
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import FRAME_PROFILES
from vlalign.train.distributed import Workers
from vlalign.train.models.tokens import ClipRows
from vlalign.train.recipes.train_config import train_config

PROFILE = FRAME_PROFILES["clip_vit_b32_frames"]
TEXT = "a person cuts an onion on a board and puts it into the pan with some oil"


def make_dataset(folder: Path, num_clips: int, num_frames: int) -> DatasetFolder:
    """Write clips of noise and their captions, and CLIP."""
    dataset = DatasetFolder(folder, f"noise{num_frames}")
    if dataset.path.exists():
        return dataset
    rng, seconds = np.random.default_rng(0), np.arange(num_frames, dtype=float)
    videos = (
        VideoFeatures(
            video_id=f"v{number:03d}",
            features=rng.integers(0, 256, (num_frames, PROFILE.dimension), dtype=np.uint8),
            start_seconds=seconds,
            end_seconds=seconds + 1,
            valid_frames=np.ones(num_frames, int),
            duration_seconds=float(num_frames),
        )
        for number in range(num_clips)
    )
    write_frames(dataset, PROFILE, list(videos))
    write_captions(dataset, [caption_of(f"v{number:03d}", TEXT, "train") for number in range(num_clips)])
    return dataset


def make_clip(folder: Path) -> Path:
    """Write a CLIP ViT-B/32 of random weights, but for its vocabulary; return the folder."""
    if not folder.exists():
        tokenizer = word_tokenizer([TEXT])
        config = CLIPConfig()
        config.text_config.update({"vocab_size": len(tokenizer), "pad_token_id": tokenizer.eos_token_id})
        config.text_config.update({"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id})
        save_clip(CLIPModel(config), tokenizer, folder)
    return folder


def seconds_of(call: Callable[[], object], num_calls: int, device: torch.device) -> float:
    """Return the mean time of a call, after one that is not timed."""
    times = []
    for _ in range(num_calls + 1):
        started = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return sum(times[1:]) / num_calls


def measure(folder: Path, case: dict[str, str], device: torch.device) -> dict[str, float | None]:
    """Train a few steps of a case; return what it took."""
    num_frames, batch = int(case["frames"]), int(case["batch"])
    clip = make_clip(folder / "clip")
    dataset = make_dataset(folder, batch, num_frames)
    frozen = ";".join(f"{part}.*:frozen=true" for part in case["frozen"].split("+") if part)
    settings = {"dataset": dataset.name, "features": PROFILE.name, "video_tower": f"clip_vit_b32={clip}"}
    settings |= {"encoder": "mean", "text_encoder": str(clip), "objective": "ncl", "batch_size": batch}
    settings |= {"micro_batch_size": int(case["micro"]), "max_video_tokens": num_frames, "max_text_tokens": 32}
    settings |= {"precision": case["precision"], "parameter_groups": frozen}
    run = folder / "runs" / str(time.time_ns())
    made = make_trainer(dataset, train_config(**settings), run, Workers(), device)
    inputs = made.make_inputs(0).to(device)
    model = made.model.train()

    def networks() -> None:
        model.zero_grad(set_to_none=True)
        videos = model.tokens_of_videos(ClipRows(inputs.rows, inputs.mask, inputs.lengths), {})
        texts = model.tokens_of_texts(inputs.texts, {})
        (videos.mean_BD.sum() + texts.sentence_BD.sum()).backward()

    num_steps = int(case["steps"])
    step = seconds_of(lambda: made.train_step(inputs), num_steps, device)
    used = torch.cuda.max_memory_allocated() if device.type == "cuda" else peak_bytes()
    share = seconds_of(networks, num_steps, device) / step if case["micro"] == "0" else None
    return {"clips_a_second": batch / step, "GiB": used / 2**30, "share_of_networks": share}


def peak_bytes() -> int:
    """Return this process's peak memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure all cases, or one in this process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--frames", type=int, nargs="+", default=[12, 64])
    parser.add_argument("--micro", type=int, nargs="+", default=[1, 4, 0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--frozen", default="", help="such as video_tower")
    parser.add_argument("--steps", type=int, default=3, help="that are timed, after one that is not")
    parser.add_argument("--case")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(measure(args.folder, json.loads(args.case), torch.device(args.device))))
        return
    print("frames, micro-batch: clips a second, memory, share of the networks")
    for frames in args.frames:
        for micro in args.micro:
            case = {"frames": frames, "micro": micro, "batch": args.batch, "steps": args.steps}
            case |= {"precision": args.precision, "frozen": args.frozen}
            texts = json.dumps({name: str(value) for name, value in case.items()})
            command = [sys.executable, __file__, str(args.folder), "--device", args.device, "--case", texts]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{frames}, {micro or 'all'}: {done.stderr.strip().splitlines()[-1][:200]}")
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            share = "not measured" if found["share_of_networks"] is None else f"{found['share_of_networks']:.0%}"
            figures = f"{found['clips_a_second']:.2f} clips/s, {found['GiB']:.1f} GiB, {share}"
            print(f"{frames}, {micro or 'all'}: {figures}", flush=True)


if __name__ == "__main__":
    main()
