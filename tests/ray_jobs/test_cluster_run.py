"""What a driver makes of workers that ended, without a cluster."""

import pytest
from ray.exceptions import RayTaskError
from vlalign.extract.pipeline.work_list import WorkList
from vlalign.ray_jobs.actors import Worker
from vlalign.ray_jobs.cluster import Share
from vlalign.ray_jobs.cluster_run import ClusterRun
from vlalign.ray_jobs.worker import WorkerSettings
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder


@pytest.mark.parametrize(
    "cause, failed", [(OSError("s3://films/s3d: refused (Access Denied)"), set()), (ZeroDivisionError(), {"a"})]
)
def test_videos_are_not_blamed_for_a_store_that_cannot_be_written(tmp_path, cause, failed):
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.path.mkdir()
    (dataset.path / "a.mp4").write_bytes(b"video")
    work, todo = WorkList(dataset, ["s3d"]), [(VideoRecord(video_id="a", path="a.mp4"), ["s3d"])]
    share = Share(num_cpus=1, num_gpus=0, most_workers=1)
    run = ClusterRun(work, todo, WorkerSettings(weights={"s3d": "random"}), Problems(), share, 1.0, "")
    error = RayTaskError("exchange", "Traceback ...", cause)
    for number in range(3):
        assert run.dispatch.next(number, 0)[0] == [0]
        if number < 2:
            run._ended(Worker("worker", number, None), error)
        else:
            with pytest.raises(UserError, match="3 workers in a row ended with nothing done"):
                run._ended(Worker("worker", number, None), error)
    assert set(work.failures["s3d"]) == failed
