"""One extraction worker without Ray: what it accepts and reports, and what it does if no driver calls."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from helpers import stores
from helpers.extractors import stub
from helpers.videos import scene
from vlalign.extract.extractor import Extractor
from vlalign.extract.pipeline.pending_work import PendingWork, VideoTask
from vlalign.extract.pipeline.shard_writing import ShardsWritten, VideoOutcome
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.extract.settings import WorkerSettings
from vlalign.extract.videos.demo import render_video
from vlalign.ray_jobs import worker as module
from vlalign.ray_jobs.store_watcher import StoreWatcher
from vlalign.ray_jobs.worker import ExtractionWorker, State, WorkerReport
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.remote import http_client as web

FEATURES = ["s3d"]


def settings_in(folder, num_cores: int, weights: str = "random") -> WorkerSettings:
    return WorkerSettings(dataset=DatasetFolder(folder, "mine"), weights={"s3d": weights}, num_cores=num_cores)


def tasks_of(videos: list[VideoRecord]) -> list[VideoTask]:
    return [VideoTask(video, FEATURES) for video in videos]


@pytest.fixture(scope="module")
def films(tmp_path_factory) -> list[VideoRecord]:
    folder = tmp_path_factory.mktemp("films")
    for i in range(6):
        render_video(scene(0.3 + 0.2 * i), folder / f"v{i}.mp4")
    return [VideoRecord(video_id=f"v{i}", path=str(folder / f"v{i}.mp4")) for i in range(6)]


@pytest.fixture
def worker(tmp_path, monkeypatch) -> Iterator[ExtractionWorker]:
    monkeypatch.setattr(module, "make_extractors", lambda _: {"s3d": stub()})
    made = ExtractionWorker(settings_in(tmp_path, 2), shard_seconds=1000.0)
    made.load()
    yield made
    with suppress(OSError):
        exchange_until(made, is_idle)  # its thread would take cores from the following tests


@pytest.fixture
def slow_loading(monkeypatch) -> tuple[threading.Event, threading.Event]:
    """Extractors that are loaded only once they may be: set when it has begun, and waited for until it may go on."""
    begun, go_on = threading.Event(), threading.Event()

    def load(_: object) -> dict[str, Extractor]:
        begun.set()
        assert go_on.wait(60)
        return {"s3d": stub()}

    monkeypatch.setattr(module, "make_extractors", load)
    return begun, go_on


def exchange_until(
    worker: ExtractionWorker, enough, refill_at: int | None = None, seconds: float = 300.0
) -> list[VideoOutcome | ShardsWritten]:
    events, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        answer = worker.exchange([], refill_at)
        events += answer.events
        if enough(answer, events):
            return events
    raise AssertionError(f"not within {seconds} s: {events}")


def is_idle(answer: WorkerReport, _: list) -> bool:
    return answer.idle


def outcomes(events: list[VideoOutcome | ShardsWritten]) -> list[str]:
    return [event.video_id for event in events if isinstance(event, VideoOutcome)]


def kept(events: list[VideoOutcome | ShardsWritten]) -> list[str]:
    return [video_id for event in events if isinstance(event, ShardsWritten) for video_id in event.video_ids]


def test_everything_is_on_disk_once_no_more_videos_follow(worker, films):
    first = worker.exchange(tasks_of(films[:2]), 0)
    events = first.events + exchange_until(
        worker, lambda answer, events: len(outcomes(events)) + len(first.events) >= 2, refill_at=-1
    )
    assert sorted(outcomes(events)) == ["v0", "v1"] and kept(events) == [], "a shard takes longer to fill"
    assert worker.report_for_takeover().unwritten == ["v0", "v1"]
    events = worker.exchange(tasks_of(films[2:]), None).events
    events += exchange_until(worker, is_idle)
    assert sorted(outcomes(events)) == ["v2", "v3", "v4", "v5"] and sorted(kept(events)) == [f"v{i}" for i in range(6)]
    report = worker.report_for_takeover()
    assert (report.unwritten, sorted(report.written)) == ([], [f"v{i}" for i in range(6)])
    store = FeatureStore(worker._settings.dataset.features("s3d"))
    assert sorted(store.video_ids()) == [video.video_id for video in films]


def test_what_another_worker_has_computed_is_not_written(worker, films):
    events = worker.exchange(tasks_of(films[:3]), 0).events
    events += exchange_until(worker, lambda _, more: len(outcomes(events + more)) >= 3, refill_at=-1)
    events = worker.exchange([], None, dropped=["v0", "v2"]).events + exchange_until(worker, is_idle)
    assert kept(events) == ["v1"]
    assert FeatureStore(worker._settings.dataset.features("s3d")).video_ids() == ["v1"]
    report = worker.report_for_takeover()
    assert (report.unwritten, report.written) == ([], ["v1"])
    worker.exchange(tasks_of(films[:1]), None)  # if the other one has lost it
    exchange_until(worker, is_idle)
    assert sorted(FeatureStore(worker._settings.dataset.features("s3d")).video_ids()) == ["v0", "v1"]


def test_a_machine_without_the_data_set_s_folder_says_so(worker, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MARKER_SECONDS", 0.1)
    marker = tmp_path / "mine" / "jobs" / "extract-1.jsonl"
    with pytest.raises(UserError, match=rf"^{tmp_path}/mine: not the driver's folder.*mount the shared"):
        worker.load(marker=marker)
    marker.parent.mkdir(parents=True)
    marker.touch()
    worker.load(marker=marker)


def test_it_tells_which_video_it_can_read(worker, films, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "other.mp4").touch()
    where = {
        "away": "cannot be listed (No such file or directory); is it mounted?",
        "empty": "is empty; is it mounted?",
        "some": "no such file",
    }
    gone = [VideoRecord(video_id=name, path=str(tmp_path / name / "gone.mp4")) for name in where]
    assert worker.first_readable(tasks_of([*gone, films[0]]), True)[0] == "v0"
    assert worker.first_readable(tasks_of([gone[0], gone[2]]), False) == ("", ""), "its folder has other files"
    for video, words in zip(gone, where.values(), strict=True):
        assert words in worker.first_readable(tasks_of([video]), True)[1]


def test_its_rows_equal_those_of_a_plain_loop(worker, films, tmp_path):
    from vlalign.extract.pipeline.engine import extract_videos

    worker.exchange(tasks_of(films), None)
    exchange_until(worker, is_idle)
    store = FeatureStore(worker._settings.dataset.features("s3d"))
    jobs = [VideoJob(video.video_id, worker._settings.dataset.video_path(video), [stub()]) for video in films]
    for job, made in extract_videos(jobs, [stub()]):
        expected, found = made.features["s3d"], store.get(job.video_id)
        np.testing.assert_allclose(found.features, expected.features.astype(np.float16), rtol=2e-3)
        np.testing.assert_array_equal(found.start_seconds, expected.start_seconds)
        assert (found.source, found.decoder, found.partial) == (expected.source, expected.decoder, expected.partial)


def test_it_continues_after_it_was_idle(worker, films):
    for video in films[:3]:
        worker.exchange(tasks_of([video]), None)
        exchange_until(worker, is_idle)
    assert worker.report_for_takeover().written == ["v0", "v1", "v2"]


def test_a_broken_video_is_reported_as_a_failure(worker, films, tmp_path):
    broken = VideoRecord(video_id="broken", path=str(tmp_path / "broken.mp4"))
    (tmp_path / "broken.mp4").write_bytes(b"no video" * 1000)
    events = worker.exchange(tasks_of([broken, films[0]]), None).events + exchange_until(worker, is_idle)
    failures = [event.failure.kind for event in events if isinstance(event, VideoOutcome) and event.failure]
    assert failures == ["unreadable"] and kept(events) == ["v0"]
    assert worker.report_for_takeover().unwritten == []


def test_a_worker_that_leaves_writes_finished_videos_and_hands_back_the_others(worker, films, tmp_path, monkeypatch):
    """The third video is downloaded from a silent server, so that it is begun for ever."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/silent.mp4"
        monkeypatch.setattr(worker, "_settings", replace(worker._settings, allowed_hosts=("127.0.0.1",)))
        monkeypatch.setattr(web, "SILENT_SECONDS", 5.0)
        begun = VideoRecord(video_id="begun", path=address)
        events = worker.exchange(tasks_of([*films[:2], begun]), -1).events
        events += exchange_until(worker, lambda _, more: len(outcomes(events + more)) == 2, refill_at=-1)
        assert kept(events) == [], "a shard takes longer to fill"
        worker.leave()
        assert not worker.may_end()
        events = exchange_until(worker, lambda answer, _: answer.left)
    assert sorted(kept(events)) == sorted(FeatureStore(worker._settings.dataset.features("s3d")).video_ids())
    assert worker.report_for_takeover().unwritten == ["begun"]
    answer = worker.exchange(tasks_of([films[5]]), 0)
    assert answer.left and answer.events == []
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.0)
    assert worker.may_end()


@pytest.mark.parametrize("loads", [True, False], ids=["loading", "not loaded"])
def test_a_worker_that_is_asked_to_leave_before_it_has_videos_takes_none(tmp_path, films, slow_loading, loads):
    begun, go_on = slow_loading
    made = ExtractionWorker(settings_in(tmp_path, 2), shard_seconds=0.0)
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(made.load if loads else begun.set)
        assert begun.wait(60)
        leaving = pool.submit(made.leave)
        go_on.set()
        wait([loading, leaving], 60)
    made.load()
    answer = made.exchange(tasks_of(films[:1]), 0)
    assert answer.left and made.report_for_takeover().unwritten == []


def test_it_answers_as_soon_as_few_enough_videos_wait(worker, films):
    answer = worker.exchange(tasks_of(films), 4)
    assert answer.num_waiting <= 4 and not answer.idle
    exchange_until(worker, is_idle)


def test_an_error_in_its_thread_reaches_the_driver(worker, films, monkeypatch):
    def full(*_, **__):
        raise OSError("no room there: a shard needs 1 MB")

    monkeypatch.setattr("vlalign.storage.stores.shard_writer.write_shard", full)
    with pytest.raises(OSError, match="no room there"):
        worker.exchange(tasks_of([films[0]]), None)
        exchange_until(worker, is_idle)


def test_without_a_driver_it_finishes_and_may_end(worker, films, monkeypatch):
    monkeypatch.setattr(module, "DRIVER_SECONDS", 1.0)
    worker.exchange(tasks_of(films), 0)
    assert not worker.may_end()
    until = time.monotonic() + 300
    while not worker.may_end():
        assert time.monotonic() < until
        time.sleep(0.1)
    assert sorted(FeatureStore(worker._settings.dataset.features("s3d")).video_ids()) == [v.video_id for v in films]
    assert worker.report_for_takeover().unwritten == [] and worker.report_for_takeover().since_driver_seconds > 1.0


def test_videos_on_disk_are_reported_at_once(tmp_path, films, monkeypatch):
    """Otherwise they would be extracted again if the worker ended."""
    monkeypatch.setattr(module, "make_extractors", lambda _: {"s3d": stub()})
    monkeypatch.setattr(module, "REPORT_SECONDS", 300.0)
    made = ExtractionWorker(settings_in(tmp_path, 1), shard_seconds=0.0)
    made.load()
    answer = made.exchange(tasks_of(films), -1)
    assert kept(answer.events) and not answer.idle
    made.exchange([], None)
    exchange_until(made, is_idle)


def test_the_watcher_sees_new_shards_of_any_writer(tmp_path):
    dataset, names = DatasetFolder(tmp_path, "mine"), ["s3d", "resnet152"]
    profiles = {name: replace(stores.PROFILE, name=name) for name in names}
    stores.write(dataset.features("s3d"), stores.video("before", 2), profile=profiles["s3d"])
    watcher = StoreWatcher(PendingWork(dataset, names), names)
    assert watcher.poll() == {}
    stores.write(dataset.features("s3d"), stores.video("a", 2), stores.video("b", 1), profile=profiles["s3d"])
    assert watcher.poll() == {"a": {"s3d"}, "b": {"s3d"}}
    stores.write(dataset.features("resnet152"), stores.video("b", 3), profile=profiles["resnet152"])
    assert watcher.poll() == {"b": {"s3d", "resnet152"}}
    assert watcher.poll() == {}


def test_a_driver_that_comes_while_it_loads_waits_for_it(tmp_path, films, slow_loading):
    """The driver that had it load was killed. Videos that came too early would wait for ever."""
    begun, go_on = slow_loading
    made = ExtractionWorker(settings_in(tmp_path, 2), shard_seconds=0.0)
    with ThreadPoolExecutor() as pool:
        drivers = [pool.submit(made.load)]
        assert begun.wait(60)
        drivers.append(pool.submit(made.load))
        assert wait(drivers, 0.5).done == set()
        go_on.set()
        assert [list(driver.result(60)) for driver in drivers] == [FEATURES] * 2
    made.exchange(tasks_of(films[:1]), None)
    exchange_until(made, is_idle)
    assert made.report_for_takeover().written == ["v0"]


def test_missing_weights_are_a_user_error(tmp_path):
    made = ExtractionWorker(settings_in(tmp_path, 1, weights=str(tmp_path / "absent.pth")), shard_seconds=1.0)
    with pytest.raises(UserError, match=re.escape("absent.pth")):
        made.load()
    assert made._state is State.NEW
