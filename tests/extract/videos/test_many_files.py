"""A network disk takes milliseconds for each call: many are waited for at once, and none is made twice."""

import io
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.foreign import STORED, rows_of
from helpers.stores import jpeg
from helpers.videos import touch
from vlalign.extract import ExtractionSettings
from vlalign.extract.pipeline.dataset import prepare_extraction
from vlalign.extract.pipeline.pending_work import PendingWork
from vlalign.extract.videos.changes import Known, find_changes
from vlalign.extract.videos.folder_look import look_at
from vlalign.extract.videos.selection import list_folder
from vlalign.ray_jobs.store_watcher import StoreWatcher
from vlalign.storage import VideoRecord, write_shard
from vlalign.storage.common import files, threads
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.synced import SyncedFolder
from vlalign.storage.dataset.trusted_folders import allow_folder, outside_of_folders
from vlalign.storage.profiles import PROFILES
from vlalign.storage.stores import thumbnails
from vlalign.storage.stores.feature_store import SHARDS_PER_THREAD
from vlalign.storage.stores.thumbnails import Thumbnail, ThumbnailStore, write_thumbnails

AT_ONCE, NUM_FILES = 8, 512
IDS = [f"{number // 16:02}/{number % 16:02}" for number in range(NUM_FILES)]


class Meeting:
    """Calls that only go on when ``AT_ONCE`` of them wait, as they do if nobody calls one after the other."""

    def __init__(self, monkeypatch, module: object, name: str, about: Callable[[str], bool]) -> None:
        self.num_calls: Counter[str] = Counter()
        real, barrier = getattr(module, name), threading.Barrier(AT_ONCE)

        def met(path, *args, **options):
            if about(str(path)):
                self.num_calls[str(path)] += 1
                barrier.wait(20)
            return real(path, *args, **options)

        monkeypatch.setattr(module, name, met)


@pytest.fixture
def videos(tmp_path) -> Path:
    """As many videos as ``AT_ONCE`` threads look at, each at several in a row, in 32 folders."""
    assert NUM_FILES == AT_ONCE * threads.CALLS_PER_PART
    touch(tmp_path, *(f"videos/{video_id}.mp4" for video_id in IDS))
    return tmp_path / "videos"


def is_video(path: str) -> bool:
    return path.endswith(".mp4")


def settings_of(tmp_path: Path) -> ExtractionSettings:
    return ExtractionSettings(dataset=tmp_path / "root" / "mine", videos=tmp_path / "videos", features="s3d")


def test_new_videos_are_looked_at_once_each_and_many_at_once(videos, tmp_path, monkeypatch):
    looks = Meeting(monkeypatch, os, "stat", is_video)
    left = prepare_extraction(settings_of(tmp_path), Problems(), dry_run=True).tasks
    assert len(left) == NUM_FILES == len(looks.num_calls) and set(looks.num_calls.values()) == {1}


def test_many_folders_are_listed_at_once(videos, monkeypatch):
    lists = Meeting(monkeypatch, os, "scandir", lambda path: Path(path).parent == videos)
    found = list_folder(videos, Problems())
    assert [video.video_id for video in found] == IDS
    assert set(lists.num_calls.values()) == {1}


def test_many_links_are_followed_at_once(videos, tmp_path, monkeypatch):
    links = tmp_path / "links"
    links.mkdir()
    for path in videos.rglob("*.mp4"):
        (links / f"{path.parent.name}-{path.name}").symlink_to(path)
    dataset = DatasetFolder(tmp_path / "root", "mine")
    allow_folder(dataset, videos)
    Meeting(monkeypatch, os, "stat", lambda path: Path(path).parent == links)
    assert len(list_folder(links, Problems(), dataset=dataset)) == NUM_FILES


def test_folders_of_videos_are_checked_many_at_once(videos, tmp_path, monkeypatch):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    records = [VideoRecord(video_id=str(path), path=str(path)) for path in sorted(videos.rglob("*.mp4"))]
    Meeting(monkeypatch, os, "scandir", lambda path: Path(path).parent == videos)
    assert outside_of_folders(dataset, records).keys() == {record.path for record in records}


def test_files_that_were_touched_are_read_many_at_once(videos, tmp_path, monkeypatch):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    made = [rows_of(each, files.file_identity(videos / f"{each}.mp4"), 1024) for each in IDS]
    write_shard(dataset.features("s3d"), PROFILES["s3d"], STORED, made, made_with={})
    reads = Meeting(monkeypatch, os, "open", is_video)
    assert prepare_extraction(settings_of(tmp_path), Problems(), dry_run=True).tasks == []
    assert len(reads.num_calls) == NUM_FILES


def test_ids_that_other_files_had_are_compared_many_at_once(videos, tmp_path, monkeypatch):
    """The disk is mounted elsewhere now."""
    dataset = DatasetFolder(tmp_path / "root", "mine")
    shutil.copytree(videos, tmp_path / "elsewhere")
    moved = [VideoRecord(video_id=each, path=str(tmp_path / f"elsewhere/{each}.mp4")) for each in IDS]
    dataset.write_videos(moved)
    allow_folder(dataset, tmp_path)
    shutil.rmtree(tmp_path / "elsewhere")
    looks = Meeting(monkeypatch, os.path, "exists", lambda path: "elsewhere" in path)
    assert len(prepare_extraction(settings_of(tmp_path), Problems(), dry_run=True).tasks) == NUM_FILES
    assert len(looks.num_calls) == NUM_FILES


def test_a_sync_looks_at_many_files_at_once_and_reads_them(videos, tmp_path, monkeypatch):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    allow_folder(dataset, videos)
    for path in videos.rglob("*.mp4"):
        path.write_bytes(path.name.encode())
        os.utime(path, (1e9, 1e9))
    monkeypatch.setattr("vlalign.extract.videos.folder_look.RECENT_SECONDS", 0.0)
    looks = Meeting(monkeypatch, os, "stat", is_video)
    look = look_at(dataset, SyncedFolder(path=str(videos), mount=""), {}, [], Problems())
    assert len(look.files) == NUM_FILES and set(looks.num_calls.values()) == {1}
    together = threading.Barrier(AT_ONCE)

    def identity(path: str) -> str:
        together.wait(20)
        return path

    known = Known(videos=[], path_of={}, files={}, removed={}, source_of=lambda _: "")
    changes = find_changes(known, [look], [], identity=identity, is_copy=lambda *_: False)
    assert len(changes.new) == NUM_FILES


def test_thumbnails_are_opened_many_at_once_and_read_once(tmp_path, monkeypatch):
    for number in range(2 * AT_ONCE):
        shown = [Thumbnail(f"v{number}", seconds, jpeg(number), "s") for seconds in (1.0, 2.0, 3.0)]
        write_thumbnails(tmp_path, shown)
    together, reads = threading.Barrier(AT_ONCE), Counter()

    class Opened(io.FileIO):
        def __init__(self, path: Path, **_) -> None:
            together.wait(20)
            super().__init__(path)

        def read(self, *size: int) -> bytes:
            reads[self.name] += 1
            return super().read(*size)

        def readinto(self, target: memoryview) -> int:
            reads[self.name] += 1
            return super().readinto(target)

    monkeypatch.setattr(thumbnails, "open_to_read", Opened)
    store = ThumbnailStore(tmp_path)
    assert [len(store.seconds(f"v{number}")) for number in range(2 * AT_ONCE)] == [3] * 2 * AT_ONCE
    assert len(reads) == 2 * AT_ONCE and set(reads.values()) == {1}


def test_shards_that_no_worker_reported_are_read_many_at_once(tmp_path, monkeypatch):
    dataset = DatasetFolder(tmp_path, "mine")
    watcher = StoreWatcher(PendingWork(dataset, ["s3d"]), ["s3d"])
    for number in range(AT_ONCE * SHARDS_PER_THREAD):
        write_shard(dataset.features("s3d"), PROFILES["s3d"], STORED, [rows_of(f"v{number}", "s", 1024)], made_with={})
    Meeting(monkeypatch, os, "open", lambda path: path.endswith(".h5"))
    assert len(watcher.poll()) == AT_ONCE * SHARDS_PER_THREAD and not watcher.poll()


def test_results_come_in_order_and_an_error_ends_them():
    assert list(threads.map_in_threads(str, range(100_000))) == [str(n) for n in range(100_000)]
    assert list(threads.map_in_threads(str, [])) == []
    results = threads.map_in_threads(lambda n: 1 // (5 - n), range(1000), calls_per_part=1)
    with pytest.raises(ZeroDivisionError):
        list(results)
