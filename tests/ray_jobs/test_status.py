"""What a driver counts, logs and reports."""

import json

import pytest
from vlalign.extract.pipeline.shard_writing import VideoOutcome
from vlalign.ray_jobs import status as module
from vlalign.ray_jobs.status import Status
from vlalign.ray_jobs.worker import WorkerReport
from vlalign.storage.records import Failure


class Gauge:
    values: dict[str, float] = {}  # noqa: RUF012

    def __init__(self, name, meaning):
        self.name = name

    def set(self, value):
        self.values[self.name] = value


@pytest.fixture
def status(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "Gauge", Gauge)
    states = []
    made = Status(4, 1000, tmp_path / "jobs" / "log.jsonl", states.append)
    made.started -= 10.0
    failure = Failure(video_id="b", path="b.mp4", kind="unreadable", message="no video")
    made.outcome(VideoOutcome("a", "a.mp4", ["s3d"], None, "the end is missing", 3600.0, 100, 2000), 400)
    made.outcome(VideoOutcome("b", "b.mp4", ["s3d"], failure), 100)
    made.note_times(0, WorkerReport([], 0, False, compute_seconds=3.0, seconds=4.0, quiet_seconds=0.0))
    made.states = states
    return made


def test_figures(status):
    figures = status.figures(num_left=2, num_workers=1)
    assert (figures.videos, figures.videos_left, figures.hours, figures.rows, figures.partial) == (2, 2, 1.0, 100, 1)
    assert figures.failures == {"unreadable": 1} and figures.compute_share == 0.75
    assert figures.seconds_left == pytest.approx(10, abs=1), "half of the bytes took 10 seconds"


def test_the_log_has_a_line_for_each_time_and_a_last_one(status):
    status.show(2, 1)
    lines = status.summary(2)
    logged = [json.loads(line) for line in status.log.read_text().splitlines()]
    assert [line.get("finished", False) for line in logged] == [False, True]
    assert list(logged[0])[:5] == ["time", "seconds", "videos", "videos_left", "hours"]
    assert Gauge.values["vlalign_extract_failures"] == 1.0 and Gauge.values["vlalign_extract_videos"] == 2.0
    assert any(line.startswith("failures") and line.endswith("unreadable 1") for line in lines)


def test_progress_is_reported_to_a_listener(status):
    status.show(2, 3)
    status.summary(2)
    assert [(state.done, state.total, state.ended) for state in status.states] == [(2, 4, False), (2, 4, True)]
    assert status.states[0].note == "3 workers"


def test_a_video_that_is_repeated_counts_once(status):
    """A worker that is lost takes finished videos with it, which another one extracts again."""
    before = status.figures(2, 1)
    for video_id in ("a", "b", "a"):
        status.outcome(VideoOutcome(video_id, f"{video_id}.mp4", ["s3d"], None, "", 3600.0, 100, 2000), 400)
    after = status.figures(2, 1)
    for name in ("videos", "hours", "rows", "bytes", "partial", "failures"):
        assert getattr(after, name) == getattr(before, name), name
    for video_id in ("c", "d"):
        status.outcome(VideoOutcome(video_id, f"{video_id}.mp4", ["s3d"], None, "", 3600.0, 100, 2000), 400)
    done = status.figures(0, 1)
    assert done.videos == 4 and done.seconds_left == 0, "files that grew leave no negative time"
    assert "-1 day" not in done.time_left() and any("4 of 4" in line for line in status.summary(0))
