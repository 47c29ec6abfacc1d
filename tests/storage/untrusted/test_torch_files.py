"""Files of torch.save: those that torch writes are read, harmful ones do nothing."""

import io
import os
import pickle
import random
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_files import A, B, Calls, bounded, read_all
from vlalign.storage.common.errors import UserError

pytestmark = pytest.mark.portable
FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])


def save(content: object, path: Path, zipped: bool = True) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    return path


@FORMATS
def test_dictionaries_of_tensors_are_read(tmp_path, zipped):
    a = torch.from_numpy(A)
    tensors = {
        "plain": a,
        "half": a.half(),
        "bfloat16": a.bfloat16(),
        "double": a.double(),
        "integers": (a * 100).long(),
        "bytes": (a * 100).to(torch.uint8),
        "part of another": torch.cat([a, a])[1:3],
        "transposed": a.t().contiguous().t(),
        "expanded": a[:1].expand(2, 3),
        "parameter": torch.nn.Parameter(a),
        "array": A,
        "list": [a[:1], a[1:]],
        "groups": OrderedDict(features=a, other=a[:1]),
        7: a,
    }
    found, refused = read_all(save(tensors, tmp_path / "f.pth", zipped))
    assert not refused and found.keys() == set(map(str, tensors))
    for name, value in tensors.items():
        if isinstance(value, dict):
            value = value["features"]
        if isinstance(value, list):
            value = torch.cat(value)
        expected = torch.as_tensor(value).detach()
        np.testing.assert_array_equal(found[str(name)], expected.to(torch.float32).numpy())
    assert found["half"].dtype == np.float16


@FORMATS
def test_a_folder_of_tensors_and_pickles_is_read(tmp_path, zipped):
    (tmp_path / "d").mkdir()
    save(torch.from_numpy(A), tmp_path / "d" / "x.pth", zipped)
    save({"s3d": torch.from_numpy(A), "rgb": torch.from_numpy(B)}, tmp_path / "y.pt", zipped)
    (tmp_path / "z.mp4.pkl").write_bytes(pickle.dumps(A))
    found, refused = read_all(tmp_path)
    assert found.keys() == {"d/x", "z"} and len(refused) == 1 and "rgb" in refused[0] and "y.pt" in refused[0]
    np.testing.assert_array_equal(found["d/x"], A)
    np.testing.assert_array_equal(read_all(tmp_path, key="s3d")[0]["y"], A)


class Planted:
    def __reduce__(self):
        return os.system, ("touch harm",)


@FORMATS
@pytest.mark.parametrize(
    "content, named",
    [
        ({"x": Planted()}, "system"),
        (torch.nn.Linear(2, 3), "Linear"),
        ({"x": Calls(torch.load, ("other.pth",))}, "load"),
        ({"x": Calls(torch.hub.load, ("a/b", "c"))}, "load"),
        ([torch.ones(2)], "list"),
        ({"x": torch.ones(2).to_sparse()}, "sparse"),
    ],
)
def test_nothing_but_tensors_is_built(tmp_path, monkeypatch, content, named, zipped):
    monkeypatch.chdir(tmp_path)
    save(content, tmp_path / "f.pth", zipped)
    with pytest.raises(UserError) as refused:
        read_all(tmp_path / "f.pth")
    assert named in str(refused.value) and "f.pth" in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "harm").exists()


def repacked(path: Path, change: str, new: bytes | None = None, how: int = zipfile.ZIP_STORED) -> None:
    """Write the zip again with one member left out (None), changed, or added."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    [top] = {name.split("/")[0] for name in members}
    members[f"{top}/{change}"] = new
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, member in members.items():
            if member is not None:
                archive.writestr(name, member)


@pytest.mark.parametrize(
    "change, new, how",
    [
        ("data/0", b"short", zipfile.ZIP_STORED),
        ("data/0", None, zipfile.ZIP_STORED),
        ("data.pkl", None, zipfile.ZIP_STORED),
        ("byteorder", b"big", zipfile.ZIP_STORED),
        ("data/1", bytes(1 << 20), zipfile.ZIP_DEFLATED),
        ("code/f.py", b"", zipfile.ZIP_BZIP2),
    ],
)
def test_a_zip_that_torch_has_not_written_is_refused(tmp_path, change, new, how):
    path = save({"x": torch.from_numpy(A)}, tmp_path / "f.pth")
    repacked(path, change, new, how)
    found, refused = bounded(lambda: read_all(path))
    assert not found and len(refused) == 1 and "f.pth" in refused[0]


class LyingStorage:
    """Pickled as the tensor of given parts, in a zip that has one storage."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts


def tensor_of(path: Path, *, offset=0, size=(2, 3), stride=(3, 1), numel=6, names=("storage", "0", "cpu")) -> Path:
    """Write a file with a tensor of which any part may be wrong."""
    out = io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, value):
            if isinstance(value, LyingStorage):
                return (names[0], torch.FloatStorage, names[1], names[2], numel)
            return None

    call = Calls(torch._utils._rebuild_tensor_v2, (LyingStorage(), offset, size, stride, False, OrderedDict()))
    Pickler(out, 2).dump({"x": call})
    save({"x": torch.from_numpy(A)}, path)
    repacked(path, "data.pkl", out.getvalue())
    return path


def test_a_tensor_of_right_parts_is_read(tmp_path):
    np.testing.assert_array_equal(read_all(tensor_of(tmp_path / "f.pth"))[0]["x"], A)


@pytest.mark.parametrize(
    "wrong",
    [
        {"offset": 1},
        {"offset": -1},
        {"offset": 1 << 70},
        {"offset": "0"},
        {"size": (3, 3)},
        {"size": (-2, 3)},
        {"size": [2, 3]},
        {"size": (2,) * 65, "stride": (0,) * 65},
        {"size": (1 << 20, 1 << 20), "stride": (0, 0)},
        {"size": (1 << 62, 1 << 62), "stride": (0, 0)},
        {"size": (1 << 14, 3), "stride": (0, 1)},
        {"stride": (3,)},
        {"stride": (3, -1)},
        {"stride": (1 << 62, 1)},
        {"numel": 7},
        {"numel": -6},
        {"numel": 1 << 62},
        {"names": ("module", "0", "cpu")},
        {"names": ("storage", "../0", "cpu")},
        {"names": ("storage", 0, "cpu")},
    ],
    ids=str,
)
def test_a_tensor_of_wrong_parts_is_refused(tmp_path, wrong):
    path = tensor_of(tmp_path / "f.pth", **wrong)
    found, refused = bounded(lambda: read_all(path))
    assert not found and len(refused) == 1 and "f.pth" in refused[0]


@FORMATS
def test_damaged_files_are_one_line(tmp_path, zipped):
    good = save({"x": torch.from_numpy(A), "y": torch.from_numpy(B)}, tmp_path / "good.pth", zipped).read_bytes()
    draw = random.Random(0)
    for number in range(150):
        bad = bytearray(good[: draw.randrange(len(good))] if number % 2 else good)
        for _ in range(draw.randrange(1, 4)):
            if bad:
                bad[draw.randrange(len(bad))] = draw.randrange(256)
        (tmp_path / "f.pth").write_bytes(bad)
        found, refused = bounded(lambda: read_all(tmp_path / "f.pth"))
        assert all(len(rows.shape) == 2 for rows in found.values())
        assert all("f.pth" in line and "\n" not in line for line in refused)
