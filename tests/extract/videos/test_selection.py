"""Which videos are extracted, and what is left to do for them."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.foreign import STORED, rows_of
from helpers.videos import touch
from vlalign.extract.pipeline.pending_work import OLDER_NS, PendingWork
from vlalign.extract.videos.selection import list_folder
from vlalign.storage import Failure, FeatureStore, VideoRecord, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import file_identity
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES

# What there is to do


def test_ids_of_a_folders_videos_are_their_relative_paths(tmp_path):
    touch(
        tmp_path,
        "b.mp4",
        "a.MKV",
        "sub/deep/a.webm",
        "sub/-dash id.mp4",
        "v1.2.mp4",
        "notes.txt",
        "cover.jpg",
        "c.mp4.partial",
    )
    (tmp_path / "folder.mp4").mkdir()
    problems = Problems()
    found = list_folder(tmp_path, problems)
    assert {v.video_id: v.path for v in found} == {
        "a": str(tmp_path / "a.MKV"),
        "b": str(tmp_path / "b.mp4"),
        "sub/-dash id": str(tmp_path / "sub/-dash id.mp4"),
        "sub/deep/a": str(tmp_path / "sub/deep/a.webm"),
        "v1.2": str(tmp_path / "v1.2.mp4"),
    }
    assert [v.path for v in found] == sorted(v.path for v in found) and problems.count == 0


def test_an_undecodable_file_name_is_skipped_and_reported(tmp_path, capsys):
    for name in ("a.mp4", "b\udcff.mp4", "c\n.mp4"):
        (tmp_path / name).write_bytes(b"")
    problems = Problems()
    assert [v.video_id for v in list_folder(tmp_path, problems)] == ["a"]
    assert problems.count == 2
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2 and all(name in "".join(warnings) for name in (r"b\udcff.mp4", r"c\n.mp4"))


def extraction_in(locale: dict[str, str], folder: Path) -> subprocess.CompletedProcess:
    call = ["--root", str(folder / "root"), "--dataset", "mine", "--videos", str(folder), "--features", "logmel"]
    command = [
        sys.executable,
        "-c",
        "import sys; from vlalign.extract.cli.extract import main; sys.exit(main(sys.argv[1:]))",
        *call,
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONCOERCE"))
    }
    return subprocess.run(command, env=kept | locale, capture_output=True, encoding="utf-8", check=False)


@pytest.mark.slow
def test_names_are_read_as_utf_8_without_a_locale(tmp_path, short_video):
    shutil.copy(short_video, tmp_path / "größe 視頻.mp4")
    done = extraction_in({"LC_ALL": "C"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(FeatureStore(DatasetFolder(tmp_path / "root", "mine").features("logmel")).video_ids()) == ["größe 視頻"]


def test_nothing_is_extracted_if_names_would_be_misread(tmp_path, short_video):
    shutil.copy(short_video, tmp_path / "größe.mp4")
    done = extraction_in({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, tmp_path)
    assert done.returncode == 2 and not (tmp_path / "root").exists()
    assert done.stderr.startswith("vlalign-extract: error: ") and done.stderr.count("\n") == 1
    assert " ascii; " in done.stderr and " utf-8; " in done.stderr and "PYTHONUTF8=1" in done.stderr


def test_a_relative_folder_gives_absolute_paths(tmp_path, monkeypatch):
    touch(tmp_path, "videos/a.mp4")
    monkeypatch.chdir(tmp_path)
    assert list_folder(Path("videos"), Problems()) == [VideoRecord(video_id="a", path=str(tmp_path / "videos/a.mp4"))]


def test_the_second_of_two_files_with_one_id_is_skipped_and_named(tmp_path, capsys):
    touch(tmp_path, "a.mp4", "a.webm", "b.mp4")
    problems = Problems()
    assert [v.path for v in list_folder(tmp_path, problems)] == [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    assert problems.count == 1
    warning = capsys.readouterr().err
    assert f"{tmp_path / 'a.webm'}: " in warning and "'a'" in warning and str(tmp_path / "a.mp4") in warning


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda folder: None, "videos: "),
        (lambda folder: folder.write_text("x"), "videos: "),
        (lambda folder: folder.mkdir(), r"videos: .*\.3g2 \.3gp \.apng"),
        (lambda folder: touch(folder, "readme.md", "sub/a.wav"), r"videos: .*\b2 "),
    ],
    ids=["missing", "a file", "empty", "nothing of the kind"],
)
def test_a_folder_without_videos_is_refused(tmp_path, make, complaint):
    make(tmp_path / "videos")
    with pytest.raises(UserError, match=complaint) as refused:
        list_folder(tmp_path / "videos", Problems())
    assert str(tmp_path / "videos") in str(refused.value)


@pytest.mark.parametrize(
    "name, left, left_with_retry",
    [
        ("done", [], []),
        ("changed", ["s3d"], []),
        ("vanished", [], []),
        ("broken", [], ["s3d"]),
        ("mended", ["s3d"], ["s3d"]),
        ("lost", ["s3d"], ["s3d"]),
        ("new", ["s3d"], []),
    ],
)
def test_what_is_left_of_a_video(half_done, name, left, left_with_retry):
    video = VideoRecord(video_id=name, path=f"videos/{name}.mp4")
    work = PendingWork(half_done, ["s3d"])
    assert work.missing_features(video, only_failed=False) == left
    assert work.missing_features(video, only_failed=True) == left_with_retry
    assert PendingWork(half_done, ["resnet152", "s3d"]).missing_features(video, only_failed=False) == [
        "resnet152",
        *left,
    ]


@pytest.mark.parametrize(
    "content, mtime_ns, is_still",
    [
        (b"as it was", -2 * OLDER_NS, True),
        (b"as it was", 0, True),
        (b"not as it", 0, False),
        (b"of another size", -2 * OLDER_NS, False),
    ],
    ids=["older than the store", "newer, the same", "newer, another content", "older, another size"],
)
def test_a_file_is_hashed_only_if_size_and_time_differ(tmp_path, content, mtime_ns, is_still, monkeypatch):
    dataset, video = DatasetFolder(tmp_path, "mine"), VideoRecord(video_id="a", path="a.mp4")
    path = dataset.video_path(video)
    touch(dataset.path, "a.mp4")
    path.write_bytes(b"as it was")
    write_shard(
        dataset.features("s3d"), PROFILES["s3d"], STORED, [rows_of("a", file_identity(path), 1024)], made_with={}
    )
    path.write_bytes(content)
    moment = time.time_ns() + mtime_ns
    os.utime(path, ns=(moment, moment))
    if content == b"as it was" and mtime_ns:
        monkeypatch.setattr("vlalign.extract.pipeline.pending_work.file_identity", None)  # would fail if it were called
    assert (PendingWork(dataset, ["s3d"]).missing_features(video, only_failed=False) == []) is is_still


def test_recorded_failures_are_kept_until_the_video_succeeds(half_done):
    new = Failure(video_id="new", path="videos/new.mp4", kind="no_video", message="söund only", source="7-x")
    work = PendingWork(half_done, ["s3d"])
    work.note_failure("s3d", "new", new)
    work.note_failure("s3d", "broken", None)
    work.note_failure("s3d", "never failed", None)
    work.write_failures()
    again = PendingWork(half_done, ["s3d"])
    assert list(again.failures["s3d"]) == ["mended", "lost", "new"] and again.failures["s3d"]["new"] == new
