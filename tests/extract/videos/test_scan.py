"""What a scan of a folder takes, what it leaves out, and what it says about that."""

import os
import re
import shutil
import socket
import unicodedata
from pathlib import Path

import pytest
from av.format import ContainerFormat
from helpers.videos import remux, scene, touch
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding.container import CONTAINERS
from vlalign.extract.videos.demo import render_video
from vlalign.extract.videos.selection import list_folder
from vlalign.storage import FeatureStore
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.media_types import IMAGE_SUFFIXES, SOUND_SUFFIXES, VIDEO_SUFFIXES
from vlalign.storage.exchange.readers import feature_files

# Of FFmpeg's own lists: subtitles, sound in containers that nobody names so, pictures in tiles, and numbers.
OTHERS = {"mks", "isma", "m2a", "mpa", "psp", "ism", "h26l", "heic", "heif", "264", "265"}
NAMED = [
    "m2ts",
    "mts",
    "vob",
    "mxf",
    "asf",
    "f4v",
    "3g2",
    "rm",
    "dv",
    "y4m",
    "avif",
    "webp",
    "qt",
    "m2v",
    "h264",
    "hevc",
    "ivf",
    "nut",
    "mj2",
    "apng",
    "obu",
]


@pytest.fixture(scope="module")
def short_clip(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("clip") / "a.mp4"
    render_video(scene(0.7), path)
    return path


def extract(root: Path, videos: Path, *more: object) -> int:
    call = ["--root", root, "--dataset", "d", "--features", "resnet152", "--weights", "random", "--videos", videos]
    return extract_main([*map(str, call), *map(str, more)])


def ids(folder: Path, problems: Problems | None = None) -> list[str]:
    return [video.video_id for video in list_folder(folder, problems or Problems(), instead=IMAGE_SUFFIXES)]


def test_all_suffixes_of_the_formats_that_decoders_read_are_taken():
    suffixes = {suffix[1:] for suffix in (*VIDEO_SUFFIXES, *SOUND_SUFFIXES, *IMAGE_SUFFIXES)}
    of_ffmpeg = set().union(*(ContainerFormat(name, "r").extensions for name in CONTAINERS.split(",")))
    assert of_ffmpeg - OTHERS <= suffixes and set(NAMED) <= suffixes
    assert len(VIDEO_SUFFIXES) == len(set(VIDEO_SUFFIXES))


def test_a_cameras_files_are_extracted(tmp_path, short_clip):
    videos = tmp_path / "videos"
    videos.mkdir()
    for name, form in {"a.M2TS": "mpegts", "b.MTS": "mpegts", "c.f4v": "mov", "d.3g2": "mov", "e.nut": "nut"}.items():
        remux(short_clip, videos / name, form, sound=False)
    assert extract(tmp_path / "root", videos) == 0
    assert sorted(FeatureStore(tmp_path / "root/d/features/resnet152").video_ids()) == ["a", "b", "c", "d", "e"]


def test_what_is_left_out_is_counted_by_suffix(tmp_path, capsys):
    touch(tmp_path, "a.mp4", "a.en.srt", "sub/b.SRT", "sub/b.MKV", "README", "notes.txt", ".DS_Store", "._a.mp4")
    assert ids(tmp_path) == ["a", "sub/b"]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and str(tmp_path) in lines[0]
    for count in ("4 files", "2 .srt", "1 .txt", "1 without a suffix"):
        assert count in lines[0]
    assert "DS_Store" not in lines[0]


def test_a_folder_without_videos_says_what_is_in_it(tmp_path, capsys):
    touch(tmp_path, "a.srt", "b.srt")
    assert extract(tmp_path / "root", tmp_path) == 2
    assert "2 .srt" in capsys.readouterr().err


def linked(folder: Path) -> Path:
    """A folder with links to a file and to a folder beside it, and one that dangles."""
    touch(folder, "in/one.mp4", "disk/two.mp4", "disk/deep/three.MTS", "disk/notes.txt")
    (folder / "in/part2").symlink_to("../disk")
    (folder / "in/gone.mp4").symlink_to("../disk/gone.mp4")
    return folder / "in"


def test_without_a_data_set_links_lead_only_within_the_folder(tmp_path, capsys):
    folder, problems = linked(tmp_path), Problems()
    assert ids(folder, problems) == ["one"]
    gone, outside = problems.messages
    assert f"{folder}/gone.mp4: " in gone and "../disk/gone.mp4" in gone
    assert f"{folder}/part2 (" in outside and f"--allow-folder {tmp_path}/disk " in outside
    assert "notes" not in capsys.readouterr().err, "what lies there is not even listed"


def test_links_are_followed_where_the_user_allows_it_and_recorded_resolved(tmp_path, short_clip, capsys):
    folder = linked(tmp_path)
    for path in (folder / "one.mp4", tmp_path / "disk/two.mp4"):
        shutil.copy(short_clip, path)
    remux(short_clip, tmp_path / "disk/deep/three.MTS", "mpegts", sound=False)
    (folder / "four.mp4").symlink_to("part2/two.mp4")
    (tmp_path / "blobs").mkdir()
    shutil.copy(short_clip, tmp_path / "blobs/0ab3")
    (folder / "five.mp4").symlink_to("../blobs/0ab3")  # as in the cache of a hub
    assert extract(tmp_path / "root", folder, "--allow-folder", tmp_path / "blobs") == 2, "four.mp4 leads out"
    assert extract(tmp_path / "root", folder, "--allow-folder", tmp_path / "disk") == 1, "a link dangles"
    dataset = DatasetFolder(tmp_path / "root", "d")
    assert {video.video_id: video.path for video in dataset.read_videos()} == {
        "five": str(folder / "five.mp4"),
        "four": str(tmp_path / "disk/two.mp4"),
        "one": str(folder / "one.mp4"),
        "part2/deep/three": str(tmp_path / "disk/deep/three.MTS"),
        "part2/two": str(tmp_path / "disk/two.mp4"),
    }
    assert len(FeatureStore(dataset.features("resnet152")).video_ids()) == 5
    (folder / "gone.mp4").unlink()
    assert extract(tmp_path / "root", folder) == 0


def test_each_real_folder_is_scanned_once_by_its_own_path(tmp_path, capsys):
    touch(tmp_path, "b/x.mp4", "b/c/y.mp4")
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b/c/up").symlink_to(tmp_path)  # a ring
    (tmp_path / "b/c/self").symlink_to("self")  # a link to itself leads nowhere
    problems = Problems()
    assert ids(tmp_path, problems) == ["b/c/y", "b/x"]
    assert [message.split(":")[0] for message in problems.messages] == [f"{tmp_path}/b/c/self"]
    assert re.search(rf"{re.escape(str(tmp_path))}: .*\b2 ", capsys.readouterr().err)


def test_folders_that_link_to_each_other_in_many_ways_are_scanned_in_no_time(tmp_path):
    names = [f"{number:02}" for number in range(30)]
    for name in names:
        touch(tmp_path, f"{name}/{name}.mp4")
        for other in names:
            (tmp_path / name / f"to{other}").symlink_to(f"../{other}")
    assert ids(tmp_path) == [f"{name}/{name}" for name in names]


def test_pipes_and_folders_that_cannot_be_listed_are_named(tmp_path, monkeypatch):
    touch(tmp_path, "a.mp4", "closed/b.mp4")
    os.mkfifo(tmp_path / "pipe.mp4")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)
        listening.bind("socket.mp4")
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)  # root may list anything
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    problems = Problems()
    assert ids(tmp_path, problems) == ["a"]
    assert sorted(Path(message.split(":")[0]).name for message in problems.messages) == [
        "closed",
        "pipe.mp4",
        "socket.mp4",
    ]


def test_links_that_vanish_or_lead_to_themselves_end_no_scan(tmp_path, monkeypatch):
    touch(tmp_path, "a.mp4")
    (tmp_path / ".loop").symlink_to(".loop")
    (tmp_path / "gone.mp4").symlink_to("nothing.mp4")
    (tmp_path / "odd.mp4").symlink_to("nothing.mp4")

    errors = {"gone.mp4": FileNotFoundError(2, "No such file"), "odd.mp4": OSError(5, "Input/output error")}
    readlink = os.readlink

    def failing(path):
        if error := errors.get(os.path.basename(path)):
            raise error
        return readlink(path)

    monkeypatch.setattr(os, "readlink", failing)
    problems = Problems()
    assert ids(tmp_path, problems) == ["a"]
    [problem] = problems.messages
    assert f"{tmp_path}/odd.mp4: " in problem and "Input/output error" in problem


def test_names_of_macos_give_composed_ids(tmp_path):
    name = "größe"
    decomposed = unicodedata.normalize("NFD", name)
    assert decomposed != name
    touch(tmp_path, f"videos/{decomposed}/{decomposed}.mp4", f"features/{decomposed}/{decomposed}.npy")
    assert ids(tmp_path / "videos") == [f"{name}/{name}"]
    assert list(feature_files(tmp_path / "features")) == [f"{name}/{name}"]
    touch(tmp_path, f"videos/{name}/{name}.mp4")
    problems = Problems()
    assert ids(tmp_path / "videos", problems) == [f"{name}/{name}"] and problems.count == 1, "two files of one id"


def test_a_video_that_would_take_the_place_of_another_is_refused(tmp_path, short_clip, capsys):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        shutil.copy(short_clip, tmp_path / folder / "a.mp4")
    assert extract(tmp_path / "root", tmp_path / "first") == 0
    capsys.readouterr()
    assert extract(tmp_path / "root", tmp_path / "first") == 0 and "/a.mp4" not in capsys.readouterr().err
    for more in ((), ("--plan",)):
        assert extract(tmp_path / "root", tmp_path / "second", *more) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert f"{tmp_path}/second/a.mp4" in said and f"{tmp_path}/first/a.mp4" in said
        assert f"vlalign-sync {tmp_path}/second --dataset d" in said
    [video] = DatasetFolder(tmp_path / "root", "d").read_videos()
    assert video.path == f"{tmp_path}/first/a.mp4"
    (tmp_path / "first").rename(tmp_path / "third")  # a folder that moved is no second file
    capsys.readouterr()
    assert extract(tmp_path / "root", tmp_path / "third") == 0 and "/a.mp4" not in capsys.readouterr().err


def test_hidden_files_trash_and_unfinished_downloads_are_counted(tmp_path, capsys):
    touch(tmp_path, "a.mp4", ".b.mp4", ".Trash-1000/c.mp4", "sub/$RECYCLE.BIN/d.mp4", "sub/@eaDir/e.mp4")
    touch(tmp_path, "lost+found/f.mp4", "g.mp4.part", "h.webm.crdownload", "i.mp4.download/i.mp4", "j.tmp", ".k.txt")
    touch(tmp_path, ".mp4", "..mp4", "...l.MP4")
    assert ids(tmp_path) == ["a"]
    [line] = capsys.readouterr().err.splitlines()
    assert "8 hidden" in line and "4 unfinished" in line and ".Trash-1000" in line and "g.mp4.part" in line
    assert ids(tmp_path / ".Trash-1000") == ["c"], "a folder that is named is read"
