"""vlalign-extract --verify-against and --plan."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.foreign import rows
from helpers.videos import scene
from vlalign.extract import extract_video
from vlalign.extract.cli.extract import main
from vlalign.extract.pipeline.video_jobs import frame_spec_of
from vlalign.extract.verification.recipes import read_windows
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore

# The command


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for i in range(2):
        render_video(scene(1.2 + i), folder / f"v{i}.mp4")
    (folder / "broken.mp4").write_bytes(b"no video" * 1000)
    shutil.copy(folder / "v0.mp4", folder / "v0.mkv")
    return folder


def call(folder: Path, root: Path, *options: str, features: str = "resnet152") -> int:
    options = ["--videos", str(folder), "--features", features, "--weights", "random", *options]
    return main(["--root", str(root), "--dataset", "mine", *options])


@pytest.fixture
def theirs(folder, tmp_path, resnet152) -> Path:
    """Features of the two videos as others would have made them, and of one that nobody has."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    for name in ("v0", "v1"):
        features = extract_video(folder / f"{name}.mp4", [resnet152])["resnet152"].features
        np.save(theirs / f"{name}.npy", features.astype(np.float16))
    np.save(theirs / "unknown.npy", rows())
    return theirs


def test_verification_extracts_and_compares(folder, theirs, tmp_path, capsys):
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 0
    printed = capsys.readouterr()
    assert re.search(r"^note: 1 .*\b3 .* mine$", printed.err, re.MULTILINE)
    assert "2 of 2 videos" in printed.out
    assert sorted(FeatureStore(tmp_path / "root/mine/features/resnet152").video_ids()) == ["v0", "v1"], (
        "and no other was extracted"
    )


@pytest.mark.slow
def test_verification_explains_how_other_rows_were_made(folder, theirs, tmp_path, capsys, resnet152):
    ((windows,), _) = read_windows(folder / "v0.mp4", [frame_spec_of(resnet152.profile)], range(6))
    network_input = np.stack(list(windows.values()))
    unnormalised = replace(resnet152, profile=replace(resnet152.profile, mean=(0.0,) * 3, std=(1.0,) * 3))
    wrong = unnormalised.features(torch.from_numpy(network_input[..., ::-1].copy())).numpy()
    np.save(theirs / "v0.npy", wrong)
    assert call(folder, tmp_path / "root", "--verify-against", str(theirs)) == 1
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("v0"))
    assert "DIFFERENT: theirs have values 0..1, nothing subtracted, red and blue swapped (distance 0.0" in line


@pytest.mark.parametrize(
    "prepare, features, complaint",
    [
        (lambda theirs: None, "resnet152", "theirs: "),
        (
            lambda theirs: np.save(theirs / "x.npy", rows()),
            "resnet152",
            "(x, ...)",
        ),
        (lambda theirs: np.save(theirs / "v0.npy", rows()), "resnet152,s3d", "--features resnet152 or s3d"),
    ],
    ids=["empty", "other names", "two features"],
)
def test_an_impossible_verification_exits_with_2(folder, tmp_path, capsys, prepare, features, complaint):
    (tmp_path / "theirs").mkdir()
    prepare(tmp_path / "theirs")
    assert call(folder, tmp_path / "root", "--verify-against", str(tmp_path / "theirs"), features=features) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("features", ["resnet152", "resnet152,i3d"])
def test_a_plan_reports_the_work_and_changes_nothing(folder, tmp_path, features, capsys):
    assert call(folder, tmp_path / "root", "--plan", features=features) == 1
    planned = capsys.readouterr()
    assert not (tmp_path / "root").exists()
    assert all(name in planned.err for name in ("v0.mp4: ", "'v0'", "'broken'")) and "unreadable" in planned.err
    assert "1 of 3 videos" in planned.out and "cpu" in planned.out
    table = {
        line.split()[0]: line.split()[1:] for line in planned.out.splitlines() if line.startswith(("resnet152", "i3d"))
    }
    assert call(folder, tmp_path / "root", features=features) == 1
    capsys.readouterr()
    assert len(table) == len(features.split(","))
    for name in table:
        store = FeatureStore(tmp_path / "root" / "mine" / "features" / name)
        made = [store.get(video_id) for video_id in store.video_ids()]
        assert table[name][0] == str(len(made)) == "2"
        assert table[name][2] == str(sum(len(video.features) for video in made))

    assert call(folder, tmp_path / "root", "--plan", features=features) == 1
    assert "nothing left to extract" in capsys.readouterr().out
