"""``videos.jsonl`` comes from anywhere: what it can have read and written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.videos import scene
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.captioned import warn_of_unlisted
from vlalign.extract.videos.demo import render_video
from vlalign.storage import Caption, FeatureStore
from vlalign.storage.captions.files import part_path, write_captions_about, write_part
from vlalign.storage.common.files import file_identity
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder, outside_of_folders
from vlalign.storage.records import VideoRecord
from vlalign.train.cli.sync import main as sync_main


@pytest.fixture
def dataset(tmp_path) -> DatasetFolder:
    return DatasetFolder(tmp_path / "root", "mine")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for name in ("a", "b"):
        render_video(scene(0.7), folder / f"{name}.mp4")
    return folder


def extract(dataset: DatasetFolder, *more: object) -> int:
    call = ["--root", dataset.root, "--dataset", dataset.name, "--features", "resnet152", "--weights", "random", *more]
    return extract_main(list(map(str, call)))


def test_a_list_reads_no_file_outside_the_root_without_permission(dataset, recordings, capsys):
    dataset.write_videos([VideoRecord(video_id=name, path=str(recordings / f"{name}.mp4")) for name in ("a", "b")])
    assert extract(dataset) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"vlalign-extract: error: {dataset.videos_file}: 2 ") and error.count("\n") == 1
    assert str(dataset.root) in error and f"{recordings}/a.mp4" in error and f"--allow-folder {recordings} " in error
    assert extract(dataset, "--allow-folder", recordings.parent / "none") == 2
    assert f"error: {recordings.parent / 'none'}: " in capsys.readouterr().err
    assert extract(dataset, "--allow-folder", recordings) == 0
    assert sorted(FeatureStore(dataset.features("resnet152")).video_ids()) == ["a", "b"]
    assert extract(dataset) == 0, "once is enough"
    dataset.write_videos(
        [*dataset.read_videos(), VideoRecord(video_id="c", path=f"{recordings}/../{recordings.name}x/c.mp4")]
    )
    assert extract(dataset) == 2
    other = DatasetFolder(dataset.root, "other")
    other.write_videos(dataset.read_videos()[:2])
    assert extract(other) == 2, "what is said of one data set is not said of another"


def test_the_videos_option_is_permission(dataset, recordings, tmp_path, capsys):
    folder = tmp_path / "Videos"
    shutil.copytree(recordings, folder)
    assert extract(dataset, "--videos", folder) == 0
    assert extract(dataset) == 0
    folder.rename(tmp_path / "kept")
    folder.symlink_to("kept")
    assert extract(dataset) == 2, "for this folder, not for another one to which its name leads later"
    assert f"(a link to {tmp_path}/kept/a.mp4)" in capsys.readouterr().err


def test_a_circle_of_links_as_data_set_or_folder_is_one_message(dataset, recordings, capsys):
    dataset.root.mkdir()
    dataset.path.symlink_to(dataset.path.name)
    assert extract(dataset, "--videos", recordings) == 1
    error = capsys.readouterr().err
    assert f"error: {dataset.path}" in error and "circle of links" in error and error.count("\n") == 1
    dataset.path.unlink()
    for name in ("features", "sync"):
        shutil.rmtree(dataset.path, ignore_errors=True)
        dataset.path.mkdir()
        (dataset.path / name).symlink_to(name)
        assert sync_main(["--root", str(dataset.root), str(recordings), "--features", "logmel"]) in (1, 2)
        error = capsys.readouterr().err
        assert f"error: {dataset.path / name}" in error and error.count("error:") == 1, error


MANY = 20
"""So many names that their folder is read once."""


def linked(dataset: DatasetFolder, kind: str, recordings: Path, num: int) -> list[VideoRecord]:
    """Return a list whose videos lie in the data set's folder by their paths, and elsewhere by links."""
    (dataset.path / "videos").mkdir(parents=True)
    if kind == "folder":
        (dataset.path / "videos" / "more").symlink_to(recordings)
        return [VideoRecord(video_id=name, path=f"videos/more/{name}.mp4") for name in ("a", "b")]
    for number in range(num):
        (dataset.path / "videos" / f"{number}.mp4").symlink_to(recordings / "a.mp4")
    folder = str(dataset.path / "videos") if kind == "absolute" else "videos"
    return [VideoRecord(video_id=str(number), path=f"{folder}/{number}.mp4") for number in range(num)]


@pytest.mark.parametrize("num", [1, MANY])
@pytest.mark.parametrize("kind", ["file", "absolute", "folder"])
def test_a_link_to_a_file_outside_the_root_needs_permission(dataset, recordings, capsys, kind, num):
    videos = linked(dataset, kind, recordings, num)
    dataset.write_videos(videos)
    for more in ((), ("--plan",)):
        assert extract(dataset, *more) == 2
        error = capsys.readouterr().err
        assert f"{dataset.videos_file}: {len(videos):,} " in error and str(dataset.root) in error
        assert f"--allow-folder {recordings} " in error and len(error.splitlines()) == 1
    assert outside_of_folders(dataset, videos).keys() == {video.path for video in videos}
    allow_folder(dataset, recordings)
    assert outside_of_folders(dataset, videos) == {}


def test_links_within_the_root_and_a_linked_data_set_need_none(dataset, recordings, tmp_path):
    real = DatasetFolder(tmp_path / "another disk", "mine")
    (real.path / "videos").mkdir(parents=True)
    (real.path / "a.mp4").write_bytes((recordings / "a.mp4").read_bytes())
    (real.path / "videos" / "b.mp4").symlink_to("../a.mp4")
    dataset.root.mkdir()
    dataset.path.symlink_to(real.path)
    real.write_videos(
        [
            VideoRecord(video_id="a", path="a.mp4"),
            VideoRecord(video_id="b", path="videos/b.mp4"),
            VideoRecord(video_id="c", path=str(real.path / "a.mp4")),
            VideoRecord(video_id="d", path="videos/missing.mp4"),
        ]
    )
    assert extract(dataset) == 1, "one is missing"
    assert sorted(FeatureStore(real.features("resnet152")).video_ids()) == ["a", "b", "c"]


def test_links_in_a_folder_of_videos_are_followed_where_the_user_allows_it(dataset, recordings, tmp_path, capsys):
    folder = tmp_path / "videos"
    folder.mkdir()
    (folder / "a.mp4").symlink_to(recordings / "a.mp4")
    (folder / "b.mp4").symlink_to("a.mp4")
    (folder / "nowhere.mp4").symlink_to(tmp_path / "nothing.mp4")
    assert extract(dataset, "--videos", folder) == 2
    nowhere, error = capsys.readouterr().err.splitlines()
    assert f"{folder}/nowhere.mp4: " in nowhere and f"{tmp_path}/nothing.mp4" in nowhere
    assert f"--allow-folder {recordings}" in error
    assert not dataset.videos_file.exists()
    assert extract(dataset, "--videos", folder, "--allow-folder", recordings) == 1, "one link leads nowhere"
    (folder / "nowhere.mp4").unlink()
    assert sorted(FeatureStore(dataset.features("resnet152")).video_ids()) == ["a", "b"]
    assert extract(dataset, "--videos", folder) == 0, "once is enough"


@pytest.mark.parametrize("path", ["{outside}/drawn.mp4", "link/drawn.mp4"])
def test_no_video_is_rendered_outside_the_data_set_folder(dataset, tmp_path, capsys, path):
    outside = tmp_path / "outside"
    outside.mkdir()
    dataset.path.mkdir(parents=True)
    os.symlink(outside, dataset.path / "link")
    dataset.write_videos([VideoRecord(video_id="v", path=path.format(outside=outside), scene=scene(0.7))])
    assert extract(dataset, "--allow-folder", outside) == 2
    error = capsys.readouterr().err
    assert f"{dataset.videos_file}: " in error and "'v'" in error and "/drawn.mp4" in error
    assert not list(outside.iterdir())


SCENES = {
    "too large": ({"width": 100_000}, "100000 x 180 .* 1,920"),
    "too long": ({"duration_seconds": 1e9}, r"1000000000\.0 .* 60"),
    "a rate that takes long": ({"fps": "1e999999999"}, "'1e999999999'"),
    "no rate": ({"fps": None}, "None"),
    "no colour": ({"colour": "black"}, "'black'"),
    "no seed": ({"noise_seed": "x"}, "videos.jsonl|'v'"),
}


@pytest.mark.parametrize("changed, value", SCENES.values(), ids=SCENES)
def test_a_scene_that_is_too_large_is_refused_in_one_line(dataset, capsys, changed, value):
    dataset.write_videos([VideoRecord(video_id="v", path="videos/v.mp4", scene=scene(0.7) | changed)])
    assert extract(dataset) == 2
    err = capsys.readouterr().err
    assert re.search(value, err) and len(err.splitlines()) == 1


@pytest.mark.slow
def test_a_pipe_in_a_list_does_not_block(dataset, recordings):
    dataset.path.mkdir(parents=True)
    os.mkfifo(dataset.path / "pipe.mp4")
    assert file_identity(dataset.path / "pipe.mp4") == ""
    (dataset.path / "b.mp4").write_bytes((recordings / "b.mp4").read_bytes())
    dataset.write_videos([VideoRecord(video_id="p", path="pipe.mp4"), VideoRecord(video_id="b", path="b.mp4")])
    call = ["--root", str(dataset.root), "--dataset", "mine", "--features", "resnet152", "--weights", "random"]
    main = "import sys; from vlalign.extract.cli.extract import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", main, *call], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "video 'p'" in done.stderr and "pipe.mp4" in done.stderr
    assert FeatureStore(dataset.features("resnet152")).video_ids() == ["b"]


def write_caption_table(dataset: DatasetFolder, ids: list[str], recording: str | None = None) -> None:
    captions = [Caption(video_id=name, caption="x", split="train", recording=recording) for name in ids]
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {})


MANY_IDS = [f"id{number}" for number in range(9)]
AGAIN, RENAME = "run vlalign-preprocess again", "name the video files after the ids"


@pytest.mark.parametrize(
    ("named", "num_more", "expected"),
    [
        (["a", "b", "c"], 0, ["none of 3 ", "'a'; it has 2, such as '101/a'", AGAIN]),
        (["videos/a.mp4"], 0, ["none of 1 ", "'videos/a.mp4'", AGAIN]),
        (["x", "y"], 0, ["none of 2 ", "'x'; it has 2, such as '101/a'", RENAME]),
        (["101/a", "b", *MANY_IDS], 9, ["only 1 of 11 ", "'b'; it has 11, such as '101/b'", AGAIN]),
        (["101/a", "x", *MANY_IDS], 9, ["only 1 of 11 ", "'id0'; it has 11, such as '101/b'", RENAME]),
        (["101/a", *MANY_IDS], 9, None),
        (["101/a", "x", *MANY_IDS], 0, None),
        (["101/a"], 30, None),
    ],
    ids=[
        "other folder",
        "suffix",
        "other names",
        "few, other folder",
        "few",
        "a tenth",
        "more captions than videos",
        "more videos than captions",
    ],
)
def test_captions_of_other_videos_are_reported(dataset, capsys, named, num_more, expected):
    write_caption_table(dataset, named)
    paths = {"101/a": "/v/101/a.mp4", **{f"more/{n}": f"/v/more/{n}.mp4" for n in range(num_more)}}
    dataset.write_videos([VideoRecord(video_id=name, path=path) for name, path in paths.items()])
    warn_of_unlisted(dataset, [VideoRecord(video_id="101/b", path="/v/101/b.mp4")])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == bool(expected)
    for line in lines:
        assert line.startswith(f"warning: {dataset.videos_file}: lists ") and all(each in line for each in expected)


@pytest.mark.parametrize(
    ("listed", "matched"),
    [
        (["101/a", "303/b"], 1),
        (["101/a", "303/b", "303/c"], 2),
        (["101/a", "303/b", "404/b"], 0),  # two files with one name are not matched
        (["101/a", "303/x"], 0),
        (["101/a", "b"], 0),
    ],
)
def test_videos_that_were_listed_after_their_captions_were_made_are_reported(dataset, capsys, listed, matched):
    write_caption_table(dataset, ["101/a", "b", "c", "d"])
    warn_of_unlisted(dataset, [VideoRecord(video_id=name, path=f"/v/{name}.mp4") for name in listed])
    told = capsys.readouterr().err
    count = "2 listed videos" if matched == 2 else "1 listed video"
    whose = "whose file name is an id in captions; run vlalign-preprocess again"
    expected = f"{dataset.videos_file}: no caption names {count}, such as '303/b', {whose}"
    assert told.startswith(f"warning: {expected}") if matched else told == ""


def test_captions_of_other_videos_are_reported_once_and_before_the_extraction(dataset, recordings, capsys):
    write_caption_table(dataset, ["x"])
    warning = f"warning: {dataset.videos_file}: lists none of 1 "
    for more in (["--plan"], []):
        assert extract(dataset, "--videos", recordings, *more) == 0
        [first, *others] = capsys.readouterr().err.splitlines()
        assert first.startswith(warning) and not any(line.startswith("warning") for line in others)
        assert more or others[-1].startswith("now: vlalign-preprocess ")
    assert extract(dataset, "--videos", recordings) == 0
    told = capsys.readouterr().err
    assert "warning" not in told and "now: vlalign-preprocess " in told, "no work is left, but captions do not match"
    write_caption_table(dataset, ["a", "x"])
    assert extract(dataset, "--videos", recordings) == 0 and "now: vlalign-train " in capsys.readouterr().err


def test_recordings_of_captions_count_as_listed(dataset, capsys):
    write_caption_table(dataset, ["i/image"], recording="a")
    warn_of_unlisted(dataset, [VideoRecord(video_id="a", path="/v/a.wav")])
    assert capsys.readouterr().err == ""


def test_damaged_captions_do_not_stop_an_extraction(dataset, capsys):
    write_caption_table(dataset, ["a"])
    part_path(dataset.captions, 0).write_bytes(b"no parquet")
    warn_of_unlisted(dataset, [VideoRecord(video_id="b", path="/v/b.mp4")])
    assert capsys.readouterr().err.startswith(
        f"note: captions are not compared with the videos: {part_path(dataset.captions, 0)}: "
    )
