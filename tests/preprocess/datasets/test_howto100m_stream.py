"""Reading a JSON object of any size, one entry at a time."""

import json
import os
import tracemalloc

import pytest
from helpers.annotation_files import LONG_TEXT, howto_video
from helpers.readers import (
    annotations_of,
    write,
)
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import howto100m
from vlalign.preprocess.datasets.howto100m import stream_object
from vlalign.storage.common.errors import UserError


@pytest.fixture
def small_chunks(monkeypatch):
    def read_by(size, longest=howto100m.MAX_ENTRY_CHARACTERS):
        monkeypatch.setattr(howto100m, "READ_CHARACTERS", size)
        monkeypatch.setattr(howto100m, "MAX_ENTRY_CHARACTERS", longest)

    return read_by


values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).map(lambda value: {"of": value})


@given(
    entries=st.dictionaries(st.text(), values, min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    indent=st.sampled_from([None, 1]),
    escaped=st.booleans(),
)
def test_streamed_objects_are_what_json_reads(tmp_path_factory, entries, chunk, indent, escaped):
    text = json.dumps(entries, indent=indent, ensure_ascii=escaped)
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        expected = list(json.loads(path.read_text(encoding="utf-8")).items())
    except UnicodeDecodeError:
        return  # half of a surrogate pair cannot be written as UTF-8
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(howto100m, "READ_CHARACTERS", chunk)
        assert [(key, json.loads(value)) for key, value in stream_object(path)] == expected


def test_streamed_objects_may_be_empty(tmp_path):
    for text in ("{}", " \n{ \n} \n"):
        assert list(stream_object(write(tmp_path, {"x.json": text}) / "x.json")) == []


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("", ["''", "'{'"], id="empty"),
        pytest.param("[]", ["'['", "'{'"], id="an array"),
        pytest.param("null", ["'n'", "'{'"], id="null"),
        pytest.param('{"a": {}', [" 'a' "], id="not closed"),
        pytest.param('{"a": {}, ', [" 'a' "], id="cut off after a comma"),
        pytest.param('{"a": {}, "b', [" 'a' "], id="cut off in a name"),
        pytest.param('{"a": {}, "b": {"text": ["x", "y', [" 'a' "], id="cut off in a text"),
        pytest.param('{"a": {} "b": {}}', [" 'a' "], id="no comma"),
        pytest.param('{"a" {}}', ["'{'", "':'"], id="no colon"),
        pytest.param('{"a": {}, 5: {}}', [" 'a' "], id="a number for a name"),
        pytest.param('{"a": {},, "b": {}}', [" 'a' "], id="a comma too many"),
        pytest.param('{"a": {"b": [1, x]}, "c": {}}', ["Expecting value"], id="a bare word"),
        pytest.param('{"a": {}}{"b": {}}', [": '{"], id="two objects"),
        pytest.param('{"a": {}}]', [": ']'"], id="a bracket too many"),
        pytest.param('{"a": ' + "[" * 200_000, ["recursion"], id="deep"),
        pytest.param(b'{"a": {"b": "caf\xe9"}}', ["UTF-8", "0xe9"], id="Latin-1"),
        pytest.param('{"a": {}}'.encode("utf-16"), ["UTF-8", "0xff"], id="UTF-16"),
    ],
)
def test_files_that_are_not_a_json_object_are_rejected(tmp_path, small_chunks, chunk, text, named):
    if isinstance(text, str) and len(text) > 1000 and chunk < 100:
        chunk = 1000  # reading single characters would take too long
    small_chunks(chunk)
    path = write(tmp_path, {"x.json": text}) / "x.json"
    with pytest.raises(UserError) as raised:
        list(stream_object(path))
    message = str(raised.value)
    assert message.startswith(f"{path}: ") and "\n" not in message and len(message) < 500
    assert all(each in message for each in named), message


def test_an_endless_entry_is_not_read_to_its_end(tmp_path, small_chunks):
    small_chunks(100, longest=1000)
    path = write(tmp_path, {"x.json": '{"a": {"b": "' + "x" * 100_000 + '"}}'}) / "x.json"
    with pytest.raises(UserError, match=r"x\.json: .*Unterminated string"):
        list(stream_object(path))
    small_chunks(100, longest=200_000)
    assert len(json.loads(dict(stream_object(path))["a"])["b"]) == 100_000


def test_memory_depends_on_a_video_and_not_on_the_file(tmp_path):
    """Of 42 MB with 4,000 videos, only the longest caption (1 MB) and one chunk are in memory."""
    path = tmp_path / "caption.json"
    video = json.dumps(howto_video(*((n, n + 2, "cut the onion and fry it " * 20) for n in range(20))))
    with path.open("w") as file:
        file.write('{"long": ' + json.dumps(howto_video((0, 9, LONG_TEXT))))
        for number in range(4000):
            file.write(f', "v{number}": {video}')
        file.write("}")
    assert os.path.getsize(path) > 40_000_000
    tracemalloc.start()
    try:
        captions = howto100m.DATASET.read(annotations_of(howto100m, tmp_path), "merged")
        assert len(next(captions).caption) == len(LONG_TEXT)
        assert sum(1 for _ in stream_object(path)) == 4001
        assert sum(1 for caption, _ in zip(captions, range(3000), strict=False)) == 3000
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
