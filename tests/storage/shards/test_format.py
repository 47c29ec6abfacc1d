"""Files that are not valid shards, and values that no shard can hold, are refused in one line."""

import json
import os
import re
import resource
import signal
import zlib
from dataclasses import replace

import h5py
import numpy as np
import pytest
import vlalign.storage.shards.format as shard_format
from helpers.stores import DIMENSION, PROFILE, in_forked_child, video, write
from vlalign.storage import FeatureStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import atomic_write
from vlalign.storage.records import Weights
from vlalign.storage.shards.format import FIRST_LINE, Provenance, Unreadable, rest_crc32
from vlalign.storage.stores.thumbnails import Thumbnail, write_thumbnails

pytestmark = pytest.mark.portable


def edit_block(path, change):
    """Changes what a shard says of itself, with checksums that fit: what another version, or a forger, may write."""
    content = path.read_bytes()
    first = FIRST_LINE.match(content)
    about = json.loads(content[first.end() : int(first[2])])
    change(about)
    rest = json.dumps(about).encode().ljust(int(first[2]) - first.end())
    line = re.sub(rb"[0-9a-f]{8}\n", f"{zlib.crc32(rest):08x}\n".encode(), first[0])
    path.write_bytes(line + rest + content[int(first[2]) :])


@pytest.mark.parametrize("ranges", [[], [(10, 30)], [(9, 30), (30, 31), (50, 93)], [(9, 100)]])
def test_the_checksum_of_the_rest_is_that_of_every_byte_outside_of_the_ranges(tmp_path, monkeypatch, ranges):
    monkeypatch.setattr(shard_format, "READ_BYTES", 7)
    content = bytes(range(100))
    (tmp_path / "file").write_bytes(content)
    inside = {place for first, last in ranges for place in range(first, last)}
    rest = bytes(byte for place, byte in enumerate(content) if place >= 9 and place not in inside)
    assert rest_crc32(tmp_path / "file", 9, ranges) == zlib.crc32(rest)


def test_provenance_is_told_in_one_line():
    known, unknown = (Provenance(profile=PROFILE, weights=Weights(name="w", sha256=s)) for s in ("ab" * 32, ""))
    assert known.describe() == f"profile {PROFILE.hash} with weights w (abababababab), extracted"
    assert unknown.describe() == f"profile {PROFILE.hash} with weights w (no sha256), extracted"


@pytest.mark.parametrize("schema", [0, 2, 10])
def test_another_schema_is_refused(tmp_path, schema):
    path = write(tmp_path, video("a", 2))
    path.write_bytes(path.read_bytes().replace(b"schema 1,", b"schema %d," % schema, 1))
    with pytest.raises(UserError, match=rf"\b{schema}\b.*\b1\b") as refused:
        FeatureStore(tmp_path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("kept", ["nothing", "one byte", "the signature", "half", "all but one byte"])
def test_a_truncated_shard_is_refused_in_one_line(tmp_path, kept):
    write(tmp_path, video("whole", 2))
    path = write(tmp_path, video("a", 300))
    content = path.read_bytes()
    length = {
        "nothing": 0,
        "one byte": 1,
        "the signature": 8,
        "half": len(content) // 2,
        "all but one byte": len(content) - 1,
    }[kept]
    path.write_bytes(content[:length])
    with pytest.raises(UserError) as refused:
        FeatureStore(tmp_path)
    message = str(refused.value)
    assert message.startswith(str(path)) and "vlalign-extract" in message and "\n" not in message


def plain_hdf5(path):
    with h5py.File(path, "w") as file:
        file["features"] = np.zeros((2, DIMENSION))


def repacked(path):
    """As h5repack or a copy by h5py leaves it: the same data sets, without the block before them."""
    with h5py.File(path.with_suffix(".tmp"), "r") as source, h5py.File(path, "w") as file:
        for name in source:
            source.copy(name, file)
        file.attrs.update(source.attrs)


@pytest.mark.parametrize("make", [plain_hdf5, repacked, lambda p: p.write_bytes(b"text"), lambda p: p.mkdir()])
def test_a_file_that_is_not_a_shard_is_refused(tmp_path, make):
    path = write(tmp_path, video("a", 2))
    path.rename(path.with_suffix(".tmp"))
    make(path)
    with pytest.raises(UserError, match=path.name) as refused:
        FeatureStore(tmp_path)
    assert not isinstance(refused.value, Unreadable)


def set_profile(text):
    return lambda about: about["attributes"].update(profile=text)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(set_profile('{"name": "s3d"}'), id="fields of the profile missing"),
        pytest.param(
            set_profile(PROFILE.to_json()[:-1] + ', "new_field": 1}'), id="a field that only a later version knows"
        ),
        pytest.param(set_profile("no JSON"), id="no JSON"),
        pytest.param(set_profile(replace(PROFILE, dimension=5).to_json()), id="another profile than its hash says"),
        pytest.param(lambda a: a["attributes"].pop("weights"), id="no weights"),
        pytest.param(lambda a: a["attributes"].update(origin=5), id="a number for a text"),
        pytest.param(lambda a: a["attributes"].update(made_with=[1]), id="a list for a table"),
        pytest.param(lambda a: a["offsets"].update(features=10**9), id="rows past the end"),
        pytest.param(lambda a: a["offsets"].update(valid_frames=-5), id="rows before the start"),
        pytest.param(lambda a: a["offsets"].update(start_seconds=0), id="rows over the block"),
        pytest.param(lambda a: a["offsets"].pop("features"), id="no place of the features"),
        pytest.param(lambda a: a.update(num_rows=3), id="more rows than its videos have"),
        pytest.param(lambda a: a.update(dtype="<i2"), id="whole numbers"),
        pytest.param(lambda a: a.update(dtype="O"), id="objects"),
        pytest.param(lambda a: a.update(num_bytes=1), id="another size"),
        pytest.param(lambda a: a["videos"].update(count=10**15), id="an endless index"),
        pytest.param(lambda a: a["videos"].update(count=-1), id="fewer than no videos"),
        pytest.param(lambda a: a["videos"].update(offset=10**15), id="an index past the end"),
        pytest.param(lambda a: a["videos"]["dtype"][0].__setitem__(1, "|O"), id="an index of objects"),
        pytest.param(lambda a: a["videos"]["dtype"].pop(), id="an index without a column"),
        pytest.param(lambda a: a.clear(), id="nothing"),
    ],
)
def test_an_index_block_with_impossible_values_is_refused(tmp_path, change):
    path = write(tmp_path, video("a", 2))
    edit_block(path, change)
    with pytest.raises(UserError) as refused:
        FeatureStore(tmp_path)
    assert not isinstance(refused.value, Unreadable)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


def test_an_edited_index_block_with_valid_values_is_read(tmp_path):
    edit_block(write(tmp_path, video("a", 2, base=5)), lambda about: about["attributes"].update(weights="other.pth"))
    store = FeatureStore(tmp_path)
    assert store.weights.name == "other.pth" and store.get("a").features[:, 0].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("value", "dtype", "refused"),
    [
        pytest.param(np.nan, "float16", True, id="NaN"),
        pytest.param(np.nan, "float32", True, id="NaN in float32"),
        pytest.param(np.inf, "float16", True, id="inf"),
        pytest.param(-np.inf, "float32", True, id="-inf in float32"),
        pytest.param(65504.0, "float16", False, id="float16's largest"),
        pytest.param(-65504.0, "float16", False, id="float16's smallest"),
        pytest.param(65505.0, "float16", True, id="over float16's largest"),
        pytest.param(-1e6, "float16", True, id="under float16's smallest"),
        pytest.param(-1e6, "float32", False, id="the same in float32"),
    ],
)
def test_values_out_of_range_are_refused_and_leave_no_file(tmp_path, value, dtype, refused):
    features = np.ones((6, DIMENSION), np.float32)
    features[4, 2] = value
    videos = [video("good", 3), video("bad one", 6, features=features)]
    if refused:
        named = dtype if np.isfinite(value) else str(abs(value))
        with pytest.raises(ValueError, match=f"bad one.*{named}"):
            write(tmp_path, *videos, dtype=dtype)
        assert list(tmp_path.iterdir()) == []
    else:
        write(tmp_path, *videos, dtype=dtype)
        assert FeatureStore(tmp_path).get("bad one").features[4, 2] == value


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": np.zeros(3, np.float32)},
        {"start_seconds": np.zeros(2)},
        {"end_seconds": np.zeros((3, 1))},
        {"valid_frames": np.zeros(4, int)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_features_whose_shapes_disagree_are_refused_when_made(wrong):
    with pytest.raises(ValueError, match=f"v: {next(iter(wrong))} "):
        video("v", 3, **wrong)


# What a writer leaves


def test_a_folder_holds_shards_and_nothing_else_after_writing(tmp_path):
    path = write(tmp_path / "features" / "s3d", video("a", 2))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.suffix == ".h5" and not path.name.startswith(".")


def test_files_of_a_killed_writer_are_ignored(tmp_path):
    def killed_while_writing():
        with atomic_write(tmp_path / "9-later.h5") as partial:
            partial.write_bytes(b"half a shard")
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(EOFError):  # the child never answered
        in_forked_child(killed_while_writing)
    assert [p.suffix for p in tmp_path.iterdir()] == [".partial"]
    with pytest.raises(UserError, match=str(tmp_path)):
        FeatureStore(tmp_path)
    write(tmp_path, video("a", 2))
    assert FeatureStore(tmp_path).video_ids() == ["a"]


@pytest.mark.parametrize(
    ("what", "space_bytes"),
    [
        pytest.param("features", 1_000, id="for the first dataset"),
        pytest.param("features", 100_000, id="for all rows"),
        pytest.param("thumbnails", 100_000, id="for all thumbnails"),
    ],
)
def test_a_full_disk_is_an_os_error_and_leaves_no_file(tmp_path, what, space_bytes):
    """``run_command`` makes one line of an ``OSError``."""

    def write_with_little_space():
        resource.setrlimit(resource.RLIMIT_FSIZE, (space_bytes, space_bytes))
        if what == "features":
            write(tmp_path, video("a", 10 if space_bytes < 10_000 else 60_000, base=-30_000))
        else:
            write_thumbnails(tmp_path, [Thumbnail("a", float(n), bytes(5_000), "file") for n in range(100)])

    failed = in_forked_child(write_with_little_space)
    assert list(tmp_path.iterdir()) == []
    assert isinstance(failed, OSError), repr(failed)
