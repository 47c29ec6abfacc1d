"""Small files that would take much time, memory or disk: each is read, or refused in a line, in proportion to its
size."""

import pickle
import signal
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers.feature_files import MOST_SECONDS, A, array_of, bounded, imported, npy, read_all, rows
from vlalign.storage import FeatureStore

MODULUS = 2**61 - 1
"""Multiples of it have the same hash."""


def doubled(depth: int) -> bytes:
    """Opcodes for a list of two times a list of two times ...; place ``depth`` of the memo has it."""
    steps = (b"](h%ch%ceq%c0" % (n, n, n + 1) for n in range(depth))
    return b"]q\x000" + b"".join(steps)


def long4(value: int) -> bytes:
    content = value.to_bytes(value.bit_length() // 8 + 1, "little")
    return b"\x8b" + struct.pack("<i", len(content)) + content


def in_a_dict(value: bytes, before: bytes = b"") -> bytes:
    return b"\x80\x02" + before + b"}X\x01\x00\x00\x00x" + value + b"s."


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


SHAPE = (
    b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85C\x01b\x87R("
    b"K\x01("
    + long4(1 << 2_000_000)
    + b"q\x05"
    + b"h\x05" * 3000
    + b"tcnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R\x89C\x00tb"
)
BUILD_TYPE = b"cnumpy\ndtype\nX\x02\x00\x00\x00f4\x89\x88\x87R(K\x03%sNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
COLLIDING_KEYS = b"".join(long4(number * MODULUS) + b"N" for number in range(1, 40_000))
COLLIDING_PLACES = b"".join(b"Np%d\n0" % (number * MODULUS) for number in range(1, 40_000))
ENCODED = b"(" + b"c_codecs\nencode\nh\x01h\x02\x86R" * 4000 + b"l"
PICKLES = {
    "type that is a doubled list": (
        in_a_dict(b"cnumpy\ndtype\nh\x3c\x85R", doubled(60)),
        " name)",
    ),
    "order that is a doubled list": (
        in_a_dict(BUILD_TYPE % b"h\x3c", doubled(60)),
        " name)",
    ),
    "encoding that is a doubled list": (
        in_a_dict(b"c_codecs\nencode\n" + text(b"a") + b"h\x3c\x86R", doubled(60)),
        " name)",
    ),
    "type with a long name": (
        in_a_dict(b"cnumpy\ndtype\n" + text(b"f" * 10**6) + b"\x89\x88\x87R"),
        " name)",
    ),
    "shape of huge numbers": (in_a_dict(SHAPE), ", 'x': "),
    "axes by the thousand": (array_of((1,) * 10_000 + (6,)), ", 'x': "),
    "keys that collide": (
        in_a_dict(b"}(" + COLLIDING_KEYS + b"u"),
        " 64 ",
    ),
    "places of the memo that collide": (b"\x80\x02" + COLLIDING_PLACES + b"}.", ".parquet"),
    "a text that is encoded 4,000 times": (
        b"\x80\x02" + text(b"a" * 10**6) + b"q\x010" + text(b"latin1") + b"q\x020" + in_a_dict(ENCODED)[2:],
        "f.pkl: ",
    ),
    "arguments that are a long text": (
        in_a_dict(b"(" + b"ccollections\ndefaultdict\nh\x01R" * 1000 + b"l", text(b"a" * 10**6) + b"q\x010"),
        " str; ",
    ),
}


@pytest.mark.parametrize("bomb", PICKLES)
def test_pickle_bombs_take_little_time_and_memory(tmp_path, bomb):
    content, complaint = PICKLES[bomb]
    path = tmp_path / "f.pkl"
    path.write_bytes(content)
    found, refused = bounded(lambda: read_all(path))
    assert (
        not found
        and complaint in refused[0]
        and str(path) in refused[0]
        and len(refused[0]) < 400
        and refused[0].isprintable()
    )


def of_names(*values: object) -> dict:
    return {f"v{number}": value for number, value in enumerate(values)}


SHARED = {
    "one array": lambda: of_names(*[rows(5000)] * 20_000),
    "one list of arrays": lambda: of_names(*[[rows(2500), rows(2500)]] * 20_000),
    "one list of numbers": lambda: of_names(*[[1.5] * 10_000] * 20_000),
    "one dict of them": lambda: of_names(*[of_names(*[rows(5000)] * 200)] * 200),
    "an array in one list": lambda: {"x": [rows(5000)] * 20_000},
    "a list of one list": lambda: {"x": [[1.5] * 10_000] * 20_000},
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * ("one list" in what)) for what in SHARED]
)
def test_an_array_shared_by_many_videos_is_refused(tmp_path, what):
    path = tmp_path / "f.pkl"
    path.write_bytes(pickle.dumps(SHARED[what](), 4))
    signal.alarm(MOST_SECONDS)
    found, refused = read_all(path)
    signal.alarm(0)
    assert sum(array.nbytes for array in found.values()) <= 8 * path.stat().st_size
    assert refused and all(line.startswith(f"{path}, '") for line in refused)


def test_a_few_videos_may_share_an_array(tmp_path):
    (tmp_path / "f.pkl").write_bytes(pickle.dumps({"x": A, "y": A, "z": [A, A], "w": {"features": A}}))
    found, refused = read_all(tmp_path / "f.pkl")
    assert found.keys() == {"x", "y", "z", "w"} and not refused


def test_bytes_and_integer_ids_become_text(tmp_path):
    (tmp_path / "f.pkl").write_bytes(pickle.dumps({b"x": A, 7: A, -(2**63): A}))
    assert read_all(tmp_path / "f.pkl")[0].keys() == {"x", "7", str(-(2**63))}


# .npz


def write_zip(path: Path, members: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", how) as file:
        for name, content in members.items():
            file.writestr(name, content)


def lying_over_each_other(path: Path, number: int) -> None:
    """Many names for the same member."""
    write_zip(path, {"x.npy": npy((2, 3))})
    content = path.read_bytes()
    start = content.index(b"PK\x01\x02")
    end = content.index(b"PK\x05\x06")
    entry = content[start:end]
    entries = b"".join(
        entry[:28] + struct.pack("<H", 9) + entry[30:46] + f"{n:05d}.npy".encode() + entry[51:] for n in range(number)
    )
    path.write_bytes(
        content[:start]
        + entries
        + content[end : end + 8]
        + struct.pack("<HHII", number, number, len(entries), start)
        + b"\0\0"
    )


def test_an_npz_with_duplicate_member_names_is_refused(tmp_path):
    """The size of one was asked, and the other one read."""
    path = tmp_path / "f.npz"
    write_zip(path, {"x": npy((100_000, 500), bytes(200_000_000)), "x.npy": npy((2, 3))})
    assert path.stat().st_size < 300_000
    found, refused = bounded(lambda: read_all(path))
    assert not found and len(refused) == 1 and refused[0].startswith(f"{path}: ") and "'x'" in refused[0]


def test_an_npz_with_overlapping_members_is_refused(tmp_path):
    path = tmp_path / "f.npz"
    lying_over_each_other(path, 1000)
    found, refused = bounded(lambda: read_all(path))
    assert not found and len(refused) == 1 and refused[0].startswith(f"{path}: ") and " zip " in refused[0]


@pytest.mark.parametrize("how", [pytest.param(zipfile.ZIP_LZMA, marks=pytest.mark.slow), zipfile.ZIP_BZIP2])
def test_an_npz_with_another_compression_is_refused(tmp_path, how):
    """A kilobyte of others may hold gigabytes."""
    path = tmp_path / "f.npz"
    write_zip(path, {"x.npy": npy((100_000, 500), bytes(200_000_000))}, how)
    assert path.stat().st_size < 50_000
    found, refused = bounded(lambda: read_all(path))
    assert not found and refused[0].startswith(str(path)) and "'x.npy'" in refused[0]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_of_numpy_is_read(tmp_path, save):
    save(tmp_path / "f.npz", x=A, y=A[:1])
    with zipfile.ZipFile(tmp_path / "f.npz", "a") as file:
        file.writestr("note.txt", "no array")
    found, refused = read_all(tmp_path / "f.npz")
    assert found.keys() == {"x", "y"} and len(refused) == 1 and "found none" in refused[0]


# HDF5


def test_hard_links_in_hdf5_count_once(tmp_path):
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["x"] = rows(5000)
        file["group/features"] = rows(3)
        for number in range(300):
            file[f"y{number}"] = file["x"]
            file[f"group{number}"] = file["group"]
    found, refused = read_all(path)
    assert found.keys() == {"x", "group"} and len(refused) == 600
    assert any(line.startswith(f"{path}, 'y0': ") and "'/x'" in line for line in refused)


def test_an_unwritten_hdf5_data_set_is_refused(tmp_path):
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file.create_dataset(f"x{number}", shape=(10**6, 500), dtype="f4", chunks=(1000, 500))
    found, refused = bounded(lambda: read_all(path))
    assert (
        not found
        and len(refused) == 20
        and "its data set '/x0' has 0 of its 2,000,000,000 bytes in the file" in refused[0]
    )


@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_a_compressed_data_set_of_zeros_is_read(tmp_path, compression):
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((3000, 500), "f4"), compression=compression)
    assert read_all(tmp_path / "f.h5")[0]["x"].shape == (3000, 500)


# All of an import


def test_an_import_of_one_array_under_many_names_stays_small(tmp_path):
    path, folder = tmp_path / "f.pkl", tmp_path / "store"
    path.write_bytes(pickle.dumps(of_names(*[rows(20_000)] * 400), 4))
    num_new, problems = imported(path, folder)
    assert num_new == len(FeatureStore(folder).video_ids()) <= 8
    assert problems.count == 400 - num_new
    assert sum(shard.stat().st_size for shard in folder.glob("*.h5")) < 30 * path.stat().st_size
