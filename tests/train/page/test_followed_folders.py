"""A page that follows folders of videos: it answers at once, and takes in what comes, without a restart."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.videos import record_scenes
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.locks import folder_lock
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.synced import sync_folder
from vlalign.train import SyncSettings, open_search
from vlalign.train.cli.serve import main as serve_main
from vlalign.train.cli.sync import main as sync_main
from vlalign.train.page.example_pictures import ExamplePictures
from vlalign.train.sync import sync as sync_module
from vlalign.train.sync.sync import features_of_run

WAIT_SECONDS = 300.0
"""Generous, because the machine may be busy."""
END_SECONDS = 15.0
PROGRAM = """import sys
import vlalign.extract.videos.folder_look as look
look.GROWTH_SECONDS = 0.05
from vlalign.train.cli.serve import main
sys.exit(main(sys.argv[1:]))"""

OFTEN = """import vlalign.extract.pipeline.shard_writing as writing
import vlalign.train.page.folder_sync as sync
writing.SHARD_SECONDS, sync.REFRESH_SECONDS = 0.0, 0.1
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A CLIP of a few weights, with a text tower."""
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[Path]:
    return record_scenes(tmp_path_factory.mktemp("recordings"), 4)


class Page:
    """A server that was started as a user does it."""

    def __init__(self, process: subprocess.Popen, address: str, said: Path) -> None:
        self.process, self.said, parts = process, said, urlsplit(address)
        self.base, self.token = f"http://{parts.netloc}", parse_qs(parts.query)["token"][0]

    def get(self, path: str, **parameters: object) -> Any:
        request = urllib.request.Request(f"{self.base}{path}?{urlencode(parameters)}")
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def found(self) -> set[str]:
        moments = self.get("/api/search", q="a red ball falls", num_results=60, fold=False)["moments"]
        return {moment["video_id"] for moment in moments}

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not what():
            assert self.process.poll() is None and time.monotonic() < deadline, self.said.read_text()
            time.sleep(0.1)

    def descendants(self) -> set[int]:
        """Return the processes that the server started, and those that these started."""
        parent_of = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parent_of[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        found, added = set[int](), {self.process.pid}
        while added:
            found |= added
            added = {child for child, parent in parent_of.items() if parent in found} - found
        return found - {self.process.pid}


@pytest.fixture
def start(tmp_path, model) -> Iterator[Callable[..., Page]]:
    """Return what starts a server; it is ended after the test."""
    processes = []

    def start(*options: object, before: str = "") -> Page:
        said = tmp_path / "said.txt"
        call = [
            sys.executable,
            "-c",
            before + PROGRAM,
            "--root",
            tmp_path / "root",
            "--port",
            0,
            "--every",
            1,
            *options,
        ]
        with said.open("w") as file:
            process = subprocess.Popen(
                list(map(str, call)),
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        processes.append(process)
        deadline = time.monotonic() + WAIT_SECONDS
        while "http://" not in said.read_text():
            assert process.poll() is None and time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)
        [line] = [line for line in said.read_text().splitlines() if line.startswith("http")]
        return Page(process, line.split()[0], said)

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def videos(tmp_path) -> Path:
    folder = tmp_path / "Videos"
    folder.mkdir()
    return folder


def test_a_page_from_nothing_takes_in_what_comes(start, videos, recordings, model):
    shutil.copy(recordings[0], videos / "a.mp4")
    page = start("--videos", videos, "--features", f"hf:{model}")
    about = page.get("/api/about")
    assert [(of["name"], of["num_videos"]) for of in about["datasets"]] == [("mine", 0)]
    first = page.get("/api/search", q="a red ball falls")
    assert first["moments"] == [] and "being read" in first["warnings"][0]
    listed = page.get("/api/videos")
    assert (listed["videos"], listed["num_videos"]) == ([], 0) and "being read" in listed["warnings"][0]
    with pytest.raises(urllib.error.HTTPError, match="404"):
        page.get("/media/picture", video_id="a")
    page.wait_for(lambda: page.get("/api/sync")["version"] == 1)
    assert page.found() == {"a"} and page.get("/api/about")["datasets"][0]["num_videos"] == 1
    shutil.copy(recordings[1], videos / "b.mp4")
    os.utime(videos / "a.mp4", (1, 1))
    page.wait_for(lambda: page.found() == {"a", "b"})
    state = page.get("/api/sync")
    assert state["following"] == ["Videos"] and state["version"] >= 2 and state["problems"] == []
    page.wait_for(lambda: [video["video_id"] for video in page.get("/api/videos")["videos"]] == ["b", "a"])
    (videos / "a.mp4").unlink()
    page.wait_for(lambda: page.found() == {"b"})
    (videos / "bad.mp4").write_bytes(b"no video")
    page.wait_for(lambda: bool(page.get("/api/sync")["problems"]))
    assert page.found() == {"b"} and page.get("/api/sync")["state"] in ("idle", "working")
    (videos / "bad.mp4").unlink()
    (videos / "b.mp4").unlink()
    shutil.copy(recordings[2], videos / "c.mp4")
    page.wait_for(lambda: page.found() == {"c"})
    assert page.get("/api/sync")["problems"] == []
    page.process.terminate()
    assert page.process.wait(END_SECONDS) == 143
    said = page.said.read_text()
    assert "Traceback" not in said and f"follows {videos}" in said
    assert said.count("warning: video 'bad'") == 1, said


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_videos_are_extracted_ends_all_soon(start, videos, recordings, model, tmp_path, number, code):
    for name in range(60):
        path = videos / f"{name:02}.mp4"
        path.write_bytes(recordings[name % 4].read_bytes() + bytes(name))  # other contents that are decoded alike
    page = start("--videos", videos, "--features", f"hf:{model}")
    page.wait_for(lambda: page.get("/api/sync")["what"].startswith("extracting small: "))
    state = page.get("/api/sync")
    assert state["state"] == "working" and 0 <= state["done"] <= state["total"] == 60
    children = page.descendants()
    assert children
    page.process.send_signal(number)
    assert page.process.wait(END_SECONDS) == code
    deadline = time.monotonic() + END_SECONDS
    while any(Path(f"/proc/{child}").exists() for child in children):
        assert time.monotonic() < deadline, "a process stays behind"
        time.sleep(0.1)
    said = page.said.read_text()
    assert "Traceback" not in said and "stopped" in said.splitlines()[-1]
    assert sync_main(["--root", str(tmp_path / "root")]) == 0, "the next one goes on from there"
    assert sorted(of.video_id for of in DatasetFolder(tmp_path / "root", "mine").read_videos()) == [
        f"{name:02}" for name in range(60)
    ]


def test_a_sync_that_does_not_end_by_itself_is_left_behind(start, videos, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    slow = "import time, vlalign.train.sync.watch as watch\nwatch.sync_videos = lambda *_, **__: time.sleep(60)\n"
    page = start("--videos", videos, "--features", f"hf:{model}", before=slow)
    assert page.get("/api/sync")["state"] == "working"
    assert [path.name for path in (tmp_path / "temporary").glob("vlalign-pictures-*")]
    page.process.terminate()
    assert page.process.wait(END_SECONDS) == 143
    assert not list((tmp_path / "temporary").glob("vlalign-*")) and "Traceback" not in page.said.read_text()


def test_in_a_long_extraction_the_first_videos_are_found_before_its_end(start, videos, recordings, model):
    for name in range(40):
        path = videos / f"{name:02}.mp4"
        path.write_bytes(recordings[name % 4].read_bytes() + bytes(name))
    page = start("--videos", videos, "--features", f"hf:{model}", before=OFTEN)
    page.wait_for(lambda: page.get("/api/sync")["version"] == 1)
    about = page.get("/api/about")["datasets"][0]
    assert 0 < about["num_videos"] < 40 and page.found()
    page.wait_for(lambda: page.get("/api/about")["datasets"][0]["num_videos"] == 40)


def test_a_second_folder_adds_and_what_is_away_is_said(start, videos, recordings, model, tmp_path, capsys):
    shutil.copy(recordings[0], videos / "a.mp4")
    root = ["--root", str(tmp_path / "root")]
    assert sync_main([*root, str(videos), "--features", f"hf:{model}"]) == 0
    other, aside = tmp_path / "Phone", tmp_path / "aside"
    other.mkdir()
    shutil.copy(recordings[1], other / "b.mp4")
    page = start("--videos", other)
    assert f"follows {videos}, {other}" in page.said.read_text()
    assert page.found() >= {"a"}, "what is there is found at once"
    page.wait_for(lambda: page.found() == {"a", "b"})
    assert page.get("/api/sync")["following"] == ["Videos", "Phone"]
    videos.rename(aside)
    page.wait_for(lambda: bool(page.get("/api/sync")["problems"]))
    [problem] = page.get("/api/sync")["problems"]
    assert problem.startswith("Videos: ") and str(tmp_path) not in problem and page.found() == {"a", "b"}
    aside.rename(videos)
    page.wait_for(lambda: not page.get("/api/sync")["problems"])
    with folder_lock(sync_folder(DatasetFolder(tmp_path / "root", "mine")) / "sync.lock", "syncs videos"):
        page.wait_for(lambda: page.get("/api/sync")["state"] == "failed")
        time.sleep(2.5)
        assert page.found() == {"a", "b"} and f"process {os.getpid()} " in page.get("/api/sync")["problems"][0]
    page.wait_for(lambda: page.get("/api/sync")["state"] == "idle")
    assert page.said.read_text().count(f"process {os.getpid()} ") == 1, "it is said once"


def test_new_subtitles_are_found_and_a_picture_is_an_example(start, videos, recordings, model, tmp_path):
    for number in range(3):
        shutil.copy(recordings[number], videos / f"{number}.mp4")
    page = start("--videos", videos, "--features", f"hf:{model}")
    page.wait_for(lambda: page.get("/api/sync")["version"] == 1)
    (videos / "1.srt").write_text("1\n00:00:00,000 --> 00:00:00,600\nthe oven is hot\n")
    page.wait_for(lambda: page.get("/api/sync")["version"] == 2)
    assert [of["video_id"] for of in page.get("/api/search", q="oven", by="text")["moments"]] == ["1"]
    assert page.get("/api/videos")["num_videos"] == 3
    request = urllib.request.Request(f"{page.base}/media/picture?video_id=1&seconds=0.3&token={page.token}")
    with urllib.request.urlopen(request, timeout=60) as answer:
        frame = answer.read()
    pictures = ExamplePictures()
    search = open_search(tmp_path / "root" / "mine", features=f"hf:{model}")
    score_of = {of.video_id: of.score for of in search(like=pictures.path(pictures.add(frame)))}
    assert score_of["1"] > 0.98, "the same frame; scenes of a model without training look much alike"
    pictures.close()


@pytest.mark.parametrize("origin, names", [("imported", ["s3d"]), ("extracted", ["of my own"])])
def test_a_run_whose_features_cannot_be_extracted_is_refused(videos, tmp_path, monkeypatch, origin, names):
    settings = SyncSettings(dataset=tmp_path / "root" / "mine", folders=[videos], features="clip_vit_b32")
    assert features_of_run(settings, ["resnet152", "s3d"], "r").features == "resnet152,s3d"
    monkeypatch.setattr(sync_module, "find_features", lambda *_: SimpleNamespace(origin=origin))
    with pytest.raises(UserError, match=f"run r: its features {names[0]} cannot be extracted: "):
        features_of_run(settings, names, "r")


def test_features_that_read_no_texts_are_served_with_a_hint(start, videos):
    page = start("--videos", videos, "--weights", "random")
    [line] = [line for line in page.said.read_text().splitlines() if "s3d" in line]
    assert "--features clip_vit_b32" in line
    page.wait_for(lambda: page.get("/api/sync")["state"] == "idle")
    assert page.get("/api/search", q="a red ball")["warnings"] == ["there are no videos in Videos yet"]


@pytest.mark.parametrize(
    "options, words",
    [
        (["--videos", "nowhere"], "nowhere: no such folder"),
        (["--videos", ".", "--features", "nothing"], "features nothing"),
        (["run", "--features", "s3d", "--videos", "."], "--features s3d"),
        (["--videos", ".", "--dataset", "a,b"], "--dataset a,b"),
        (["run", "--videos", "."], "run run: no finished run"),
    ],
)
def test_mistakes_are_one_line(tmp_path, monkeypatch, capsys, options, words):
    monkeypatch.chdir(tmp_path)
    assert serve_main([*options, "--root", str(tmp_path / "root")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
    assert not (tmp_path / "root").exists()
