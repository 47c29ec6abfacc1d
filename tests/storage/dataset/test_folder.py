"""Where the files of a data set are, and which names and paths are accepted."""

from pathlib import Path

import pytest
from vlalign.storage import VideoRecord
from vlalign.storage.cli.parser import command_parser
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import (
    read_jsonl,
    write_text,
)
from vlalign.storage.dataset.folder import DatasetFolder, find_dataset


@pytest.mark.parametrize("name", ["demo", "youcook2", "MSR-VTT_1k-A", "a.b", "_x", "9"])
def test_valid_names_of_data_sets(tmp_path, name):
    dataset = DatasetFolder(tmp_path, name)
    assert dataset.path == tmp_path / name
    assert dataset.features("s3d") == tmp_path / name / "features" / "s3d"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "-x", "a b", "a\n", "ü", "a\0", "~"]
)
def test_names_that_are_not_a_plain_folder_name_are_refused(tmp_path, name):
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
    ("root", "folders", "name", "named"),
    [
        pytest.param("root", ["two/captions", "one/captions"], None, ["one, two", "--dataset"], id="several"),
        pytest.param("root", ["one/features"], None, ["captions", "vlalign-preprocess"], id="none prepared"),
        pytest.param("root", [], None, ["captions", "vlalign-preprocess"], id="empty root"),
        pytest.param("no root", ["one/captions"], None, ["captions", "no root"], id="no root"),
        pytest.param(
            "root",
            ["one/captions"],
            "two",
            ["two/captions", "vlalign-preprocess"],
            id="unknown name",
        ),
        pytest.param(
            "root",
            ["one/features"],
            "one",
            ["one/captions", "vlalign-preprocess"],
            id="known, not prepared",
        ),
        pytest.param("root", ["one/captions"], "../root/one", ["../root/one"], id="a path as a name"),
    ],
)
def test_find_dataset_names_what_is_missing(tmp_path, root, folders, name, named):
    (tmp_path / "root").mkdir()
    for folder in folders:
        (tmp_path / "root" / folder).mkdir(parents=True)
    with pytest.raises(UserError) as refused:
        find_dataset(tmp_path / root, name, having="captions", hint="vlalign-preprocess")
    message = str(refused.value)
    assert all(each in message for each in named), message
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
def test_an_invalid_list_of_videos_is_refused_with_its_line(tmp_path, line):
    dataset = DatasetFolder(tmp_path, "mine")
    write_text(dataset.videos_file, line + "\n")
    with pytest.raises(UserError) as refused:
        dataset.read_videos()
    assert str(dataset.videos_file) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "argv", "root"),
    [(None, [], "vlalign_data"), ("from-env", [], "from-env"), ("from-env", ["--root", "from-call"], "from-call")],
    ids=["default", "environment", "call before environment"],
)
def test_the_root_comes_from_the_option_or_the_environment(monkeypatch, environment, argv, root):
    if environment:
        monkeypatch.setenv("VLALIGN_ROOT", environment)
    assert command_parser("vlalign-test", "tests", "vlalign-test").parse_args(argv).root == Path(root)


@pytest.mark.parametrize("path", ["../other/x.mp4", "videos/../../x.mp4", ".."])
def test_a_video_path_outside_the_data_set_is_refused(tmp_path, path):
    with pytest.raises(UserError) as refused:
        DatasetFolder(tmp_path, "mine").video_path(VideoRecord(video_id="x", path=path))
    assert repr(path) in str(refused.value) and str(tmp_path / "mine" / "videos.jsonl") in str(refused.value)
    inside = DatasetFolder(tmp_path, "mine").video_path(VideoRecord(video_id="x", path="videos/..x.mp4"))
    assert inside == tmp_path / "mine" / "videos" / "..x.mp4"
