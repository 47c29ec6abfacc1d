"""Feature files as other programs make them, and reading them."""

import io
import json
import pickle
import signal
import struct
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
from vlalign.storage import FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.exchange.imports import import_features
from vlalign.storage.exchange.readers import source_videos
from vlalign.storage.profiles import S3D

PROFILE = replace(S3D, name="theirs", fps=4, window=2, stride=1, dimension=3)


WEIGHTS = Weights(name="theirs.pth", sha256="")
MOST_SECONDS = 30


KNOWN_WEIGHTS = Weights(name="w.pth", sha256="ab" * 32)


def rows(num_rows: int = 2, dimension: int = 3, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_rows, dimension)).astype(dtype)


A, B = rows(2), rows(4, seed=1)


def read_all(source: Path, pattern: str | None = None, **more) -> tuple[dict[str, np.ndarray], list[str]]:
    """Rows by video id, and what was said of the others."""
    found, refused = {}, []
    with source_videos(source, pattern, **more) as videos:
        for video in videos:
            try:
                found[video.video_id] = video.read().rows
            except UserError as error:
                refused.append(str(error))
    assert not any("\n" in line for line in refused)
    return found, refused


def bounded(read: Callable[[], tuple[dict, list[str]]], most_bytes: int = 60_000_000) -> tuple[dict, list[str]]:
    """Return what ``read`` returns or the error that it raises, after little time and memory."""
    signal.alarm(MOST_SECONDS)
    tracemalloc.start()
    try:
        found, refused = read()
    except UserError as error:
        found, refused = {}, [str(error)]
    finally:
        signal.alarm(0)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < most_bytes
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


def of_python2(protocol: int) -> bytes:
    """What Python 2.7 with NumPy 1.16 writes for {"video0": A}: texts are bytes, and the modules have their old
    names."""
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
    """The bytes of a tar whose last member may declare another size than it has, which ``tarfile`` does not write."""
    content = io.BytesIO()
    for number, (name, member) in enumerate(members, start=1):
        info = tarfile.TarInfo(name)
        info.size = len(member) if number < len(members) or size_of_last is None else size_of_last
        content.write(info.tobuf(format=tarfile.GNU_FORMAT))
        content.write(member.ljust(-(-len(member) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, tarfile.NUL))
    content.write(tarfile.NUL * 2 * tarfile.BLOCKSIZE)
    return content.getvalue()


OURS = ("x.features.npy", npy((2, 3))), ("x.json", json.dumps(ABOUT).encode())


IDS = ("plain", "sub/folder", "dots.in.it", "percent%2E", "ümläut 日本", "_x", "__under__", "a b#c", "x.npz/y")


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


def declared(tmp_path: Path, **changes) -> Path:
    values = json.loads(PROFILE.to_json()) | changes
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
    return path
