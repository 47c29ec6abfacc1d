"""What a driver counts, logs and reports, by a simulated clock, with the scheduler of a real call."""

import json
import time
from datetime import datetime, timedelta, timezone

import pytest
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.pipeline.run_state import (
    RunState,
    activity_text,
    last_log,
    parse_state,
    read_last_state,
    status_lines,
)
from vlalign.extract.pipeline.scheduler import VideoScheduler
from vlalign.extract.pipeline.shard_writing import VideoOutcome
from vlalign.ray_jobs import extract_howto100m, metrics
from vlalign.ray_jobs.run_page import render_page
from vlalign.ray_jobs.status import Status
from vlalign.ray_jobs.worker import WorkerReport
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.records import Failure, VideoRecord


class Metric:
    values: dict[tuple[str, ...], float] = {}  # noqa: RUF012

    def __init__(self, name, description, tags):
        self.name, self.tags = name, tags

    def set(self, value, tags):
        assert set(tags) == set(self.tags)
        self.values[(self.name, *tags.values())] = value

    def inc(self, value, tags):
        self.set(self.values.get((self.name, *tags.values()), 0) + value, tags)


class Run:
    """A call whose clock the test sets. Each worker is a machine of its own, w0, w1, ..."""

    def __init__(self, folder, sizes, on_progress=None):
        self.now, self.scheduler = 0.0, VideoScheduler(sizes)
        log = folder / "mine" / "jobs" / "extract-20260101-000000.jsonl"
        call = {"features": "s3d", "driver": "head"}
        self.status = Status(self.scheduler, sizes, log, call=call, on_progress=on_progress, clock=lambda: self.now)

    def outcome(self, worker, number, *, kind="", partial="", write=True):
        """A worker computes a video, or fails on it, and writes it."""
        failure = Failure(video_id=f"v{number}", path="a.mp4", kind=kind, message="no <b>video</b>") if kind else None
        made = VideoOutcome(f"v{number}", "a.mp4", ["s3d"], failure, partial, 36.0, 10, 200)
        self.status.outcome(number, made, f"w{worker}")
        if failure or write:
            self.scheduler.mark_completed(worker, number)
        else:
            self.scheduler.mark_computed(worker, number)

    def state(self, *workers):
        return self.status.state(workers)

    def show(self, *workers):
        self.status.show(workers)
        self.status.finish_writing()


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    Metric.values.clear()
    monkeypatch.setattr(metrics, "Gauge", Metric)
    monkeypatch.setattr(metrics, "Counter", Metric)


@pytest.fixture
def run(tmp_path):
    """Four videos: one partial, one failed, after 10 seconds."""
    states = []
    made = Run(tmp_path, [400, 100, 300, 200], states.append)
    made.now = 10.0
    made.outcome(0, 0, partial="the end is missing")
    made.outcome(1, 1, kind="unreadable")
    made.status.note_times(0, WorkerReport([], 0, False, compute_seconds=3.0, seconds=4.0, quiet_seconds=0.0), "w0")
    made.states = states
    return made


def test_figures(run):
    state = run.state(0)
    assert (state.videos, state.videos_left, state.hours, state.rows) == (2, 2, 0.01, 10)
    assert (state.partial, state.failed, state.failures, state.compute_share) == (1, 1, {"unreadable": 1}, 0.75)
    assert state.videos_per_second == 0.2 and state.seconds_left == 10, "half of the bytes took 10 seconds"
    assert "1 partial, 1 failed" in state.videos_text() and "(50 %)" in state.videos_text()
    by_name = {machine.name: machine for machine in state.machines}
    assert (by_name["w0"].state, by_name["w0"].workers, by_name["w0"].partial) == ("working", 1, 1)
    assert (by_name["w1"].state, by_name["w1"].failures) == ("no workers", {"unreadable": 1})
    run.status.note_machine("w1", "drained", "8 of 8 videos failed")
    assert "drained: 8 of 8 videos failed" in "\n".join(run.status.summary())


def test_the_log_has_a_line_for_each_time_and_a_last_one(run):
    run.show(0)
    lines = run.status.summary()
    logged = [json.loads(line) for line in run.status.log.read_text().splitlines()]
    assert [line["finished"] for line in logged] == [False, True]
    assert list(logged[0])[:5] == ["time", "seconds", "videos", "videos_left", "hours"]
    assert parse_state(logged[0]) == read_last_state_of(run, 0)
    assert any(line.startswith("failures") and line.endswith("unreadable 1") for line in lines)


def read_last_state_of(run, number):
    path = run.status.log.with_name("one.jsonl")
    path.write_text(
        run.status.log.read_text().splitlines()[number] + '\n{"time": "2026-'
    )  # a line that is being written
    return read_last_state(path)


def test_metrics_have_the_names_of_prometheus(run):
    run.show(0)
    run.outcome(0, 2)
    run.show(0)
    values = {(name.removeprefix("vlalign_extract_"), *tags): value for (name, *tags), value in Metric.values.items()}
    assert values["videos_done", "mine"] == 3 and values["videos_left", "mine"] == 1
    assert values["videos_total", "mine", "w0"] == 2 and values["rows_total", "mine", "w0"] == 20
    assert values["failures_total", "mine", "w1", "unreadable"] == 1 and values["compute_ratio", "mine", "w0"] == 0.75
    assert all(name.endswith("_total") for name in metrics.COUNTERS)
    assert not any(name.endswith("_total") for name in metrics.GAUGES)


def test_progress_is_reported_to_a_listener(run):
    run.show(0, 1, 2)
    run.status.summary()
    assert [(state.done, state.total, state.ended) for state in run.states] == [(2, 4, False), (2, 4, True)]
    assert run.states[0].note == "3 workers"


# Progress that is true


def test_a_video_counts_once_whatever_becomes_of_it(run):
    """A worker that is lost takes finished videos with it, which another one extracts again."""
    before = run.state()
    run.outcome(2, 0, partial="the end is missing")
    after = run.state()
    for name in ("videos", "hours", "rows", "bytes", "partial", "failures"):
        assert getattr(after, name) == getattr(before, name), name
    run.outcome(2, 1)  # it was tried again, and is there now
    after = run.state()
    assert (after.videos, after.failed, after.failures, after.rows) == (2, 0, {}, 20) and not after.reasons
    for number in (2, 3, 2, 3):
        run.outcome(3, number)
    done = run.state()
    assert (done.videos, done.share_done, done.seconds_left, done.time_left_text()) == (4, 1.0, 0, "none")


def test_videos_that_are_computed_are_not_done_until_they_are_on_disk(tmp_path):
    run = Run(tmp_path, [1, 1])
    run.now = 5.0
    run.scheduler.next(0, 0)
    run.outcome(0, 0, write=False)
    assert (run.state().videos, run.state().computed) == (0, 1)
    run.scheduler.worker_ended(0)
    assert (run.state().videos, run.state().computed) == (0, 0), "it was lost with its worker"


def test_videos_of_a_worker_that_was_taken_over_are_done_but_give_no_rate(tmp_path):
    run = Run(tmp_path, [1] * 100)
    run.scheduler.take_over(0, [], range(90))
    run.now = 1.0
    state = run.state()
    assert (state.videos, state.rate_text(), state.time_left_text()) == (90, "?", "?")


@pytest.mark.parametrize("sizes", [[0] * 1000, [1000] * 1000, [0, 1000] * 500, [1 << 40] * 1000])
def test_the_time_left_is_the_same_whether_sizes_are_known_or_not(tmp_path, sizes):
    run = Run(tmp_path, sizes)
    for number in range(500):
        run.now += 1.0
        run.outcome(0, number)
        run.state()
    state, (low, high) = run.state(), run.state().seconds_left_range
    assert state.videos_per_second == pytest.approx(1.0, abs=0.01) and state.seconds_left == pytest.approx(500, abs=5)
    assert 450 < low < 500 < high < 550 and state.time_left_text() == "7 to 9 min"


def test_the_rate_is_that_of_the_last_five_minutes(tmp_path):
    run = Run(tmp_path, [0] * 10_000)
    number = 0
    for rate in (10, 1):
        for _ in range(400):
            run.now += 1.0
            for _ in range(rate):
                run.outcome(0, number)
                number += 1
            run.state()
    assert run.state().videos_per_second == pytest.approx(1.0, abs=0.01)
    assert run.state().machines[0].videos_per_second == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("shown", [True, False])
def test_a_stall_of_ten_minutes_leaves_the_time_unknown(tmp_path, shown):
    run = Run(tmp_path, [100] * 100)
    for number in range(50):
        run.now += 1.0
        run.outcome(0, number)
        run.state()
    for _ in range(120):
        run.now += 5.0
        if shown:
            run.state()
    state = run.state()
    if shown:
        assert (state.videos_per_second, state.time_left_text()) == (0.0, "?")
    else:  # nothing was measured in between, as on a machine that slept
        assert state.seconds_left is None or state.seconds_left > 0
    run.outcome(0, 50)
    assert run.state().videos == 51


def test_the_state_of_a_thousand_machines_takes_a_fraction_of_a_second(tmp_path):
    status = Run(tmp_path, [1]).status
    for worker in range(4000):
        status.note_times(worker, WorkerReport([], 0, True, 1.0, 2.0, 0.0), f"m{worker % 1000}")
    started = time.thread_time()
    machines = status.state(range(2000)).machines
    assert time.thread_time() - started < 0.2
    assert {(each.workers, each.compute_share) for each in machines} == {(2, 0.5)} and len(machines) == 1000


def test_everything_may_fail(tmp_path):
    run = Run(tmp_path, [100] * 100)
    for number in range(60):
        run.now += 1.0
        run.outcome(number % 3, number, kind="missing" if number % 3 else "unreadable")
    state = run.state()
    assert (state.videos, state.failed, state.failures) == (60, 60, {"missing": 40, "unreadable": 20})
    assert [reason.machines for reason in state.reasons] == [{"w1": 20, "w2": 20}, {"w0": 20}]
    assert state.seconds_left == pytest.approx(40, abs=2) and state.playback_speed == 0.0


@pytest.mark.parametrize(
    "seconds, expected",
    [
        ((0, 59), "less than a minute"),
        ((61, 150), "1 to 3 min"),
        ((6000, 7800), "1:40 to 2:10 h"),
        ((86400 * 3, 86400 * 4), "3.0 to 4.0 days"),
    ],
)
def test_the_time_left_is_a_range_in_words(run, seconds, expected):
    known = vars(run.state()) | {"seconds_left": seconds[0], "seconds_left_range": seconds}
    assert RunState(**known).time_left_text() == expected


def test_one_result_is_too_few_for_an_estimate(tmp_path):
    run = Run(tmp_path, [100] * 100)
    assert run.state().rate_text() == "?" and run.state().time_left_text() == "?"
    run.now = 1.0
    run.outcome(0, 0)
    assert run.state().time_left_text() == "?"


# What --status prints

START = datetime(2026, 11, 29, 3, 0, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "later, finished, left, expected",
    [
        (20, False, 2, "running, last heard of 20 s ago"),
        (61, False, 2, "not running any more"),
        (86400, False, 2, "1 day, 0:00:00 ago"),
        (-300, False, 2, "compare the clocks"),
        (1, True, 2, "ended at 2026-11-29 03:00:00 UTC with 2 videos left; run the same command again"),
        (86400, True, 0, "ended at 2026-11-29 03:00:00 UTC with nothing left"),
    ],
)
def test_a_call_is_running_only_while_it_writes(run, later, finished, left, expected):
    known = vars(run.state()) | {"time": START.isoformat(), "finished": finished, "videos_left": left}
    assert expected in activity_text(RunState(**known), START + timedelta(seconds=later))


@pytest.mark.parametrize("command", [extract_main, extract_howto100m.main])
def test_both_commands_show_the_last_call_without_a_cluster(run, tmp_path, capsys, monkeypatch, command):
    monkeypatch.setattr(extract_howto100m, "connect", None)
    run.show(0)
    options = ["--root", str(tmp_path), "--dataset", "mine", "--status"]
    assert command(options) == 0
    printed = capsys.readouterr().out
    assert ": running, last heard of " in printed and "features s3d, driver head" in printed
    assert "unreadable: 1 video (on w1 1), such as 'v1': no <b>video</b>" in printed
    assert printed.count("w0 ") == 1
    run.status.summary()
    assert command(options) == 0
    assert "with 2 videos left" in capsys.readouterr().out


OLD_LINE = {
    "time": "2026-11-26T07:56:06+00:00", "seconds": 100.0, "videos": 50, "videos_left": 50, "hours": 1.0, "rows": 5,
    "bytes": 10, "partial": 0, "failures": {"missing": 3}, "ended_workers": 0, "workers": 2, "worker_hours": 0.1,
    "compute_share": 0.9, "seconds_left": -3600,
}  # fmt: skip


def test_lines_of_version_1_are_readable():
    state = parse_state(OLD_LINE)
    assert (state.rate_text(), state.failures, state.finished) == ("0.50 videos/s", {"missing": 3}, False)
    assert "-" not in state.time_left_text()


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "null", "{", '"a"', json.dumps(OLD_LINE | {"rows": "5"}),
        json.dumps(OLD_LINE | {"seconds": float("nan")}),
        json.dumps(OLD_LINE | {"rows": 10**400}), json.dumps(OLD_LINE | {"time": "today"}),
        json.dumps(OLD_LINE | {"time": "2026-11-26"}), json.dumps(OLD_LINE | {"failures": {"a": "b"}}),
        json.dumps(OLD_LINE | {"machines": [{"name": "a"}]}), json.dumps(OLD_LINE | {"seconds_left_range": [1]}),
        json.dumps({key: value for key, value in OLD_LINE.items() if key != "rows"}), "[" * 100_000, "\xff",
    ],
)  # fmt: skip
def test_a_log_that_is_none_is_refused_in_a_line(line, tmp_path, capsys):
    log = tmp_path / "mine" / "jobs" / "extract-20260101-000000.jsonl"
    log.parent.mkdir(parents=True)
    log.write_text(f"{line}\n", encoding="latin-1")
    assert extract_main(["--root", str(tmp_path), "--dataset", "mine", "--status"]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert str(log) in said and len(said) < 400


def test_without_a_cluster_the_stores_and_failures_are_shown(tmp_path, small_demo, capsys):
    assert extract_main(["--root", str(small_demo.root), "--dataset", "demo", "--status"]) == 0
    printed = capsys.readouterr().out
    assert "no log of a cluster" in printed and "s3d: " in printed
    dataset = DatasetFolder(tmp_path, "mine")
    dataset.write_videos([VideoRecord(video_id="a", path="a.mp4")])
    features = dataset.features("s3d")
    features.mkdir(parents=True)
    failure = Failure(video_id="a", path="a.mp4", kind="unreadable", message="\x1b[2J no video")
    (features / "failures.jsonl").write_text(json.dumps(vars(failure)) + "\n")
    assert extract_main(["--root", str(tmp_path), "--dataset", "mine", "--status"]) == 0
    printed = capsys.readouterr().out
    assert "unreadable: 1 video, such as 'a'" in printed and "\x1b" not in printed
    with pytest.raises(UserError, match="no such data set"):
        status_lines(DatasetFolder(tmp_path, "other"))


def test_the_newest_log_is_read(tmp_path):
    jobs = tmp_path / "mine" / "jobs"
    jobs.mkdir(parents=True)
    for name in ("extract-20260101-000000", "extract-20261231-000000", "extract-20260630-000000"):
        (jobs / f"{name}.jsonl").touch()
    assert last_log(DatasetFolder(tmp_path, "mine")) == jobs / "extract-20261231-000000.jsonl"


def test_a_place_that_is_down_is_named_wherever_progress_is_shown(run, tmp_path, capsys):
    problem = "s3://films cannot be read on machine w1: unreachable: 403 Forbidden"
    run.status.problems = [problem]
    run.show(0)
    told = capsys.readouterr().err
    assert told.count(problem) == 1 and "extracting: 2 of 4 videos" in told and "? left" in told
    assert problem in run.status.log.with_suffix(".html").read_text()
    assert extract_main(["--root", str(tmp_path), "--dataset", "mine", "--status"]) == 0
    assert problem in capsys.readouterr().out
    run.status.problems = []
    run.now += 61.0
    run.show(0)
    assert problem not in run.status.log.with_suffix(".html").read_text() + capsys.readouterr().err


# The page


def test_the_page_is_written_beside_the_log_once_a_minute_and_at_the_end(run):
    page = run.status.log.with_suffix(".html")
    run.show(0)
    first = page.read_text()
    assert 'http-equiv="refresh"' in first
    for _ in range(2):
        run.now += 16.0
        run.outcome(0, 2)
        run.show(0)
    assert page.read_text() == first
    run.now += 60.0
    run.show(0)
    assert page.read_text() != first
    run.status.summary()
    assert 'http-equiv="refresh"' not in page.read_text() and "ended with 1 video left" in page.read_text()


def test_what_stands_on_the_page_is_escaped(run):
    hostile = "<script>alert(1)</script>"
    run.status.note_machine(hostile, hostile, hostile)
    failure = Failure(video_id=hostile, path="a.mp4", kind="unreadable", message=f"'\"{hostile}")
    run.status.outcome(2, VideoOutcome(hostile, "a.mp4", ["s3d"], failure), hostile)
    page = render_page(run.state(), [(0.0, 0), (1.0, 2)], hostile)
    assert hostile not in page and page.count("<script>") == 1 and "&lt;script&gt;" in page
    assert "http://" not in page and "https://" not in page and " src=" not in page and " href=" not in page


@pytest.mark.slow
def test_a_long_call_has_a_curve_of_bounded_length(run):
    for minute in range(3000):
        run.now = 60.0 * minute
        run.show(0)
    assert run.status.log.with_suffix(".html").stat().st_size < 40_000
