"""Somebody else's features beside ours, and what a plan promises."""

import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from videos import scene
from vlalign.extract import extract_video
from vlalign.extract.cli import main
from vlalign.extract.render import render_video
from vlalign.extract.verify import compare, first_windows
from vlalign.storage import FeatureStore, VideoFeatures
from vlalign.storage.console import UserError
from vlalign.storage.foreign import feature_files, read_features

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
    ids=["text", "empty", "objects", "4 axes", "no rows", "no zip", "two arrays", "no hdf5", "no numbers", "link", "external"],
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


@pytest.mark.parametrize(
    "change, same, remark",
    [
        (lambda f: f, True, None),
        (lambda f: f.astype(np.float16), True, None),
        (lambda f: f[:-1], True, "theirs has 1 rows fewer at the end"),
        (lambda f: f / np.linalg.norm(f, axis=1, keepdims=True), True, "their rows are L2-normalised, ours raw"),
        (lambda f: f * 7, True, "their rows are 7 times as long"),
        (lambda f: f[2:], False, "their rows come 2 earlier (cosine 1.0000 when moved)"),
        (lambda f: np.concatenate([rows(3, seed=9), f]), False, "their rows come 3 later (cosine 1.0000 when moved)"),
        (at_one_row_a_second, False, "another rate: 1.00 rows a second, ours 1.50"),
        (lambda f: f.mean(axis=0), True, "one row a video; compared with the mean of ours"),
        (lambda f: f.max(axis=0), True, "one row a video; compared with the maximum of ours"),
        (lambda f: rows(12, seed=5), False, None),
    ],
    ids=["itself", "float16", "shorter", "normalised", "scaled", "earlier", "later", "rate", "mean", "maximum", "other"],
)
def test_differences_are_named(change, same, remark):
    mine = rows(12)
    found = compare(ours(mine), change(mine))
    assert found.same == same
    if remark is None:
        assert not [r for r in found.remarks if "long" not in r]
    else:
        assert any(remark in r for r in found.remarks), found.remarks


def test_other_dimensions_and_rows_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match="their rows have 32 values, ours 64"):
        compare(ours(rows()), rows(dimension=32))
    broken = rows()
    broken[3, 1] = np.nan
    with pytest.raises(UserError, match="1 of their 12 rows are not finite"):
        compare(ours(rows()), broken)


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
    network_input = first_windows(folder / "v0.mp4", resnet152)
    unnormalised = replace(resnet152, profile=replace(resnet152.profile, mean=(0.0,) * 3, std=(1.0,) * 3))
    made = {f"v{i}": extract_video(folder / f"v{i}.mp4", [resnet152])["resnet152"].features for i in range(2)}
    for name, features in made.items():
        np.save(theirs / f"{name}.npy", features.astype(np.float16))
    np.save(theirs / "unknown.npy", rows())
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 0
    printed = capsys.readouterr()
    assert "1 of its 3 files are named like no video of mine" in printed.err
    assert "2 of 2 videos have the same rows" in printed.out
    assert sorted(FeatureStore(tmp_path / "root/mine/features/resnet152").video_ids()) == ["v0", "v1"], "and no other was extracted"

    wrong = unnormalised.features(torch.from_numpy(network_input[..., ::-1].copy())).numpy()
    np.save(theirs / "v0.npy", wrong)
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("v0"))
    assert "DIFFERENT: theirs were made with values 0..1, nothing subtracted, red and blue swapped (cosine 1.0000)" in line


@pytest.mark.parametrize(
    "prepare, features, complaint",
    [
        (lambda theirs: None, "resnet152", "no feature files there; expected one a video, named by its id"),
        (lambda theirs: np.save(theirs / "x.npy", rows()), "resnet152", "none of its files (x, ...) is named like a video of mine"),
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
    assert "v0.mp4: has the same id, 'v0', as" in planned.err and "'broken'" in planned.err and "unreadable" in planned.err
    assert "1 of 3 videos cannot be read" in planned.out and "times as fast as they play on this machine's cpu" in planned.out
    table = {line.split()[0]: line.split()[1:] for line in planned.out.splitlines() if line.startswith(("resnet152", "i3d"))}
    assert call(folder, tmp_path / "root", features="resnet152,i3d") == 1
    capsys.readouterr()
    for name in ("resnet152", "i3d_resnext101"):
        store = FeatureStore(tmp_path / "root" / "mine" / "features" / name)
        made = [store.get(video_id) for video_id in store.video_ids()]
        assert table[name][0] == str(len(made)) == "2"
        assert table[name][2] == str(sum(len(video.features) for video in made))

    assert call(folder, tmp_path / "root", "--plan", features="resnet152,i3d") == 1
    assert "nothing is left to extract" in capsys.readouterr().out
