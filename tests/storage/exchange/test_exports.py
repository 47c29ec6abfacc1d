"""Export of stores, and the way back."""

import json
import math
import shutil
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.feature_files import ABOUT, IDS, OURS, PROFILE, WEIGHTS, assert_same, declared, imported, make_store, tar
from helpers.needs import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.exchange.declared_profile import read_declared
from vlalign.storage.exchange.exports import FORMS, export_store
from vlalign.storage.exchange.imports import IMPORTED
from vlalign.storage.exchange.published_features import PUBLISHED
from vlalign.storage.exchange.readers import source_videos

pytestmark = pytest.mark.portable

ODD_IDS = (
    ".hidden",
    "../up",
    "/root",
    "a//b",
    "end/",
    "a/./b",
    "long" * 70,
    "x.npy",
    "x.npy.npy/y",
    "x.npz",
    "x.npz.npz/y",
)


WITH_ANY_ID = ("webdataset", "parquet", "hub")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_exported_comes_back_the_same(tmp_path, form, dtype):
    store = make_store(tmp_path / "store", dtype=dtype)
    problems = Problems()
    assert export_store(store, tmp_path / "out", form, problems) == len(store) and not problems.count
    num_new, problems = imported(tmp_path / "out", tmp_path / "again")
    again = FeatureStore(tmp_path / "again")
    if form == "npy":
        assert (num_new, problems.count) == (len(store) - 1, 1), "a video without rows says nothing without its times"
        store = make_store(tmp_path / "some", IDS, dtype)
        for video_id in IDS[1:]:
            np.testing.assert_array_equal(again.get(video_id).features, store.get(video_id).features)
    else:
        assert (num_new, problems.count) == (len(store), 0)
        assert_same(store, again)
        assert again.weights == store.weights, "which it says, and nobody declared"
    assert imported(tmp_path / "out", tmp_path / "again")[0] == 0


@pytest.mark.parametrize("form", FORMS)
def test_ids_that_cannot_be_file_names_are_left_out_of_file_exports(tmp_path, form, capsys):
    store = make_store(tmp_path / "store", ODD_IDS)
    problems = Problems()
    num_written = export_store(store, tmp_path / "out", form, problems)
    if form in WITH_ANY_ID:
        assert (num_written, problems.count) == (len(ODD_IDS), 0)
        assert imported(tmp_path / "out", tmp_path / "again")[0] == len(ODD_IDS)
        assert_same(store, FeatureStore(tmp_path / "again"))
    else:
        assert (num_written, problems.count) == (len(ODD_IDS) - 8, 8), (
            "the last one's folder has the name of another's file"
        )
        said = capsys.readouterr().err
        assert "video '../up'" in said and len(said.splitlines()) == 8
    assert not any(".." in str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "again") == ["out", "store"]


@settings(deadline=None, max_examples=40)
@given(id_=st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1), data=st.data())
def test_any_rows_survive_export_and_import(tmp_path_factory, id_, data):
    kind = data.draw(st.sampled_from(["float16", "float32"]))
    values = st.floats(width=np.finfo(kind).bits, allow_nan=False, allow_infinity=False)
    features = np.array(data.draw(st.lists(st.tuples(values, values, values), min_size=1, max_size=5)), kind)
    times = np.array(data.draw(st.lists(st.floats(0, 1e6), min_size=len(features), max_size=len(features))))
    more = {
        "start_seconds": times,
        "end_seconds": times * 2,
        "valid_frames": np.ones(len(times), int),
        "duration_seconds": 1e7,
    }
    video = VideoFeatures(video_id=id_, features=features, **more)
    folder = tmp_path_factory.mktemp("any")
    write_shard(folder / "store", PROFILE, WEIGHTS, [video], made_with={}, dtype=kind)
    export_store(FeatureStore(folder / "store"), folder / "out", "webdataset", Problems())
    imported(folder / "out", folder / "again")
    assert_same(FeatureStore(folder / "store"), FeatureStore(folder / "again"))
    shutil.rmtree(folder)


def test_exports_are_reproducible_and_readable_by_other_programs(tmp_path):
    store = make_store(tmp_path / "store", ("b.c", "a"))
    for form in FORMS:
        for name in ("one", "two"):
            export_store(store, tmp_path / form / name, form, Problems())
        one, two = (
            {p.name: p.read_bytes() for p in (tmp_path / form / name).rglob("*") if p.is_file()}
            for name in ("one", "two")
        )
        assert one == two
    np.testing.assert_array_equal(np.load(tmp_path / "npy/one/b.c.npy"), store.get("b.c").features)
    with np.load(tmp_path / "npz/one/a.npz", allow_pickle=False) as file:
        assert json.loads(str(file["profile"])) == json.loads(store.profile.to_json())
        assert json.loads(str(file["weights"])) == asdict(store.weights) and file[
            "duration_seconds"
        ] == store.duration_seconds("a")
    with tarfile.open(tmp_path / "webdataset/one/000000.tar") as file:
        assert file.getnames() == ["a.features.npy", "a.json", "b%2Ec.features.npy", "b%2Ec.json"]
        assert all((member.mtime, member.uid, member.uname) == (0, 0, "") for member in file)
        assert json.load(file.extractfile("b%2Ec.json"))["video_id"] == "b.c"


def test_tars_are_limited_in_size(tmp_path, monkeypatch):
    monkeypatch.setattr("vlalign.storage.exchange.webdataset.TAR_BYTES", 50_000)
    store = make_store(tmp_path / "store", [f"v{i:02d}" for i in range(30)])
    export_store(store, tmp_path / "out", "webdataset", Problems())
    tars = sorted((tmp_path / "out").iterdir())
    assert [t.name for t in tars] == [f"{i:06d}.tar" for i in range(len(tars))] and len(tars) > 2
    assert max(t.stat().st_size for t in tars) <= 50_000
    imported(tmp_path / "out", tmp_path / "again")
    assert_same(store, FeatureStore(tmp_path / "again"))


@pytest.mark.parametrize("form", ["npz", "webdataset", "parquet"])
@pytest.mark.parametrize(
    "profile, weights, both",
    [
        (replace(PROFILE, fps=5), WEIGHTS, ("fps 4 against 5", PROFILE.hash)),
        (PROFILE, Weights(name="w.pth", sha256="cd" * 32), ("ab" * 32, "cd" * 32)),
    ],
    ids=["profile", "weights"],
)
def test_an_import_that_contradicts_the_stated_profile_is_refused(tmp_path, form, profile, weights, both):
    export_store(make_store(tmp_path / "store"), tmp_path / "out", form, Problems())
    with pytest.raises(UserError) as refused:
        imported(tmp_path / "out", tmp_path / "again", profile, weights)
    assert all(side in str(refused.value) for side in both)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"start_seconds": [0, math.inf]},
        {"start_seconds": [0]},
        {"end_seconds": [-1, 2]},
        {"valid_frames": ["a", None]},
        {"duration_seconds": None},
        {"profile": 5},
        {"weights": {"name": "x"}},
        {"partial": None, "end_seconds": "x"},
    ],
    ids=str,
)
def test_an_export_with_invalid_parts_is_one_line(tmp_path, change, capsys):
    (tmp_path / "f.tar").write_bytes(tar(OURS[0], ("x.json", json.dumps(ABOUT | change).encode())))
    num_new, problems = imported(tmp_path / "f.tar", tmp_path / "store")
    assert (num_new, problems.count) == (0, 1)
    said = capsys.readouterr().err
    assert f"{tmp_path / 'f.tar'}, 'x'" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "make, form, complaint",
    [
        (lambda p: p.mkdir(), "mat", "'mat': .*npy, npz, webdataset"),
        (lambda p: p.write_bytes(b""), "npy", "out: "),
        (lambda p: (p / "sub").mkdir(parents=True), "npz", "out: "),
    ],
)
def test_an_export_needs_a_known_form_and_an_empty_folder(tmp_path, make, form, complaint):
    store = make_store(tmp_path / "store")
    make(tmp_path / "out")
    with pytest.raises(UserError, match=complaint):
        export_store(store, tmp_path / "out", form, Problems())


def msvd_seconds(path: Path) -> float:
    *_, start, end = path.stem.split("_")
    return float(end) - float(start)


REAL = {
    "VideoCLIP's S3D": (
        "testoftime",
        "{id}/how2_s3d_feat.npy",
        {"fps": 30, "window": 30, "stride": 30, "dimension": 512},
        2,
        34.0,
    ),
    "VGG16 of MSVD": ("msvd_vgg", None, {"fps": None, "window": 1, "stride": 1, "dimension": 4096}, 5, 14.0),
    "I3D RGB": ("bmt", "{id}_rgb.npy", {"fps": 25, "window": 64, "stride": 64, "dimension": 1024}, 1, 14 * 64 / 25),
    "I3D flow": ("bmt", "{id}_flow.npy", {"fps": 25, "window": 64, "stride": 64, "dimension": 1024}, 1, 14 * 64 / 25),
    "VGGish": ("bmt", "{id}_vggish.npy", {"fps": 1 / 0.96, "window": 1, "stride": 1, "dimension": 128}, 1, 36 * 0.96),
    "CLIP": ("univtg/vid.npz", None, {"fps": 0.5, "window": 1, "stride": 1, "dimension": 512}, 1, 30.0),
}


@pytest.mark.parametrize("kind", REAL)
def test_real_features_survive_import_export_and_import(tmp_path, kind):
    path, pattern, fields, num_videos, seconds = REAL[kind]
    source = shared(f"data/features/{path}")
    profile = read_declared(str(declared(tmp_path, **fields)), PUBLISHED)
    durations = {p.stem: msvd_seconds(p) for p in source.glob("*.npy")} if profile.facts["fps"] is None else None
    num_new, problems = imported(source, tmp_path / "store", profile, pattern=pattern, durations=durations)
    store = FeatureStore(tmp_path / "store")
    assert (num_new, problems.count, len(store)) == (num_videos, 0, num_videos)
    assert (store.profile, store.origin) == (profile.profile(store.profile.dimension), IMPORTED)
    assert max(map(store.duration_seconds, store.video_ids())) == pytest.approx(seconds)
    with source_videos(source, pattern) as videos:
        originals = {video.video_id: np.load(video.path) for video in videos}
    for video_id, original in originals.items():
        original = original if isinstance(original, np.ndarray) else original["features"]
        found = store.get(video_id, dtype=None).features
        assert found.dtype == original.dtype
        np.testing.assert_array_equal(found, original)
    for form in FORMS:
        assert export_store(store, tmp_path / form, form, Problems()) == num_videos
        imported(tmp_path / form, tmp_path / f"{form} again", profile, durations=durations)
        assert_same(store, FeatureStore(tmp_path / f"{form} again"))
