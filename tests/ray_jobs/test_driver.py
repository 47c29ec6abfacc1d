"""What a driver makes of workers that ended, without a cluster."""

import re

import pytest
from ray.core.generated.common_pb2 import ActorDiedErrorContext
from ray.exceptions import ActorDiedError, RayTaskError
from vlalign.extract.pipeline.pending_work import Extraction, PendingWork, VideoTask
from vlalign.extract.pipeline.scheduler import MAX_ENDS
from vlalign.extract.settings import ExtractionSettings
from vlalign.ray_jobs import driver as module
from vlalign.ray_jobs.actors import WorkerHandle
from vlalign.ray_jobs.cluster import MachineNames, Share, reason_of
from vlalign.ray_jobs.driver import MAX_ENDS_IN_A_ROW, ExtractionDriver
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder


@pytest.mark.parametrize(
    "cause, failed", [(OSError("s3://films/s3d: refused (Access Denied)"), set()), (ZeroDivisionError(), {"a"})]
)
def test_videos_are_not_blamed_for_a_store_that_cannot_be_written(tmp_path, monkeypatch, cause, failed):
    monkeypatch.setattr(module, "is_up", lambda node: True)
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.path.mkdir()
    (dataset.path / "a.mp4").write_bytes(b"video")
    tasks = [VideoTask(VideoRecord(video_id="a", path="a.mp4"), ["s3d"])]
    settings = ExtractionSettings(dataset=dataset.path, features="s3d", weights={"s3d": "random"})
    videos, pending = [task.video for task in tasks], PendingWork(dataset, ["s3d"])
    extraction = Extraction(settings, videos, tasks, {"s3d": "random"}, pending, Problems())
    share = Share(num_cpus=1, num_gpus=0, max_workers=1)
    driver = ExtractionDriver(extraction, settings.for_worker({"s3d": "random"}, "cpu", 1), share, shard_seconds=1.0)
    error = RayTaskError("exchange", "Traceback ...", cause)
    most = MAX_ENDS_IN_A_ROW if isinstance(cause, OSError) else MAX_ENDS
    for number in range(most):
        assert driver.scheduler.next(number, 0)[0] == [0]
        worker = WorkerHandle("worker", number, None, node="node", machine="machine")
        if number < most - 1:
            driver._return_videos(worker, error)
        else:
            with pytest.raises(UserError, match=rf"^{most} "):
                driver._return_videos(worker, error)
    assert set(pending.failures["s3d"]) == failed
    assert all("(machine machine)" in message for message in extraction.problems.messages)
    assert len(extraction.problems.messages) == len(failed)
    assert re.fullmatch(r"extract-mine-[0-9a-f]{16}-s3d-[0-9a-f]{16}-", driver._prefix), (
        "as people read it in Ray's dashboard"
    )


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
        ("The actor never ran", "its process is gone"),
    ],
)
def test_the_end_of_a_worker_is_told_in_a_few_words(said, words):
    context = ActorDiedErrorContext(
        class_name="ExtractionActor", actor_id=bytes(16), pid=17, name="extract-mine", error_message=said
    )
    reason = reason_of(ActorDiedError(context))
    assert words in reason and len(reason) < 80 and "Extraction" not in reason
