"""Rows of real videos, changed or made otherwise, and what ``--verify-against`` says of them."""

import copy
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding.kernels import LIBSWSCALE_BICUBIC, PILLOW
from vlalign.extract.extractor import Extractor
from vlalign.extract.verification.compare import DIFFERENT, SAME, Alternatives, Comparison, Hypothesis, compare
from vlalign.extract.verification.recipes import Recipes

from helpers.needs import shared
from helpers.networks import GOLDEN, golden_state


class Swapped(torch.nn.Module):
    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network, self.batch_sizes = network, network.batch_sizes

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.network(values.flip(1))


def swapped(extractor: Extractor) -> Extractor:
    profile = replace(extractor.profile, mean=extractor.profile.mean[::-1], std=extractor.profile.std[::-1])
    return replace(extractor, profile=profile, network=Swapped(extractor.network))


def in_bf16(extractor: Extractor) -> Extractor:
    return replace(
        extractor,
        network=copy.deepcopy(extractor.network).bfloat16(),
        profile=replace(extractor.profile, precision="bf16"),
    )


def profiled(**values) -> Callable[[Extractor], Extractor]:
    return lambda extractor: replace(extractor, profile=replace(extractor.profile, **values))


MADE_BY = {
    "in bf16": (in_bf16, SAME, "our recipe, computed in bf16"),
    "swapped": (swapped, DIFFERENT, "theirs have red and blue swapped"),
    "bicubic": (profiled(resize=LIBSWSCALE_BICUBIC), DIFFERENT, "theirs have the kernel 'bicubic, libswscale'"),
    "Pillow": (profiled(resize=PILLOW), DIFFERENT, "theirs have the kernel 'bicubic, Pillow'"),
    "two thirds of the rate": (profiled(fps=16), DIFFERENT, "theirs have 16 frames a second"),
    "last window": (
        profiled(tail="loop"),
        DIFFERENT,
        "theirs have a last window filled with its frames again from the first",
    ),
    "ActivityNet": (
        profiled(value_range="0..255", mean=(114.7748, 107.7354, 99.4750), std=(1.0, 1.0, 1.0)),
        DIFFERENT,
        "theirs have values 0..255 minus ActivityNet's mean",
    ),
}
"""{how theirs were made: (the extractor that does it, verdict, what is said)}; the engine makes them, not
``verify.py``."""


CHANGED = {
    "itself": (lambda f: f, SAME, None),
    "shifted by 2": (lambda f: np.roll(f, -2, axis=0), DIFFERENT, "another order|places earlier|places later"),
    "permuted": (lambda f: f[np.random.default_rng(0).permutation(len(f))], DIFFERENT, "another order|places"),
    "dropped": (lambda f: f[:-1], DIFFERENT, "the last window was dropped"),
}


def beginning(path: Path, seconds: float, folder: Path) -> Path:
    """The first ``seconds`` of a video, as they are. ffmpeg copies none of those in AVI."""
    if path.suffix == ".avi":
        return path
    cut = folder / f"{path.stem}.mkv"
    command = ["ffmpeg", "-v", "error", "-i", str(path), "-t", str(seconds), "-map", "0:v:0", "-c", "copy", str(cut)]
    subprocess.run(command, check=True)
    return cut


def golden(name: str, folder: Path) -> Extractor:
    torch.save(golden_state(name), folder / f"{name}.pt")
    extractor = load_extractor(name, weights=folder / f"{name}.pt")
    (folder / f"{name}.pt").unlink()
    return extractor


def remembered(alternatives: Alternatives, num_rows: int) -> Alternatives:
    """Computes them for all rows once, where theirs are as many."""
    found = []

    def answer(places: Sequence[int], their_rows: int) -> Iterable[Hypothesis]:
        if their_rows != num_rows:
            return alternatives(places, their_rows)
        if not found:
            found.extend(alternatives(range(num_rows), num_rows))
        return [replace(hypothesis, rows=hypothesis.rows[list(places)]) for hypothesis in found]

    return answer


def real_videos(folder: Path) -> list[Path]:
    """The beginning of each, written into ``folder``."""
    paths = [*shared("data/msrvtt/videos").glob("*.mp4"), *shared("data/msvd/videos").glob("*.avi")]
    paths = [*sorted(paths), shared("data/features/bmt/women_long_jump.mp4")]
    return [beginning(path, 6.5, folder) for path in paths]


NETWORKS = [
    "i3d_resnext101",
    "i3d_resnet152",
    "resnet152",
    "s3d",
    "s3d, random",
    "clip_vit_b32",
    "r2plus1d",
    "slowfast",
]
"""Profiles, with the golden weights where there are any, otherwise with random ones."""


@dataclass(frozen=True)
class Verdict:
    """What was found for rows made in one way."""

    network: str
    video: str
    how: str
    found: Comparison
    right: bool
    """Whether the verdict and the reason are those expected."""


def verdicts_of(name: str, paths: list[Path], compared: list[Path], folder: Path) -> list[Verdict]:
    """Verdicts of one network on each of ``compared``; unrelated rows are those of all other ``paths``."""
    features = name.partition(",")[0]
    extractor = golden(features, folder) if name in GOLDEN else load_extractor(features, weights="random")
    mine = {path: extract_video(path, [extractor])[features] for path in paths}
    verdicts = []
    for path in compared:
        ours = replace(mine[path], features=mine[path].features.astype(np.float16))
        others = np.concatenate([mine[p].features for p in paths if p != path])
        alternatives = remembered(Recipes(extractor).alternatives(path, ours), len(ours.features))
        for how, theirs, verdict, remark in ways_of_making(extractor, path, ours.features):
            found = compare(ours, theirs, others, alternatives)
            right = found.verdict == verdict and is_told(found, remark)
            verdicts.append(Verdict(name, path.stem, how, found, right))
    return verdicts


def ways_of_making(
    extractor: Extractor, path: Path, ours: np.ndarray
) -> Iterator[tuple[str, np.ndarray, str, str | None]]:
    """(How, rows, the verdict expected, what must be said); without ways that give the same rows."""
    profile = extractor.profile
    for how, (change, verdict, remark) in (CHANGED | MADE_BY).items():
        if how == "two thirds of the rate":
            rate = profile.fps * 2 // 3 or 2
            change, remark = profiled(fps=rate), f"another rate|theirs have {rate} frames a second"
        if how == "last window" and (profile.tail == "loop" or profile.window == 1):
            continue
        theirs = change(ours) if how in CHANGED else extract_video(path, [change(extractor)])[profile.name].features
        if verdict == DIFFERENT and theirs.shape == ours.shape and np.array_equal(as_float16(theirs), ours):
            continue  # a full last window, frames that have the size already
        yield how, theirs.astype(np.float32), verdict, remark


def as_float16(rows: np.ndarray) -> np.ndarray:
    """Values beyond the range become infinite."""
    with np.errstate(over="ignore"):
        return rows.astype(np.float16)


def is_told(found: Comparison, remark: str | None) -> bool:
    return (remark is None and not found.notes) or any(re.search(remark or "", said) for said in found.notes)
