"""Somebody else's features beside ours, and what a plan promises."""

import copy
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.networks import GOLDEN, golden_state
from helpers.shared import shared
from helpers.videos import scene
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli import main
from vlalign.extract.decoding.scaling import LIBSWSCALE_BICUBIC, PILLOW
from vlalign.extract.extractor import Extractor
from vlalign.extract.jobs import wanted_of
from vlalign.extract.render import render_video
from vlalign.extract.verification.compare import DIFFERENT, NOT_TOLD, SAME, Alternatives, Hypothesis, compare
from vlalign.extract.verification.recipes import Recipes, read_windows
from vlalign.storage import FeatureStore, VideoFeatures
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange.foreign import feature_files, read_features

# Files that other tools made


def rows(num_rows: int = 12, dimension: int = 64, seed: int = 0) -> np.ndarray:
    """Rows that resemble their neighbours, as those of a video do."""
    steps = np.random.default_rng(seed).standard_normal((num_rows, dimension))
    return np.abs(np.cumsum(steps, axis=0)).astype(np.float32)


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
        ("a.npy", lambda p: p.write_bytes(b"no array"), "no readable feature file"),
        ("a.npy", lambda p: p.write_bytes(b""), "no readable feature file"),
        ("a.npy", lambda p: np.save(p, np.array([{"a": 1}], dtype=object)), "no readable feature file"),
        ("a.npy", lambda p: np.save(p, rows().reshape(2, 6, 8, 8)), r"expected \[rows, values\], got \[2, 6, 8, 8\]"),
        ("a.npy", lambda p: np.save(p, rows()[:0]), r"expected \[rows, values\], got \[0, 64\]"),
        ("a.npz", lambda p: p.write_bytes(b"PK no zip"), "no readable feature file"),
        ("a.npz", lambda p: np.savez(p, rgb=rows(), flow=rows()), "one called 'features'; found rgb, flow"),
        ("a.h5", lambda p: p.write_bytes(b"no HDF5"), "no readable feature file"),
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


# What can be told from rows alone


def ours(features: np.ndarray) -> VideoFeatures:
    starts = np.arange(len(features)) * 2 / 3
    return VideoFeatures(
        video_id="x",
        features=features,
        start_seconds=starts,
        end_seconds=starts + 2 / 3,
        valid_frames=np.full(len(features), 16),
        duration_seconds=len(features) * 2 / 3,
    )


def at_one_row_a_second(features: np.ndarray) -> np.ndarray:
    seconds = np.arange(int(len(features) * 2 / 3)) + 0.5
    return features[(seconds * 1.5).astype(int)]


OTHERS = np.concatenate([rows(6, seed=seed) for seed in range(20, 24)])


def another_recipe(places, num_rows) -> list[Hypothesis]:
    return [Hypothesis("something else", rows(12, seed=9)[places])]


def reordered(features: np.ndarray, *places: int) -> np.ndarray:
    order = np.arange(len(features))
    order[sorted(places)] = places
    return features[order]


def with_row(features: np.ndarray, place: int, row: np.ndarray) -> np.ndarray:
    features = features.copy()
    features[place] = row
    return features


@pytest.mark.parametrize(
    "change, verdict, remark",
    [
        (lambda f: f, SAME, None),
        (lambda f: f.astype(np.float16), SAME, None),
        (lambda f: f[:-1], DIFFERENT, "the last window was dropped"),
        (lambda f: f[:-3], DIFFERENT, "theirs has 3 rows fewer at the end"),
        (lambda f: np.concatenate([f, f[-2:]]), DIFFERENT, "theirs has 2 rows more at the end"),
        (lambda f: f / np.linalg.norm(f, axis=1, keepdims=True), SAME, "their rows are L2-normalised, ours raw"),
        (lambda f: f * 7, SAME, "their rows are 7 times as long"),
        (lambda f: f + 30, DIFFERENT, "their values are ours +30.00 throughout: another reference"),
        (lambda f: f[2:], DIFFERENT, "theirs have rows 2 places earlier"),
        (lambda f: np.concatenate([f[2:], f[-2:]]), DIFFERENT, "theirs have rows 2 places earlier"),
        (lambda f: np.concatenate([rows(3, seed=9), f]), DIFFERENT, "theirs have rows 3 places later"),
        (lambda f: f[::-1], DIFFERENT, "rows in another order (12 of 12 are ours of other places)"),
        (lambda f: reordered(f, 7, 4), DIFFERENT, "rows in another order (2 of 12 are ours of other places)"),
        (lambda f: with_row(f, 4, rows(1, seed=9)[0]), DIFFERENT, "1 of 12 rows differ, from row 4 on"),
        (at_one_row_a_second, DIFFERENT, "another rate: 1.00 rows a second, ours 1.50"),
        (lambda f: f.mean(axis=0), SAME, "one row a video; compared with the mean of ours"),
        (lambda f: f.max(axis=0)[None], SAME, "one row a video; compared with the maximum of ours"),
        (lambda f: rows(12, seed=5), DIFFERENT, "no cause known here explains it"),
        (lambda f: rows(12, seed=9), DIFFERENT, "theirs have something else (distance 0.0000, ours "),
        (lambda f: (f + rows(12, seed=9)) / 2, DIFFERENT, "no cause known here explains it"),
    ],
    ids=str.split(
        "itself float16 dropped shorter longer normalised scaled level cut earlier later reversed two-swapped "
        "one-other rate mean maximum other explained between"
    ),
)
def test_what_rows_alone_show_is_named(change, verdict, remark):
    mine = rows(12)
    found = compare(ours(mine), change(mine), OTHERS, another_recipe)
    assert found.verdict == verdict, found
    assert (remark is None and not found.remarks) or any(remark in r for r in found.remarks), found.remarks


@pytest.mark.parametrize(
    "mine, others, why",
    [
        (rows(1), OTHERS[:0], "no rows of other videos that differ"),
        (np.repeat(rows(1), 5, axis=0), OTHERS, "their order and their rate may be any"),
        (rows(1), OTHERS, ""),
    ],
    ids=["one row alone", "still", "one row"],
)
def test_equal_rows_are_not_called_the_same_where_all_rows_are_equal(mine, others, why):
    found = compare(ours(mine), mine, others, another_recipe)
    assert found.verdict == (NOT_TOLD if why else SAME)
    assert not why or why in found.remarks[0]


def test_a_rate_that_explains_the_rows_explains_their_number():
    mine, made = rows(12), rows(12, seed=9)
    rate = Hypothesis("16 frames a second", made[:11], another_rate=True)
    found = compare(ours(mine), made[:11], OTHERS, lambda places, _: [replace(rate, rows=rate.rows[places])])
    assert found.verdict == DIFFERENT and found.cause == rate.name and len(found.remarks) == 1, (
        "no last window was dropped"
    )


def test_rows_that_differ_are_not_judged_where_nothing_can_be_computed():
    mine = rows(12)
    found = compare(ours(mine), mine + 0.01 * rows(12, seed=3), OTHERS, None)
    assert found.verdict == NOT_TOLD


def test_of_alternatives_that_give_the_same_rows_none_is_singled_out():
    mine, made = rows(12), rows(12, seed=9)
    found = compare(
        ours(mine), made, OTHERS, lambda places, _: [Hypothesis(name, made[places]) for name in ("this", "that")]
    )
    assert found.verdict == DIFFERENT and not found.cause
    assert "theirs have this or that" in found.remarks[0] and "cannot tell these 2 apart" in found.remarks[1]


def test_our_recipe_is_not_confirmed_by_a_video_that_another_leaves_as_it_is():
    mine = rows(12)
    rounded = torch.from_numpy(mine).bfloat16().float().numpy()

    def alternatives(places, _):
        return [
            Hypothesis("our recipe, computed in bf16", rounded[places], ours=True),
            Hypothesis("another", mine[places]),
        ]

    found = compare(
        ours(mine), rounded, OTHERS, lambda places, n: alternatives(places, n)[:1] + another_recipe(places, n)
    )
    assert found.verdict == SAME and found.remarks == ["our recipe, computed in bf16"]
    found = compare(ours(mine), mine + 0.5 * (rounded - mine), OTHERS, alternatives)
    assert found.verdict == NOT_TOLD and "another" in found.remarks[0]


def test_other_dimensions_and_rows_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="their rows have 32 values, ours 64"):
        compare(ours(rows()), rows(dimension=32), OTHERS, another_recipe)
    broken = rows()
    broken[3, 1] = np.nan
    with pytest.raises(UserError, match="1 of their 12 rows contain non-finite values"):
        compare(ours(rows()), broken, OTHERS, another_recipe)


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
"""{how theirs were made: (the extractor that does it, verdict, what is said)}; the engine makes them, not ``verify.py``."""
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


# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for i in range(2):
        render_video(scene(2.2 + i), folder / f"v{i}.mp4")
    (folder / "broken.mp4").write_bytes(b"no video" * 1000)
    shutil.copy(folder / "v0.mp4", folder / "v0.mkv")
    return folder


def call(folder: Path, root: Path, *options: str, features: str = "resnet152") -> int:
    options = ["--videos", str(folder), "--features", features, "--weights", "random", *options]
    return main(["--root", str(root), "--dataset", "mine", *options])


def test_verification_extracts_compares_and_explains(folder, tmp_path, capsys, resnet152):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    ((windows,), _) = read_windows(folder / "v0.mp4", [wanted_of(resnet152.profile)], range(6))
    network_input = np.stack(list(windows.values()))
    unnormalised = replace(resnet152, profile=replace(resnet152.profile, mean=(0.0,) * 3, std=(1.0,) * 3))
    made = {f"v{i}": extract_video(folder / f"v{i}.mp4", [resnet152])["resnet152"].features for i in range(2)}
    for name, features in made.items():
        np.save(theirs / f"{name}.npy", features.astype(np.float16))
    np.save(theirs / "unknown.npy", rows())
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 0
    printed = capsys.readouterr()
    assert "1 of its 3 files are named like no video of mine" in printed.err
    assert "2 of 2 videos have the same rows" in printed.out
    assert sorted(FeatureStore(tmp_path / "root/mine/features/resnet152").video_ids()) == ["v0", "v1"], (
        "and no other was extracted"
    )

    wrong = unnormalised.features(torch.from_numpy(network_input[..., ::-1].copy())).numpy()
    np.save(theirs / "v0.npy", wrong)
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("v0"))
    assert "DIFFERENT: theirs have values 0..1, nothing subtracted, red and blue swapped (distance 0.0" in line


@pytest.mark.parametrize(
    "prepare, features, complaint",
    [
        (lambda theirs: None, "resnet152", "no feature files there; expected one a video, named by its id"),
        (
            lambda theirs: np.save(theirs / "x.npy", rows()),
            "resnet152",
            "none of its files (x, ...) is named like a video of mine",
        ),
        (lambda theirs: np.save(theirs / "v0.npy", rows()), "resnet152,s3d", "which features are these?"),
    ],
    ids=["empty", "other names", "two features"],
)
def test_a_verification_that_cannot_be_is_exit_2(folder, tmp_path, capsys, prepare, features, complaint):
    (tmp_path / "theirs").mkdir()
    prepare(tmp_path / "theirs")
    assert call(folder, tmp_path / "root", "--verify-against", str(tmp_path / "theirs"), features=features) == 2
    assert complaint in capsys.readouterr().err


def test_a_plan_says_what_will_be_and_changes_nothing(folder, tmp_path, capsys):
    assert call(folder, tmp_path / "root", "--plan", features="resnet152,i3d") == 1
    planned = capsys.readouterr()
    assert not (tmp_path / "root").exists()
    assert (
        "v0.mp4: has the same id, 'v0', as" in planned.err and "'broken'" in planned.err and "unreadable" in planned.err
    )
    assert (
        "1 of 3 videos cannot be read" in planned.out
        and "times as fast as they play on this machine's cpu" in planned.out
    )
    table = {
        line.split()[0]: line.split()[1:] for line in planned.out.splitlines() if line.startswith(("resnet152", "i3d"))
    }
    assert call(folder, tmp_path / "root", features="resnet152,i3d") == 1
    capsys.readouterr()
    for name in ("resnet152", "i3d_resnext101"):
        store = FeatureStore(tmp_path / "root" / "mine" / "features" / name)
        made = [store.get(video_id) for video_id in store.video_ids()]
        assert table[name][0] == str(len(made)) == "2"
        assert table[name][2] == str(sum(len(video.features) for video in made))

    assert call(folder, tmp_path / "root", "--plan", features="resnet152,i3d") == 1
    assert "nothing is left to extract" in capsys.readouterr().out
