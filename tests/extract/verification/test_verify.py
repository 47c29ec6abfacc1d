"""Somebody else's features beside ours, and what a plan promises."""

import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.foreign import rows
from helpers.made_rows import (
    CHANGED,
    MADE_BY,
    NETWORKS,
    beginning,
    golden,
    is_told,
    real_videos,
    remembered,
    verdicts_of,
)
from helpers.needs import needs_program, shared
from vlalign.extract import extract_video
from vlalign.extract.extractor import Extractor
from vlalign.extract.verification.compare import Alternatives, compare
from vlalign.extract.verification.recipes import Recipes
from vlalign.storage import VideoFeatures
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange.readers import feature_files, read_features


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
    "name, write, value",
    [
        ("a.npy", lambda p: p.write_bytes(b"no array"), ""),
        ("a.npy", lambda p: p.write_bytes(b""), ""),
        ("a.npy", lambda p: np.save(p, np.array([{"a": 1}], dtype=object)), ""),
        ("a.npy", lambda p: np.save(p, rows().reshape(2, 6, 8, 8)), r"\[2, 6, 8, 8\]"),
        ("a.npy", lambda p: np.save(p, rows()[:0]), r"\[0, 64\]"),
        ("a.npz", lambda p: p.write_bytes(b"PK no zip"), ""),
        ("a.npz", lambda p: np.savez(p, rgb=rows(), flow=rows()), "'features'.* rgb, flow"),
        ("a.h5", lambda p: p.write_bytes(b"no HDF5"), ""),
        ("a.h5", lambda p: write_h5(p, words=["a", "b"]), "'features'"),
        ("a.h5", linked, "'features'"),
        ("a.h5", external, "'features'"),
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
def test_other_files_are_refused_in_a_line(tmp_path, name, write, value):
    write(tmp_path / name)
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path / name))}.*: .*{value}") as refused:
        read_features(tmp_path / name)
    assert "\n" not in str(refused.value)


# Real videos, and networks as they are


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


@pytest.mark.slow
@needs_program
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
    assert is_told(found, remark), found.notes


NUM_REAL_VIDEOS = 9


@pytest.mark.slow
@needs_program
@pytest.mark.parametrize("number", range(NUM_REAL_VIDEOS))
def test_how_rows_of_each_real_video_were_made_is_told(number, tmp_path):
    """Every video with one network, every network at least once: all pairs take hours, and are a benchmark,
    ``verdicts.py``."""
    paths = real_videos(tmp_path)
    assert len(paths) == NUM_REAL_VIDEOS
    verdicts = verdicts_of(NETWORKS[number % len(NETWORKS)], paths, [paths[number]], tmp_path)
    wrong = [verdict for verdict in verdicts if not verdict.right]
    assert len(verdicts) > len(CHANGED) and not wrong, "\n".join(map(str, wrong))
