"""Whose fault a failure is: simulated machines, places and clocks."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
from vlalign.extract.decoding.errors import NOT_OF_THE_VIDEO
from vlalign.extract.pipeline.dispatch import (
    CHECKS_OF_A_MACHINE,
    MANY_FAILURES,
    PATIENCE_SECONDS,
    SLOW_SECONDS,
    Check,
    Dispatch,
    places_of,
)
from vlalign.extract.pipeline.failure_budget import MIN_FAILURES, TooManyFailures
from vlalign.extract.pipeline.pending_work import Extraction, PendingWork, VideoTask
from vlalign.extract.pipeline.shard_writing import VideoOutcome
from vlalign.extract.settings import ExtractionSettings
from vlalign.storage import VideoRecord
from vlalign.storage.common.errors import SettingError, Unfinished
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder
from vlalign.storage.records import Failure

BUCKET = "s3://films"


@dataclass
class World:
    """Videos, and what happens to those that a machine extracts at a time."""

    folder: DatasetFolder
    urls: list[str]
    happens: object
    """(machine, url, seconds) -> kind of failure, or "" for success."""
    machines: list[str] = field(default_factory=lambda: ["a"])
    seconds: float = 0.0
    max_failures: str = "20%"
    done: dict[str, str] = field(default_factory=dict)
    """{url: kind of the final failure, or ""}"""
    tries: Counter = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    """Videos that an earlier call has extracted."""

    def __post_init__(self) -> None:
        self.folder.path.mkdir(exist_ok=True)
        videos = [VideoRecord(video_id=str(number), path=url) for number, url in enumerate(self.urls)]
        settings = ExtractionSettings(dataset=self.folder.path, features="s3d", max_failures=self.max_failures)
        tasks = [VideoTask(video, ["s3d"]) for video in videos]
        pending = PendingWork(self.folder, ["s3d"])
        videos += [VideoRecord(video_id=f"earlier{number}", path=url) for number, url in enumerate(self.earlier)]
        extraction = Extraction(settings, videos, tasks, {"s3d": "random"}, pending, Problems())
        self.dispatch = Dispatch(extraction, self._report, say=self.said.append, clock=lambda: self.seconds)

    def _report(self, outcome: VideoOutcome, machine: str) -> None:
        assert outcome.path not in self.done, "reported twice"
        self.done[outcome.path] = outcome.failure.kind if outcome.failure else ""

    def outcome(self, machine: str, task: VideoTask) -> VideoOutcome:
        url = task.video.url
        self.tries[url] += 1
        kind = self.happens(machine, url, self.seconds)
        failure = Failure(video_id=task.video.video_id, path=url, kind=kind, message=kind, source="") if kind else None
        return VideoOutcome(task.video.video_id, url, ["s3d"], failure)

    def answer(self, check: Check) -> tuple[str, str]:
        """Like ``first_readable``."""
        problem = ""
        for task in check.tasks:
            problem = self.happens(check.machine, task.video.url, self.seconds)
            if not problem:
                return task.video.video_id, ""
            if not check.is_known_good and problem not in NOT_OF_THE_VIDEO:
                return "", ""
        return "", problem

    def run(self, limit_seconds: float = 10_000.0, seconds_of: dict[str, float] | None = None) -> None:
        """Each machine extracts one video at a time, for a second or what ``seconds_of`` says of it."""
        busy: dict[str, tuple[float, VideoTask]] = {}
        while not self.dispatch.is_done:
            assert self.seconds < limit_seconds, f"not done: {self.done}, {self.said}"
            self.seconds += 1.0
            for number, machine in enumerate(self.machines):
                if machine in busy and busy[machine][0] <= self.seconds:
                    _, task = busy.pop(machine)
                    outcome = self.outcome(machine, task)
                    self.dispatch.outcome(number, machine, outcome)
                    if outcome.failure is None:
                        self.dispatch.written(number, [outcome.video_id])
                if machine not in busy:
                    given, _ = self.dispatch.next(number, machine, max_waiting=1, idle=True)
                    for task in given:
                        busy[machine] = (self.seconds + (seconds_of or {}).get(machine, 1.0), task)
            for check in self.dispatch.due_checks(self.machines):
                self.dispatch.checked(check, *self.answer(check))
            self.dispatch.give_up_places(self.machines)


@pytest.fixture
def world(tmp_path):
    return lambda urls, happens, **more: World(DatasetFolder(tmp_path, "mine"), urls, happens, **more)


def urls(number: int, place: str = BUCKET) -> list[str]:
    return [f"{place}/{index}.mp4" for index in range(number)]


@pytest.mark.parametrize("first", [0, 40], ids=["from the beginning", "later"])
def test_a_place_that_is_down_for_a_while_fails_no_video(world, first):
    made = world(urls(100), lambda _, url, now: "unreachable" if first <= now < first + 200 else "")
    made.run()
    assert set(made.done.values()) == {""} and len(made.done) == 100
    assert made.tries.total() <= 100 + MANY_FAILURES + 1, "the others waited"
    assert [line for line in made.said if BUCKET in line and "cannot be read" in line] and len(made.said) == 2
    assert 300 < made.seconds < 400


def test_a_place_that_stays_down_is_given_up_and_the_others_go_on(world):
    made = world(
        urls(50) + urls(50, "https://other.org"), lambda _, url, now: "unreachable" if url.startswith(BUCKET) else ""
    )
    made.run()
    assert set(made.done) == set(urls(50, "https://other.org")) and set(made.done.values()) == {""}
    assert PATIENCE_SECONDS < made.seconds < 2 * PATIENCE_SECONDS
    with pytest.raises(Unfinished, match=r"^s3://films: unreachable; 50 videos are left, .*run the same command again"):
        made.dispatch.raise_if_left()


@pytest.mark.parametrize("kind", ["unreachable", "unreadable"])
def test_failures_in_a_row_are_the_videos_own_where_a_good_one_can_be_read(world, kind):
    bad = set(urls(60)[10:40])
    made = world(urls(60), lambda _, url, now: kind if url in bad else "", max_failures="100%")
    made.run()
    assert {url for url, failed in made.done.items() if failed} == bad
    assert made.said == []
    assert all(made.tries[url] == (2 if kind == "unreachable" else 1) for url in bad)
    assert made.seconds < 150


def test_where_all_videos_are_damaged_they_are_their_own_fault(world):
    made = world(urls(30), lambda _, url, now: "unreadable")
    made.run()
    assert set(made.done.values()) == {"unreadable"} and len(made.done) == 30 and made.said == []


@pytest.mark.parametrize("kind", ["missing", "crashed"], ids=["without its mount", "whose decoders crash"])
def test_a_machine_that_cannot_read_what_others_can_is_named_and_not_used(world, kind):
    made = world(
        urls(300), lambda machine, url, now: kind if machine == "b" else "", machines=["a", "b", "c"], seconds=0.0
    )
    made.run(seconds_of={"a": 4.0, "c": 4.0})
    assert set(made.done.values()) == {""} and len(made.done) == 300
    assert list(made.dispatch.excluded) == ["b"] and "other machines can read it" in made.dispatch.excluded["b"]
    assert made.tries.total() - 300 <= MANY_FAILURES + CHECKS_OF_A_MACHINE
    assert any("machine b" in line and "no longer used" in line for line in made.said)


def test_many_machines_and_places_that_are_well_cost_nothing(world):
    made = world([f"https://host{number}.org/v.mp4" for number in range(20_000)], lambda *_: "")
    machines = [f"m{number}" for number in range(200)]
    for number in range(len(made.urls)):
        machine = number % len(machines)
        for task in made.dispatch.next(machine, machines[machine], max_waiting=1)[0]:
            made.dispatch.outcome(machine, machines[machine], made.outcome(machines[machine], task))
    started = time.thread_time()
    for _ in range(200):
        assert made.dispatch.due_checks(machines) == []
        made.dispatch.give_up_places(machines)
        made.dispatch.next(0, machines[0], idle=True)
    assert time.thread_time() - started < 1.0


def test_too_many_failures_stop_the_run_and_name_the_commonest_reasons(world):
    def happens(machine, url, now):
        number = int(url.rpartition("/")[2].removesuffix(".mp4"))
        return {0: "unreadable", 1: "no_video", 2: "unreadable"}.get(number % 10, "")

    made = world(urls(1000), happens, max_failures="20%")
    with pytest.raises(TooManyFailures, match=r"--max-failures 20% allows") as stopped:
        made.run()
    assert made.dispatch.budget.num_failed == MIN_FAILURES
    assert [line.split(":")[0] for line in stopped.value.reasons] == ["unreadable", "no_video"]
    assert "33 videos" in stopped.value.reasons[0]

    made = world(urls(1000), happens, max_failures="35%")
    made.run()
    assert sum(map(bool, made.done.values())) == 300


@pytest.mark.parametrize("text", ["2", "-1", "2.5", "101%", "some", "nan%", ""])
def test_a_limit_of_failures_is_a_number_or_a_percentage(tmp_path, text):
    if text == "2":
        ExtractionSettings(dataset=tmp_path, max_failures=text)
        return
    with pytest.raises(SettingError, match=r"expected a percentage such as 2%, or a number"):
        ExtractionSettings(dataset=tmp_path, max_failures=text)


def test_idle_workers_also_do_what_a_slow_one_has_and_the_first_result_counts(world):
    made = world(urls(30), lambda _, url, now: "", machines=["a", "b"])
    made.run(seconds_of={"b": 1000.0})
    assert len(made.done) == 30 and made.seconds < 30 + SLOW_SECONDS + 5
    assert made.dispatch.scheduler.take_superfluous(1) == [1], "the slow one is told"
    late = made.outcome("b", made.dispatch.tasks[1])
    made.dispatch.outcome(1, "b", late)  # reports nothing a second time


def test_a_copy_that_fails_leaves_the_original_alone(world):
    bad = urls(4)[1]
    made = world(
        urls(4), lambda machine, url, now: "crashed" if machine == "a" and url == bad else "", machines=["a", "b"]
    )
    made.run(seconds_of={"b": 3 * SLOW_SECONDS})
    assert set(made.done.values()) == {""} and len(made.done) == 4


def test_machines_that_each_lack_another_place_share_the_work(world):
    lacks = {"a": "s3://one", "b": "s3://two"}
    listed = urls(30, "s3://one") + urls(30, "s3://two")
    made = world(
        listed,
        lambda machine, url, now: "unreachable" if url.startswith(lacks[machine]) else "",
        machines=["a", "b"],
    )
    made.run()
    assert set(made.done.values()) == {""} and len(made.done) == 60 and not made.dispatch.excluded


def test_what_a_worker_has_of_a_place_that_is_given_up_is_left_with_it(world):
    made = world(urls(50), lambda _, url, now: "unreachable")
    made.dispatch.scheduler.take_over(7, unwritten=[40, 41], written=[])
    made.dispatch.scheduler.mark_computed(7, 41)

    def pass_time(seconds: int) -> None:
        for _ in range(seconds):
            made.seconds += 1
            for task in made.dispatch.next(0, "a", max_waiting=1)[0]:
                made.dispatch.outcome(0, "a", made.outcome("a", task))
            for check in made.dispatch.due_checks(["a"]):
                made.dispatch.checked(check, *made.answer(check))
            made.dispatch.give_up_places(["a"])

    pass_time(2 * int(PATIENCE_SECONDS))
    assert not made.dispatch.given_up and made.dispatch.problems(), "a worker has a video still"
    made.dispatch.scheduler.mark_computed(7, 40)
    pass_time(1)
    assert list(made.dispatch.given_up) == [BUCKET] and made.dispatch.scheduler.num_left == 2
    made.dispatch.scheduler.worker_ended(7, blame_videos=False)
    assert made.dispatch.is_done and made.dispatch.scheduler.num_abandoned == 50 and not made.done
    assert "with 48 videos" in made.said[-1]


@pytest.mark.parametrize("kind", ["missing", "unreachable"])
def test_a_good_video_of_an_earlier_call_shows_that_the_rest_is_gone(world, kind):
    made = world(urls(6), lambda _, url, now: "" if "earlier" in url else kind, earlier=urls(9, f"{BUCKET}/earlier"))
    made.run()
    assert set(made.done.values()) == {kind} and len(made.done) == 6
    assert made.seconds < 60 and not made.dispatch.given_up and made.said == []


def test_a_login_page_in_place_of_a_good_video_is_the_place_s_fault(world):
    made = world(urls(60), lambda _, url, now: "unreadable" if 20 <= now < 60 else "")
    made.run()
    assert set(made.done.values()) == {""} and len(made.done) == 60


def test_a_place_is_a_server_a_bucket_or_a_folder(tmp_path):
    home = DatasetFolder(tmp_path / "root", "mine")
    (tmp_path / "there" / "x").mkdir(parents=True)
    home.path.mkdir(parents=True)
    allow_folder(home, tmp_path / "there")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there")
    where = {
        "https://u:p@host.org:8443/a/b.mp4": "https://host.org:8443",
        "s3://films/a/b.mp4": "s3://films",
        "videos/a.mp4": str(home.path),
        f"{tmp_path}/there/x/a.mp4": f"{tmp_path}/there",
        f"{link}/x/a.mp4": str(link),
        f"{link}/y/a.mp4": str(link),
    }
    names, places = places_of(home, [VideoRecord(video_id=str(n), path=path) for n, path in enumerate(where)])
    assert [names[place] for place in places] == list(where.values())


def test_an_idle_worker_does_what_a_worker_of_an_earlier_call_does_not_finish(world):
    made = world(urls(3), lambda _, url, now: "")
    made.dispatch.scheduler.take_over(7, unwritten=[0, 1], written=[])
    made.run()
    assert len(made.done) == 3 and made.seconds > SLOW_SECONDS


@pytest.mark.parametrize("seed", range(30))
def test_in_random_histories_each_video_has_one_final_outcome(world, seed):
    rng = random.Random(seed)
    places = [f"https://host{number}.org" for number in range(3)]
    listed = [f"{rng.choice(places)}/{number}.mp4" for number in range(200)]
    bad = {url: rng.choice(["unreadable", "unreachable", "timeout"]) for url in listed if rng.random() < 0.1}
    down = [(rng.choice(places), rng.uniform(0, 200), rng.uniform(20, 90)) for _ in range(3)]
    broken = rng.choice([None, "b"])

    def happens(machine, url, now):
        if machine == broken and url.startswith(places[0]):
            return "unreachable"
        if any(url.startswith(place) and start < now < start + seconds for place, start, seconds in down):
            return rng.choice(["unreachable", "no_room"])
        return bad.get(url, "")

    made = world(listed, happens, machines=["a", "b", "c"], max_failures="100%")
    made.run()
    failed = {url for url, kind in made.done.items() if kind}
    assert len(made.done) == 200 and set(bad) <= failed
    assert len(failed - set(bad)) <= 3 * 3 * MANY_FAILURES, "only around the moments when a place goes down"
