"""Feature files of other programs: which arrays are taken, and files that mean harm."""

import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.feature_files import OURS, A, B, imported, npy, read_all, rows, tar, write_h5, write_pickle
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange import feature_files
from vlalign.storage.exchange.readers import source_videos
from vlalign.storage.untrusted import npz

pytestmark = pytest.mark.portable


@pytest.mark.parametrize(
    "name, pattern, video_id",
    [
        ("sub/x.npy", None, "sub/x"),
        ("x.mp4.npy", None, "x"),  # HowTo100M
        ("x.webm.npy", None, "x"),
        ("a.b.c.npy", None, "a.b.c"),
        ("x_rgb.npy", "{id}_rgb.npy", "x"),
        ("x.mp4.npy", "{id}.npy", "x.mp4"),
        ("x/how2_s3d_feat.npy", "{id}/how2_s3d_feat.npy", "x"),
        ("a/b/c/abc.npy", "*/*/*/{id}.npy", "abc"),
    ],
)
def test_ids_come_from_names(tmp_path, name, pattern, video_id):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    np.save(tmp_path / name, A)
    np.save(tmp_path / "other.bin.npy", B)
    found, refused = read_all(tmp_path, pattern)
    np.testing.assert_array_equal(found[video_id], A)
    assert not refused and len(found) == (2 if pattern in (None, "{id}.npy") else 1)


def write_mmt(path: Path) -> None:
    """A file a video, several experts in it: as MMT's ``base_dataset.py`` reads them."""
    path = path / "a" / "b" / "c" / "x.h5"
    path.parent.mkdir(parents=True)
    write_h5(path, {"features.s3d": A, "features.vggish": B, "features_t.s3d": B, "raw_captions.0": [b"a", b"b"]})


CONTAINERS = {
    "npz, an array a video": ("f.npz", lambda p: np.savez(p, **{"x": A, "d/y": B}), None),
    "npz of one video": ("x.npz", lambda p: np.savez(p, features=A, labels=np.array(["a"])), None),
    "npy": ("x.npy", lambda p: np.save(p, A), None),
    "HDF5, a data set a video": ("f.h5", lambda p: write_h5(p, {"x": A, "d": B}), None),
    "HDF5, ActivityNet's": ("f.hdf5", lambda p: write_h5(p, {"x/c3d_features": A, "y/c3d_features": B}), None),
    "HDF5, groups": (
        "f.h5",
        lambda p: write_h5(p, {"x/features": A, "x/times": B, "y/rgb": B, "y/words": [b"a"]}),
        None,
    ),
    "HDF5, by pattern": ("f.h5", lambda p: write_h5(p, {"x/rgb": A, "x/flow": B, "y/flow": B}), "{id}/rgb"),
    "HDF5 of one video": ("x.h5", lambda p: write_h5(p, {"features": A, "times": B}), None),
    "MMT": ("mmt", write_mmt, "*/*/*/{id}.h5/features.s3d"),
    "pickle": ("f.pickle", lambda p: write_pickle(p, {"x": A, "y": B}), None),
    "pickle, names of arrays": ("f.pkl", lambda p: write_pickle(p, {"x": {"features": A, "boxes": B}}), None),
    "pickle, by pattern": (
        "f.pkl",
        lambda p: write_pickle(p, {"x": {"raw_feats_avg": A, "boxes": B}}),
        "{id}/raw_feats_avg",
    ),
    "pickle of experts": ("f.pkl", lambda p: write_pickle(p, {"rgb": {"x": A}, "flow": {"x": B}}), "rgb/{id}"),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_feature_files_of_each_kind_are_read(tmp_path, kind):
    name, write, pattern = CONTAINERS[kind]
    write(tmp_path / name)
    found, refused = read_all(tmp_path / name, pattern)
    np.testing.assert_array_equal(found["x"], A)
    assert not refused
    for other in found.keys() - {"x"}:
        np.testing.assert_array_equal(found[other], B)


@pytest.mark.parametrize(
    "before, after",
    [
        ((3,), (1, 3)),
        ((1, 5, 3), (5, 3)),
        ((5, 1, 3), (5, 3)),
        ((1, 3, 1, 1), (1, 3)),
        ((5, 1), (5, 1)),
        ((1, 1, 1), (1, 1)),
    ],
)
def test_axes_of_length_one_are_dropped(tmp_path, before, after):
    np.savez(tmp_path / "f.npz", x=np.ones(before))
    assert read_all(tmp_path / "f.npz")[0]["x"].shape == after


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4", ">f2", "i4", "u1"])
def test_float16_is_kept_and_other_types_become_float32(tmp_path, kind):
    array = (rows() * 10).astype(kind)
    np.save(tmp_path / "x.npy", array)
    found = read_all(tmp_path)[0]["x"]
    assert found.dtype == ("float16" if "f2" in kind else "float32") and found.dtype.isnative
    np.testing.assert_allclose(found, array, rtol=1e-6)


def test_one_invalid_video_is_one_line_and_others_are_imported(tmp_path, capsys):
    bad = {
        "no axes": np.float32(1),
        "no rows": A[:0],
        "three axes": np.ones((2, 2, 3)),
        "words": np.array(["a", "b"]),
        "objects": np.array([None, {}], dtype=object),
        "complex": A.astype("c8"),
        "wide": np.ones((2, 4), "f4"),
        "not a number": A * np.nan,
        "beyond float32": A.astype("f8") * 1e300,
        "": A,
        "two\nlines": A,
        "no text \udcff": A,
    }
    write_pickle(tmp_path / "f.pkl", {"good": A, **bad, "other": B}, protocol=4)
    num_new, problems = imported(tmp_path / "f.pkl", tmp_path / "store")
    said = capsys.readouterr().err
    assert (num_new, problems.count) == (2, len(bad))
    assert FeatureStore(tmp_path / "store").video_ids() == ["good", "other"]
    assert len(said.splitlines()) == len(bad) and all(str(tmp_path / "f.pkl") in line for line in said.splitlines())
    for what in (
        "[0, 3]",
        "[2, 2, 3]",
        "'O8'",
        " 4 ",
        " nan",
        " inf",
        r"'two\nlines'",
    ):
        assert what in said


def test_invalid_files_of_a_folder_are_skipped_and_named(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    np.save(source / "good.npy", A)
    np.savez(source / "good.npz", features=B)
    (source / "text.npy").write_text("no array")
    (source / "empty.h5").write_bytes(b"")
    (source / "broken.tar").write_bytes(b"no tar" * 200)
    np.savez(source / "two.npz", rgb=A, flow=A)
    os.mkfifo(source / "pipe.npy")
    num_new, problems = imported(source, tmp_path / "store")
    assert (num_new, problems.count) == (1, 5)
    np.testing.assert_array_equal(FeatureStore(tmp_path / "store").get("good").features, A)
    said = capsys.readouterr().err
    assert "good.npz: " in said and "'good'" in said and " rgb, flow" in said


@pytest.mark.parametrize(
    "name, write, pattern, complaint",
    [
        ("none", lambda p: None, None, "none: "),
        (
            "f.mat",
            lambda p: p.write_bytes(b""),
            None,
            "f.mat: ",
        ),
        ("folder", lambda p: p.mkdir(), None, "folder: "),
        ("x.npy", lambda p: np.save(p, A), "{id}_rgb", "'{id}_rgb'"),
        ("x.npy", lambda p: np.save(p, A), "_rgb", "{id}"),
        ("f.h5", lambda p: p.write_bytes(b"no HDF5"), None, "f.h5: "),
        ("f.npz", lambda p: p.write_bytes(b"PK"), None, "f.npz: "),
        ("f.npz", lambda p: np.save(p.open("wb"), A), None, "f.npz: "),
        ("f.pkl", lambda p: write_pickle(p, [A]), None, "{video id: array}"),
        ("f.tar", lambda p: p.write_bytes(b""), None, "f.tar: "),
    ],
)
def test_sources_without_features_are_refused_in_one_line(tmp_path, name, write, pattern, complaint):
    write(tmp_path / name)
    with pytest.raises(UserError) as refused:
        imported(tmp_path / name, tmp_path / "store", pattern=pattern)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "store").exists()


def write_links(path: Path) -> None:
    pipe = str(path.with_name("pipe"))
    with h5py.File(path, "w") as file:
        file["good"] = A
        file["outside"] = h5py.ExternalLink(pipe, "x")
        file["soft"] = h5py.SoftLink("/good")
        file["group/outside"] = h5py.ExternalLink(pipe, "x")
        file["cycle/features"] = A
        file["cycle/cycle"] = file["cycle"]
        file.create_dataset("raw", shape=(10, 10), dtype="f4", external=[(pipe, 0, 400)])
        layout = h5py.VirtualLayout(shape=(4, 3), maxshape=(None, 3), dtype="f4")
        there = h5py.VirtualSource(pipe, "d", shape=(4, 3), maxshape=(None, 3))
        layout[0 : h5py.h5s.UNLIMITED, :] = there[0 : h5py.h5s.UNLIMITED, :]
        file.create_virtual_dataset("virtual", layout)
        file.create_dataset("gigantic", shape=(10**6, 10**6), dtype="f8", chunks=(1000, 1000))


def test_external_links_in_hdf5_are_not_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    write_links(tmp_path / "f.h5")
    signal.alarm(60)
    found, refused = read_all(tmp_path / "f.h5")
    signal.alarm(0)
    assert found.keys() == {"good", "cycle"}
    assert sum("f.h5, 'raw': " in line for line in refused) == sum("f.h5, 'virtual': " in line for line in refused) == 1
    assert sum(" 2 GiB" in line for line in refused) == 1 and len(refused) == 6


def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    for module in (feature_files, npz):
        monkeypatch.setattr(module, "MAX_ARRAY_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "x.npz", features=np.zeros((1 << 9, 1 << 10), "f4"))
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("features", shape=(1 << 9, 1 << 10), dtype="f4", chunks=(8, 8))
    found, refused = read_all(tmp_path)
    of_npz, of_hdf5 = refused
    assert not found and of_npz.startswith(str(tmp_path / "x.npz")) and of_hdf5.startswith(str(tmp_path / "y.h5"))


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("x.npy", npy((10**9, 10**9)), "mmap length is greater than file size"),
        ("x.npy", npy((2**62, 4)), "too big"),
        ("x.npy", npy((-2, 3)), "negative dimensions"),
        ("x.npy", npy((1,), b"\x80\x04cos\nsystem\n.", "|O"), "Python objects"),
        ("x.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "large"),
        ("f.tar", tar(("x.features.npy", npy((2, 3)))), " x.json "),
        ("f.tar", tar(("x.features.npy", npy((9, 9))), OURS[1]), "f.tar"),
        ("f.tar", tar(OURS[0], ("x.json", b"[" * 100_000)), "f.tar"),
        ("f.tar", tar(("y.features.npy", npy((2, 3))), ("y.json", OURS[1][1])), "'x'"),
        ("f.tar", tar(*OURS, size_of_last=-2048), "f.tar: "),
        ("f.tar", tar(*OURS, size_of_last=10**13), "f.tar"),
    ],
)  # fmt: skip
def test_other_harmful_files_are_one_line(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    signal.alarm(60)
    try:
        found, refused = read_all(tmp_path / name)
    except UserError as error:
        found, refused = {}, [str(error)]
    signal.alarm(0)
    assert not found and complaint in refused[0] and str(tmp_path / name) in refused[0]


def test_arrays_of_a_file_that_are_left_out_are_named(tmp_path, capsys):
    for name, arrays in (("all.npz", {"v0": A, "v1": A, "v2": A}), ("one.npz", {"features": A, "other": A})):
        np.savez(tmp_path / name, **arrays)
    write_pickle(tmp_path / "all.pkl", {"v0": A, "v1": A, "v2": A})
    for source, key, left_out in (("all.npz", "v0", "v1, v2"), ("all.pkl", "v0", "v1, v2"), ("one.npz", None, "other")):
        with source_videos(tmp_path / source, key=key) as videos:
            assert [video.video_id for video in videos] == [source[:3]]
        [line] = capsys.readouterr().err.splitlines()
        assert source in line and line.partition("skipped arrays: ")[2].startswith(left_out)
    with source_videos(tmp_path / "one.npz", times="other"):
        assert capsys.readouterr().err == ""
