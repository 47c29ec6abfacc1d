"""What a driver makes of workers that ended, without a cluster."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError
from vlalign.extract.pipeline.pending_work import Extraction, PendingWork, VideoTask
from vlalign.extract.pipeline.scheduler import MAX_ENDS
from vlalign.extract.pipeline.shard_writing import VideoOutcome
from vlalign.extract.settings import ExtractionSettings
from vlalign.ray_jobs import driver as module
from vlalign.ray_jobs.actors import WorkerHandle
from vlalign.ray_jobs.cluster import MachineNames, Share, reason_of
from vlalign.ray_jobs.driver import MAX_ENDS_IN_A_ROW, ExtractionDriver
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import EXIT_INCOMPLETE, EXIT_MISTAKE, UserError
from vlalign.storage.common.files import file_identity
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Failure
from vlalign.storage.stores.failure_log import read_failures


def driver_of(root: Path, video_ids: list[str]) -> ExtractionDriver:
    dataset = DatasetFolder(root, "mine")
    dataset.path.mkdir()
    for video_id in video_ids:
        (dataset.path / f"{video_id}.mp4").write_bytes(b"video")
    videos = [VideoRecord(video_id=video_id, path=f"{video_id}.mp4") for video_id in video_ids]
    tasks = [VideoTask(video, ["s3d"]) for video in videos]
    settings = ExtractionSettings(dataset=dataset.path, features="s3d", weights={"s3d": "random"}, max_failures="100%")
    pending = PendingWork(dataset, ["s3d"])
    extraction = Extraction(settings, videos, tasks, {"s3d": "random"}, pending, Problems(quiet=True))
    share = Share(num_cpus=1, num_gpus=0, max_workers=1)
    return ExtractionDriver(extraction, settings.for_worker({"s3d": "random"}, "cpu", 1), share, shard_seconds=1.0)


@pytest.mark.parametrize(
    "cause, failed", [(OSError("s3://films/s3d: refused (Access Denied)"), set()), (ZeroDivisionError(), {"a"})]
)
def test_videos_are_not_blamed_for_a_store_that_cannot_be_written(tmp_path, monkeypatch, cause, failed):
    monkeypatch.setattr(module, "is_up", lambda node: True)
    driver = driver_of(tmp_path, ["a"])
    extraction, pending, dataset = driver.extraction, driver.extraction.pending, driver.extraction.settings.folder
    error = RayTaskError("exchange", "Traceback ...", cause)
    most = MAX_ENDS_IN_A_ROW if isinstance(cause, OSError) else MAX_ENDS
    for number in range(most):
        assert driver.scheduler.next(number, 0)[0] == [0]
        worker = WorkerHandle("worker", number, None, node="node", machine="machine")
        if number < most - 1:
            driver._return_videos(worker, error)
        else:
            with pytest.raises(UserError, match=rf"^{most} ") as ended:
                driver._return_videos(worker, error)
            assert ended.value.exit_code == (EXIT_INCOMPLETE if isinstance(cause, OSError) else EXIT_MISTAKE)
    assert not extraction.problems.messages and not pending.failures["s3d"], "the event loop waits for no disk"
    driver._report_outcomes()
    assert set(read_failures(pending.failures_file("s3d"))) == set(pending.failures["s3d"]) == failed
    assert all(found.source == file_identity(dataset.path / "a.mp4") for found in pending.failures["s3d"].values())
    assert all("(machine machine)" in message for message in extraction.problems.messages)
    assert len(extraction.problems.messages) == len(failed)
    assert re.fullmatch(r"extract-mine-[0-9a-f]{16}-s3d-[0-9a-f]{16}-", driver._prefix), (
        "as people read it in Ray's dashboard"
    )


def test_failures_that_come_while_others_are_written_are_recorded(tmp_path):
    driver = driver_of(tmp_path, [str(number) for number in range(300)])
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            driver._report_outcomes()

    with ThreadPoolExecutor(2) as pool:
        writing = [pool.submit(write) for _ in range(2)]
        for task in driver.extraction.tasks:
            video_id = task.video.video_id
            failed = Failure(video_id=video_id, path=task.video.path, kind="unreadable", message="no", source="s")
            driver.dispatch.finish(VideoOutcome(video_id, task.video.path, ["s3d"], failed), "machine")
            time.sleep(0.001)
        is_over.set()
    assert [thread.result() for thread in writing] == [None, None]
    driver._report_outcomes()
    assert len(read_failures(driver.extraction.pending.failures_file("s3d"))) == 300
    assert driver.extraction.problems.count == 300


def test_machines_have_names_that_people_know(monkeypatch):
    def node(name, host, address="", alive=True):
        return {"NodeID": name, "NodeManagerHostname": host, "NodeManagerAddress": address, "Alive": alive}

    nodes = [node("aaaa1", "gpu7"), node("bbbb1", "gpu7"), node("cccc1", "", "10.0.0.3")]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    names = MachineNames()
    assert [names.name(each["NodeID"]) for each in nodes] == ["gpu7", "gpu7-bbbb", "10.0.0.3"]
    nodes[0] = node("aaaa1", "gpu7", alive=False)
    nodes.append(node("dddd1", "gpu7"))
    assert names.name("dddd1") == "gpu7", "it was restarted"
    assert names.name("aaaa1") == "gpu7" and names.name("eeee1gone") == "eeee1gon"


@pytest.mark.parametrize(
    "said, words",
    [
        ("The actor is dead because its worker process has died. ... OOM killer due to high memory usage", "killed or"),
        ("The actor is dead because its node has died. Node Id: 17", "its machine was lost"),
        ("... the node running low on memory.", "low on memory"),
        ("The actor never ran", "its process ended"),
    ],
)
def test_the_end_of_a_worker_is_told_in_a_few_words(said, words):
    context = ActorDiedErrorContext(
        class_name="ExtractionActor", actor_id=bytes(16), pid=17, name="extract-mine", error_message=said
    )
    reason = reason_of(ActorDiedError(context))
    assert words in reason and len(reason) < 80 and "Extraction" not in reason
