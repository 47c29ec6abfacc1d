"""The sync of a page, step by step: when it opens the search again, and what it hands on."""

import errno
import json
import logging
import os
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.videos import record_scenes
from starlette.testclient import TestClient
from vlalign.extract.videos import folder_look
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.progress import Progress
from vlalign.storage.common.signals import Stopped
from vlalign.storage.common.terminal import note_once
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.synced import sync_folder
from vlalign.train import Search, SyncSettings, sync_videos
from vlalign.train.page import folder_sync
from vlalign.train.page import serve as page_serve
from vlalign.train.page.app import follow, make_app, take_search
from vlalign.train.page.folder_sync import FolderSync
from vlalign.train.page.guard import Access
from vlalign.train.page.video_list import VideoList
from vlalign.train.search import window_encoding
from vlalign.train.sync import sync as sync_module
from vlalign.train.sync.sync import search_source

EXTRACTING = Progress(what="extracting", unit="videos", done=1, total=9, earlier=0, seconds=1.0, note="", ended=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A CLIP of a few weights, with a text tower."""
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[Path]:
    return record_scenes(tmp_path_factory.mktemp("recordings"), 3)


class Followed:
    """A folder with the videos a and b, the data set that follows it, and a page's sync, which runs step by step."""

    def __init__(self, top: Path, model: Path, recordings: list[Path]) -> None:
        self.videos, self.dataset = top / "Videos", DatasetFolder(top / "root", "mine")
        self.videos.mkdir()
        self.recordings = recordings
        for number, name in enumerate("ab"):
            self.put(number, name)
        self.settings = SyncSettings(dataset=self.dataset.path, folders=[self.videos], features=f"hf:{model}")
        source = search_source(self.settings.extraction(), "small")
        self.sync = FolderSync(self.settings, {str(self.videos): "Videos"}, source, ["small"], "small")
        self.sync._wait = lambda: True  # ends after one sync
        self.handed: list[list[str] | None] = []
        """Videos of each search that the page got."""
        self.sync._on_search = lambda search: self.handed.append(search and search.index.video_ids)

    def put(self, number: int, name: str) -> None:
        shutil.copy(self.recordings[number], self.videos / f"{name}.mp4")

    def remove(self, name: str) -> None:
        (self.videos / f"{name}.mp4").unlink()

    def step(self) -> list[list[str] | None]:
        """Sync once; return what the page got by it."""
        num_before = len(self.handed)
        self.sync._sync()
        return self.handed[num_before:]


@pytest.fixture
def followed(tmp_path, monkeypatch, model, recordings) -> Followed:
    monkeypatch.setattr(folder_look, "GROWTH_SECONDS", 0.05)
    return Followed(tmp_path, model, recordings)


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_search_is_opened_again_only_if_its_files_are_others(followed):
    assert followed.sync.first_search() is None
    assert followed.step() == [["a", "b"]]
    assert followed.step() == [], "nothing happened"
    os.utime(followed.videos / "a.mp4", (1, 1))
    assert followed.step() == [["a", "b"]], "in another order"
    assert followed.step() == []
    followed.remove("a")
    assert followed.step() == [["b"]]


def test_what_a_failed_sync_changed_is_taken_in(followed, monkeypatch):
    followed.put(2, "c")
    followed.step()
    followed.remove("a")
    with monkeypatch.context() as patch:
        patch.setattr(sync_module, "_index", full_disk)
        assert followed.step() == [] and "No space left" in followed.sync.state(0).problems[0]
        followed.sync._next_refresh = 0.0
        assert followed.step() == [["b", "c"]], "though it fails still"
        followed.remove("b")
        assert followed.step() == []
    assert followed.step() == [["c"]], "though this one changed nothing"
    assert followed.sync.state(0).state == "idle"


def test_what_another_process_changed_is_taken_in(followed):
    followed.step()
    followed.put(2, "c")
    sync_videos(followed.settings)
    assert followed.step() == [["a", "b", "c"]]
    followed.remove("c")
    sync_videos(SyncSettings(dataset=followed.dataset.path, prune=True))
    assert followed.step() == [["a", "b"]]
    followed.remove("a")
    followed.remove("b")
    (followed.videos / "other.mp4").write_bytes(b"no video")  # else the folder counts as unreachable
    sync_videos(SyncSettings(dataset=followed.dataset.path, prune=True))
    assert followed.step() == [None] and followed.step() == []


def test_a_sync_that_was_killed_before_the_index_is_taken_in(followed, monkeypatch):
    followed.step()
    followed.put(2, "c")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sync_module, "_index", killed)
        with pytest.raises(KeyboardInterrupt):
            sync_videos(followed.settings)
    result = sync_videos(followed.settings)
    assert (result.extracted, result.indexed, result.changed) == ([], ["small"], True)
    assert not sync_videos(followed.settings).changed
    assert followed.step() == [["a", "b", "c"]]


def test_a_search_that_the_page_could_not_take_is_opened_again(followed):
    take, followed.sync._on_search = followed.sync._on_search, full_disk
    assert followed.step() == [] and followed.sync.state(0).state == "failed"
    followed.sync._on_search = take
    assert followed.step() == [["a", "b"]]


@pytest.mark.parametrize("step", ["_index", "read_sync_record"])
def test_a_fault_in_one_round_is_said_once_and_the_next_round_goes_on(followed, monkeypatch, caplog, step):
    rounds = iter([False, False, True])
    followed.sync._wait = lambda: next(rounds)
    real, num_calls = getattr(sync_module, step), 0

    def faulty(*arguments: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls <= 2:
            raise KeyError("odd")
        return real(*arguments)

    monkeypatch.setattr(sync_module, step, faulty)
    with caplog.at_level(logging.WARNING, "vlalign"):
        assert followed.step() == [["a", "b"]] and followed.sync.state(0).state == "idle"
    assert [record.getMessage().count("KeyError 'odd'") for record in caplog.records] == [1]


def test_a_signal_in_a_round_ends_the_sync(followed, monkeypatch):
    def stopped(*_: object) -> None:
        raise Stopped(signal.SIGTERM)

    monkeypatch.setattr(sync_module, "_index", stopped)
    followed.sync._run()
    assert followed.sync.held_back is not None


def test_a_folder_that_is_away_is_not_called_up_to_date(followed):
    followed.step()
    assert followed.sync.state(0).what == "2 videos, up to date"
    followed.videos.rename(followed.videos.with_name("aside"))
    followed.step()
    assert followed.sync.state(0).what == "2 videos; 1 problem"


@pytest.mark.parametrize(
    "text, shown",
    [
        (
            "TOP/Videos/a b/c.mp4: a broken link to /root/my secret/plan; skipped",
            "Videos/a b/c.mp4: a broken link to",
        ),
        ("TOP/Videos/a.mp4: a broken link to ../secret/plan; skipped", "Videos/a.mp4: a broken link to"),
        ("TOP/Videos/a: a broken link to TOP/Videos2/plan; skipped", "Videos/a: a broken link to"),
        (
            "TOP/Videos: 1 folder skipped, such as TOP/Videos/etc (a link to /etc)",
            "Videos: 1 folder skipped, such as Videos/etc (a link to",
        ),
        ("[Errno 13] Permission denied: '/root/x'", "[Errno 13] Permission denied:"),
        ("error:/root/x, file:///root/x", "error:"),
        ("open('C:\\secret\\x')", "open"),
        ("file=`/etc/passwd`", "file="),
        ("a“/home/u/secret” path", "a“"),
        ("clips/v: bad; /TOP/Videos/x: bad", "clips/v: bad;"),
    ],
)
def test_the_page_shows_no_path_elsewhere(followed, text, shown):
    text = text.replace("TOP", str(followed.videos.parent))
    assert followed.sync._shown(text) == f"{shown} ... (the terminal has the whole line)"


def test_a_line_about_another_place_says_so(followed):
    assert followed.sync._shown("/mnt/usb: nothing is mounted there now") == folder_sync.ELSEWHERE


def test_the_page_shows_what_lies_in_its_folders(followed):
    text = f"{followed.videos}: no videos; pass --forget {followed.videos}; {followed.dataset.path}/sync/sync.lock, 1/2"
    assert followed.sync._shown(text) == "Videos: no videos; pass --forget Videos; mine/sync/sync.lock, 1/2"


def test_the_page_shows_no_target_of_a_link(followed):
    secret = followed.videos.parent / "secret place"
    secret.mkdir()
    (followed.videos / "gone.mp4").symlink_to(secret / "plan.mp4")
    (followed.videos / "out").symlink_to(secret)
    followed.step()
    problems = followed.sync.state(0).problems
    assert len(problems) == 2 and "secret" not in str(problems) and "Videos/gone.mp4: a broken link to" in str(problems)


def test_a_refresh_that_fails_is_not_tried_again_at_once(followed, monkeypatch):
    sync_videos(followed.settings)
    num_opened = 0

    def fail(*_: object) -> Search:
        nonlocal num_opened
        num_opened += 1
        raise UserError("no index")

    monkeypatch.setattr(folder_sync.Search, "open", fail)
    followed.sync._next_refresh = 0.0
    for _ in range(3):
        followed.sync._report(EXTRACTING)
    assert num_opened == 1 and followed.sync._next_refresh > time.monotonic() + 60


def test_a_refresh_makes_an_index_of_any_size(followed, monkeypatch):
    sync_videos(followed.settings)
    shutil.rmtree(followed.dataset.path / "index")
    monkeypatch.setattr(window_encoding, "MAX_WINDOWS_ADDED_BY_SEARCH", 0)
    followed.sync._report(EXTRACTING)
    assert followed.handed == [], "not yet"
    followed.sync._next_refresh = 0.0
    followed.sync._report(EXTRACTING)
    assert followed.handed == [["a", "b"]]
    assert followed.sync.state(0).what == "extracting small: 1 of 9 videos"


def test_about_has_the_version_of_what_it_lists(followed):
    sync_videos(followed.settings)
    app = make_app([], Access([]))
    follow(app, followed.sync)
    client = TestClient(app)

    def versions() -> tuple[int, int, int]:
        about = client.get("/api/about").json()
        return about["version"], client.get("/api/sync").json()["version"], about["datasets"][0]["num_videos"]

    assert versions() == (0, 0, 0)
    take_search(app, followed.sync.first_search())
    assert versions() == (1, 1, 2)
    followed.remove("a")
    sync_videos(followed.settings)
    take_search(app, followed.sync.first_search())
    assert versions() == (2, 2, 1)
    take_search(app, None)
    take_search(app, None)
    assert versions() == (3, 3, 0)


def test_a_failed_video_is_named_once(followed, caplog):
    (followed.videos / "bad.mp4").write_bytes(b"no video")
    with caplog.at_level(logging.INFO, "vlalign"):
        followed.step()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len([line for line in warnings if "'bad'" in line]) == 1, warnings
    assert followed.sync.state(0).problems[0].startswith("video 'bad': ")


def test_a_page_whose_address_nobody_reads_ends_its_sync(monkeypatch):
    called = []
    sync = SimpleNamespace(start=lambda _: called.append("start"), stop=lambda: called.append("stop"))

    def closed_pipe(_: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(page_serve, "follow", lambda *_: None)
    with pytest.raises(BrokenPipeError):
        page_serve.serve([], port=0, sync=sync, on_ready=closed_pipe)
    assert called == ["start", "stop"]


@pytest.mark.parametrize("line", ["nothing", "[]", '{"path": "x"}', json.dumps({"path": "x", "mtime_ns": 10**30})])
def test_a_damaged_record_costs_the_order_of_the_videos_only(tmp_path, caplog, line):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    sync_folder(dataset).mkdir(parents=True)
    (sync_folder(dataset) / "files.jsonl").write_text(line + "\n")
    encoder = SimpleNamespace(dataset=dataset, duration_seconds=lambda _: 1.0)
    search = SimpleNamespace(encoder=encoder, index=SimpleNamespace(video_ids=["b", "a"]))
    library = SimpleNamespace(file_name=lambda _: "x")
    note_once.cache_clear()
    with caplog.at_level(logging.INFO, "vlalign"):
        listed = [list(VideoList(search, library).part(0, 9)[0]) for _ in range(2)]
    assert listed == [["b", "a"]] * 2
    [note] = [record.getMessage() for record in caplog.records]
    assert str(sync_folder(dataset) / "files.jsonl") in note and "order of the index" in note
