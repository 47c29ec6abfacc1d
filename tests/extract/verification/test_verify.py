"""Somebody else's features beside ours, and what a plan promises."""

import copy
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.foreign import rows
from helpers.networks import GOLDEN, golden_state
from helpers.shared import shared
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding.scaling import LIBSWSCALE_BICUBIC, PILLOW
from vlalign.extract.extractor import Extractor
from vlalign.extract.verification.compare import DIFFERENT, SAME, Alternatives, Hypothesis, compare
from vlalign.extract.verification.recipes import Recipes
from vlalign.storage import VideoFeatures
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange.foreign import feature_files, read_features


def write_h5(path: Path, **arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


WRITERS = {
    "npy": lambda path, array: np.save(path, array),
    "npz": lambda path, array: np.savez(path, features=array, timestamps=np.arange(3)),
    "npz, one array of any name": lambda path, array: np.savez(path, feat=array),
    "h5": lambda path, array: write_h5(path, features=array, times=np.arange(3.0)),
    "hdf5": lambda path, array: write_h5(path, resnet=array),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_features_of_every_kind_are_read(tmp_path, kind, dtype):
    path = tmp_path / "sub" / f"video.{kind.split(',')[0]}"
    path.parent.mkdir()
    WRITERS[kind](path, rows().astype(dtype)[None])
    assert feature_files(tmp_path) == {"sub/video": path}
    np.testing.assert_allclose(read_features(path), rows(), rtol=1e-3)


def linked(path: Path) -> None:
    write_h5(path.with_name("other"), features=rows())
    with h5py.File(path, "w") as file:
        file["features"] = h5py.ExternalLink("other", "features")


def external(path: Path) -> None:
    path.with_name("secret").write_bytes(bytes(400))
    with h5py.File(path, "w") as file:
        file.create_dataset("features", shape=(10, 10), dtype="f4", external=[(str(path.with_name("secret")), 0, 400)])


@pytest.mark.parametrize(
    "name, write, complaint",
    [
        ("a.npy", lambda p: p.write_bytes(b"no array"), "not a readable feature file"),
        ("a.npy", lambda p: p.write_bytes(b""), "not a readable feature file"),
        ("a.npy", lambda p: np.save(p, np.array([{"a": 1}], dtype=object)), "not a readable feature file"),
        ("a.npy", lambda p: np.save(p, rows().reshape(2, 6, 8, 8)), r"expected \[rows, values\], got \[2, 6, 8, 8\]"),
        ("a.npy", lambda p: np.save(p, rows()[:0]), r"expected \[rows, values\], got \[0, 64\]"),
        ("a.npz", lambda p: p.write_bytes(b"PK no zip"), "not a readable feature file"),
        ("a.npz", lambda p: np.savez(p, rgb=rows(), flow=rows()), "one called 'features'; found rgb, flow"),
        ("a.h5", lambda p: p.write_bytes(b"no HDF5"), "not a readable feature file"),
        ("a.h5", lambda p: write_h5(p, words=["a", "b"]), "one called 'features'; found none"),
        ("a.h5", linked, "one called 'features'; found none"),
        ("a.h5", external, "its data set 'features' lies in another file"),
    ],
    ids=[
        "text",
        "empty",
        "objects",
        "4 axes",
        "no rows",
        "no zip",
        "two arrays",
        "no hdf5",
        "no numbers",
        "link",
        "external",
    ],
)
def test_other_files_are_refused_in_a_line(tmp_path, name, write, complaint):
    write(tmp_path / name)
    with pytest.raises(UserError, match=complaint) as refused:
        read_features(tmp_path / name)
    assert str(tmp_path / name) in str(refused.value) and "\n" not in str(refused.value)


# Real videos, and networks as they are


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


@pytest.fixture(scope="module")
def i3d_of_two(tmp_path_factory) -> tuple[Extractor, Path, VideoFeatures, np.ndarray, Alternatives]:
    """The last row of the video has 10 frames of 16."""
    folder = tmp_path_factory.mktemp("i3d")
    videos = shared("data/msrvtt/videos")
    extractor = golden("i3d_resnext101", folder)
    path, other = (beginning(videos / f"{name}.mp4", 2.1, folder) for name in ("video7010", "video7011"))
    mine, others = (extract_video(p, [extractor])["i3d_resnext101"] for p in (path, other))
    mine = replace(mine, features=mine.features.astype(np.float16))
    recipes = Recipes(extractor)
    recipes.known.append("16 frames a second")  # as if an earlier video had shown it: looked at first
    return extractor, path, mine, others.features, remembered(recipes.alternatives(path, mine), len(mine.features))


@pytest.mark.parametrize("how", [*CHANGED, *MADE_BY])
def test_how_rows_of_a_real_video_were_made_is_told(i3d_of_two, how):
    extractor, path, mine, others, alternatives = i3d_of_two
    assert len(mine.features) >= 4 and mine.valid_frames[-1] < 16
    change, verdict, remark = (CHANGED | MADE_BY)[how]
    theirs = (
        change(mine.features) if how in CHANGED else extract_video(path, [change(extractor)])["i3d_resnext101"].features
    )
    found = compare(mine, theirs.astype(np.float32), others, alternatives, known=["16 frames a second"])
    assert found.verdict == verdict, found
    assert (remark is None and not found.remarks) or any(re.search(remark, r) for r in found.remarks), found.remarks


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["i3d_resnext101", "i3d_resnet152", "resnet152", "s3d", "s3d, random", "clip_vit_b32", "r2plus1d"]
)
def test_how_rows_of_all_real_videos_were_made_is_told(name, tmp_path):
    features = name.partition(",")[0]
    extractor = golden(features, tmp_path) if name in GOLDEN else load_extractor(features, weights="random")
    profile = extractor.profile
    paths = [*shared("data/msrvtt/videos").glob("*.mp4"), *shared("data/msvd/videos").glob("*.avi")]
    paths = [
        beginning(path, 6.5, tmp_path) for path in [*sorted(paths), shared("data/features/bmt/women_long_jump.mp4")]
    ]
    mine = {path: extract_video(path, [extractor])[features] for path in paths}
    wrong = []
    for path in paths:
        ours = replace(mine[path], features=mine[path].features.astype(np.float16))
        others = np.concatenate([mine[p].features for p in paths if p != path])
        alternatives = remembered(Recipes(extractor).alternatives(path, ours), len(ours.features))
        for how, (change, verdict, remark) in (CHANGED | MADE_BY).items():
            if how == "two thirds of the rate":
                rate = profile.fps * 2 // 3 or 2
                change, remark = profiled(fps=rate), f"another rate|theirs have {rate} frames a second"
            if how == "last window" and (profile.tail == "loop" or profile.window == 1):
                continue
            theirs = (
                change(ours.features) if how in CHANGED else extract_video(path, [change(extractor)])[features].features
            )
            same_rows = theirs.shape == ours.features.shape and np.array_equal(theirs.astype(np.float16), ours.features)
            if verdict == DIFFERENT and same_rows:
                continue  # a full last window, frames that have the size already
            found = compare(ours, theirs.astype(np.float32), others, alternatives)
            told = (remark is None and not found.remarks) or any(re.search(remark, r) for r in found.remarks)
            print(name, path.stem, how, f"{found.distance:.4f}", found.verdict, found.remarks)
            if found.verdict != verdict or not told:
                wrong.append((path.stem, how, found))
    assert not wrong, "\n".join(map(str, wrong))
