"""Columns, times, encodings and ids of users' own captions, as people write them."""

from unicodedata import normalize

import pytest
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import custom
from vlalign.preprocess.datasets.custom.ids import match_ids
from vlalign.storage import VideoRecord, read_captions
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder

VIDEOS = [VideoRecord(video_id=name, path=f"/data/videos/{name}.mp4") for name in ("a", "b/c", "d")]


MADE = "video_id,caption\n"


READ = {
    "Excel in a German locale": (
        "c.csv",
        ("video_id;caption;start;end;split\na;Größe, messen;1,5;3,25;Training\n;;;;\nb/c;läuft;0,5;2;val\n").encode(
            "cp1252"
        ),
        [("a", "Größe, messen", 1.5, 3.25, "train"), ("b/c", "läuft", 0.5, 2.0, "validation")],
        [
            "Windows-1252",
            "'Größe'",
            "semicolons",
            "'start' as start_seconds",
            "'1,5' as 1.5 s",
            "'val' as validation (1)",
        ],
    ),
    "pandas with an index": (
        "c.tsv",
        b"\tVideo ID\tSentence\tstartTime\tend_time (s)\n0\ta.mp4\tone\t0.5\t2\n1\tb/c.MP4\ttwo\t1\t2\n",
        [("a", "one", 0.5, 2.0, "train"), ("b/c", "two", 1.0, 2.0, "train")],
        ["'Video ID' as video_id", "'Sentence' as caption", "column '' is ignored", "2 of 2 ids", "'a.mp4' to 'a'"],
    ),
    "subtitles": (
        "c.csv",
        "file,Start Time,End Time,Text\na,00:00:01,500,1:05,x\n".replace("01,500", "01.500").encode("utf-16"),
        [("a", "x", 1.5, 65.0, "train")],
        ["UTF-16-LE", "'file' as video_id", "'00:00:01.500' as 1.5 s", "'1:05' as 65 s"],
    ),
    "UTF-16 without a mark": (
        "c.csv",
        (MADE + "a,x\n").encode("utf-16-be"),
        [("a", "x", None, None, "train")],
        ["UTF-16-BE"],
    ),
    "Windows paths": (
        "c.csv",
        b"path,caption,split\nC:\\my\\a.mp4,x,test\n.\\d.AVI,y,dev\n/data/videos/b/c.mp4,z,train\n",
        [("a", "x", None, None, "test"), ("d", "y", None, None, "validation"), ("b/c", "z", None, None, "train")],
        ["3 of 3 ids", "whole video", "'dev' as validation"],
    ),
    "milliseconds": (
        "c.csv",
        b"id,text,start_ms,end_ms\na,x,1500,2500\n",
        [("a", "x", 1.5, 2.5, "train")],
        ["in milliseconds"],
    ),
    "start and length": (
        "c.csv",
        b"id,text,start,duration\na,x,1,3\n",
        [("a", "x", 1.0, 4.0, "train")],
        ["'duration' as a clip's length"],
    ),
    "Excel's first line": (
        "c.csv",
        b"sep=;\r\nvideo_id;caption\r\na;x\r\n",
        [("a", "x", None, None, "train")],
        ["semicolons"],
    ),
    "trailing empty columns": ("c.csv", b"video_id,caption,,\na,x,,,\n", [("a", "x", None, None, "train")], []),
    "other columns": (
        "c.csv",
        b"Unnamed: 0,id,video_id,caption,state,url\n0,7,a,x,CA,http\n",
        [("a", "x", None, None, "train")],
        [
            "'Unnamed: 0' is kept",
            "'id' is kept for your own objectives (nearest known: video_id)",
            "'state' is ignored",
            "'url' is ignored",
        ],
    ),
    "JSONL": (
        "c.jsonl",
        '{"Filename": "a.mp4", "text": "café", "start": "0:05", "end": 7}\n'.encode("latin-1"),
        [("a", "café", 5.0, 7.0, "train")],
        ["Windows-1252", "'Filename' as video_id", "'0:05' as 5 s", "'a.mp4' to 'a'"],
    ),
    "perhaps milliseconds": (
        "c.csv",
        b"video_id,caption,start,end\na,x,1500,99000\n",
        [("a", "x", 1500, 99000, "train")],
        ["start_ms"],
    ),
    "minutes that a spreadsheet made hours": (
        "c.csv",
        b"video_id,caption,start,end\na,x,01:30:00,02:10:00\n",
        [("a", "x", 5400, 7800, "train")],
        ["spreadsheets write mm:ss"],
    ),
}


@pytest.mark.parametrize("case", READ)
def test_common_files_are_understood_and_reported(tmp_path, capsys, case):
    name, data, expected, said = READ[case]
    (tmp_path / name).write_bytes(data)
    problems = Problems()
    found = list(custom.read(tmp_path / name, 0, problems, VIDEOS))
    lines = capsys.readouterr().err.splitlines()
    assert [(c.video_id, c.caption, c.start_seconds, c.end_seconds, c.split) for c in found] == expected
    assert problems.count == 0 and all(line.startswith(f"note: {tmp_path / name}: ") for line in lines)
    for words in said:
        assert sum(words in line for line in lines) == 1, (words, lines)
    list(custom.read(tmp_path / name, 0, Problems(quiet=True), VIDEOS))
    assert capsys.readouterr().err == ""  # the second pass logs nothing


REFUSED = {
    "the same name twice": (
        "c.csv",
        b"video_id,caption,caption\na,x,y\n",
        ["'caption' and 'caption' ", " caption;"],
    ),
    "two of one meaning": (
        "c.csv",
        b"video_id,caption,start,start_seconds,end\na,x,1,1,2\n",
        ["'start' and 'start_seconds' ", " start_seconds;"],
    ),
    "a slip in a time's name": (
        "c.csv",
        b"video_id,caption,strat,stpo\na,x,1,2\n",
        ["'strat' (nearest: start_seconds)"],
    ),
    "ranges": (
        "c.csv",
        b"video_id,caption,timestamp\na,x,0:05-0:10\n",
        ["'timestamp' (", "start_seconds, end_seconds"],
    ),
    "frames": ("c.csv", b"video_id,caption,start_frame\na,x,12\n", ["'start_frame' (", "start_seconds, end_seconds"]),
    "lists of times": (
        "c.jsonl",
        b'{"video_id": "a", "sentences": "x", "timestamps": [[0, 1]]}',
        ["'timestamps' (", "start_seconds, end_seconds"],
    ),
    "splits by another name": (
        "c.csv",
        b"video_id,caption,phase\na,x,train\nd,y,test\n",
        ["'phase' (nearest: split", " test, train)"],
    ),
    "no end": ("c.csv", b"video_id,caption,start\na,x,1\n", ["'start' ", " end_seconds"]),
    "HowTo100M's captions of one video": (
        "c.csv",
        b"start,end,text\n1,2,x\n",
        [" video_id;", "'end', 'start', 'text'"],
    ),
    "ActivityNet's": ("c.json", b'{"v": {"sentences": ["x"]}}', [".jsonl"]),
    "an open quote": (
        "c.csv",
        b'video_id,caption\na,"x\nd,y\n',
        ["line 2: ", " CSV "],
    ),
    "a quote inside": ("c.csv", b'video_id,caption\na,"he "ran" off"\n', ["line 2: ", " CSV ", "',' expected after"]),
    "Russian": (
        "c.csv",
        (MADE + "a,кошка идёт\n").encode("cp1251"),
        ["line 2: ", " 0xea ", "UTF-8"],
    ),
    "damaged UTF-8": ("c.csv", (MADE + "a,käse\n").encode() + b"d,k\xe4se\n", ["line 3: ", " 0xe4 ", "UTF-8"]),
    "a workbook": ("c.csv", b"PK\x03\x04rest", [" Excel "]),
    "a name twice in JSON": (
        "c.jsonl",
        b'{"video_id": "a", "caption": "x", "caption": "y"}',
        ["line 1", "'caption'"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ambiguous_files_are_rejected_in_one_line(tmp_path, case):
    name, data, named = REFUSED[case]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as refused:
        list(custom.read(tmp_path / name, 0, Problems(), VIDEOS))
    message = str(refused.value)
    assert message.startswith(str(tmp_path / name)) and "\n" not in message
    assert all(each in message for each in named), message


def test_a_comma_is_not_read_as_decimal_if_other_times_have_points(tmp_path, capsys):
    (tmp_path / "c.csv").write_text("video_id;caption;start;end\na;x;1,500;2,5\na;y;1.5;2.5\n")
    problems = Problems()
    assert [c.caption for c in custom.read(tmp_path / "c.csv", 0, problems)] == ["y"]
    [warning] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert problems.count == 1 and f"{tmp_path / 'c.csv'}, line 2: " in warning and "'1,500'" in warning


def test_ids_are_matched_only_if_exactly_one_video_fits():
    videos = [VideoRecord(video_id=one, path=f"/v/{one}.mp4") for one in ("x/1", "y/1", "y/2", "3", "e.mp4")]
    given = ["1", "1.mp4", "2.mkv", "train/3.mp4", "test/3.mp4", "y\\1.mp4", "e.mp4", "/v/x/1.mp4", "zz", "e.mp4.mp4"]
    assert match_ids(given, videos) == {
        "2.mkv": "y/2",
        "y\\1.mp4": "y/1",
        "/v/x/1.mp4": "x/1",
        "e.mp4.mp4": "e.mp4",
    }


def test_an_id_may_be_written_with_and_without_its_suffix_or_folders():
    videos = [VideoRecord(video_id=one, path=f"/v/{one}.mp4") for one in ("clip2", "clip3", " lead", "x/4")]
    given = ["clip2", "clip2.mp4", "videos/clip2", "clip3.mp4", "videos/clip3.mp4", "lead", "a/x/4", "b/x/4"]
    assert match_ids(given, videos) == {
        "clip2.mp4": "clip2",
        "videos/clip2": "clip2",
        "clip3.mp4": "clip3",
        "videos/clip3.mp4": "clip3",
        "lead": " lead",
    }


def test_nothing_is_replaced_if_no_caption_names_a_video(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.write_videos(VIDEOS)
    path = tmp_path / "c.csv"
    argv = ["--root", str(tmp_path), "--dataset", "mine", "--annotations", str(path)]
    path.write_text("Filename,Caption,start,end\na.mp4,a man cooks,0,2\n")
    assert main(argv) == 0
    before = {file: file.read_bytes() for file in dataset.path.rglob("*") if file.is_file()}
    path.write_text("Filename,Caption,start,end\nother.mp4,a man cooks,0,2\n")
    capsys.readouterr()
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert str(dataset.videos_file) in err and " 1 " in err and "'other.mp4'" in err and "'a'" in err
    assert {file: file.read_bytes() for file in dataset.path.rglob("*") if file.is_file()} == before
    [kept] = read_captions(dataset.captions)
    assert (kept.video_id, kept.start_seconds, kept.end_seconds) == ("a", 0.0, 2.0)


@pytest.mark.parametrize("listed", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
@pytest.mark.parametrize("name", ["{}", "{}.mp4", "folder/{}"])
def test_accents_of_a_name_may_be_letters_of_their_own(listed, asked, name):
    """macOS decomposes the names of files; captions are written on another keyboard."""
    video_id, text = normalize(listed, "größe"), name.format(normalize(asked, "größe"))
    videos = [VideoRecord(video_id=video_id, path=f"/videos/{video_id}.mp4"), VideoRecord(video_id="x", path="x.mp4")]
    assert match_ids([text], videos) == ({} if text == video_id else {text: video_id})


def test_two_ids_that_differ_by_the_form_of_their_accents_stay_two():
    ids = [normalize(form, "größe") for form in ("NFC", "NFD")]
    assert match_ids(ids, [VideoRecord(video_id=video_id, path=f"{video_id}.mp4") for video_id in ids]) == {}


KEPT = {
    "CSV": (
        "c.csv",
        b"video_id,caption,rating, weight ,note,rating\na,one,4.5,1,x,7\nd,two,,-2e-1,,\nd,three,3, 7 ,y,\n",
        [{"rating": 4.5, "weight": 1.0}, {"weight": -0.2}, {"rating": 3.0, "weight": 7.0}],
        ["'rating' is kept", "'weight ' is kept", "'x' in line 2 is not a number", "an earlier one has the same name"],
    ),
    "JSONL": (
        "c.jsonl",
        b'{"video_id": "a", "caption": "x", "rating": 4, "good": true}\n'
        b'{"video_id": "d", "caption": "y", "rating": NaN, "big": 1e999}\n',
        [{"rating": 4.0}, {}],
        ["'rating' is kept", "'True' in line 1 is not a number", "'inf' in line 2 is not a number"],
    ),
    "decimal commas": (
        "c.csv",
        b"video_id;caption;rating\na;x;4,5\n",
        [{}],
        ["'rating' is ignored", "'4,5' in line 2 is not a number"],
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_columns_of_numbers_are_kept_and_others_named(tmp_path, capsys, case):
    name, data, expected, said = KEPT[case]
    (tmp_path / name).write_bytes(data)
    problems = Problems()
    found = list(custom.read(tmp_path / name, 0, problems, VIDEOS))
    lines = capsys.readouterr().err.splitlines()
    assert [caption.extra for caption in found] == expected and problems.count == 0
    for words in said:
        assert sum(words in line for line in lines) == 1, (words, lines)
