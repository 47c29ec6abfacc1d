"""Folders of real videos, synchronised again and again: what is extracted, followed, left out, and said."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers.clips_of_text import save_clip_with_processor
from helpers.speech import VIDEOS as SPEECH
from helpers.speech import small_model
from helpers.videos import record_scenes
from vlalign.extract import ExtractionSettings
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos import folder_look, scan
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.captions.files import read_captions
from vlalign.storage.captions.transcripts import Transcript, TranscriptSegment, TranscriptStore
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.locks import folder_lock
from vlalign.storage.dataset import trusted_folders
from vlalign.storage.dataset.folder import DatasetFolder, dataset_at
from vlalign.storage.dataset.synced import read_sync_record, sync_folder
from vlalign.storage.stores.thumbnails import ThumbnailStore
from vlalign.train import SyncSettings, open_search, sync_videos
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.sync import main as sync_main
from vlalign.train.sync.sync import searched_features

WAIT_SECONDS = 300.0
"""Generous, because the machine may be busy."""


@pytest.fixture(autouse=True)
def _short_pause(monkeypatch):
    monkeypatch.setattr(folder_look, "GROWTH_SECONDS", 0.05)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A CLIP of a few weights, with a text tower."""
    return save_clip_with_processor(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory) -> list[Path]:
    """Twenty videos of different content."""
    return record_scenes(tmp_path_factory.mktemp("recordings"), 20)


class Home:
    """A user's folder of videos and the data set that follows it."""

    def __init__(self, top: Path, model: Path, recordings: list[Path], capsys) -> None:
        self.top, self.model, self.recordings, self.capsys = top, model, recordings, capsys
        self.videos, self.dataset = top / "Videos", DatasetFolder(top / "root", "mine")
        self.videos.mkdir()

    def put(self, number: int, name: str) -> Path:
        """Copy a recording to a path in the folder of videos, or, with "../", beside it."""
        path = self.top / name[3:] if name.startswith("../") else self.videos / name
        assert path.is_relative_to(self.top)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.recordings[number], path)
        return path

    def call(self, *arguments: object) -> int:
        return sync_main(["--root", str(self.dataset.root), *map(str, arguments)])

    def sync(self, *arguments: object, code: int = 0) -> dict:
        """Sync, and return what --json prints."""
        self.capsys.readouterr()
        found = self.call("--json", *arguments)
        output = self.capsys.readouterr()
        self.said = output.err
        assert found == code, output.err
        return json.loads(output.out)

    def first(self, *arguments: object, code: int = 0) -> dict:
        return self.sync(self.videos, "--features", f"hf:{self.model}", *arguments, code=code)

    @property
    def listed(self) -> dict[str, str]:
        return {video.video_id: video.path for video in self.dataset.read_videos()}

    @property
    def stored(self) -> set[str]:
        return set(FeatureStore(self.dataset.features("small")).video_ids())

    def found(self) -> set[str]:
        """Return the videos that a search finds."""
        search = open_search(self.dataset.path, features=f"hf:{self.model}")
        return {moment.video_id for moment in search("a red ball falls", num_results=100)}


@pytest.fixture
def home(tmp_path, model, recordings, capsys) -> Home:
    return Home(tmp_path, model, recordings, capsys)


def ids(rows: list[dict]) -> list[str]:
    return [row["id"] for row in rows]


def test_each_video_is_counted_once_though_features_are_new(home):
    for number in range(3):
        home.put(number, f"{number}.mp4")
    home.first()
    shutil.rmtree(home.dataset.features("small"))
    home.put(3, "3.mp4")
    result = home.sync()
    assert len(result["extracted"]) == 4 and result["unchanged"] == 0


@pytest.mark.parametrize(
    "features, weights, remedy",
    [("s3d", "pretrained", "--features clip_vit_b32"), ("s3d,clip_vit_b32", "random", "omit --weights random")],
)
def test_a_note_says_how_texts_can_be_searched(tmp_path, features, weights, remedy):
    extraction = ExtractionSettings(dataset=tmp_path, features=features.split(","), weights=(weights,))
    assert remedy in searched_features(extraction)[1]


def test_a_search_without_a_run_asks_for_features(home, capsys):
    home.put(0, "a.mp4")
    home.first()
    assert search_main(["--root", str(home.dataset.root), "--dataset", "mine", "a red ball"]) == 2
    assert "--features" in capsys.readouterr().err


def test_a_days_changes_cost_only_what_is_new(home):
    for number in range(12):
        home.put(number, f"{number:02}.mp4")
    assert len(home.first()["extracted"]) == 12
    for number in range(3):
        home.put(12 + number, f"added {number}.mp4")
        (home.videos / f"{number:02}.mp4").rename(home.videos / f"renamed {number}.mp4")
        (home.videos / f"{3 + number:02}.mp4").unlink()
    home.put(15, "06.mp4")
    (home.videos / "07.mp4").touch()
    result = home.sync()
    assert sorted(result["extracted"]) == ["06", "added 0", "added 1", "added 2"]
    assert result["renamed"] == [
        {
            "id": f"{number:02}",
            "from": str(home.videos / f"{number:02}.mp4"),
            "to": str(home.videos / f"renamed {number}.mp4"),
        }
        for number in range(3)
    ]
    assert result["removed"] == ["03", "04", "05"] and result["unchanged"] == 5
    assert result["skipped"] == result["failed"] == result["unreachable"] == result["problems"] == []
    assert home.found() == set(home.listed) and len(home.listed) == 12
    assert home.stored == set(home.listed) | {"03", "04", "05"}, "until they are pruned"
    again = home.sync()
    assert again["extracted"] == again["renamed"] == again["removed"] == [] and again["unchanged"] == 12


def test_pruned_features_are_gone_and_deleted_videos_come_back_without_work(home):
    for number in range(4):
        home.put(number, f"{number}.mp4")
    home.first()
    for number in range(2):
        (home.videos / f"{number}.mp4").unlink()
    assert home.sync()["removed"] == ["0", "1"] and home.found() == {"2", "3"}
    home.put(0, "back.mp4")
    result = home.sync()
    assert (result["returned"], result["extracted"], ids(result["renamed"])) == (["0"], [], ["0"])
    assert home.found() == {"0", "2", "3"}
    assert home.sync("--prune")["pruned"] == ["1"]
    assert home.stored == {"0", "2", "3"} == home.found()
    thumbnails = ThumbnailStore(home.dataset.thumbnails)
    assert not thumbnails.get("1") and all(map(thumbnails.get, home.stored))
    home.put(1, "1.mp4")
    assert home.sync()["extracted"] == ["1"] and home.sync("--prune")["pruned"] == []


@pytest.mark.parametrize("trouble", ["missing", "empty", "closed", "not mounted"])
def test_a_folder_that_cannot_be_reached_is_no_deletion(home, monkeypatch, trouble):
    home.put(0, "a.mp4")
    home.put(1, "../Other/b.mp4")
    real_ismount, mounted = os.path.ismount, {str(home.videos)}
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in mounted or real_ismount(path))
    home.first(home.top / "Other")
    aside = home.top / "aside"
    if trouble == "not mounted":
        mounted.clear()
        (home.videos / "a.mp4").rename(aside)
        home.put(2, "a file under the mount point.mp4")
    else:
        home.videos.rename(aside)
    if trouble == "empty":
        home.videos.mkdir()
    if trouble == "closed":
        scandir = os.scandir

        def closed(path):
            if str(path) == str(home.videos):
                raise PermissionError(13, "Permission denied", path)  # root may list anything
            return scandir(path)

        monkeypatch.setattr(os, "scandir", closed)
        aside.rename(home.videos)
    home.put(3, "../Other/c.mp4")
    result = home.sync(code=1)
    [unreachable] = result["unreachable"]
    assert unreachable["folder"] == str(home.videos) and unreachable["reason"]
    assert result["removed"] == [] and result["extracted"] == ["c"], "the other folder is brought up to date"
    assert set(home.listed) == {"a", "b", "c"} == home.found()
    assert home.said.count(f"{home.videos}: ") == 1
    home.capsys.readouterr()
    assert home.call("--prune") == 1 and home.stored == {"a", "b", "c"}


def test_a_disk_inside_of_a_folder_that_is_not_mounted_is_no_deletion(home, monkeypatch):
    home.put(0, "a.mp4")
    home.put(1, "usb/b.mp4")
    home.put(2, "usb/c.mp4")
    real_ismount, mounted = os.path.ismount, {str(home.videos / "usb")}
    monkeypatch.setattr(os.path, "ismount", lambda path: str(path) in mounted or real_ismount(path))
    home.first()
    (home.videos / "usb" / "c.mp4").unlink()
    assert home.sync()["removed"] == ["usb/c"], "it is mounted, so this is a deletion"
    mounted.clear()
    (home.videos / "usb" / "b.mp4").rename(home.top / "aside.mp4")
    result = home.sync(code=1)
    assert result["removed"] == [] and set(home.listed) == {"a", "usb/b"}
    assert [row["folder"] for row in result["unreachable"]] == [str(home.videos / "usb")]
    assert home.found() == {"a", "usb/b"}


@pytest.mark.parametrize("trouble", ["missing", "empty"])
def test_a_followed_folder_in_another_one_that_is_away_is_no_deletion(home, trouble):
    home.put(0, "a.mp4")
    home.put(1, "sub/b.mp4")
    home.first()
    home.sync(home.videos / "sub")
    (home.videos / "sub").rename(home.top / "aside")
    if trouble == "empty":
        (home.videos / "sub").mkdir()
    result = home.sync("--prune", code=1)
    assert [row["folder"] for row in result["unreachable"]] == [str(home.videos / "sub")] and result["removed"] == []
    assert home.stored == {"a", "sub/b"} == home.found()
    assert home.sync("--forget", home.videos / "sub")["removed"] == ["sub/b"], "it lies in Videos, too"


def test_videos_of_a_folder_that_is_not_followed_any_more_stay_until_it_is_forgotten(home):
    home.put(0, "a.mp4")
    home.put(1, "../Phone/b.mp4")
    home.first()
    home.sync(home.top / "Phone")
    (sync_folder(home.dataset) / "folders.json").unlink()
    result = home.sync(home.top / "Phone", "--prune")
    assert result["removed"] == result["pruned"] == [] and home.stored == {"a", "b"} == home.found()
    assert f"--forget {home.videos}" in home.said
    result = home.sync("--forget", home.videos, "--prune")
    assert result["removed"] == result["pruned"] == ["a"] and home.stored == {"b"}


def test_hidden_and_unfinished_files_are_skipped_and_said(home):
    home.put(0, "a.mp4")
    hidden = [".hidden.mp4", ".Trash-1000/b.mp4", "$RECYCLE.BIN/c.mp4", "@eaDir/d.mp4", "sub/.cache/e.mp4"]
    hidden += ["lost+found/f.mp4"]
    unfinished = ["g.mp4.part", "h.mp4.crdownload", "i.mp4.download/i.mp4", "j.mp4.tmp"]
    for name in (*hidden, *unfinished):
        home.put(1, name)
    (home.videos / "k.mp4").touch()
    result = home.first()
    assert result["extracted"] == ["a"] == list(home.listed)
    reasons = {row["path"].removeprefix(f"{home.videos}/"): row["reason"] for row in result["skipped"]}
    assert len(reasons) == len(hidden) + len(unfinished) + 1 and reasons["k.mp4"] == "empty"
    assert " 6 " in home.said and " 4 " in home.said and "k.mp4" in home.said


def test_a_file_that_grows_is_left_for_later(home, monkeypatch):
    path, content = home.videos / "a.mp4", home.recordings[0].read_bytes()
    path.write_bytes(content[:1000])
    home.put(1, "b.mp4")

    def grow(_: float) -> None:
        with path.open("ab") as file:
            file.write(content[1000:])

    with monkeypatch.context() as context:
        context.setattr(folder_look.time, "sleep", grow)
        result = home.first()
    assert result["extracted"] == ["b"] and [row["path"] for row in result["skipped"]] == [str(path)]
    assert home.sync()["extracted"] == ["a"]


def test_a_second_folder_adds_and_is_remembered(home):
    home.put(0, "a.mp4")
    home.first()
    home.put(1, "../Phone/a.mp4")
    home.put(2, "../Phone/b.mp4")
    call = ["--root", home.dataset.root, "--dataset", "mine", "--videos", home.top / "Phone"]
    assert extract_main([*map(str, call), "--features", f"hf:{home.model}"]) == 2
    error = home.capsys.readouterr().err.splitlines()[-1]
    assert f"{home.top}/Phone/a.mp4" in error and f"{home.videos}/a.mp4" in error and "vlalign-sync" in error
    assert home.sync(home.top / "Phone")["extracted"] == ["Phone/a", "b"]
    assert home.listed == {
        "a": str(home.videos / "a.mp4"),
        "Phone/a": str(home.top / "Phone/a.mp4"),
        "b": str(home.top / "Phone/b.mp4"),
    }
    home.put(3, "c.mp4")
    home.put(4, "../Phone/d.mp4")
    assert home.sync()["extracted"] == ["c", "d"], "all folders again"
    assert extract_main([*map(str, call), "--features", f"hf:{home.model}"]) == 0, "files have the ids that they have"
    assert len(home.listed) == 5
    assert home.sync("--forget", home.top / "Phone")["removed"] == ["Phone/a", "b", "d"]
    assert home.sync()["unchanged"] == 2 and home.found() == {"a", "c"}
    assert home.call("--forget", home.top / "Phone") == 2


def test_what_vlalign_extract_listed_is_followed(home):
    home.put(0, "a.mp4")
    home.put(1, "b.mp4")
    call = ["--root", home.dataset.root, "--dataset", "mine", "--videos", home.videos, "--features", f"hf:{home.model}"]
    assert extract_main(list(map(str, call))) == 0
    (home.videos / "a.mp4").rename(home.videos / "c.mp4")
    result = home.first("--dataset", "mine")
    assert (result["extracted"], ids(result["renamed"]), result["unchanged"]) == ([], ["a"], 1)


def test_what_vlalign_extract_listed_is_no_deletion_if_its_folder_is_empty(home):
    home.put(0, "a.mp4")
    call = ["--root", home.dataset.root, "--dataset", "mine", "--videos", home.videos, "--features", f"hf:{home.model}"]
    assert extract_main(list(map(str, call))) == 0
    (home.videos / "a.mp4").rename(home.top / "aside.mp4")
    assert home.first("--dataset", "mine", code=1)["unreachable"] and set(home.listed) == {"a"}


def test_of_identical_files_one_is_listed_and_all_are_said(home):
    home.put(0, "a.mp4")
    home.put(0, "copy of a.mp4")
    result = home.first()
    assert result["extracted"] == ["a"]
    [skipped] = result["skipped"]
    assert skipped["path"] == str(home.videos / "copy of a.mp4") and str(home.videos / "a.mp4") in skipped["reason"]
    assert "copy of a.mp4" in home.said
    (home.videos / "a.mp4").unlink()
    assert home.sync()["extracted"] == [] and home.listed == {"a": str(home.videos / "copy of a.mp4")}


def test_links_lead_to_no_other_folder(home):
    home.put(0, "a.mp4")
    secret = home.put(1, "../secret/b.mp4")
    (home.videos / "b.mp4").symlink_to(secret)
    (home.videos / "folder").symlink_to(secret.parent)
    (home.videos / "nowhere.mp4").symlink_to(home.top / "nothing.mp4")
    result = home.first(code=1)
    assert result["extracted"] == ["a"] == list(home.listed)
    assert len(result["problems"]) == 3 and all("skipped" in problem for problem in result["problems"])
    (home.videos / "nowhere.mp4").unlink()
    (home.videos / "folder").unlink()
    result = home.sync("--allow-folder", secret.parent, "--dataset", "mine")
    assert result["extracted"] == ["b"] and home.listed["b"] == str(secret)


def test_videos_that_cannot_be_looked_at_for_now_are_not_deleted(home, monkeypatch):
    for number, name in enumerate(("a.mp4", "b.mp4", "../clips/c.mp4")):
        home.put(number, name)
    (home.videos / "more").symlink_to(home.top / "clips")
    home.first("--allow-folder", home.top / "clips", "--dataset", "mine")
    listed = home.listed
    assert len(listed) == 3
    take_file = scan._take_file

    def broken(found, entry, *rest: object) -> None:
        if entry.name == "b.mp4":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        take_file(found, entry, *rest)

    monkeypatch.setattr(scan, "_take_file", broken)
    only = trusted_folders.AllowedFolders([str(home.videos), str(home.dataset.path)])
    monkeypatch.setattr(folder_look.AllowedFolders, "named", lambda _: only)
    result = home.sync("--prune", code=1)
    assert result["removed"] == [] and home.listed == listed and home.stored == set(listed)
    assert any("b.mp4" in problem for problem in result["problems"])


@pytest.mark.parametrize("way", ["w/../Videos", "link", "link/../Videos"])
def test_a_folder_named_by_another_path_has_the_same_videos(home, way):
    home.put(0, "a.mp4")
    home.put(1, "sub/b.mp4")
    (home.top / "w").mkdir()
    (home.top / "elsewhere").mkdir()
    (home.top / "link").symlink_to("elsewhere/../Videos" if way == "link" else "w")
    home.first()
    listed = home.listed
    other = str(home.top / way)
    call = ["--root", str(home.dataset.root), "--dataset", "mine", "--features", f"hf:{home.model}"]
    assert extract_main([*call, "--videos", other]) == 0 and home.listed == listed
    result = home.sync(other)
    assert (result["extracted"], result["unchanged"]) == ([], 2) and home.listed == listed
    (home.videos / "a.mp4").unlink()
    assert home.sync("--prune")["pruned"] == ["a"] and home.stored == {"sub/b"} == set(home.listed)
    home.sync("--forget", other)
    assert not home.listed


@pytest.mark.parametrize("part", ["folder", "its parent"])
def test_a_followed_folder_that_becomes_a_link_is_not_read(home, part):
    own, secret = home.put(0, "../share/Own/a.mp4").parent, home.put(1, "../secret/Own/a.mp4")
    home.sync(own, "--features", f"hf:{home.model}")
    before = home.dataset.videos_file.read_bytes()
    swapped, target = (own, secret.parent) if part == "folder" else (own.parent, secret.parent.parent)
    swapped.rename(home.top / "kept")
    swapped.symlink_to(target)
    for more in ((), ("--prune",)):
        assert home.call(*more) == 2
        assert f"(a link to {secret})" in home.capsys.readouterr().err
    assert home.dataset.videos_file.read_bytes() == before and home.stored == {"a"}
    home.dataset.write_videos([])
    result = home.sync(code=1)
    [unreachable] = result["unreachable"]
    assert unreachable["folder"] == str(own) and f"a link to {secret.parent}, not allowed" in unreachable["reason"]
    assert not home.listed and home.stored == {"a"}
    result = home.sync(own)  # the user passes it again
    assert home.listed == {"a": str(secret)} and result["extracted"] == ["a"]
    assert [folder.path for folder in read_sync_record(home.dataset).folders] == [str(secret.parent)]


def test_a_folder_is_forgotten_by_its_real_path(home):
    """``link/..`` is the folder above the link's target, not the one with the link."""
    home.put(0, "a.mp4")
    other = home.put(1, "../elsewhere/Videos/b.mp4").parent
    (other.parent / "deep").mkdir()
    (home.top / "link").symlink_to("elsewhere/deep")
    home.first(other)
    home.sync("--forget", home.top / "link" / ".." / "Videos")
    assert [folder.path for folder in read_sync_record(home.dataset).folders] == [str(home.videos)]


def test_a_folder_that_became_a_link_can_be_forgotten(home):
    home.put(0, "a.mp4")
    home.first()
    home.videos.rename(home.top / "kept")
    home.videos.symlink_to(home.top / "kept")
    assert home.call("--forget", home.videos) == 2, "its listed videos are outside of the allowed folders"
    home.dataset.write_videos([])
    home.sync("--forget", home.videos)
    assert read_sync_record(home.dataset).folders == []


def test_a_list_with_other_paths_to_the_same_files_is_read_rightly(home):
    home.put(0, "a.mp4")
    home.put(1, "b.mp4")
    (home.top / "link").symlink_to("Videos")
    home.first()
    listed = home.listed
    for path in sync_folder(home.dataset).glob("f*.json*"):  # as earlier versions wrote them for a linked folder
        path.write_text(path.read_text().replace(str(home.videos), str(home.top / "link")))
    doubles = [VideoRecord(video_id=f"Videos/{name}", path=path) for name, path in listed.items()]
    odd = [VideoRecord(video_id=name, path=f"{home.top}/root/../link/{name}.mp4") for name in listed]
    home.dataset.write_videos([*odd, *doubles])
    result = home.sync()
    assert (result["extracted"], result["unchanged"], result["failed"]) == ([], 2, []) and home.listed == listed
    assert result["removed"] == ["Videos/a", "Videos/b"] and "'Videos/a' is 'a'" in home.said
    assert set(read_sync_record(home.dataset).files) == set(listed.values())
    home.dataset.write_videos([*odd, *doubles])
    (home.videos / "a.mp4").unlink()
    result = home.sync("--prune")
    assert set(result["pruned"]) == {"a", "Videos/a", "Videos/b"} and home.listed == {"b": listed["b"]}


def test_features_without_weights_stop_no_later_sync(home):
    video = home.put(0, "a.mp4")
    missing = home.top / "weights.pt"
    wrong = ["--features", "resnet152", "--weights", str(missing)]
    assert home.call(home.videos, *wrong) == 2
    home.put(1, "b.mp4")
    assert home.sync("--features", "logmel")["extracted"] == ["a", "b"]
    assert home.sync()["unchanged"] == 2 and "pass --features resnet152" in home.said
    video.unlink()
    home.put(2, "c.mp4")
    assert home.call("--prune", *wrong) == 2, "the features are pruned before weights are needed"
    assert list(FeatureStore(home.dataset.features("logmel")).video_ids()) == ["b"]
    assert "1 video pruned: a" in home.capsys.readouterr().err


def test_a_failed_video_is_not_unchanged_too(home):
    home.put(0, "a.mp4")
    (home.videos / "broken.mp4").write_bytes(b"no video" * 100)
    home.first(code=1)
    result = home.sync("--features", "logmel", code=1)
    assert (result["extracted"], ids(result["failed"]), result["unchanged"]) == (["a"], ["broken"], 0)
    result = home.sync(code=1)
    assert (result["extracted"], ids(result["failed"]), result["unchanged"]) == ([], ["broken"], 1)


def test_a_refused_extraction_leaves_the_list_of_videos(home):
    home.put(0, "a.mp4")
    home.first()
    listed = home.listed
    home.put(1, "b.mp4")
    call = ["--root", str(home.dataset.root), "--dataset", "mine", "--videos", str(home.videos)]
    assert extract_main([*call, "--features", "resnet152", "--weights", str(home.top / "none.pt")]) == 2
    assert home.listed == listed
    assert extract_main([*call, "--features", "logmel"]) == 0 and set(home.listed) == {"a", "b"}


def test_a_link_that_is_put_in_while_a_folder_is_looked_at_is_not_followed(home, monkeypatch):
    home.put(0, "a.mp4")
    video, secret = home.put(1, "b.mp4"), home.put(1, "../secret/b.mp4")
    shutil.copystat(video, secret)

    def replace(_: float) -> None:
        video.unlink()
        video.symlink_to(secret)

    monkeypatch.setattr(folder_look.time, "sleep", replace)
    [problem] = home.first(code=1)["problems"]
    assert str(video) in problem and list(home.listed) == ["a"]


def test_a_data_set_from_elsewhere_names_no_folder_that_is_read(home, monkeypatch):
    home.put(0, "a.mp4")
    home.first()
    home.put(1, "b.mp4")
    monkeypatch.setenv("XDG_STATE_HOME", str(home.top / "another user"))
    monkeypatch.setattr(trusted_folders, "_of_this_process", {})
    assert home.call("--features", f"hf:{home.model}") == 2, "its videos lie outside of the root"
    home.dataset.write_videos([])
    result = home.sync("--features", f"hf:{home.model}", code=1)
    assert [row["folder"] for row in result["unreachable"]] == [str(home.videos)] and not home.listed
    assert set(home.first()["extracted"]) <= {"a", "b"} and set(home.listed) == {"a", "b"}


def test_a_data_set_from_elsewhere_names_no_other_data_set_beside_it(home):
    home.put(0, "../root/other/videos/secret.mp4")
    home.put(1, "../root/mine/videos/own.mp4")
    write_record(home.dataset, [home.dataset.root / "other", home.dataset.path / "videos"])
    (home.dataset.path / "videos" / "link").symlink_to(home.dataset.root / "other")
    result = home.sync("--features", f"hf:{home.model}", code=1)
    assert [row["folder"] for row in result["unreachable"]] == [str(home.dataset.root / "other")]
    [problem] = result["problems"]
    assert f"{home.dataset.path}/videos/link (a link to {home.dataset.root}/other)" in problem
    assert set(home.listed) == {"own"}
    assert home.sync(home.dataset.root / "other")["extracted"] == ["videos/secret"], "named on this machine"


def test_odd_names_are_named_in_one_line_each(home):
    home.put(0, "größe 視頻 'x' & y.mp4")
    for name in (b"a\nb.mp4", b"b\xff.mp4"):
        (home.videos / os.fsdecode(name)).write_bytes(home.recordings[1].read_bytes())
    result = home.first(code=1)
    assert result["extracted"] == ["größe 視頻 'x' & y"] and len(result["problems"]) == 2
    lines = [line for line in home.said.splitlines() if line.startswith("warning: ")]
    assert len(lines) == 2 and r"a\nb.mp4" in "".join(lines) and r"b\udcff.mp4" in "".join(lines)


def test_names_with_invisible_characters_are_valid_json(home):
    home.put(0, "a.mp4")
    (home.videos / "so\xadft.mp4.part").touch()
    result = home.first()
    assert result["extracted"] == ["a"] and [Path(each["path"]).name for each in result["skipped"]] == [
        "so\xadft.mp4.part"
    ]


def test_a_damaged_video_fails_alone_and_is_tried_again_when_it_changes(home):
    home.put(0, "a.mp4")
    (home.videos / "b.mp4").write_bytes(b"no video at all" * 100)
    result = home.first(code=1)
    assert result["extracted"] == ["a"] and ids(result["failed"]) == ["b"]
    assert "vlalign-extract --retry-failed tries failed videos again" in home.said
    call = ["--root", home.dataset.root, "--dataset", "mine", "--features", f"hf:{home.model}", "--retry-failed"]
    assert extract_main(list(map(str, call))) == 1 and "1 video tried" in home.capsys.readouterr().err
    result = home.sync(code=1)
    assert result["extracted"] == [] and ids(result["failed"]) == ["b"]
    home.put(1, "b.mp4")
    assert home.sync()["extracted"] == ["b"]


@pytest.mark.parametrize("step", ["_extract", "_index", "write_files"])
def test_an_interrupted_sync_continues(home, monkeypatch, step):
    home.put(0, "a.mp4")
    home.put(1, "b.mp4")
    home.first()
    home.put(2, "a.mp4")
    (home.videos / "b.mp4").rename(home.videos / "c.mp4")
    home.put(3, "d.mp4")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(f"vlalign.train.sync.sync.{step}", interrupted)
        assert home.call() == 130
    result = home.sync()
    assert set(result["extracted"]) == (set() if step == "_index" else {"a", "d"})
    assert home.listed == {
        "a": str(home.videos / "a.mp4"),
        "b": str(home.videos / "c.mp4"),
        "d": str(home.videos / "d.mp4"),
    }
    assert home.found() == {"a", "b", "d"}


def test_subtitles_beside_the_videos_follow_them(home):
    home.put(0, "a.mp4")
    home.put(1, "sub/b.mp4")
    cue = "1\n00:00:00,000 --> 00:00:00,600\n{}\n"
    (home.videos / "a.srt").write_text(cue.format("an onion is cut"))
    (home.videos / "sub/b.en.srt").write_text(cue.format("the oven is hot"))
    home.first()

    def heard(query: str) -> list[str]:
        search = open_search(home.dataset.path, features=f"hf:{home.model}")
        return [moment.video_id for moment in search(query, by="text")]

    assert heard("onion") == ["a"] and heard("oven") == ["sub/b"]
    (home.videos / "a.mp4").rename(home.videos / "z.mp4")
    (home.videos / "a.srt").rename(home.videos / "z.srt")
    (home.videos / "sub/b.en.srt").write_text(cue.format("the fridge is cold, so cold"))
    assert home.sync()["extracted"] == []
    assert heard("onion") == ["a"] and heard("fridge") == ["sub/b"] and heard("oven") == []
    for name in ("z.srt", "sub/b.en.srt"):
        (home.videos / name).unlink()
    home.sync()
    assert not (home.dataset.path / "captions" / "cues").exists()


def test_videos_without_subtitles_are_transcribed_if_that_was_asked_for(home):
    for name in ("english", "german"):
        shutil.copy(SPEECH / f"{name}.mkv", home.videos / f"{name}.mkv")
    shutil.copy(SPEECH / "music.mkv", home.videos / "titled.mkv")
    (home.videos / "titled.srt").write_text(CUE.format("a fridge hums"))
    assert home.first()["transcribed"] == []

    def heard(query: str) -> list[tuple[str, float]]:
        search = open_search(home.dataset.path, features=f"hf:{home.model}")
        return [(moment.video_id, moment.start_seconds) for moment in search(query, by="text")]

    assert set(home.sync("--transcribe", small_model())["transcribed"]) == {"english", "german"}
    assert heard("fridge")[0][0] == "titled"
    [(video_id, second)] = heard("wrench")
    assert video_id == "english" and abs(second - 16) < 1
    home.capsys.readouterr()
    place = ["--root", str(home.dataset.root), "--dataset", "mine", "--features", f"hf:{home.model}"]
    assert search_main([*place, "--by", "text", "--json", "the dog gets a ball"]) == 0
    best = json.loads(home.capsys.readouterr().out)["moments"][0]
    assert best["video_id"] == "english" and abs(best["start_seconds"] - 9) < 1
    assert home.sync()["transcribed"] == []
    (home.videos / "english.mkv").rename(home.videos / "renamed.mkv")
    assert home.sync()["transcribed"] == [] and heard("wrench")[0][0] == "english"
    (home.videos / "renamed.mkv").unlink()
    in_frames = TranscriptStore(home.dataset.text_in_frames)
    for video_id in ("english", "german"):
        in_frames.add(Transcript(video_id=video_id, source="1-a", model="0" * 16, duration_seconds=1.0))
    home.sync("--prune")
    assert heard("wrench") == [] and set(TranscriptStore(in_frames.folder).places) == {"german"}
    assert "wrench" not in "".join(path.read_text() for path in home.dataset.transcripts.glob("*.jsonl"))
    shutil.copy(SPEECH / "english.mkv", home.videos / "again.mkv")
    assert home.sync("--transcribe", "no")["transcribed"] == []


@pytest.mark.parametrize("other", [True, False], ids=["one stays", "none stays"])
def test_a_pruned_video_is_in_no_captions(home, other):
    """Captions of transcripts and of text in frames are made again without it, or removed if nothing is left."""
    for number, name in enumerate(("wanted", "unwanted")):
        home.put(number, f"{name}.mp4")
    home.first()
    for folder in (home.dataset.transcripts, home.dataset.text_in_frames):
        for video_id in ["unwanted", *["wanted"] * other]:
            segment = TranscriptSegment(0.0, 1.0, f"a wrench is {video_id}", 0.9)
            more = {"source": "1-a", "model": "0" * 16, "duration_seconds": 1.0}
            TranscriptStore(folder).add(Transcript(video_id=video_id, segments=(segment,), **more))
    place = ["--root", str(home.dataset.root), "--dataset", "mine"]
    protocols = ["text", "extended", "cues"]
    for more in ([], *(["--protocol", protocol] for protocol in protocols)):
        assert preprocess_main([*place, *more]) == 0
    (home.videos / "unwanted.mp4").unlink()
    assert home.sync("--prune")["pruned"] == ["unwanted"]
    for protocol in ("", *protocols):
        captions = dataset_at(home.dataset.path, protocol).captions
        assert (captions / "about.json").exists() == other
        assert not other or {caption.video_id for caption in read_captions(captions)} == {"wanted"}
    made = [home.dataset.path / "captions", home.dataset.idf, home.dataset.idf.with_suffix(".png")]
    files = [file for path in made for file in (path, *path.rglob("*")) if file.is_file()]
    assert [file for file in files if b"unwanted" in file.read_bytes()] == []
    assert any(file.suffix == ".parquet" for file in files) == other
    assert ("vlalign-preprocess --dataset mine --protocol text" in home.said) != other


def test_own_captions_of_a_pruned_video_are_named(home, tmp_path):
    home.put(0, "a.mp4")
    home.put(1, "b.mp4")
    home.first()
    (tmp_path / "own.csv").write_text("video_id,caption\na,an onion\nb,an oven\n")
    place = ["--root", str(home.dataset.root), "--dataset", "mine"]
    assert preprocess_main([*place, "--annotations", str(tmp_path / "own.csv")]) == 0
    (home.videos / "a.mp4").unlink()
    home.sync("--prune")
    [line] = [line for line in home.said.splitlines() if str(home.dataset.captions) in line]
    assert "has captions of 1 removed video, such as 'a'; remove them from your captions" in line
    assert len(read_captions(home.dataset.captions)) == 2, "they are the user's"


def test_failures_of_a_pruned_video_are_forgotten(home):
    home.put(0, "a.mp4")
    (home.videos / "unwanted.mp4").write_bytes(b"no video at all" * 100)
    home.first(code=1)
    log = home.dataset.features("small") / "failures.jsonl"
    assert "unwanted" in log.read_text()
    for folder in (home.dataset.transcripts, home.dataset.text_in_frames):
        folder.mkdir()
        shutil.copy(log, folder)
    (home.videos / "unwanted.mp4").unlink()
    assert home.sync("--prune")["pruned"] == ["unwanted"]
    for folder in (log.parent, home.dataset.transcripts, home.dataset.text_in_frames):
        assert "unwanted" not in (folder / "failures.jsonl").read_text()


CUE = "1\n00:00:00,000 --> 00:00:00,600\n{}\n"


def test_links_to_subtitles_elsewhere_need_permission(home):
    home.put(0, "a.mp4")
    secret = home.top / "secret" / "diary.srt"
    secret.parent.mkdir()
    secret.write_text(CUE.format("an onion is cut"))
    (home.videos / "a.srt").symlink_to(secret)
    for sync in (home.first, home.sync):
        [problem] = sync(code=1)["problems"]
        assert str(home.videos / "a.srt") in problem and f"--allow-folder {secret.parent} " in problem
        assert not home.dataset.captions.exists()
    assert home.sync("--allow-folder", secret.parent, "--dataset", "mine")["problems"] == []
    assert (home.dataset.path / "captions" / "cues").is_dir()


def test_bad_subtitles_are_said_once_in_each_sync_and_read_ones_are_not_skipped(home):
    for number, name in enumerate(("a.mp4", "b.mp4", "c.mp4")):
        home.put(number, name)
    (home.videos / "a.srt").write_text(CUE.format("an onion is cut"))
    (home.videos / "b.srt").write_text("no cue")
    (home.videos / "other.srt").write_text(CUE.format("of no video"))
    os.mkfifo(home.videos / "c.srt")
    for sync in (home.first, home.sync):
        pipe, bad = sync(code=1)["problems"]
        assert "c.srt: a pipe" in pipe and "b.srt: no cue" in bad and home.said.count("b.srt: no cue") == 1
        assert "skipped: 2 files with other names (2 .srt)" in home.said
    (home.videos / "b.srt").write_text(CUE.format("the oven is hot"))
    (home.videos / "c.srt").unlink()
    assert home.sync()["problems"] == []


def test_captions_of_ones_own_are_not_replaced_by_subtitles(home):
    home.put(0, "a.mp4")
    (home.videos / "a.srt").write_text("1\n00:00:00,000 --> 00:00:00,600\nan onion\n")
    own = home.dataset.path / "captions" / "cues"
    own.mkdir(parents=True)
    home.first()
    assert str(own) in home.said and not list(own.iterdir())


def test_one_sync_at_a_time_and_mistakes_are_one_line(home):
    home.put(0, "a.mp4")
    assert home.call() == 2 and home.call(home.top / "none") == 2 and home.call(home.videos, "--every", 0) == 2
    assert [home.call(home.videos, "--watch", "--every", every) for every in (0, "nan", "inf", 1e10)] == [2] * 4
    assert not home.dataset.path.exists()
    assert home.capsys.readouterr().err.count("\n") == 7
    with folder_lock(sync_folder(home.dataset) / "sync.lock", "syncs videos"):
        assert home.call(home.videos, "--features", f"hf:{home.model}") == 2
    [error] = home.capsys.readouterr().err.splitlines()
    assert f"process {os.getpid()} " in error
    assert not home.dataset.videos_file.exists()


@pytest.mark.parametrize("name", ["folders.json", "files.jsonl", "removed.jsonl"])
@pytest.mark.parametrize("content", [b"\xff", b"[1]", b'{"folders": 3}\n', b'{"video_id": "\\ud800", "path": 1}\n'])
def test_a_damaged_record_is_refused_in_one_line(tmp_path, capsys, name, content):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    path = sync_folder(dataset) / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    (tmp_path / "Videos").mkdir()
    assert sync_main(["--root", str(dataset.root), "--dataset", "mine", str(tmp_path / "Videos")]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert str(path) in error and ("remove it" in error or "expected" in error)
    assert name != "folders.json" or "remove it, and pass all folders to vlalign-sync again" in error


def write_record(dataset: DatasetFolder, folders: Sequence[object]) -> None:
    """Write the followed folders as somebody else may do."""
    record = sync_folder(dataset)
    record.mkdir(parents=True, exist_ok=True)
    rows = [{"path": str(folder)} for folder in folders]
    (record / "folders.json").write_text(json.dumps({"folders": rows, "made_from": {}}))


@pytest.mark.parametrize("folder", ["vlalign_data", "../other", "", "/a\0b"])
def test_a_record_with_a_folder_that_is_no_absolute_path_is_refused_in_one_line(tmp_path, capsys, folder):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    write_record(dataset, [folder])
    assert sync_main(["--root", str(dataset.root), "--dataset", "mine"]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert str(sync_folder(dataset) / "folders.json") in error and "expected an absolute path" in error


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, True, 1.5, "1"])
@pytest.mark.parametrize("key", ["size", "mtime_ns"])
def test_a_record_with_an_impossible_size_or_time_is_refused_in_one_line(tmp_path, key, number):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    sync_folder(dataset).mkdir(parents=True)
    row = {"path": "/v/a.mp4", "folder": "/v", "size": 1, "mtime_ns": 1, "source": "", key: number}
    (sync_folder(dataset) / "files.jsonl").write_text(json.dumps(row))
    with pytest.raises(UserError, match=r"files\.jsonl: .*64-bit"):
        read_sync_record(dataset)


def test_a_record_that_is_a_pipe_keeps_nothing_waiting(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    sync_folder(dataset).mkdir(parents=True)
    os.mkfifo(sync_folder(dataset) / "removed.jsonl")
    assert sync_main(["--root", str(dataset.root), "--dataset", "mine", str(tmp_path)]) == 2
    assert "a pipe" in capsys.readouterr().err


def test_features_that_were_typed_once_are_used_again(home):
    home.put(0, "a.mp4")
    home.first()
    home.put(1, "b.mp4")
    home.sync("--features", "logmel")
    home.put(2, "c.mp4")
    home.sync()
    assert home.stored == {"a", "b", "c"}
    assert set(FeatureStore(home.dataset.features("logmel")).video_ids()) == {"a", "b", "c"}


def test_a_thread_syncs_while_a_search_is_open(home):
    home.put(0, "a.mp4")
    home.put(1, "b.mp4")
    home.first()
    search = open_search(home.dataset.path, features=f"hf:{home.model}")
    home.put(2, "c.mp4")
    (home.videos / "a.mp4").unlink()
    results, states = [], []
    settings = SyncSettings(dataset=home.dataset.path)
    thread = threading.Thread(target=lambda: results.append(sync_videos(settings, on_progress=states.append)))
    thread.start()
    thread.join(WAIT_SECONDS)
    [result] = results
    assert result.extracted == ["c"] and result.removed == ["a"] and result.changed and states
    assert {moment.video_id for moment in search("a blue box", num_results=9)} <= {"a", "b"}, "as it was opened"
    assert home.found() == {"b", "c"}


def test_the_index_is_there_for_the_search_command(home):
    home.put(0, "a.mp4")
    home.first()
    index = home.dataset.path / "index" / "small"
    before = sorted(index.iterdir())
    call = ["--root", home.dataset.root, "--dataset", "mine", "--features", f"hf:{home.model}", "a blue box"]
    assert before and search_main(list(map(str, call))) == 0 and sorted(index.iterdir()) == before


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_watching_finds_new_videos_until_a_signal_comes(home, number, code):
    home.put(0, "a.mp4")
    program = "import sys; from vlalign.train.cli.sync import main; sys.exit(main(sys.argv[1:]))"
    options = ["--root", home.dataset.root, home.videos, "--features", f"hf:{home.model}", "--watch", "--every", 1]
    said = home.top / "said.txt"
    with said.open("w") as file:
        call = [sys.executable, "-c", program, *map(str, options), "--json"]
        process = subprocess.Popen(call, stdout=file, stderr=subprocess.STDOUT)
    try:
        rows = wait_for_rows(said, process, 1)
        assert rows[0]["extracted"] == ["a"]
        home.put(1, "b.mp4")
        rows = wait_for_rows(said, process, 2)
        assert rows[1]["extracted"] == ["b"]
        time.sleep(3)
        assert len(wait_for_rows(said, process, 2)) == 2, "nothing happens, nothing is printed"
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == code
    finally:
        process.kill()
    assert "Traceback" not in said.read_text() and "stopped" in said.read_text().splitlines()[-1]


def wait_for_rows(said: Path, process: subprocess.Popen, num_rows: int) -> list[dict]:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        rows = [json.loads(line) for line in said.read_text().splitlines() if line.startswith("{")]
        if len(rows) >= num_rows:
            return rows
        assert process.poll() is None and time.monotonic() < deadline, said.read_text()
        time.sleep(0.1)
