"""Files written whole, JSON and JSON lines, and the identity of files."""

import hashlib
import json
import os

import pytest
from helpers.deadlines import in_time
from vlalign.storage.common import files
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import (
    IDENTITY_BYTES,
    atomic_write,
    file_identity,
    has_same_samples,
    read_json,
    read_jsonl,
    sha256_of,
    write_json,
    write_jsonl,
    write_text,
)
from vlalign.storage.common.progress import report_progress_to


def test_hashing_a_large_file_shows_progress(tmp_path, monkeypatch):
    path, states = tmp_path / "large", []
    path.write_bytes(os.urandom(3 << 20))
    with report_progress_to(states.append):
        small = sha256_of(path)
        assert states == []
        monkeypatch.setattr(files, "LARGE_BYTES", 3 << 20)
        assert sha256_of(path) == small == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [state.done for state in states] == [1 << 20, 2 << 20, 3 << 20, 3 << 20] and states[-1].ended
    assert {(state.what, state.total, state.unit) for state in states} == {("hashing large", 3 << 20, "bytes")}


# Files that are written whole or not at all


@pytest.mark.parametrize("before", [None, "old"], ids=["new file", "file replaced"])
def test_written_whole_puts_the_file_in_place_at_the_end(tmp_path, before):
    path = tmp_path / "new" / "folder" / "file.txt"
    if before is not None:
        write_text(path, before)
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert partial.parent.samefile(path.parent)  # a rename across file systems would not be whole
        assert partial.suffix == ".partial" and partial.name.startswith(".")
        assert (path.read_text() if path.exists() else None) == before
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError, SystemExit])
@pytest.mark.parametrize("before", [None, "old"], ids=["new file", "file replaced"])
def test_written_whole_keeps_what_was_there_when_its_body_raises(tmp_path, error, before):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(error), atomic_write(path) as partial:
        partial.write_text("half")
        raise error
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == ({} if before is None else {"file.txt": before})


def test_a_body_that_writes_nothing_is_an_error(tmp_path):
    (tmp_path / "file.txt").write_text("old")
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "file.txt"):
        pass
    assert (tmp_path / "file.txt").read_text() == "old"


def test_two_writers_at_once_do_not_share_a_partial(tmp_path):
    path = tmp_path / "file.txt"
    with atomic_write(path) as first:
        first.write_text("first")
        with atomic_write(path) as second:
            second.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


# Lines of JSON

ROWS = [{"video_id": "ü 日本 😀"}, {"text": 'a "quote",\n two lines, \u2028 and a separator'}, {}]


def test_jsonl_is_read_as_written(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_jsonl(path, ROWS)
    assert read_jsonl(path) == ROWS
    assert [json.loads(line) for line in path.read_bytes().decode().rstrip("\n").split("\n")] == ROWS


@pytest.mark.parametrize(
    ("content", "rows"),
    [
        pytest.param(b'{"a": 1}\n{"a": 2}\n', [{"a": 1}, {"a": 2}], id="plain"),
        pytest.param(b'\xef\xbb\xbf{"a": 1}\n', [{"a": 1}], id="byte order mark"),
        pytest.param(b'\n{"a": 1}\n  \n\n{"a": 2}\n\n', [{"a": 1}, {"a": 2}], id="blank lines"),
        pytest.param(b'{"a": 1}\r\n{"a": 2}\r\n', [{"a": 1}, {"a": 2}], id="lines of Windows"),
        pytest.param(b'{"a": 1}', [{"a": 1}], id="no end of line"),
        pytest.param(b"", [], id="empty"),
        pytest.param(None, [], id="absent"),
    ],
)
def test_jsonl_written_by_other_programs_is_read(tmp_path, content, rows):
    path = tmp_path / "rows.jsonl"
    if content is not None:
        path.write_bytes(content)
    assert read_jsonl(path) == rows


@pytest.mark.parametrize(
    ("content", "line"),
    [
        pytest.param(b'{"a": 1}\n{"a": \n', 2, id="cut short"),
        pytest.param(b'{"a": 1}\n\n\n[1]\n', 4, id="a list, after blank lines"),
        pytest.param(b'"text"\n', 1, id="a string"),
        pytest.param(b"\xef\xbb\xbfvideo_id,caption\n", 1, id="a CSV with byte order mark"),
        pytest.param(b'{"a": 1}\n{"a": "caf\xe9"}\n', 2, id="Latin-1"),
        pytest.param(b'{"a": 1}\n\x00\x00\x00\n', 2, id="zeros after a crash"),
    ],
)
def test_invalid_jsonl_is_refused_with_file_and_line(tmp_path, content, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_jsonl(path)
    message = str(refused.value)
    assert message.startswith(f"{path}, line {line}: ") and "\n" not in message


def test_json_is_read_as_written_and_refused_if_truncated(tmp_path):
    path = tmp_path / "value.json"
    value = {"a": [1, 2.5, None], "ü": True}
    write_json(path, value)
    assert read_json(path) == value
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError) as refused:
        read_json(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


# Telling files apart


@pytest.mark.parametrize("size", [1, 1000, IDENTITY_BYTES, IDENTITY_BYTES + 1, 2 * IDENTITY_BYTES])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_changed_byte_changes_the_identity(tmp_path, size, place):
    """Up to 128 KiB every byte counts."""
    path = tmp_path / "video.mp4"
    content = bytearray(range(256)) * (size // 256 + 1)
    del content[size:]
    path.write_bytes(content)
    before = file_identity(path)
    assert before.startswith(f"{size}-") and file_identity(path) == before
    content[{"first": 0, "middle": size // 2, "last": -1}[place]] ^= 1
    path.write_bytes(content)
    assert file_identity(path) != before


@pytest.mark.parametrize(
    ("position", "same"),
    [
        (0, False),
        (IDENTITY_BYTES - 1, False),
        (IDENTITY_BYTES, True),
        (-IDENTITY_BYTES - 1, True),
        (-IDENTITY_BYTES, False),
        (-1, False),
    ],
)
def test_the_identity_of_a_large_file_depends_on_both_ends(tmp_path, position, same):
    path = tmp_path / "video.mp4"
    content = bytearray(3 * IDENTITY_BYTES)
    path.write_bytes(content)
    before = file_identity(path)
    content[position] = 1
    path.write_bytes(content)
    assert (file_identity(path) == before) is same


def test_a_longer_file_has_another_identity_and_a_copy_the_same(tmp_path):
    content = bytes(3 * IDENTITY_BYTES)
    names = {"one": content, "copy": content, "longer": content + b"\0", "empty": b""}
    for name, written in names.items():
        (tmp_path / name).write_bytes(written)
    identity = {name: file_identity(tmp_path / name) for name in names}
    assert identity["one"] == identity["copy"]
    assert len({identity["one"], identity["longer"], identity["empty"], ""}) == 4


def test_an_unreadable_file_has_no_identity(tmp_path):
    assert file_identity(tmp_path / "missing.mp4") == ""
    assert file_identity(tmp_path) == ""


@pytest.mark.parametrize("read", [file_identity, lambda path: has_same_samples(path, path.with_name("b.mp4"))])
def test_a_pipe_that_takes_the_place_of_a_file_keeps_nobody_waiting(tmp_path, monkeypatch, read):
    for name in ("a.mp4", "b.mp4"):
        (tmp_path / name).write_bytes(b"content")
    os.mkfifo(tmp_path / "pipe")
    look = os.stat

    def look_and_replace(path, **options):
        about = look(path, **options)
        if os.path.lexists(tmp_path / "pipe"):
            os.replace(tmp_path / "pipe", tmp_path / "a.mp4")
        return about

    monkeypatch.setattr(os, "stat", look_and_replace)
    with in_time(20):
        assert not read(tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("content", "digest"),
    [
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),  # FIPS 180-2, B.1
        (b"a" * 1_000_000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"),  # FIPS 180-2, B.3
    ],
    ids=["empty", "abc", "a million a"],
)
def test_sha256(tmp_path, content, digest):
    (tmp_path / "file").write_bytes(content)
    assert sha256_of(tmp_path / "file") == digest


def test_files_with_the_same_ends_are_the_same_only_if_what_lies_between_is(tmp_path):
    content = bytes(3 * 1024) * 1024
    first, copy, other, short = (tmp_path / name for name in ("first", "copy", "other", "short"))
    first.write_bytes(content)
    copy.write_bytes(content)
    other.write_bytes(content[: len(content) // 2] + b"x" * (1 << 17) + content[len(content) // 2 + (1 << 17) :])
    short.write_bytes(b"short")
    assert file_identity(first) == file_identity(copy) == file_identity(other)
    assert has_same_samples(first, copy) and not has_same_samples(first, other)
    assert has_same_samples(short, short) and not has_same_samples(first, short)
    assert not has_same_samples(first, tmp_path / "none")
