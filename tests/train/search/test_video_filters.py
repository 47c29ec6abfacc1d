"""Filters by folder, date and captions: what passes is what the records say, and nothing else is read."""

import datetime
import os
import threading
import time
from dataclasses import asdict

import pytest
from helpers.planted_search import open_planted, plant
from starlette.testclient import TestClient
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.synced import SyncedFile, SyncedFolder, SyncRecord, write_files, write_folders
from vlalign.storage.dataset.trusted_folders import AllowedFolders
from vlalign.storage.records import VideoRecord
from vlalign.train.page.app import make_app
from vlalign.train.page.guard import Access
from vlalign.train.search.caption_index import CaptionIndex
from vlalign.train.search.query_checks import SearchTimeout, VideoSpan, parse_example, time_limit
from vlalign.train.search.video_filters import VideoFacts, VideoFilters

CAPTIONS = {
    "inside": [(0, 4, "the roses are red in the garden")],
    "deeper": [(0, 4, "the oven is hot"), (4, 8, "and the bread goes in")],
    "synced": [(0, 4, "die Katze schläft auf dem Sofa und sie träumt von der Maus")],
    "elsewhere": [(0, 4, "der Hund ist im Garten und er bellt")],
}
PATHS = {
    "inside": "videos/a.mp4",
    "deeper": "videos/2025/holiday/b.mp4",
    "synced": "{mine}/2025/c.mp4",
    "top": "{mine}/d.mp4",
    "elsewhere": "{other}/x/e.mp4",
    "elsewhere2": "{other}/y/f.mp4",
    "remote": "s3://bucket/g.mp4",
}
FOLDERS = {
    "inside": "videos",
    "deeper": "videos/2025/holiday",
    "synced": "2025",
    "top": "",
    "elsewhere": "x",
    "elsewhere2": "y",
    "remote": "bucket",
}


def at_noon(day: str) -> float:
    return datetime.datetime.fromisoformat(f"{day}T12:00").timestamp()


@pytest.fixture
def search(tmp_path):
    """Videos in the data set's folder, in a synchronised one, in others and on another machine."""
    root, mine, other = (tmp_path / name for name in ("root", "mine", "other"))
    dataset = plant(root, {**{v: [(8, "dog")] for v in PATHS}, "unlisted": [(8, "dog")]}, CAPTIONS)
    paths = {video_id: path.format(mine=mine, other=other) for video_id, path in PATHS.items()}
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    for video_id, day in (("inside", "2026-01-31"), ("deeper", "2026-02-01"), ("elsewhere", "2026-02-01")):
        path = dataset.path / paths[video_id]
        path.parent.mkdir(parents=True)
        path.write_bytes(b"video")
        os.utime(path, (at_noon(day), at_noon(day)))
    files = {
        paths[video_id]: SyncedFile(
            path=paths[video_id], folder=str(mine), size=1, mtime_ns=int(at_noon(day) * 1e9), source="x"
        )
        for video_id, day in (("synced", "2026-03-01"), ("top", "2026-03-02"))
    }
    record = SyncRecord(folders=[SyncedFolder(path=str(mine))], files=files)
    write_folders(dataset, record)
    write_files(dataset, record)
    return open_planted(dataset)


def passing(search, **filters):
    return VideoFilters(**filters).videos(VideoFacts(search))


def test_folders_are_below_the_one_that_holds_all(search):
    facts = VideoFacts(search)
    assert facts.folder_of == FOLDERS
    assert facts.folders == ["2025", "bucket", "videos", "videos/2025", "videos/2025/holiday", "x", "y"]
    for folder, expected in (
        ("videos", {"inside", "deeper"}),
        ("videos/2025/", {"deeper"}),
        ("./2025", {"synced"}),
        ("bucket", {"remote"}),
    ):
        assert passing(search, folder=folder) == expected
    for folder in ("video", "/", "", "..", "videos/2024"):
        with pytest.raises(SettingError, match=r"^folder .*: .* one of 2025, bucket, videos"):
            passing(search, folder=folder)


def test_no_more_of_a_path_is_shown_than_two_folders(tmp_path, monkeypatch):
    """Files on two disks share no folder but that of all files."""
    monkeypatch.setenv("HOME", "/home/person")
    dataset = plant(tmp_path, {name: [(8, "dog")] for name in "abcd"})
    paths = {"a": "/mnt/disk/person/films/2025/a.mp4", "b": "/home/person/b.mp4"}
    paths |= {"c": "/home/person/films/2024/x/c.mp4", "d": "/srv/d.mp4"}
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    search = open_planted(dataset)
    assert VideoFacts(search).folder_of == {"a": "films/2025", "b": "", "c": "2024/x", "d": "srv"}
    client = TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1")
    for answer in (client.get("/api/about"), client.get("/api/search", params={"q": "dog", "folder": "x"})):
        assert "films/2025" in answer.text and "person" not in answer.text and "disk" not in answer.text
    assert passing(search, folder="films/2025") == {"a"}


COMPOSED, DECOMPOSED = "Caf\u00e9s", "Cafe\u0301s"


@pytest.mark.parametrize("on_disk", [COMPOSED, DECOMPOSED])
def test_accents_of_folders_and_ids_are_composed_or_not(tmp_path, on_disk):
    """macOS writes names decomposed; ids of videos are composed."""
    dataset = plant(tmp_path, {name: [(8, "dog")] for name in (COMPOSED, "b")})
    paths = {COMPOSED: f"{on_disk}/a.mp4", "b": "b/b.mp4"}
    dataset.write_videos([VideoRecord(video_id=video_id, path=path) for video_id, path in paths.items()])
    search = open_planted(dataset)
    client = TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1")
    for typed in (COMPOSED, DECOMPOSED):
        assert passing(search, folder=typed) == {COMPOSED}
        assert search.like(typed)[0].video_id != COMPOSED
        assert len(search.score_curve("dog", typed).scores)
        for part in ("", "@0-4"):
            assert parse_example(typed + part, search.has_video).video_id == typed
            assert client.get("/api/search", params={"like": typed + part}).status_code == 200
        assert client.get("/api/videos", params={"video_id": typed}).json()["num_videos"] == 1
        assert client.get("/api/score_curve", params={"q": "dog", "video_id": typed}).status_code == 200
        assert "no frame of this video" in client.get("/media/picture", params={"video_id": typed}).text


def test_ids_go_before_what_they_look_like(tmp_path):
    names = ("clip@1-2", "picture:abc", "photo.jpg", "b")
    search = open_planted(plant(tmp_path, {name: [(8, "dog")] for name in names}))
    client = TestClient(make_app([search], Access(["127.0.0.1"])), base_url="http://127.0.0.1")
    for name in names:
        for text, span in ((name, VideoSpan(name)), (f"{name}@0-4.5", VideoSpan(name, 0, 4.5))):
            assert parse_example(text, search.has_video) == span
            found = client.get("/api/search", params={"like": text, "fold": False, "num_results": 60}).json()
            assert {m["video_id"] for m in found["moments"]} >= set(names) - {name}
    assert client.get("/api/search", params={"like": "picture:other"}).status_code == 404


def test_dates_that_were_read_are_kept_when_the_time_is_over(search, monkeypatch):
    expected, facts, opened = VideoFacts(search).time_of, VideoFacts(search), []
    assert facts.folder_of
    cancelled, real_open = threading.Event(), AllowedFolders.open

    def counted(self, path):
        opened.append(path)
        cancelled.set()
        return real_open(self, path)

    monkeypatch.setattr(AllowedFolders, "open", counted)
    for _ in range(10):
        cancelled.clear()
        try:
            with time_limit(60, cancelled):
                assert facts.time_of == expected
            break
        except SearchTimeout:
            continue
    assert "time_of" in vars(facts) and len(opened) == len(set(opened)) == 4


def test_dates_are_those_of_the_sync_or_of_files_that_may_be_read(search):
    """The file of "elsewhere" is there, but nobody allowed its folder."""
    facts = VideoFacts(search)
    assert facts.time_of.keys() == {"inside", "deeper", "synced", "top"}
    for (since, until), expected in {
        ("2026-02-01", None): {"deeper", "synced", "top"},
        (None, "2026-02-01"): {"inside", "deeper"},
        ("2026-03-01", "2026-03-01"): {"synced"},
        ("2026-03-03", None): set(),
    }.items():
        filters = VideoFilters(since=since, until=until)
        assert filters.videos(facts) == expected
        [line] = filters.warnings(facts)
        assert line.startswith("4 videos without a known date"), "elsewhere, elsewhere2, remote, unlisted"
    assert VideoFilters(folder="x").warnings(facts) == []


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Los_Angeles"])
def test_days_are_those_of_this_machine(search, zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        path = search.encoder.dataset.path / PATHS["inside"]
        for hour, day in (("2026-05-05T00:00", "2026-05-05"), ("2026-05-05T23:59", "2026-05-05")):
            changed = datetime.datetime.fromisoformat(hour).timestamp()
            os.utime(path, (changed, changed))
            assert "inside" in passing(search, since=day, until=day)
            assert "inside" not in passing(search, since="2026-05-06")
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"since": "yesterday"}, "since yesterday: .*2026-01-31"),
        ({"until": "2026-02-30"}, "until 2026-02-30: "),
        ({"since": "0001-01-01"}, "since 0001-01-01: .*1971"),
        ({"until": "9999-12-31"}, "until 9999-12-31: "),
        ({"since": "2026-02-02", "until": "2026-02-01"}, "until 2026-02-01: .*2026-02-02"),
    ],
)
def test_impossible_days_are_one_line(filters, message):
    with pytest.raises(SettingError, match=f"^{message}"):
        VideoFilters(**filters)


def test_a_caption_has_all_words_in_any_form(search):
    assert passing(search, caption="rose garden") == {"inside"}
    assert passing(search, caption="the red Roses") == {"inside"}
    assert passing(search, caption="hot bread") == set(), "in two captions"
    assert passing(search, caption="Hunde") == {"elsewhere"}
    assert passing(search, caption="katzen auf dem sofa") == {"synced"}
    with pytest.raises(SettingError, match=r"^caption the: .*stop words"):
        passing(search, caption="the")
    for text in ("", "(", "*", "😀", "\0"):
        with pytest.raises(SettingError, match=r"^caption .*: has no words; expected some, such as 'red roses'$"):
            passing(search, caption=text)


def test_captions_have_the_language_that_their_words_were_compared_in(search):
    assert VideoFacts(search).language_of == dict(zip(CAPTIONS, ["en", "en", "de", "de"], strict=True))
    assert passing(search, caption_language="de") == {"synced", "elsewhere"}
    assert passing(search, caption_language="de", folder="2025") == {"synced"}
    with pytest.raises(SettingError, match=r"^caption_language fr: .* one of de, en$"):
        passing(search, caption_language="fr")


def test_without_captions_it_is_said(tmp_path):
    search = open_planted(plant(tmp_path, {"v": [(8, "dog")]}))
    for filters in ({"caption": "dog"}, {"caption_language": "en"}):
        with pytest.raises(SettingError, match="planted has no captions; run vlalign-preprocess"):
            passing(search, **filters)
    with pytest.raises(SettingError, match=r"^folder x: .*there are no folders; omit it$"):
        passing(search, folder="x")


def test_the_page_filters_as_python_does(search):
    app = make_app([search], Access(["127.0.0.1"]))
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    [about] = client.get("/api/about").json()["datasets"]
    listed = [video["video_id"] for video in client.get("/api/videos").json()["videos"]]
    assert listed[:2] == ["top", "synced"], "the newest first"
    assert about["folders"] == VideoFacts(search).folders and sorted(about["languages"]) == ["de", "en"]
    for filters in (
        {"folder": "videos"},
        {"since": "2026-02-01", "until": "2026-03-01"},
        {"caption": "roses"},
        {"caption_language": "de"},
        {"folder": "2025", "since": ""},
    ):
        expected = passing(search, **{name: text for name, text in filters.items() if text})
        found = client.get("/api/search", params={"q": "dog", "group": "video", "fold": False, **filters}).json()
        assert found["num_videos"] == len(expected) and {m["video_id"] for m in found["moments"]} == expected
        assert any("known date" in line for line in found["warnings"]) == bool(filters.get("since"))
        without_query = client.get("/api/videos", params=filters).json()
        in_order = [video_id for video_id in listed if video_id in expected]
        assert [v["video_id"] for v in without_query["videos"]] == in_order
        assert without_query["num_videos"] == len(expected)
        assert without_query["warnings"] == [line for line in found["warnings"] if "known date" in line]
        behind = client.get("/api/videos", params={**filters, "offset": 1, "num_results": 1}).json()
        assert [v["video_id"] for v in behind["videos"]] == in_order[1:2]
        assert behind["num_videos"] == len(expected)
    part = {"video_id": "inside", "start": 0, "end": 4, "folder": "videos"}
    assert {m["video_id"] for m in client.get("/api/like", params=part).json()["moments"]} == {"inside", "deeper"}
    for filters, word in (
        ({"folder": "nowhere"}, "folder nowhere"),
        ({"caption_language": "fr"}, "expected one of de, en"),
        ({"since": "x"}, "since x"),
    ):
        for path, text in (("/api/search", {"q": "dog"}), ("/api/videos", {})):
            answer = client.get(path, params=text | filters)
            assert answer.status_code == 422 and word in answer.json()["detail"]
    nothing = client.get("/api/search", params={"q": "dog", "since": "2026-12-01"}).json()
    assert nothing["nothing_fits"] == "no video passes the filters" and nothing["moments"] == []


def test_all_filters_have_an_option(search):
    from vlalign.train.cli.search import make_parser

    options = vars(make_parser().parse_args(["dog"]))
    assert {name: options[name] for name in asdict(VideoFilters())} == asdict(VideoFilters())


def test_what_a_page_tells_about_its_videos_is_read_once(search, monkeypatch):
    app = make_app([search], Access(["127.0.0.1"]))

    def fails(*_):
        raise AssertionError

    for owner, name in ((DatasetFolder, "read_videos"), (CaptionIndex, "_refuse_damaged"), (SyncRecord, "__init__")):
        monkeypatch.setattr(owner, name, fails)
    client = TestClient(app, base_url="http://127.0.0.1")
    [about] = client.get("/api/about").json()["datasets"]
    assert "videos/2025" in about["folders"] and sorted(about["languages"]) == ["de", "en"]
    assert client.get("/api/videos", params={"folder": "videos"}).json()["num_videos"] == 2
