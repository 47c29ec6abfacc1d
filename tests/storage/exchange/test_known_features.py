"""Imports of features of which little is known, and of public feature files."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.feature_files import A, B, rows, write_h5, write_pickle
from vlalign.storage import FeatureStore
from vlalign.storage.cli.store import main
from vlalign.storage.profiles import PROFILES
from vlalign.storage.records import UNKNOWN_VALUES, Profile
from vlalign.train.runs.run_json import features_note


class Call:
    """``vlalign-store`` on the data set d under a folder."""

    def __init__(self, root: Path, capsys) -> None:
        self.root, self._capsys = root, capsys

    def __call__(self, action: str, *args: object) -> tuple[int, str, str]:
        code = main([action, *map(str, args), "--root", str(self.root), "--dataset", "d"])
        return (code, *self._capsys.readouterr())

    def store(self, name: str) -> FeatureStore:
        return FeatureStore(self.root / "d" / "features" / name)


@pytest.fixture
def call(tmp_path, capsys):
    return Call(tmp_path, capsys)


@pytest.fixture
def theirs(tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    np.save(folder / "x.npy", A)
    return folder


def times_of(store: FeatureStore) -> tuple[list[float], list[float]]:
    video = store.get("x")
    return video.start_seconds.tolist(), video.end_seconds.tolist()


def test_profiles_of_today_keep_their_hash():
    assert PROFILES["s3d"].hash == "b6a5d85a047bc82e"
    assert all("unknown" not in json.loads(profile.to_json()) for profile in PROFILES.values())


def test_a_name_and_a_rate_are_enough(call, theirs):
    code, out, err = call("import", theirs, "--name", "mine", "--rate", 2)
    assert (code, err) == (0, "") and re.search(r"unknown.*: model, weights, window, stride, ", out)
    store = call.store("mine")
    assert times_of(store) == ([0, 0.5], [0.5, 1.0])
    assert (store.profile.name, store.profile.dimension, store.profile.fps) == ("mine", 3, 2)
    assert set(store.profile.unknown) == UNKNOWN_VALUES.keys() - {"fps"}
    assert Profile.from_json(store.profile.to_json()) == store.profile
    _, out, _ = call("info", "mine")
    for fact in ("model", "window", "mean", "crop_px", "layer", "decoding"):
        assert re.search(rf"    {fact} +unknown\n", out + "\n")
    assert re.search(r"    fps +2\n", out)
    assert call("import", theirs, "--name", "mine", "--rate", 2)[1].count("0 videos") == 1


def test_every_number_of_a_run_keeps_the_unknown_facts(call, theirs):
    call("import", theirs, "--name", "mine", "--rate", 2)
    store = call.store("mine")
    note = features_note([{"features": "mine", "weights": store.weights.name, "origin": store.origin}])
    assert note is not None and "imported" in note and re.search(r"mine: model, weights, window", note)


def test_what_is_known_may_be_a_part_of_a_profile(call, theirs, tmp_path):
    (tmp_path / "p.json").write_text('{"name": "mine", "fps": 4.0, "window": 2, "stride": 1, "model": "unknown"}')
    code, _, err = call("import", theirs, "--profile", tmp_path / "p.json")
    assert (code, err) == (0, "")
    store = call.store("mine")
    assert times_of(store) == ([0, 0.25], [0.5, 0.75])
    assert set(store.profile.unknown) == UNKNOWN_VALUES.keys() - {"fps", "window", "stride"}
    # What info shows is what import takes.
    about = json.loads(call("info", "mine", "--json")[1])[0]["profile"]
    assert about["model"] == about["mean"] == "unknown" and about["window"] == 2
    (tmp_path / "shown.json").write_text(json.dumps(about))
    assert call("import", theirs, "--profile", tmp_path / "shown.json")[1].count("0 videos") == 1


def test_a_rate_with_a_known_stride(call, theirs, tmp_path):
    (tmp_path / "p.json").write_text('{"name": "mine", "window": 32, "stride": 16}')
    assert call("import", theirs, "--profile", tmp_path / "p.json", "--rate", 1.5)[0] == 0
    assert call.store("mine").profile.fps == 24
    assert times_of(call.store("mine")) == ([0, 2 / 3], [4 / 3, 2])


def test_rows_spread_over_the_video(call, theirs, tmp_path):
    (tmp_path / "seconds.csv").write_text("video_id,seconds\nx,9\n")
    code, _, err = call("import", theirs, "--name", "m", "--spread", "--durations", tmp_path / "seconds.csv")
    assert (code, err) == (0, "") and times_of(call.store("m")) == ([0, 4.5], [4.5, 9])
    np.save(theirs / "y.npy", B)
    code, _, err = call("import", theirs, "--name", "m", "--spread", "--durations", tmp_path / "seconds.csv")
    assert code == 1 and re.search(r"y\.npy: .*duration", err)


def test_times_in_a_table(call, theirs, tmp_path):
    np.save(theirs / "y.npy", B)
    np.save(theirs / "z.npy", A)
    table = tmp_path / "times.csv"
    table.write_text("video_id,start_seconds,end_seconds\nx,0,1.5\ny,0,1\nx,1,4\nz,3,4\nz,1,2\n")
    code, _, err = call("import", theirs, "--name", "m", "--times", table)
    assert code == 1 and times_of(call.store("m")) == ([0, 1], [1.5, 4])
    assert call.store("m").video_ids() == ["x"] and "fps" in call.store("m").profile.unknown
    assert re.search(r"y\.npy: .*\[1, 2\]; expected \[4, 2\]", err) and re.search(
        r"z\.npy: its rows have impossible times", err
    )
    table.write_text("video_id,start_seconds,end_seconds\nx,2,1\nx,nan,3\n,0,1\nx,-1,3\n")
    code, _, err = call("import", theirs, "--name", "n", "--times", table)
    assert code == 2 and "line 2 (x,2,1), 3 (x,nan,3), 4 (,0,1), 5 (x,-1,3): " in err


@pytest.mark.parametrize(
    "args, named",
    [
        ((), "--profile"),
        (("--name", "m", "--profile", "s3d"), "--profile"),
        (("--name", "m"), "--rate"),
        (("--name", "m", "--rate", 1, "--spread"), "--rate and --spread"),
        (("--profile", "s3d", "--rate", 1), "its fps and --rate"),
        (("--name", "m", "--rate", 0), "rate"),
        (("--name", "m", "--rate", "nan"), "rate"),
        (("--name", "../m", "--rate", 1), "../m"),
        (("--profile", "sd3"), "mmt_s3d"),
        (("--profile", "mmt_face"), "--spread"),
        (("--name", "m", "--times", "times.csv"), "times.csv"),
    ],
)
def test_unclear_statements_are_refused_before_anything_is_written(call, theirs, args, named):
    code, _, err = call("import", theirs, *args)
    assert code == 2 and named in err and len(err.splitlines()) == 1
    assert not list(call.root.glob("d/features/*/*.h5"))


def experts(a: object, b: object) -> dict:
    return {"x": {"s3d": a, "rgb": b}, "y": {"s3d": a}}


@pytest.mark.parametrize(
    "name, write",
    [
        ("e.pkl", lambda path, content: write_pickle(path, content)),
        ("e.pth", lambda path, content: torch.save(content, path)),
        (
            "e.h5",
            lambda path, content: write_h5(path, {f"{v}/{e}": a for v, own in content.items() for e, a in own.items()}),
        ),
    ],
)
def test_one_of_several_experts(call, tmp_path, name, write):
    write(tmp_path / name, experts(A, B))
    code, _, err = call("import", tmp_path / name, "--name", "s3d_theirs", "--rate", 1, "--key", "s3d")
    assert (code, err) == (0, "") and call.store("s3d_theirs").video_ids() == ["x", "y"]
    np.testing.assert_array_equal(call.store("s3d_theirs").get("x").features, A)
    code, _, err = call("import", tmp_path / name, "--name", "rgb", "--rate", 1, "--key", "rgb")
    assert code == 1 and call.store("rgb").video_ids() == ["x"] and re.search(r"'y'.*'rgb'.*found s3d", err)
    np.testing.assert_array_equal(call.store("rgb").get("x").features, B)
    code, _, err = call("import", tmp_path / name, "--name", "none", "--rate", 1)
    assert code != 0 and "rgb" in err, "without --key, a video with two arrays is not guessed"


def test_a_key_of_arrays_without_groups_is_refused(call, tmp_path):
    write_pickle(tmp_path / "e.pkl", {"x": A, "y": B})
    code, _, err = call("import", tmp_path / "e.pkl", "--name", "m", "--rate", 1, "--key", "s3d")
    assert code == 2 and "'s3d'" in err and "x, y" in err
    code, _, err = call("import", tmp_path / "e.pkl", "--name", "m", "--rate", 1, "--key", "s", "--pattern", "{id}")
    assert code == 2 and "--key" in err


# Public files, as their authors' code writes them (published_features.py names it).


def write_hero(path: Path, dimension: int) -> None:
    path.mkdir()
    np.savez(path / "x.npz", features=rows(2, dimension, "float16"))


def write_mmpt(path: Path, dimension: int) -> None:
    path.mkdir()
    np.save(path / "x.npy", rows(2, dimension, "float16"))


def write_mmt(path: Path, dimension: int, expert: str) -> None:
    file = path / "x" / "1" / "2" / "x12.h5"
    file.parent.mkdir(parents=True)
    with h5py.File(file, "w") as content:
        content[f"features.{expert}"] = rows(2, dimension)
        content[f"features_t.{expert}"] = np.array([[0, 1], [1, 2.0]])
        content["features.other"], content["features_t.other"] = rows(5, 7), np.zeros((5, 2))
        content["raw_captions.0"] = np.array([b"a", b"word"])
        content["raw_captions_t.0"] = np.zeros((2, 2))


def write_experts(path: Path, dimension: int) -> None:
    write_pickle(path, {"x": rows(2, dimension)}, 5)


PUBLIC = {
    "hero_resnet152": ("f", write_hero, 2048, (), [0, 1.5]),
    "hero_slowfast": ("f", write_hero, 2304, (), [0, 1.5]),
    "hero_s3d": ("f", write_hero, 1024, (), [0, 1.5]),
    "hero_clip_vit_b32": ("f", write_hero, 512, (), [0, 1.5]),
    "mmpt_s3d": ("f", write_mmpt, 512, (), [0, 1]),
    "mmt_s3d": ("f", lambda p, d: write_mmt(p, d, "s3d"), 1024, (), [0, 1]),
    "mmt_vggish": ("f", lambda p, d: write_mmt(p, d, "vggish"), 128, (), [0, 1]),
    "mmt_rgb": ("f", lambda p, d: write_mmt(p, d, "rgb"), 2048, (), [0, 0.2]),
    "mmt_scene": ("f", lambda p, d: write_mmt(p, d, "scene"), 2208, (), [0, 1]),
    "mmt_face": ("f", lambda p, d: write_mmt(p, d, "face"), 512, ("--spread", "--durations"), [0, 5]),
    "ce_senet154": ("senet154-fixed_seg.pickle", write_experts, 2048, ("--rate", "1"), [0, 1]),
    "ce_vggish": ("Audio_MSRVTT_new.pickle", write_experts, 128, ("--rate", "1"), [0, 1]),
    "clip4clip_vit_b32": ("MSRVTT_CLIP4Clip_features.pickle", write_experts, 512, ("--durations",), [0, 5]),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_public_feature_files_are_imported_by_name(call, tmp_path, name):
    file, write, dimension, args, starts = PUBLIC[name]
    write(tmp_path / file, dimension)
    video_id = "x12" if name.startswith("mmt_") else "x"
    (tmp_path / "seconds.csv").write_text(f"video_id,seconds\n{video_id},10\n")
    args = [*args, tmp_path / "seconds.csv"] if "--durations" in args else args
    code, out, err = call("import", tmp_path / file, "--profile", name, *args)
    assert (code, err) == (0, ""), err
    video = call.store(name).get(video_id)
    np.testing.assert_allclose(video.start_seconds, starts)
    assert video.features.shape == (2, dimension) and "unknown" in out
    expected = rows(2, dimension, "float16" if name[0] == "h" or name.startswith("mmpt") else "float32")
    np.testing.assert_array_equal(video.features, expected)


def test_missing_experts_and_wrong_times_are_named(call, tmp_path):
    write_mmt(tmp_path / "f", 1024, "s3d")
    with h5py.File(tmp_path / "f/x/1/2/y.h5", "w") as file:
        file["features.s3d"], file["features_t.s3d"] = rows(3, 1024), np.zeros((2, 2))
    with h5py.File(tmp_path / "f/x/1/2/z.h5", "w") as file:
        file["features.s3d"] = np.full((1, 1024), np.nan)
        file["features_t.s3d"] = np.zeros((1, 2))
    with h5py.File(tmp_path / "f/x/1/2/v.h5", "w") as file:
        file["features.rgb"] = rows(3, 2048)
    code, _, err = call("import", tmp_path / "f", "--profile", "mmt_s3d")
    assert code == 1 and call.store("mmt_s3d").video_ids() == ["x12"]
    lines = err.splitlines()
    assert len(lines) == 3 and all(any(f"{name}.h5" in line for line in lines) for name in "vyz")
    assert any("[2, 2]; expected [3, 2]" in line for line in lines) and any("nan" in line for line in lines)
