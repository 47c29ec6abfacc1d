"""Shards whose block says anything: it has its checksum, so that only what it says can be wrong."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers.any_json import one_part_changed
from helpers.stores import video, write
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import FeatureStore
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.errors import UserError
from vlalign.storage.shards.format import BLOCK_BYTES, FIRST_LINE, crc32
from vlalign.storage.shards.read import read_shard
from vlalign.storage.stores.store_info import describe


def saying(content: bytes, about: dict) -> bytes:
    """A shard with another block."""
    first = FIRST_LINE.match(content)
    text = json.dumps(about).encode().ljust(BLOCK_BYTES - first.end())
    line = first[0].replace(first[3], f"{crc32(text):08x}".encode())
    return line + text + content[BLOCK_BYTES:]


def block_of(content: bytes) -> dict:
    return json.loads(content[FIRST_LINE.match(content).end() : BLOCK_BYTES])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    write(folder, video("a", 3), video("b", 2))
    [path] = folder.iterdir()
    return path.read_bytes()


def use(folder: Path) -> None:
    """All that a reader asks."""
    store = FeatureStore(folder)
    for video_id in store.video_ids():
        store.get(video_id)
    json.dumps(asdict(describe(store)), ensure_ascii=False).encode()
    _ = store.weights.is_random, store.profile.name, hash(store.origin)


@settings(deadline=None, max_examples=400)
@given(data=st.data())
def test_any_value_in_a_block_is_used_or_refused_in_one_line(tmp_path_factory, whole, data):
    about = data.draw(one_part_changed(block_of(whole)))
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "1.h5").write_bytes(saying(whole, about))
    try:
        use(folder)
    except UserError as error:
        assert "\n" not in str(error) and str(folder) in str(error)


@pytest.mark.parametrize(
    "attributes",
    [
        {"weights": 5},
        {"weights_sha256": {}},
        {"origin": "\ud800"},
        {"made_with": {"vlalign": []}},
        {"made_with": []},
        {"profile": {}},
    ],
)
@pytest.mark.parametrize("command", ["info", "ls", "verify"])
def test_hostile_attributes_are_one_line(tmp_path, whole, attributes, command, capsys):
    about = block_of(whole)
    about["attributes"] |= attributes
    (tmp_path / "1.h5").write_bytes(saying(whole, about))
    assert store_main([command, str(tmp_path)]) in (1, 2)
    error = capsys.readouterr().err
    assert f"{tmp_path / '1.h5'}: " in error and error.count("\n") == 1 and "Traceback" not in error


@pytest.mark.parametrize("name", ["num_rows", "num_bytes", "rest_crc32"])
@pytest.mark.parametrize("value", [None, "1", 1.0, True, [], {}, -1, 10**300], ids=repr)
def test_a_wrong_type_in_a_block_is_refused(tmp_path, whole, name, value):
    about = block_of(whole) | {name: value}
    (tmp_path / "1.h5").write_bytes(saying(whole, about))
    with pytest.raises(UserError, match=r"1\.h5: ") as refused:
        read_shard(tmp_path / "1.h5")
    assert type(refused.value) is UserError, "damaged, not of another version or unreadable for now"
