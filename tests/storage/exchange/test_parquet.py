"""Parquet files of features: vlalign's own, read by other programs, and those of other programs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.feature_files import IDS, PROFILE, assert_same, imported, make_store, read_all
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.exchange import parquet
from vlalign.storage.exchange.dataset_card import card
from vlalign.storage.exchange.declared_profile import read_declared
from vlalign.storage.exchange.exports import export_store
from vlalign.storage.exchange.published_features import PUBLISHED


def test_other_programs_read_a_row_for_each_window(tmp_path):
    store = make_store(tmp_path / "store", IDS, "float16")
    export_store(store, tmp_path / "out", "parquet", Problems())
    (path,) = (tmp_path / "out").iterdir()
    frame = pandas.read_parquet(path)
    expected = [(video_id, row) for video_id in sorted(IDS) for row in range(len(store.get(video_id).features))]
    assert list(frame["video_id"]) == [video_id for video_id, _ in expected]
    for (video_id, row), line in zip(expected, frame.itertuples(), strict=True):
        video = store.get(video_id)
        np.testing.assert_array_equal(line.embedding, video.features[row].astype(np.float32))
        assert (line.start_seconds, line.end_seconds) == (video.start_seconds[row], video.end_seconds[row])
    assert frame["embedding"][0].dtype == np.float32


def test_files_are_limited_and_one_holds_one_type(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "FILE_BYTES", 200)
    monkeypatch.setattr(parquet, "GROUP_BYTES", 100)
    store = make_store(tmp_path / "store", [f"v{i:02d}" for i in range(30)], "float16")
    some = make_store(tmp_path / "some", ["x0", "x1"], "float32")
    for path in some.folder.glob("*.h5"):
        path.rename(store.folder / path.name)
    store = FeatureStore(store.folder)
    export_store(store, tmp_path / "out", "parquet", Problems())
    assert len(list((tmp_path / "out").iterdir())) > 2
    assert imported(tmp_path / "out", tmp_path / "again")[0] == 32
    again = FeatureStore(tmp_path / "again")
    assert_same(store, again)
    assert again.get("x0", dtype=None).features.dtype == np.float32 != again.get("v00", dtype=None).features.dtype


def write(path, **columns):
    pq.write_table(pa.table(columns), path)
    return path


A = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_files_of_other_programs_need_ids_and_embeddings(tmp_path):
    plain = write(tmp_path / "a.parquet", id=["a", "a", "b", "b"], vector=list(A), other=[1, 2, 3, 4])
    found, refused = read_all(plain)
    assert not refused
    np.testing.assert_array_equal(found["a"], A[:2])
    np.testing.assert_array_equal(found["b"], A[2:])
    cases = {
        "columns": (
            write(tmp_path / "b.parquet", name=["a"], vector=[A[0]]),
            "name, vector",
        ),
        "lengths": (write(tmp_path / "c.parquet", id=["a", "a"], vector=[[1.0], [1.0, 2.0, 3.0]]), "c.parquet"),
        "texts": (write(tmp_path / "d.parquet", id=["a"], vector=[["x"]]), "string"),
        "gaps": (write(tmp_path / "e.parquet", id=["a"], vector=pa.array([None], pa.list_(pa.float32()))), "list<"),
        "numbers": (write(tmp_path / "f.parquet", id=["a"], vector=[1.0]), " double"),
    }
    for path, value in cases.values():
        try:
            found, refused = read_all(path)
        except Exception as error:
            found, refused = {}, [str(error)]
        assert not found and str(path) in refused[0] and value in refused[0], refused
    write(tmp_path / "g.parquet", id=["a", "b", "a"], vector=list(A[:3]))
    num_new, problems = imported(tmp_path / "g.parquet", tmp_path / "store")
    assert (num_new, problems.count) == (2, 1), "rows of a video that lie apart are no video"


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    export_store(make_store(tmp_path / "store"), tmp_path / "out", "parquet", Problems())
    (path,) = (tmp_path / "out").iterdir()
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-1], whole[:100] + whole[150:], whole[:-300] + bytes(300)):
        path.write_bytes(content)
        with pytest.raises(Exception, match=re.escape(f"{path}: ")) as refused:
            read_all(path)
        assert "\n" not in str(refused.value)


def test_a_folder_for_hubs_has_a_card_and_comes_back_by_its_command(tmp_path, monkeypatch):
    store = make_store(tmp_path / "store", IDS)
    export_store(store, tmp_path / "out", "hub", Problems())
    text = (tmp_path / "out" / "README.md").read_text()
    assert text == card(store, len(IDS)) and text.startswith("---\nlicense: other\n")
    assert f"| frame rate | {PROFILE.fps} frames a second |" in text and store.weights.sha256 in text
    assert read_declared(str(tmp_path / "out" / "profile.json"), PUBLISHED).profile(1) == store.profile
    (files,) = re.findall(r"data_files: (.*)", text)
    assert [str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").glob(files)] == ["data/part-00000.parquet"]
    (command,) = re.findall(r"`vlalign-store (.*)`", text)
    monkeypatch.chdir(tmp_path / "out")
    assert store_main(shlex.split(command)) == 0
    assert_same(store, FeatureStore(DatasetFolder(Path("vlalign_data"), "NAME").features(PROFILE.name)))


def test_videos_without_rows_come_back(tmp_path):
    nothing = VideoFeatures(
        video_id="silent",
        features=np.zeros((0, 3)),
        start_seconds=np.zeros(0),
        end_seconds=np.zeros(0),
        valid_frames=np.zeros(0, int),
        duration_seconds=2.5,
    )
    write_shard(tmp_path / "store", PROFILE, Weights(name="w", sha256="ab" * 32), [nothing], made_with={})
    export_store(FeatureStore(tmp_path / "store"), tmp_path / "out", "parquet", Problems())
    assert imported(tmp_path / "out", tmp_path / "again")[0] == 1
    assert FeatureStore(tmp_path / "again").duration_seconds("silent") == 2.5
