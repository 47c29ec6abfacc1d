"""Import into stores: the times of rows, and which stores take what."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.feature_files import PROFILE, WEIGHTS, A, B, imported, rows, write_pickle
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import file_identity
from vlalign.storage.exchange.imports import IMPORTED


def times_of(folder: Path, video_id: str = "x") -> tuple[list[float], list[float], float]:
    video = FeatureStore(folder).get(video_id)
    return video.start_seconds.tolist(), video.end_seconds.tolist(), video.duration_seconds


@pytest.mark.parametrize(
    "fps, num_rows, duration, starts, ends, late",
    [
        (4, 3, None, [0, 0.25, 0.5], [0.5, 0.75, 1.0], 0),
        (4, 3, 5.0, [0, 0.25, 0.5], [0.5, 0.75, 1.0], 0),
        (4, 3, 0.9, [0, 0.25, 0.5], [0.5, 0.75, 0.9], 0),
        (4, 3, 0.5, [0, 0.25, 0.5], [0.5, 0.5, 0.5], 0),
        (4, 4, 0.4, [0, 0.25, 0.4, 0.4], [0.4] * 4, 2),
        (0.5, 2, None, [0, 2], [4, 6], 0),
        (None, 4, 2.0, [0, 0.5, 1, 1.5], [0.5, 1, 1.5, 2], 0),
    ],
)
def test_rows_get_their_times(tmp_path, capsys, fps, num_rows, duration, starts, ends, late):
    np.savez(tmp_path / "f.npz", x=rows(num_rows))
    durations = None if duration is None else {"x": duration}
    num_new, problems = imported(tmp_path / "f.npz", tmp_path / "store", replace(PROFILE, fps=fps), durations=durations)
    assert (num_new, problems.count) == (1, int(late > 0))
    assert times_of(tmp_path / "store") == (starts, ends, duration or ends[-1])
    assert FeatureStore(tmp_path / "store").get("x").valid_frames.tolist() == [2] * num_rows
    assert not late or re.search(rf"f\.npz.*\b{late} of {num_rows} .*\b{duration:g} seconds", capsys.readouterr().err)


def test_without_fps_a_video_needs_its_duration(tmp_path, capsys):
    np.savez(tmp_path / "f.npz", x=A, y=B)
    num_new, problems = imported(
        tmp_path / "f.npz", tmp_path / "store", replace(PROFILE, fps=None), durations={"x": 3.0}
    )
    assert (num_new, problems.count) == (1, 1)
    assert re.search(r"f\.npz, 'y': .*\bfps\b", capsys.readouterr().err)


def test_an_import_records_its_origin(tmp_path):
    source = tmp_path / "theirs.pkl"
    write_pickle(source, {"x": A, "y": B.astype("f2")})
    imported(source, tmp_path / "store")
    store = FeatureStore(tmp_path / "store")
    assert (store.profile, store.weights, store.origin) == (PROFILE, WEIGHTS, IMPORTED)
    assert store.source("x") == file_identity(source) + ":x" and store.get("x").decoder == ""
    assert {store.get(v, dtype=None).features.dtype.name for v in ("x", "y")} == {"float32", "float16"}
    assert all(shard.made_with["imported_from"] == "theirs.pkl" for shard in store.shards) and len(store.shards) == 2


def test_an_interrupted_import_continues(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for i in range(70):
        np.save(source / f"v{i:02d}.npy", A + i)
    (source / "v65.npy").write_bytes(b"")
    assert imported(source, tmp_path / "store")[0] == 69
    assert len(FeatureStore(tmp_path / "store").shards) == 2, "64 videos a shard"
    np.save(source / "v65.npy", A)
    np.save(source / "v03.npy", B)
    num_new, problems = imported(source, tmp_path / "store")
    assert (num_new, problems.count) == (2, 0)
    np.testing.assert_array_equal(FeatureStore(tmp_path / "store").get("v03").features, B)
    assert imported(source, tmp_path / "store")[0] == 0


@pytest.mark.parametrize(
    "profile, weights, origin",
    [
        (replace(PROFILE, fps=5), WEIGHTS, IMPORTED),
        (PROFILE, Weights(name="other.pth", sha256=""), IMPORTED),
        (PROFILE, WEIGHTS, "extracted"),
    ],
    ids=["profile", "weights", "origin"],
)
def test_a_store_with_other_features_is_not_added_to(tmp_path, profile, weights, origin):
    times = np.arange(2.0)
    video = VideoFeatures(
        video_id="o", features=A, start_seconds=times, end_seconds=times + 1, valid_frames=times, duration_seconds=2.0
    )
    write_shard(tmp_path / "store", profile, weights, [video], made_with={}, origin=origin)
    np.save(tmp_path / "x.npy", A)
    with pytest.raises(UserError) as refused:
        imported(tmp_path / "x.npy", tmp_path / "store")
    assert all(
        both in str(refused.value)
        for both in (profile.hash, PROFILE.hash, weights.name, WEIGHTS.name, origin, IMPORTED)
    )


def test_a_store_is_not_imported_into_another(tmp_path, capsys):
    np.save(tmp_path / "x.npy", A)
    imported(tmp_path / "x.npy", tmp_path / "store")
    num_new, problems = imported(tmp_path / "store", tmp_path / "other")
    assert (num_new, problems.count) == (0, 1) and f"{tmp_path / 'store'}" in capsys.readouterr().err


def test_ids_that_the_data_set_does_not_list_are_counted(tmp_path, capsys):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "videos.jsonl").write_text('{"video_id": "sub/rgb", "path": "sub/rgb.mp4"}\n')
    (tmp_path / "feats").mkdir()
    np.save(tmp_path / "feats" / "rgb.npy", np.ones((3, 8), np.float32))
    call = ["import", str(tmp_path / "feats"), "--root", str(tmp_path), "--dataset", "d", "--name", "mine"]
    assert store_main([*call, "--rate", "1"]) == 0
    said = "".join(capsys.readouterr())
    assert "note: 1 of 1 id in " in said and "such as 'rgb'" in said and "such as 'sub/rgb'" in said
