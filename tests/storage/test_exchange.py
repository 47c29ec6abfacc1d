"""Features from elsewhere, exports for others, and files that mean harm."""

import io
import json
import math
import os
import pickle
import shutil
import signal
import struct
import tarfile
import tracemalloc
from collections import OrderedDict, defaultdict
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from helpers.shared import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.exchange.exports import FORMS, export_store
from vlalign.storage.exchange.foreign import foreign_videos
from vlalign.storage.exchange.imports import IMPORTED, import_features
from vlalign.storage.exchange.stated import read_durations, read_profile
from vlalign.storage.files import file_identity
from vlalign.storage.profiles import PROFILES, S3D

PROFILE = replace(S3D, name="theirs", fps=4, window=2, stride=1, dimension=3)
WEIGHTS = Weights(name="theirs.pth", sha256="")
KNOWN_WEIGHTS = Weights(name="w.pth", sha256="ab" * 32)


def rows(num_rows: int = 2, dimension: int = 3, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_rows, dimension)).astype(dtype)


A, B = rows(2), rows(4, seed=1)


def read_all(source: Path, pattern: str | None = None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Rows by video id, and what was said of the others."""
    found, refused = {}, []
    with foreign_videos(source, pattern) as videos:
        for video in videos:
            try:
                found[video.video_id] = video.read().rows
            except UserError as error:
                refused.append(str(error))
    assert not any("\n" in line for line in refused)
    return found, refused


def imported(source: Path, folder: Path, profile=PROFILE, weights=WEIGHTS, **more) -> tuple[int, Problems]:
    problems = Problems()
    return import_features(source, folder, profile, weights, problems=problems, **more), problems


def assert_same(store: FeatureStore, other: FeatureStore, *, times: bool = True) -> None:
    assert sorted(store.video_ids()) == sorted(other.video_ids())
    for video_id in store.video_ids():
        one, two = store.get(video_id, dtype=None), other.get(video_id, dtype=None)
        assert one.features.dtype == two.features.dtype
        np.testing.assert_array_equal(one.features, two.features)
        if times:
            for name in ("start_seconds", "end_seconds", "valid_frames", "duration_seconds", "partial"):
                np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


def write_h5(path: Path, arrays: dict) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_pickle(path: Path, content: object, protocol: int = 4) -> None:
    path.write_bytes(pickle.dumps(content, protocol))


# Containers


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
def test_containers(tmp_path, kind):
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
def test_axes_of_length_one_go(tmp_path, before, after):
    np.savez(tmp_path / "f.npz", x=np.ones(before))
    assert read_all(tmp_path / "f.npz")[0]["x"].shape == after


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", ">f4", ">f2", "i4", "u1"])
def test_halves_stay_and_the_rest_becomes_float32(tmp_path, kind):
    array = (rows() * 10).astype(kind)
    np.save(tmp_path / "x.npy", array)
    found = read_all(tmp_path)[0]["x"]
    assert found.dtype == ("float16" if "f2" in kind else "float32") and found.dtype.isnative
    np.testing.assert_allclose(found, array, rtol=1e-6)


def test_one_bad_video_is_a_line_and_the_others_go_on(tmp_path, capsys):
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
        "Python objects",
        "values, the profile has 3",
        "reach nan",
        "reach inf",
        r"'two\nlines'",
    ):
        assert what in said


def test_a_folder_with_bad_files_is_imported_but_for_them(tmp_path, capsys):
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
    assert "a second video 'good'" in said and "found rgb, flow" in said


@pytest.mark.parametrize(
    "name, write, pattern, complaint",
    [
        ("none", lambda p: None, None, "not found"),
        (
            "f.mat",
            lambda p: p.write_bytes(b""),
            None,
            "unknown suffix; expected a folder, or a file ending in .npy",
        ),
        ("folder", lambda p: p.mkdir(), None, "no features in it"),
        ("x.npy", lambda p: np.save(p, A), "{id}_rgb", "no features like '{id}_rgb' in it"),
        ("x.npy", lambda p: np.save(p, A), "_rgb", "expected {id} once in it"),
        ("f.h5", lambda p: p.write_bytes(b"no HDF5"), None, "not a readable feature file"),
        ("f.npz", lambda p: p.write_bytes(b"PK"), None, "not a readable feature file"),
        ("f.npz", lambda p: np.save(p.open("wb"), A), None, "not a readable feature file"),
        ("f.pkl", lambda p: write_pickle(p, [A]), None, "a pickled list; expected a dict {video id: array}"),
        ("f.tar", lambda p: p.write_bytes(b""), None, "not a readable feature file"),
    ],
)
def test_sources_without_features_are_refused_in_a_line(tmp_path, name, write, pattern, complaint):
    write(tmp_path / name)
    with pytest.raises(UserError) as refused:
        imported(tmp_path / name, tmp_path / "store", pattern=pattern)
    assert complaint in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "store").exists()


# Pickles in circulation


@pytest.mark.parametrize("protocol", range(6))
def test_all_that_numpy_and_python_pickle_plainly_is_read(tmp_path, protocol):
    arrays = {
        "plain": A,
        "half": A.astype("f2"),
        "big endian": A.astype(">f4"),
        "Fortran": np.asfortranarray(A),
        "strided": np.repeat(A, 2, axis=0)[::2],
        "integers": np.arange(6).reshape(2, 3),
        b"bytes": A,
        np.str_("text of numpy"): A,
        7: A,
        "list of rows": list(A),
        "list of arrays": [A[:1], A[1:]],
        "numbers": A.tolist(),
        "tuple": tuple(A[0].tolist()),
        "ordered": OrderedDict(features=A, seconds=2.5),
        "default": defaultdict(list, features=A, times=np.arange(2)),
        "scalars": {"features": A, "fps": np.float32(1.5), "name": np.str_("a")},
    }
    write_pickle(tmp_path / "f.pkl", arrays, protocol)
    found, refused = read_all(tmp_path / "f.pkl")
    assert not refused and found.keys() == {key.decode() if isinstance(key, bytes) else str(key) for key in arrays}
    for video_id, array in found.items():
        expected = {"integers": np.arange(6).reshape(2, 3), "tuple": A[:1], "half": A.astype("f2")}.get(video_id, A)
        np.testing.assert_array_equal(array, expected)


def of_python2(protocol: int) -> bytes:
    """What Python 2.7 with NumPy 1.16 writes for {"video0": A}: texts are bytes, and the modules have their old names."""
    if protocol == 0:
        content = repr(A.tobytes())[1:]
        content = content if content[0] == "'" else "'" + content[1:-1].replace("'", r"\'") + "'"
        return (
            b"(dp0\nS'video0'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n(I0\ntp4\nS'b'\np5\ntp6\nRp7\n"
            b"(I1\n(L2L\nL3L\ntp8\ncnumpy\ndtype\np9\n(S'f4'\np10\nI0\nI1\ntp11\nRp12\n(I3\nS'<'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\n"
            b"S" + content.encode() + b"\np15\ntp16\nbs."
        )
    return (
        b"\x80\x02}q\x01U\x06video0q\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05"
        b"(K\x01K\x02K\x03\x86cnumpy\ndtype\nq\x06U\x02f4K\x00K\x01\x87Rq\x07(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", A.nbytes) + A.tobytes() + b"tbs."
    )


@pytest.mark.parametrize("protocol", [0, 2])
def test_pickles_of_python_2(tmp_path, protocol):
    (tmp_path / "f.pickle").write_bytes(of_python2(protocol))
    assert pickle.loads(of_python2(protocol), encoding="latin1").keys() == {"video0"}, "the bytes above are a pickle"
    np.testing.assert_array_equal(read_all(tmp_path / "f.pickle")[0]["video0"], A)


# Pickles that mean harm


class Calls:
    """Pickled as a call."""

    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self) -> tuple:
        return self.call


def array_of(shape=(2, 3), kind="f4", content=bytes(24), order="<", fields=(None, None, None)) -> bytes:
    """A pickle of {"x": an array}, of which any part may be wrong."""
    dtype = Calls(np.dtype, (kind, False, True), (3, order, *fields, -1, -1, 0))
    build = Calls(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, shape, dtype, False, content))
    return pickle.dumps({"x": build}, 2)


def test_the_array_with_nothing_wrong_is_read(tmp_path):
    (tmp_path / "f.pkl").write_bytes(array_of())
    assert read_all(tmp_path / "f.pkl")[0]["x"].shape == (2, 3)


TOUCH = Calls(os.system, ("touch harm",))
HARMFUL = {
    "system": (pickle.dumps({"x": TOUCH}), "wants to build posix.system; only numpy arrays and plain containers"),
    "system, protocol 0": (b"cos\nsystem\n(S'touch harm'\ntR.", "wants to build os.system"),
    "system as an instance": (b"(S'touch harm'\nios\nsystem\n.", "wants to build os.system"),
    "eval": (pickle.dumps({"x": Calls(eval, ("open('harm', 'w')",))}), "wants to build builtins.eval"),
    "getattr": (pickle.dumps({"x": Calls(getattr, ("", "format"))}), "wants to build builtins.getattr"),
    "numpy.load": (pickle.dumps({"x": Calls(np.load, ("other.npy",))}), "wants to build numpy.load"),
    "numpy.fromfile": (pickle.dumps({"x": Calls(np.fromfile, ("other.npy",))}), "fromfile"),
    "dotted": (b"\x80\x04\x8c\x05numpy\x8c\x14dtype.__init__.__doc\x93.", "wants to build numpy.dtype.__init__.__doc"),
    "terminal codes": (b"\x80\x04\x8c\x05nu\nmp\x8c\x05\x1b[31m\x93.", r"wants to build nu\nmp.\x1b[31m"),
    "torch": (pickle.dumps({"x": torch.zeros(2, 3)}), "wants to build torch._utils._rebuild_tensor_v2"),
    "matrix": (pickle.dumps({"x": A.view(np.matrix)}), "wants to build numpy.matrix"),
    "masked": (pickle.dumps({"x": np.ma.array(A)}), "wants to build numpy.ma.core._mareconstruct"),
    "a class of ours": (pickle.dumps({"x": PROFILE}), "Profile; only numpy"),
    "codec": (
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x04\x00\x00\x00zlib\x86R.",
        "bytes in the encoding 'zlib'",
    ),
    "attributes of a builder": (b"\x80\x02cnumpy\ndtype\n}X\x04\x00\x00\x00nameK\x01sb.", "sets attributes"),
    "attributes of a dict": (b"\x80\x02}}X\x04\x00\x00\x00nameK\x01sb.", "sets attributes of a dict"),
    "call of a text": (b"\x80\x02X\x01\x00\x00\x00x)R.", "calls what is not a function"),
    "ndarray called": (pickle.dumps({"x": Calls(np.ndarray, ((9, 9),))}), "built in an unknown way"),
    "new object": (b"\x80\x02cnumpy\ndtype\n)\x81.", "neither numpy arrays nor plain containers"),
    "object": (b"(cnumpy\ndtype\no.", "neither numpy arrays nor plain containers"),
    "persistent": (b"Pharm\n.", "neither numpy arrays nor plain containers"),
    "registered": (b"\x80\x02\x82\x01.", "neither numpy arrays nor plain containers"),
    "set": (pickle.dumps({"x": {1, 2}}, 4), "neither numpy arrays nor plain containers"),
    "key that hashes for ever": (b"\x80\x02}K\x01" + b"2\x86" * 100 + b"K\x02s.", "a dict with a tuple for a key"),
    "memo of 32 GB": (b"\x80\x02}r\xff\xff\xff\x7f.", "no features in it"),
    "bytearray of 1 TB": (b"\x80\x05\x96" + struct.pack("<Q", 10**12) + b"abc.", "EOFError"),
    "bytes of 1 TB": (b"\x80\x04\x8e" + struct.pack("<Q", 10**12) + b"abc.", "EOFError"),
    "frame of 1 TB": (b"\x80\x04\x95" + struct.pack("<Q", 10**12) + b"}.", "no features in it"),
    "number of many digits": (b"I" + b"9" * 100_000 + b"\n.", "Exceeds the limit"),
    "nested": (b"]" * 10_000 + b"a" * 9_999 + b".", "a pickled list"),
    "a list in itself": (b"\x80\x02}K\x01]q\x01h\x01as.", "found none"),
    "a dict in itself": (b"\x80\x02}q\x01K\x01h\x01s.", "found none"),
    "one list a thousand times": (
        b"\x80\x02}K\x01](](" + b"K\x01" * 400_000 + b"eq\x01" + b"h\x01" * 1000 + b"es.",
        "it names the same arrays again and again; expected each once",
    ),
    "objects": (array_of((1,), "O8", ["x"]), "an array of Python objects; expected numbers"),
    "objects that call": (array_of((1,), "O8", [TOUCH]), "wants to build posix.system"),
    "structure": (array_of((3,), "V8", fields=(None, ("a",), {"a": 1})), "an array of 'structure'"),
    "type with a subtype": (array_of((3,), "V8", fields=(("f4", (2,)), None, None)), "an array of 'structure'"),
    "dates": (array_of((3,), "M8"), "an array of 'M8'"),
    "type that is code": (array_of((3,), "f4,O"), "an array of 'f4,O'"),
    "order that is a type": (array_of(order="f4,O,<"), "an array of 'f4'"),
    "no such type": (array_of((8,), "f3"), "not understood"),
    "gigantic": (array_of((10**9, 10**9)), "does not have its shape"),
    "gigantic and empty": (array_of((0, 10**15), content=b""), "expected [rows, values]"),
    "negative": (array_of((-2, -3)), "impossible type or shape"),
    "shape of lists": (array_of([2, 3]), "impossible type or shape"),
    "many axes": (array_of((1,) * 100 + (6,)), "impossible type or shape"),
    "never filled": (
        pickle.dumps({"x": Calls(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"))}, 2),
        "not enough values",
    ),
    "empty": (b"", "not a readable feature file"),
    "cut": (pickle.dumps({"x": A})[:-40], "not a readable feature file"),
    "text": (b"no pickle", "not a readable feature file"),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_harmful_pickles_do_nothing_but_make_a_line(tmp_path, monkeypatch, harm):
    monkeypatch.chdir(tmp_path)
    np.save("other.npy", A)
    content, complaint = HARMFUL[harm]
    Path("f.pkl").write_bytes(content)
    signal.alarm(60)
    tracemalloc.start()
    try:
        found, refused = read_all(Path("f.pkl"))
    except UserError as error:
        found, refused = {}, [str(error)]
    finally:
        signal.alarm(0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert not found and complaint in refused[0] and "f.pkl" in refused[0] and refused[0].isprintable()
    assert peak < 50e6
    assert sorted(os.listdir()) == ["f.pkl", "other.npy"]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_damaged_pickle_is_read_or_refused(tmp_path_factory, data):
    content = bytearray(
        data.draw(st.sampled_from([pickle.dumps({"x": A, "y": [1.5, 2]}, p) for p in range(6)] + [of_python2(0)]))
    )
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "f.pkl"
    path.write_bytes(content)
    try:
        read_all(path)
    except UserError as error:
        assert str(error).isprintable()


# Other files that mean harm


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


def test_an_hdf5_file_makes_no_other_be_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # whoever opens it waits for ever
    write_links(tmp_path / "f.h5")
    signal.alarm(60)
    found, refused = read_all(tmp_path / "f.h5")
    signal.alarm(0)
    assert found.keys() == {"good", "cycle"}
    assert sum("lies in another file; that is not followed" in line for line in refused) == 2
    assert sum("more than 2 GiB" in line for line in refused) == 1 and len(refused) == 6


def test_a_small_file_does_not_fill_the_memory(tmp_path, monkeypatch):
    for module in ("containers", "npz"):
        monkeypatch.setattr(f"vlalign.storage.exchange.{module}.MAX_ARRAY_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "x.npz", features=np.zeros((1 << 9, 1 << 10), "f4"))
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file.create_dataset("features", shape=(1 << 9, 1 << 10), dtype="f4", chunks=(8, 8))
    found, refused = read_all(tmp_path)
    assert not found and ["has more than" in line for line in refused] == [True, True]


def npy(shape: tuple, content: bytes = bytes(24), kind: str = "<f4") -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": kind, "fortran_order": False, "shape": shape})
    return head.getvalue() + content


ABOUT = {
    "video_id": "x",
    "start_seconds": [0, 1],
    "end_seconds": [1, 2],
    "valid_frames": [1, 1],
    "duration_seconds": 2,
    "partial": "",
}
ABOUT |= {"profile": asdict(PROFILE), "weights": asdict(WEIGHTS)}


def tar(*members: tuple[str, bytes], size_of_last: int | None = None) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as file:
        for number, (name, member) in enumerate(members, start=1):
            info = tarfile.TarInfo(name)
            info.size = len(member) if number < len(members) or size_of_last is None else size_of_last
            file.addfile(info)
            content.write(member.ljust(-(-len(member) // 512) * 512, b"\0"))
            file.offset = content.tell()
    return content.getvalue()


OURS = ("x.features.npy", npy((2, 3))), ("x.json", json.dumps(ABOUT).encode())


@pytest.mark.parametrize(
    "name, content, complaint",
    [
        ("x.npy", npy((10**9, 10**9)), "mmap length is greater than file size"),
        ("x.npy", npy((2**62, 4)), "too big"),
        ("x.npy", npy((-2, 3)), "negative dimensions"),
        ("x.npy", npy((1,), b"\x80\x04cos\nsystem\n.", "|O"), "Python objects"),
        ("x.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "large"),
        ("f.tar", tar(("x.features.npy", npy((2, 3)))), "no x.json beside"),
        ("f.tar", tar(("x.features.npy", npy((9, 9))), OURS[1]), "not a readable feature file"),
        ("f.tar", tar(OURS[0], ("x.json", b"[" * 100_000)), "not a readable feature file"),
        ("f.tar", tar(("y.features.npy", npy((2, 3))), ("y.json", OURS[1][1])), "its JSON says video 'x'"),
        ("f.tar", tar(*OURS, size_of_last=-2048), "members overlap"),
        ("f.tar", tar(*OURS, size_of_last=10**13), "not a readable feature file"),
    ],
)  # fmt: skip
def test_other_harmful_files_make_a_line(tmp_path, name, content, complaint):
    (tmp_path / name).write_bytes(content)
    signal.alarm(60)
    try:
        found, refused = read_all(tmp_path / name)
    except UserError as error:
        found, refused = {}, [str(error)]
    signal.alarm(0)
    assert not found and complaint in refused[0] and str(tmp_path / name) in refused[0]


# Times


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
    assert (
        not late
        or f"{late} of {num_rows} rows would start after the video's {duration:g} seconds" in capsys.readouterr().err
    )


def test_without_fps_a_video_needs_its_duration(tmp_path, capsys):
    np.savez(tmp_path / "f.npz", x=A, y=B)
    num_new, problems = imported(
        tmp_path / "f.npz", tmp_path / "store", replace(PROFILE, fps=None), durations={"x": 3.0}
    )
    assert (num_new, problems.count) == (1, 1)
    assert "f.npz, 'y': the profile has no fps, so the duration of the video is needed" in capsys.readouterr().err


# Stores


def test_an_import_says_what_it_is_and_from_where(tmp_path):
    source = tmp_path / "theirs.pkl"
    write_pickle(source, {"x": A, "y": B.astype("f2")})
    imported(source, tmp_path / "store")
    store = FeatureStore(tmp_path / "store")
    assert (store.profile, store.weights, store.origin) == (PROFILE, WEIGHTS, IMPORTED)
    assert store.source("x") == file_identity(source) + ":x" and store.get("x").decoder == ""
    assert {store.get(v, dtype=None).features.dtype.name for v in ("x", "y")} == {"float32", "float16"}
    assert all(shard.made_with["imported_from"] == "theirs.pkl" for shard in store.shards) and len(store.shards) == 2


def test_an_import_goes_on_where_it_was(tmp_path, capsys):
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
    assert (num_new, problems.count) == (0, 1) and "it needs no import" in capsys.readouterr().err


# There and back


IDS = ("plain", "sub/folder", "dots.in.it", "percent%2E", "ümläut 日本", "_x", "__under__", "a b#c", "x.npz/y")
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


def make_store(folder: Path, ids=IDS, dtype: str = "float32", weights: Weights = KNOWN_WEIGHTS) -> FeatureStore:
    videos = []
    for number, video_id in enumerate(ids):
        starts = np.arange(number) / 3
        videos.append(
            VideoFeatures(
                video_id=video_id,
                features=rows(number, seed=number).astype(dtype),
                start_seconds=starts,
                end_seconds=starts + 0.1,
                valid_frames=np.arange(number),
                duration_seconds=number + 1 / 7,
                partial="half of it" if number % 2 else "",
            )
        )
    write_shard(folder, PROFILE, weights, videos, made_with={}, dtype=dtype)
    return FeatureStore(folder)


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
        assert again.weights == store.weights, "which it says, and nobody stated"
    assert imported(tmp_path / "out", tmp_path / "again")[0] == 0


@pytest.mark.parametrize("form", FORMS)
def test_ids_that_no_file_can_have_are_left_out_of_files(tmp_path, form, capsys):
    store = make_store(tmp_path / "store", ODD_IDS)
    problems = Problems()
    num_written = export_store(store, tmp_path / "out", form, problems)
    if form == "webdataset":
        assert (num_written, problems.count) == (len(ODD_IDS), 0)
        assert imported(tmp_path / "out", tmp_path / "again")[0] == len(ODD_IDS)
        assert_same(store, FeatureStore(tmp_path / "again"))
    else:
        assert (num_written, problems.count) == (len(ODD_IDS) - 8, 8), (
            "the last one's folder has the name of another's file"
        )
        said = capsys.readouterr().err
        assert "video '../up'" in said and "too long" in said and "beside the others" in said
    assert not any(".." in str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*"))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "again") == ["out", "store"]


@settings(deadline=None, max_examples=40)
@given(id_=st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1), data=st.data())
def test_any_rows_of_any_video_come_back(tmp_path_factory, id_, data):
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


def test_an_export_has_the_same_bytes_each_time_and_readers_of_their_own(tmp_path):
    store = make_store(tmp_path / "store", ("b.c", "a"))
    for form in FORMS:
        for name in ("one", "two"):
            export_store(store, tmp_path / form / name, form, Problems())
        one, two = ({p.name: p.read_bytes() for p in (tmp_path / form / name).iterdir()} for name in ("one", "two"))
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


def test_tars_have_a_most_size(tmp_path, monkeypatch):
    monkeypatch.setattr("vlalign.storage.exchange.exports.TAR_BYTES", 50_000)
    store = make_store(tmp_path / "store", [f"v{i:02d}" for i in range(30)])
    export_store(store, tmp_path / "out", "webdataset", Problems())
    tars = sorted((tmp_path / "out").iterdir())
    assert [t.name for t in tars] == [f"{i:06d}.tar" for i in range(len(tars))] and len(tars) > 2
    assert max(t.stat().st_size for t in tars) <= 50_000
    imported(tmp_path / "out", tmp_path / "again")
    assert_same(store, FeatureStore(tmp_path / "again"))


@pytest.mark.parametrize("form", ["npz", "webdataset"])
@pytest.mark.parametrize(
    "profile, weights, both",
    [
        (replace(PROFILE, fps=5), WEIGHTS, ("fps 4 against 5", PROFILE.hash)),
        (PROFILE, Weights(name="w.pth", sha256="cd" * 32), ("ab" * 32, "cd" * 32)),
    ],
    ids=["profile", "weights"],
)
def test_an_export_that_says_otherwise_than_is_stated_is_refused(tmp_path, form, profile, weights, both):
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
def test_an_export_with_impossible_parts_is_a_line(tmp_path, change, capsys):
    (tmp_path / "f.tar").write_bytes(tar(OURS[0], ("x.json", json.dumps(ABOUT | change).encode())))
    num_new, problems = imported(tmp_path / "f.tar", tmp_path / "store")
    assert (num_new, problems.count) == (0, 1)
    said = capsys.readouterr().err
    assert f"{tmp_path / 'f.tar'}, 'x'" in said and said.count("\n") == 1


@pytest.mark.parametrize(
    "make, form, complaint",
    [
        (lambda p: p.mkdir(), "mat", "form 'mat': unknown; expected npy, npz, webdataset"),
        (lambda p: p.write_bytes(b""), "npy", "not empty"),
        (lambda p: (p / "sub").mkdir(parents=True), "npz", "not empty"),
    ],
)
def test_an_export_needs_a_known_form_and_an_empty_folder(tmp_path, make, form, complaint):
    store = make_store(tmp_path / "store")
    make(tmp_path / "out")
    with pytest.raises(UserError, match=complaint):
        export_store(store, tmp_path / "out", form, Problems())


# What users state


def stated(tmp_path: Path, **changes) -> Path:
    values = json.loads(PROFILE.to_json()) | changes
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
    return path


def test_a_profile_is_named_or_in_a_file(tmp_path):
    assert read_profile("s3d") == PROFILES["s3d"] and read_profile("i3d") == PROFILES["i3d_resnext101"]
    assert read_profile(str(stated(tmp_path))) == PROFILE
    assert read_profile(str(stated(tmp_path, fps=4.0, mean=[0, 0, 0]))).hash == PROFILE.hash
    assert read_profile(str(stated(tmp_path, fps=None, crop_px=None, short_side_px=0))) == replace(
        PROFILE, fps=None, crop_px=None, short_side_px=0
    )
    assert read_profile(str(stated(tmp_path, fps=1 / 0.96))).fps == 1 / 0.96


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"fps": ...}, "field 'fps' is missing; expected a number above 0, or null"),
        ({"frames": 3}, "field 'frames' is unknown; expected name, model"),
        ({"fps": "24"}, "field 'fps' is \"24\"; expected a number above 0"),
        ({"fps": 0}, "field 'fps' is 0"),
        ({"fps": math.inf}, "field 'fps' is Infinity"),
        ({"fps": True}, "field 'fps' is true"),
        ({"window": 1.5}, "field 'window' is 1.5; expected an integer above 0"),
        ({"dimension": -1}, "field 'dimension' is -1"),
        ({"crop_px": "centre"}, "field 'crop_px' is \"centre\"; expected an integer above 0, or null"),
        ({"mean": [1, 2]}, "field 'mean' is [1, 2]; expected three numbers"),
        ({"layer": None}, "field 'layer' is null; expected a text"),
        ({"name": "../up"}, "field 'name' is \"../up\"; expected letters"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, changes, complaint):
    path = stated(tmp_path, **changes)
    with pytest.raises(UserError) as refused:
        read_profile(str(path))
    assert str(refused.value).startswith(f"{path}: ") and complaint in str(refused.value)


def test_all_wrong_fields_are_named_at_once(tmp_path):
    with pytest.raises(UserError) as refused:
        read_profile(str(stated(tmp_path, fps=0, window=..., layer=None, frames=3)))
    assert "\n" not in str(refused.value)
    assert all(f"field {name!r} is " in str(refused.value) for name in ("fps", "window", "layer", "frames"))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, '"\ud800"', "null"])
def test_a_profile_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "profile.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UserError, match="not a JSON object") as refused:
        read_profile(str(tmp_path / "profile.json"))
    assert "\n" not in str(refused.value)
    with pytest.raises(UserError, match="neither a known name nor a file; expected resnet152"):
        read_profile("nothing")


@pytest.mark.parametrize(
    "text",
    [
        "video_id,seconds\nx,1.5\ny,2\n",
        "\ufeffvideo_id,seconds\r\nx,1.5\r\n\r\ny,2\r\n",
        "seconds,title,video_id\n1.5,T,x\n2,,y",
    ],
    ids=["plain", "of a spreadsheet", "more columns"],
)
def test_durations_are_read(tmp_path, text):
    (tmp_path / "d.csv").write_text(text, encoding="utf-8", newline="")
    assert read_durations(tmp_path / "d.csv") == {"x": 1.5, "y": 2.0}


@pytest.mark.parametrize(
    "content, complaint",
    [
        (b"", "columns none; expected video_id,seconds"),
        (b"x,1.5\n", "columns x,1.5; expected video_id,seconds"),
        (b"video_id,seconds\nx,1\ny,long\nz\n,3\nx,2\n", "line 3 (y,long), 4 (z,None), 5 (,3), 6 (x,2): expected"),
        (b"video_id,seconds\nx,-1\nx,0\nx,nan\nx,inf\nx,a\nx,b\n", "6 (x,a) and 1 more: expected"),
        (b"video_id,seconds\n\xff,1\n", "not readable CSV"),
        (b'video_id,seconds\n"x,1\n', "not readable CSV"),
    ],
)
def test_bad_durations_are_named_with_their_lines(tmp_path, content, complaint):
    (tmp_path / "d.csv").write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_durations(tmp_path / "d.csv")
    assert complaint in str(refused.value) and str(tmp_path / "d.csv") in str(refused.value)
    with pytest.raises(UserError, match="not readable CSV"):
        read_durations(tmp_path / "none.csv")


# Real files


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
def test_real_features_go_in_out_and_in_again(tmp_path, kind):
    path, pattern, fields, num_videos, seconds = REAL[kind]
    source = shared(f"data/features/{path}")
    profile = read_profile(str(stated(tmp_path, **fields)))
    durations = {p.stem: msvd_seconds(p) for p in source.glob("*.npy")} if profile.fps is None else None
    num_new, problems = imported(source, tmp_path / "store", profile, pattern=pattern, durations=durations)
    store = FeatureStore(tmp_path / "store")
    assert (num_new, problems.count, len(store)) == (num_videos, 0, num_videos)
    assert (store.profile, store.origin) == (profile, IMPORTED)
    assert max(map(store.duration_seconds, store.video_ids())) == pytest.approx(seconds)
    with foreign_videos(source, pattern) as videos:
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
