"""Pickles: those in circulation are read, harmful ones do nothing."""

import os
import pickle
import struct
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_files import PROFILE, A, Calls, array_of, bounded, of_python2, read_all, write_pickle
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage.common.errors import UserError


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_of_numpy_and_python_are_read(tmp_path, protocol):
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


@pytest.mark.parametrize("protocol", [0, 2])
def test_pickles_of_python_2(tmp_path, protocol):
    (tmp_path / "f.pickle").write_bytes(of_python2(protocol))
    assert pickle.loads(of_python2(protocol), encoding="latin1").keys() == {"video0"}, "the bytes above are a pickle"
    np.testing.assert_array_equal(read_all(tmp_path / "f.pickle")[0]["video0"], A)


def test_a_valid_array_pickle_is_read(tmp_path):
    (tmp_path / "f.pkl").write_bytes(array_of())
    assert read_all(tmp_path / "f.pkl")[0]["x"].shape == (2, 3)


TOUCH = Calls(os.system, ("touch harm",))


HARMFUL = {  # what each is, and a value or place that the message must name
    "system": (pickle.dumps({"x": TOUCH}), "posix.system"),
    "system, protocol 0": (b"cos\nsystem\n(S'touch harm'\ntR.", "os.system"),
    "system as an instance": (b"(S'touch harm'\nios\nsystem\n.", "os.system"),
    "eval": (pickle.dumps({"x": Calls(eval, ("open('harm', 'w')",))}), "builtins.eval"),
    "getattr": (pickle.dumps({"x": Calls(getattr, ("", "format"))}), "builtins.getattr"),
    "numpy.load": (pickle.dumps({"x": Calls(np.load, ("other.npy",))}), "numpy.load"),
    "numpy.fromfile": (pickle.dumps({"x": Calls(np.fromfile, ("other.npy",))}), "fromfile"),
    "dotted": (b"\x80\x04\x8c\x05numpy\x8c\x14dtype.__init__.__doc\x93.", "numpy.dtype.__init__.__doc"),
    "terminal codes": (b"\x80\x04\x8c\x05nu\nmp\x8c\x05\x1b[31m\x93.", r"nu\nmp.\x1b[31m"),
    "torch": (pickle.dumps({"x": torch.zeros(2, 3)}), "torch._utils._rebuild_tensor_v2"),
    "matrix": (pickle.dumps({"x": A.view(np.matrix)}), "numpy.matrix"),
    "masked": (pickle.dumps({"x": np.ma.array(A)}), "numpy.ma.core._mareconstruct"),
    "a class of ours": (pickle.dumps({"x": PROFILE}), "Profile"),
    "codec": (
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00xX\x04\x00\x00\x00zlib\x86R.",
        "'zlib'",
    ),
    "attributes of a builder": (b"\x80\x02cnumpy\ndtype\n}X\x04\x00\x00\x00nameK\x01sb.", " type)"),
    "attributes of a dict": (b"\x80\x02}}X\x04\x00\x00\x00nameK\x01sb.", " dict)"),
    "call of a text": (b"\x80\x02X\x01\x00\x00\x00x)R.", " str; "),
    "ndarray called": (pickle.dumps({"x": Calls(np.ndarray, ((9, 9),))}), " numpy.ndarray; "),
    "new object": (b"\x80\x02cnumpy\ndtype\n)\x81.", "(NEWOBJ)"),
    "object": (b"(cnumpy\ndtype\no.", "(OBJ)"),
    "persistent": (b"Pharm\n.", "(PERSID)"),
    "registered": (b"\x80\x02\x82\x01.", "(EXT1)"),
    "set": (pickle.dumps({"x": {1, 2}}, 4), "(EMPTY_SET)"),
    "key that hashes for ever": (b"\x80\x02}K\x01" + b"2\x86" * 100 + b"K\x02s.", " tuple "),
    "memo of 32 GB": (b"\x80\x02}r\xff\xff\xff\x7f.", "f.pkl: "),  # an empty dict
    "bytearray of 1 TB": (b"\x80\x05\x96" + struct.pack("<Q", 10**12) + b"abc.", "EOFError"),
    "bytes of 1 TB": (b"\x80\x04\x8e" + struct.pack("<Q", 10**12) + b"abc.", "EOFError"),
    "frame of 1 TB": (b"\x80\x04\x95" + struct.pack("<Q", 10**12) + b"}.", "f.pkl: "),
    "number of many digits": (b"I" + b"9" * 100_000 + b"\n.", "Exceeds the limit"),
    "nested": (b"]" * 10_000 + b"a" * 9_999 + b".", " list"),
    "a list in itself": (b"\x80\x02}K\x01]q\x01h\x01as.", "f.pkl, '1'"),
    "a dict in itself": (b"\x80\x02}q\x01K\x01h\x01s.", "f.pkl, '1'"),
    "one list a thousand times": (
        b"\x80\x02}K\x01](](" + b"K\x01" * 400_000 + b"eq\x01" + b"h\x01" * 1000 + b"es.",
        "f.pkl, '1': ",
    ),
    "objects": (array_of((1,), "O8", ["x"]), "'O8'"),
    "objects that call": (array_of((1,), "O8", [TOUCH]), "posix.system"),
    "structure": (array_of((3,), "V8", fields=(None, ("a",), {"a": 1})), "'structure'"),
    "type with a subtype": (array_of((3,), "V8", fields=(("f4", (2,)), None, None)), "'structure'"),
    "dates": (array_of((3,), "M8"), "'M8'"),
    "type that is code": (array_of((3,), "f4,O"), "'f4,O'"),
    "order that is a type": (array_of(order="f4,O,<"), "'f4'"),
    "no such type": (array_of((8,), "f3"), "not understood"),
    "gigantic": (array_of((10**9, 10**9)), "[1000000000, 1000000000]"),
    "gigantic and empty": (array_of((0, 10**15), content=b""), "[0, 1000000000000000]"),
    "negative": (array_of((-2, -3)), "f.pkl, 'x': "),
    "shape of lists": (array_of([2, 3]), "f.pkl, 'x': "),
    "many axes": (array_of((1,) * 100 + (6,)), "f.pkl, 'x': "),
    "never filled": (
        pickle.dumps({"x": Calls(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"))}, 2),
        "f.pkl, 'x': ",
    ),
    "empty": (b"", "f.pkl"),
    "cut": (pickle.dumps({"x": A})[:-40], "UnpicklingError"),
    "text": (b"no pickle", "KeyError"),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_harmful_pickles_are_refused_and_execute_nothing(tmp_path, monkeypatch, harm):
    monkeypatch.chdir(tmp_path)
    np.save("other.npy", A)
    content, complaint = HARMFUL[harm]
    Path("f.pkl").write_bytes(content)
    found, refused = bounded(lambda: read_all(Path("f.pkl")))
    assert not found and complaint in refused[0] and "f.pkl" in refused[0] and refused[0].isprintable()
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
