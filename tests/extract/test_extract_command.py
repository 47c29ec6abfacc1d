"""vlalign-extract: what there is to do, what is left of it, and the command itself."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.videos import scene, touch
from vlalign.extract.cli import main, parse_weights
from vlalign.extract.render import render_video
from vlalign.extract.selection import list_folder
from vlalign.extract.store_extractor import make_extractor
from vlalign.extract.work import OLDER_NS, WorkList
from vlalign.storage import Failure, FeatureStore, VideoFeatures, VideoRecord, Weights, write_shard
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.files import file_identity, read_jsonl, write_jsonl
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.profiles import PROFILES

# What there is to do


def test_a_folders_videos_get_their_paths_as_ids(tmp_path):
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


def test_a_file_name_that_is_no_text_is_left_out_and_said(tmp_path, capsys):
    for name in ("a.mp4", "b\udcff.mp4", "c\n.mp4"):
        (tmp_path / name).write_bytes(b"")
    problems = Problems()
    assert [v.video_id for v in list_folder(tmp_path, problems)] == ["a"]
    assert problems.count == 2
    assert "characters that are not printable; left out" in capsys.readouterr().err


def extraction_in(locale: dict[str, str], folder: Path) -> subprocess.CompletedProcess:
    call = ["--root", str(folder / "root"), "--dataset", "mine", "--videos", str(folder), "--features", "logmel"]
    command = [
        sys.executable,
        "-c",
        "import sys; from vlalign.extract.cli import main; sys.exit(main(sys.argv[1:]))",
        *call,
    ]
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LC_", "LANG", "PYTHONUTF8", "PYTHONCOERCE"))
    }
    return subprocess.run(command, env=kept | locale, capture_output=True, encoding="utf-8", check=False)


def test_names_are_read_as_utf_8_without_a_locale(tmp_path, short_video):
    shutil.copy(short_video, tmp_path / "größe 視頻.mp4")
    done = extraction_in({"LC_ALL": "C"}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(FeatureStore(DatasetFolder(tmp_path / "root", "mine").features("logmel")).video_ids()) == ["größe 視頻"]


def test_where_names_would_be_misread_nothing_is(tmp_path, short_video):
    shutil.copy(short_video, tmp_path / "größe.mp4")
    done = extraction_in({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, tmp_path)
    assert done.returncode == 2 and not (tmp_path / "root").exists()
    assert done.stderr == ("vlalign-extract: error: file names are read as ascii, expected utf-8; set PYTHONUTF8=1\n")


def test_a_relative_folder_gives_absolute_paths(tmp_path, monkeypatch):
    touch(tmp_path, "videos/a.mp4")
    monkeypatch.chdir(tmp_path)
    assert list_folder(Path("videos"), Problems()) == [VideoRecord(video_id="a", path=str(tmp_path / "videos/a.mp4"))]


def test_of_two_files_with_one_id_the_first_counts_and_the_second_is_named(tmp_path, capsys):
    touch(tmp_path, "a.mp4", "a.webm", "b.mp4")
    problems = Problems()
    assert [v.path for v in list_folder(tmp_path, problems)] == [str(tmp_path / "a.mp4"), str(tmp_path / "b.mp4")]
    assert problems.count == 1
    warning = capsys.readouterr().err
    assert f"{tmp_path / 'a.webm'}: has the same id, 'a', as {tmp_path / 'a.mp4'}" in warning and "rename" in warning


@pytest.mark.parametrize(
    "make, complaint",
    [
        (lambda folder: None, "no such folder"),
        (lambda folder: folder.write_text("x"), "no such folder"),
        (lambda folder: folder.mkdir(), "no video files in it; expected names ending in .3gp .avi"),
        (lambda folder: touch(folder, "readme.md", "sub/a.wav"), "no video files in it"),
    ],
    ids=["missing", "a file", "empty", "nothing of the kind"],
)
def test_a_folder_without_videos_is_refused(tmp_path, make, complaint):
    make(tmp_path / "videos")
    with pytest.raises(UserError, match=complaint) as refused:
        list_folder(tmp_path / "videos", Problems())
    assert str(tmp_path / "videos") in str(refused.value)


def rows_of(video_id: str, source: str, dimension: int) -> VideoFeatures:
    return VideoFeatures(
        video_id=video_id,
        features=np.ones((1, dimension), dtype=np.float32),
        start_seconds=np.zeros(1),
        end_seconds=np.ones(1),
        valid_frames=np.full(1, 16),
        duration_seconds=1.0,
        source=source,
    )


STORED = Weights(name="random (seed 5)", sha256="5" * 64)


@pytest.fixture
def half_done(tmp_path) -> DatasetFolder:
    """S3D has "done", "changed" and "vanished"; it failed on "broken", "mended" and "lost"; ResNet-152 has nothing."""
    dataset = DatasetFolder(tmp_path / "root", "mine")
    touch(
        dataset.path / "videos",
        *(f"{name}.mp4" for name in ("done", "changed", "vanished", "broken", "mended", "lost", "new")),
    )
    source = {p.stem: file_identity(p) for p in (dataset.path / "videos").iterdir()}
    stored = [rows_of(name, source[name], 1024) for name in ("done", "changed", "vanished")]
    write_shard(dataset.features("s3d"), PROFILES["s3d"], STORED, stored, made_with={})
    failures = [
        {"video_id": name, "path": f"videos/{name}.mp4", "kind": "unreadable", "message": "why", "source": source[name]}
        for name in ("broken", "mended", "lost")
    ]
    write_jsonl(dataset.features("s3d") / "failures.jsonl", failures)
    for name in ("changed", "mended"):
        (dataset.path / "videos" / f"{name}.mp4").write_bytes(b"another content")
    for name in ("vanished", "lost"):
        (dataset.path / "videos" / f"{name}.mp4").unlink()
    return dataset


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
    work = WorkList(half_done, ["s3d"])
    assert work.left(video, only_failed=False) == left
    assert work.left(video, only_failed=True) == left_with_retry
    assert WorkList(half_done, ["resnet152", "s3d"]).left(video, only_failed=False) == ["resnet152", *left]


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
def test_a_file_is_read_again_only_where_size_and_time_do_not_tell(tmp_path, content, mtime_ns, is_still, monkeypatch):
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
        monkeypatch.setattr("vlalign.extract.work.file_identity", None)  # would fail if it were called
    assert (WorkList(dataset, ["s3d"]).left(video, only_failed=False) == []) is is_still


def test_recorded_failures_are_there_for_the_next_run_until_they_are_gone(half_done):
    new = Failure(video_id="new", path="videos/new.mp4", kind="no_video", message="söund only", source="7-x")
    work = WorkList(half_done, ["s3d"])
    work.note("s3d", "new", new)
    work.note("s3d", "broken", None)
    work.note("s3d", "never failed", None)
    work.write_failures()
    again = WorkList(half_done, ["s3d"])
    assert list(again.failures["s3d"]) == ["mended", "lost", "new"] and again.failures["s3d"]["new"] == new


# The command


@pytest.mark.parametrize(
    "values, features, expected",
    [
        ([], ["s3d"], {"s3d": "pretrained"}),
        ([], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "pretrained"}),
        (["random"], ["resnet152", "s3d"], {"resnet152": "random", "s3d": "random"}),
        (["pretrained"], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "pretrained"}),
        (["my/s3d.pth"], ["s3d"], {"s3d": "my/s3d.pth"}),
        (["s3d=my/s3d.pth"], ["resnet152", "s3d"], {"resnet152": "pretrained", "s3d": "my/s3d.pth"}),
        (["s3d=random", "resnet152=r.pth"], ["resnet152", "s3d"], {"resnet152": "r.pth", "s3d": "random"}),
        (["random", "s3d=s.pth"], ["resnet152", "s3d"], {"resnet152": "random", "s3d": "s.pth"}),
        (["s3d=x/lr=0.1/s.pth"], ["s3d"], {"s3d": "x/lr=0.1/s.pth"}),
        (["./lr=0.1/s.pth"], ["s3d"], {"s3d": "./lr=0.1/s.pth"}),
        (["i3d=i.pth"], ["i3d_resnext101"], {"i3d_resnext101": "i.pth"}),
    ],
    ids=[
        "default",
        "default for two",
        "one for both",
        "pretrained",
        "file",
        "file for one",
        "each its own",
        "one for both but one",
        "named, = in the path",
        "= in the path",
        "an alias",
    ],
)
def test_weights_options(values, features, expected):
    assert parse_weights(values, features) == expected


@pytest.mark.parametrize(
    "values, complaint",
    [
        (["w.pth"], "which features are they for? Pass --weights NAME=w.pth, NAME being resnet152 or s3d"),
        (["c3d=w.pth"], "'c3d' is not among --features resnet152,s3d"),
    ],
    ids=["a file for two", "features not asked for"],
)
def test_weights_options_that_are_refused(values, complaint):
    with pytest.raises(UserError) as refused:
        parse_weights(values, ["resnet152", "s3d"])
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    "options, complaint",
    [
        (
            ["--dataset", "mine", "--features", "s3d,c3d"],
            "--features s3d,c3d: features 'c3d': not known; expected resnet152, i3d_resnext101,",
        ),
        (
            ["--dataset", "mine", "--features", "c3d+i3d+tsn"],
            "features 'c3d' and 'tsn': not known; expected resnet152,",
        ),
        (["--dataset", "mine", "--features", ""], "features '': not known"),
        (["--features", "s3d"], "--dataset is missing"),
        (
            ["--dataset", "mine"],
            "videos.jsonl: not found; run vlalign-preprocess --dataset mine first, or pass your own: --videos FOLDER",
        ),
        (["--dataset", "mine", "--videos", "nowhere"], "nowhere: no such folder"),
        (["--dataset", "../mine", "--videos", "videos"], "data set name '../mine'"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "c3d=x.pth"], "'c3d' is not among --features s3d"),
        (["--dataset", "mine", "--videos", "videos", "--weights", "x.pth"], "weights x.pth: no such file"),
    ],
    ids=[
        "unknown features",
        "several unknown",
        "no features",
        "no data set",
        "not prepared",
        "no folder",
        "no name",
        "other features",
        "no weights",
    ],
)
def test_a_mistake_in_the_call_is_one_line_and_exit_2(tmp_path, capsys, monkeypatch, options, complaint):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("vlalign-extract: error: ") and printed.err.count("\n") == 1
    assert complaint in printed.err
    assert not list(tmp_path.rglob("*.h5"))


def test_published_weights_out_of_reach_are_exit_2_and_say_where_to_put_the_file(tmp_path, capsys):
    touch(tmp_path, "videos/a.mp4")
    assert main(["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(tmp_path / "videos")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    for part in (
        "s3d_howto100m.pth",
        str(tmp_path / "cache" / "weights"),
        "put the file there",
        "--weights FILE",
        "--weights random",
    ):
        assert part in printed
    assert not (tmp_path / "root/mine/features").exists(), "nothing was tried"


def test_only_the_demo_falls_back_to_random_weights_and_says_so(tmp_path, capsys):
    made = make_extractor(DatasetFolder(tmp_path, "demo"), "s3d", "pretrained")
    assert made.weights.is_random
    notes = capsys.readouterr().err
    assert "s3d_howto100m.pth" in notes and "seeded random weights for s3d" in notes


def test_a_store_made_with_other_weights_is_not_added_to(half_done):
    with pytest.raises(
        UserError, match=r"was made with .* weights random \(seed 5\), now asked for: .* random \(seed 0\)"
    ) as refused:
        make_extractor(half_done, "s3d", "random")
    assert str(half_done.features("s3d")) in str(refused.value)


def test_a_broken_video_is_recorded_passed_over_and_tried_again_on_request(tmp_path, capsys, short_video):
    folder, dataset = tmp_path / "videos", DatasetFolder(tmp_path / "root", "mine")
    (folder / "sub").mkdir(parents=True)
    shutil.copy(short_video, folder / "good.mp4")
    render_video(scene(0.6, width=180, height=240, fps="30"), folder / "sub" / "-good too.mp4")
    (folder / "broken.mp4").write_bytes(short_video.read_bytes()[:9000])
    call = [
        "--root",
        str(dataset.root),
        "--dataset",
        "mine",
        "--videos",
        str(folder),
        "--features",
        "s3d",
        "--weights",
        "random",
    ]

    def stored() -> dict[str, str]:
        store = FeatureStore(dataset.features("s3d"))
        return {video_id: store.source(video_id) for video_id in store.video_ids()}

    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "'broken'" in printed and "features s3d of 2 of 3 videos" in printed
    failures_file = dataset.features("s3d") / "failures.jsonl"
    (failure,) = read_jsonl(failures_file)
    assert (failure["video_id"], failure["path"], failure["kind"]) == (
        "broken",
        str(folder / "broken.mp4"),
        "unreadable",
    )
    assert failure["message"] and failure["source"] == file_identity(folder / "broken.mp4")
    good = {
        "good": file_identity(folder / "good.mp4"),
        "sub/-good too": file_identity(folder / "sub" / "-good too.mp4"),
    }
    assert stored() == good
    row = FeatureStore(dataset.features("s3d")).get("good")
    assert row.features.shape == (1, 1024) and row.valid_frames.tolist() == [14]
    assert [json.loads(line)["video_id"] for line in dataset.videos_file.read_text().splitlines()] == [
        "broken",
        "good",
        "sub/-good too",
    ]

    before = {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()}
    assert main(call) == 1
    printed = capsys.readouterr().err
    assert "tried" not in printed and "--retry-failed" in printed
    assert {p: p.stat().st_mtime_ns for p in dataset.path.rglob("*") if p.is_file()} == before

    assert main([*call, "--retry-failed"]) == 1
    assert "1 videos tried, 1 problems" in capsys.readouterr().err
    assert len(read_jsonl(failures_file)) == 1

    shutil.copy(short_video, folder / "broken.mp4")
    assert main([*call, "--retry-failed"]) == 0
    assert "1 videos tried, 0 problems" in capsys.readouterr().err
    assert read_jsonl(failures_file) == []
    assert stored() == good | {"broken": file_identity(short_video)}
