"""Files written whole, line files, where things are, and what every command does with mistakes."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vlalign.storage import Caption, IdfEntry, VideoRecord, captions, read_captions, read_idf, write_idf
from vlalign.storage.cli import main as store
from vlalign.storage.common.command import command_parser, run_command
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.progress import progress
from vlalign.storage.files import (
    IDENTITY_BYTES,
    file_identity,
    read_json,
    read_jsonl,
    sha256_of,
    write_json,
    write_jsonl,
    write_text,
    written_whole,
)
from vlalign.storage.layout import DatasetFolder, find_dataset
from vlalign.train.cli_train import main as train

# Files that are written whole or not at all


@pytest.mark.parametrize("before", [None, "old"], ids=["new file", "file replaced"])
def test_written_whole_puts_the_file_in_place_at_the_end(tmp_path, before):
    path = tmp_path / "new" / "folder" / "file.txt"
    if before is not None:
        write_text(path, before)
    with written_whole(path) as partial:
        partial.write_text("new")
        assert partial.parent == path.parent  # a rename across file systems would not be whole
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
    with pytest.raises(error), written_whole(path) as partial:
        partial.write_text("half")
        raise error
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == ({} if before is None else {"file.txt": before})


def test_a_body_that_writes_nothing_is_an_error(tmp_path):
    (tmp_path / "file.txt").write_text("old")
    with pytest.raises(FileNotFoundError), written_whole(tmp_path / "file.txt"):
        pass
    assert (tmp_path / "file.txt").read_text() == "old"


def test_two_writers_at_once_do_not_share_a_partial(tmp_path):
    path = tmp_path / "file.txt"
    with written_whole(path) as first:
        first.write_text("first")
        with written_whole(path) as second:
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
def test_jsonl_of_others(tmp_path, content, rows):
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
def test_jsonl_that_is_none_is_refused_with_file_and_line(tmp_path, content, line):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_jsonl(path)
    message = str(refused.value)
    assert message.startswith(f"{path}, line {line}: ") and "\n" not in message


def test_json_is_read_as_written_and_refused_when_cut(tmp_path):
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
def test_a_changed_byte_is_another_identity(tmp_path, size, place):
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
def test_of_a_large_file_both_ends_count(tmp_path, position, same):
    path = tmp_path / "video.mp4"
    content = bytearray(3 * IDENTITY_BYTES)
    path.write_bytes(content)
    before = file_identity(path)
    content[position] = 1
    path.write_bytes(content)
    assert (file_identity(path) == before) is same


def test_a_longer_file_is_another_and_a_copy_the_same(tmp_path):
    content = bytes(3 * IDENTITY_BYTES)
    names = {"one": content, "copy": content, "longer": content + b"\0", "empty": b""}
    for name, written in names.items():
        (tmp_path / name).write_bytes(written)
    identity = {name: file_identity(tmp_path / name) for name in names}
    assert identity["one"] == identity["copy"]
    assert len({identity["one"], identity["longer"], identity["empty"], ""}) == 4


def test_what_cannot_be_read_has_no_identity(tmp_path):
    assert file_identity(tmp_path / "missing.mp4") == ""
    assert file_identity(tmp_path) == ""


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


# Where things are


@pytest.mark.parametrize("name", ["demo", "youcook2", "MSR-VTT_1k-A", "a.b", "_x", "9"])
def test_names_of_data_sets(tmp_path, name):
    dataset = DatasetFolder(tmp_path, name)
    assert dataset.path == tmp_path / name
    assert dataset.features("s3d") == tmp_path / name / "features" / "s3d"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "-x", "a b", "a\n", "ü", "a\0", "~"]
)
def test_names_that_are_no_plain_folder_are_refused(tmp_path, name):
    with pytest.raises(UserError, match="data set name") as refused:
        DatasetFolder(tmp_path, name)
    assert repr(name) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("folders", "name", "found"),
    [
        pytest.param(["one/captions"], None, "one", id="the only one"),
        pytest.param(["one/captions", "two/features"], None, "one", id="the only one that is prepared"),
        pytest.param(["one/captions", "two/captions"], "two", "two", id="by name"),
    ],
)
def test_find_dataset(tmp_path, folders, name, found):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a file").touch()
    assert find_dataset(tmp_path, name, having="captions", hint="vlalign-preprocess") == DatasetFolder(tmp_path, found)


@pytest.mark.parametrize(
    ("root", "folders", "name", "said"),
    [
        pytest.param(
            "root", ["two/captions", "one/captions"], None, ["2 are there (one, two)", "pass --dataset"], id="several"
        ),
        pytest.param(
            "root", ["one/features"], None, ["there is none", "run vlalign-preprocess first"], id="none prepared"
        ),
        pytest.param("root", [], None, ["there is none", "run vlalign-preprocess first"], id="empty root"),
        pytest.param("no root", ["one/captions"], None, ["there is none", "no root"], id="no root"),
        pytest.param(
            "root",
            ["one/captions"],
            "two",
            ["two/captions: not found", "run vlalign-preprocess first"],
            id="unknown name",
        ),
        pytest.param(
            "root",
            ["one/features"],
            "one",
            ["one/captions: not found", "run vlalign-preprocess"],
            id="known, not prepared",
        ),
        pytest.param("root", ["one/captions"], "../root/one", ["data set name"], id="a path as a name"),
    ],
)
def test_find_dataset_says_what_is_missing(tmp_path, root, folders, name, said):
    (tmp_path / "root").mkdir()
    for folder in folders:
        (tmp_path / "root" / folder).mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        find_dataset(tmp_path / root, name, having="captions", hint="vlalign-preprocess")
    message = str(refused.value)
    assert all(words in message for words in said), message
    assert "\n" not in message


def test_videos_are_read_as_written(tmp_path):
    dataset = DatasetFolder(tmp_path, "mine")
    assert dataset.read_videos() == []
    videos = [
        VideoRecord(video_id="a", path="videos/ä.mp4"),
        VideoRecord(video_id="b", path="/far/b.mp4", scene={"colour": "red", "n": 2}),
    ]
    dataset.write_videos(videos)
    assert dataset.read_videos() == videos
    assert read_jsonl(dataset.videos_file)[0] == {"video_id": "a", "path": "videos/ä.mp4"}
    assert [dataset.video_path(v) for v in videos] == [
        (tmp_path / "mine" / "videos" / "ä.mp4").absolute(),
        Path("/far/b.mp4"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        '{"video_id": "a"}',
        '{"video_id": "", "path": "a.mp4"}',
        '{"video_id": "a", "path": "a.mp4", "colour": "red"}',
        "[]",
        "{",
    ],
    ids=["no path", "no id", "unknown field", "a list", "cut"],
)
def test_a_bad_list_of_videos_is_named(tmp_path, line):
    dataset = DatasetFolder(tmp_path, "mine")
    write_text(dataset.videos_file, line + "\n")
    with pytest.raises(UserError) as refused:
        dataset.read_videos()
    assert str(dataset.videos_file) in str(refused.value) and "\n" not in str(refused.value)


# Tables

CAPTIONS = [
    Caption(
        video_id="v",
        caption="a cat — 😀",
        split="train",
        words=["a", "cat"],
        word_starts=[0, 2],
        pos_tags=["DET", "NOUN"],
    ),
    Caption(video_id="v", caption="sits", split="test", start_seconds=0.0, end_seconds=1.25, recording="wavs/7/ä"),
]


def test_captions_are_read_as_written(tmp_path):
    assert captions.read_captions_about(tmp_path) is None
    captions.write_part(tmp_path, 0, CAPTIONS[:1], {"model": "tiny"})
    captions.write_part(tmp_path, 1, CAPTIONS[1:], {"model": "tiny"})
    with pytest.raises(UserError, match="run vlalign-preprocess"):
        read_captions(tmp_path)  # not yet all of them
    captions.write_captions_about(tmp_path, {"tagger": "tiny"})
    assert list(read_captions(tmp_path)) == CAPTIONS
    assert captions.read_captions_about(tmp_path) == {"tagger": "tiny"}
    assert captions.read_part_about(captions.part_path(tmp_path, 1)) == {"model": "tiny"}
    clip_ids = [pq.read_table(captions.part_path(tmp_path, n))["clip_id"].to_pylist() for n in (0, 1)]
    assert clip_ids == [["v"], ["v#0.0-1.25"]]


def test_a_table_from_before_there_were_recordings_is_read(tmp_path):
    captions.write_part(tmp_path, 0, CAPTIONS, {})
    captions.write_captions_about(tmp_path, {})
    path = captions.part_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).drop_columns(["recording"]), path)
    assert list(read_captions(tmp_path)) == [CAPTIONS[0], replace(CAPTIONS[1], recording=None)]


@pytest.mark.parametrize("column", ["clip_id", "words"])
def test_a_table_that_lacks_a_column_is_refused(tmp_path, column):
    captions.write_part(tmp_path, 0, CAPTIONS, {})
    captions.write_captions_about(tmp_path, {})
    path = captions.part_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(UserError, match=f"columns missing: {column}"):
        read_captions(tmp_path)


@pytest.mark.parametrize("recording", ["", "  ", 7, "half \ud800"])
def test_a_recording_has_an_id(recording):
    with pytest.raises(ValueError, match=r"recording|text"):
        Caption(video_id="v", caption="a", split="train", recording=recording)


def test_idf_is_read_as_written(tmp_path):
    entries = [IdfEntry(word="ü", part_of_speech="NOUN", document_count=3, idf=-0.25)]
    write_idf(tmp_path / "idf.parquet", entries)
    assert read_idf(tmp_path / "idf.parquet") == entries


@pytest.mark.parametrize("content", [b"", b"PAR1 cut", "another table"], ids=["empty", "cut", "another table"])
def test_a_bad_table_of_captions_is_named(tmp_path, content):
    path = tmp_path / "part-00000.parquet"
    captions.write_captions_about(tmp_path, {})
    if content == "another table":
        pq.write_table(pa.table({"video_id": ["v"]}), path)
    else:
        path.write_bytes(content)
    with pytest.raises(UserError) as refused:
        read_captions(tmp_path)
    message = str(refused.value)
    assert str(path) in message and "vlalign-preprocess" in message and "\n" not in message


def test_clips_late_in_a_long_video_have_ids_of_their_own():
    clips = [
        Caption(video_id="v", caption="a", split="train", start_seconds=s, end_seconds=2000.0)
        for s in (1234.561, 1234.562)
    ]
    assert clips[0].clip_id != clips[1].clip_id


# Commands


def raising(error):
    def command(args):
        if error is not None:
            raise error
        return 0

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        pytest.param(None, 0, "", id="all done"),
        pytest.param(
            UserError("x.csv: no column caption"),
            2,
            "vlalign-test: error: x.csv: no column caption\n",
            id="mistake in the call",
        ),
        pytest.param(
            OSError(28, "No space left on device", "x.h5"),
            1,
            "vlalign-test: error: [Errno 28] No space left",
            id="full disk",
        ),
        pytest.param(
            PermissionError(13, "Permission denied", "x.h5"),
            1,
            "vlalign-test: error: [Errno 13] Permission",
            id="no right",
        ),
        pytest.param(KeyboardInterrupt(), 130, "vlalign-test: stopped\n", id="stopped"),
    ],
)
def test_exit_codes(capsys, error, code, said):
    parser = command_parser("vlalign-test", "tests", "vlalign-test")
    assert run_command(raising(error), parser, []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(said) and err.count("\n") == bool(said)
    assert "Traceback" not in err


def test_a_programming_error_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()), command_parser("vlalign-test", "tests", "vlalign-test"), [])


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--help"], 0), (["--no-such-option"], 2), (["--data", "demo"], 2)],
    ids=["help", "unknown option", "abbreviated"],
)
def test_the_parser_ends_the_command(capsys, argv, code):
    with pytest.raises(SystemExit) as ended:
        run_command(raising(None), command_parser("vlalign-test", "tests", "vlalign-test --dataset demo"), argv)
    assert ended.value.code == code
    if code == 0:
        assert "vlalign-test --dataset demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("main", "argv", "says"),
    [
        (train, ["--features", "s3d", "--learning-rte", "3"], "unknown: --learning-rte 3; nearest: --learning-rate"),
        (train, ["--features", "s3d", "--zzz"], "unknown: --zzz; see vlalign-train --help"),
        (train, ["--features", "s3d", "--dropout", "a"], "argument --dropout: invalid float value: 'a'"),
        (store, ["ls", "--jsn"], "unknown: --jsn; nearest: --json"),
    ],
)
def test_a_mistaken_option_is_one_line_with_the_nearest(capsys, main, argv, says):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and says in said and said.endswith("--help\n")


@pytest.mark.parametrize(
    ("environment", "argv", "root"),
    [(None, [], "vlalign_data"), ("from-env", [], "from-env"), ("from-env", ["--root", "from-call"], "from-call")],
    ids=["default", "environment", "call before environment"],
)
def test_root(monkeypatch, environment, argv, root):
    if environment:
        monkeypatch.setenv("VLALIGN_ROOT", environment)
    assert command_parser("vlalign-test", "tests", "vlalign-test").parse_args(argv).root == Path(root)


@pytest.mark.parametrize("num", [0, 1, Problems.MAX_LINES, Problems.MAX_LINES + 1, 10 * Problems.MAX_LINES])
def test_problems_print_a_few_lines_and_list_and_count_all(tmp_path, capsys, num):
    file = tmp_path / "mine" / "problems" / "test.txt"
    for call in ("a", "b"):  # the second takes the place of the first
        with Problems(file=file) as problems:
            for number in range(num):
                problems.add(f"row {call}{number}")
        shown = min(num, Problems.MAX_LINES)
        expected = [f"warning: row {call}{number}" for number in range(shown)]
        if num > shown:
            expected += [f"warning: more problems follow; they are only listed in {file}"]
            expected += [f"{num:,} problems, all listed in {file}"]
            assert file.read_text().splitlines() == [f"row {call}{number}" for number in range(num)]
        out, err = capsys.readouterr()
        assert err.splitlines() == expected and out == ""
        assert problems.count == num and problems.exit_code() == (1 if num else 0)
        assert file.exists() == (num > shown)


def test_problems_are_counted_whatever_ends_the_command(tmp_path, capsys):
    file = tmp_path / "problems.txt"
    with pytest.raises(OSError, match="disk"), Problems(file=file) as problems:
        for number in range(30):
            problems.add(f"row\n{number}")
        raise OSError("disk")
    assert capsys.readouterr().err.splitlines()[-1] == f"30 problems, all listed in {file}"
    assert file.read_text().splitlines()[-1] == "row 29"


def test_problems_that_cannot_be_listed_are_all_said(tmp_path, capsys):
    (tmp_path / "file").touch()
    with Problems(file=tmp_path / "file" / "problems.txt") as problems:
        for number in range(30):
            problems.add(f"row {number}")
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if "row" in line] == [f"warning: row {number}" for number in range(30)]
    assert (
        said[20].startswith("note: problems cannot be listed in a file")
        and said[-1] == "30 problems, see above"
        and len(said) == 32
    )


# Progress


@pytest.mark.parametrize("items", [[], [7], list(range(100))], ids=["none", "one", "many"])
def test_progress_in_a_log_gives_all_items_and_is_quiet_when_quick(capsys, items):
    assert list(progress(iter(items), total=len(items), what="testing", unit="items")) == items
    assert capsys.readouterr() == ("", "")


def test_progress_in_a_log_says_rate_and_time_left(capsys, monkeypatch):
    monkeypatch.setattr("vlalign.storage.common.progress.LOG_EVERY_SECONDS", 0)
    assert list(progress("abcd", total=4, what="testing", unit="items")) == list("abcd")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.split()[:3] for line in lines] == [["testing:", f"{25 * n}%", f"{n}/4"] for n in (1, 2, 3, 4)]
    assert all(re.search(r" \[\d\d:\d\d<\d\d:\d\d, .* items/s\]", line) for line in lines), err
    assert out == ""


def test_progress_takes_an_item_only_when_it_is_asked_for():
    taken = []
    items = progress((taken.append(n) or n for n in range(5)), total=5, what="testing", unit="items")
    assert taken == []
    assert next(items) == 0 and taken == [0]
    assert next(items) == 1 and taken == [0, 1]


def test_progress_on_a_terminal_is_a_bar(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(progress("abc", total=3, what="testing", unit="items")) == list("abc")
    assert "testing: 100%" in terminal.getvalue() and "3/3" in terminal.getvalue()
    assert "\r" in terminal.getvalue()


@pytest.mark.parametrize("path", ["../other/x.mp4", "videos/../../x.mp4", ".."])
def test_a_listed_path_does_not_lead_out_of_the_data_set(tmp_path, path):
    with pytest.raises(UserError, match="which leads out of"):
        DatasetFolder(tmp_path, "mine").video_path(VideoRecord(video_id="x", path=path))
    inside = DatasetFolder(tmp_path, "mine").video_path(VideoRecord(video_id="x", path="videos/..x.mp4"))
    assert inside == tmp_path / "mine" / "videos" / "..x.mp4"
