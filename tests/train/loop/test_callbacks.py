"""A training tells its caller the figures of each step, ends when the caller raises, and returns the best ones."""

from typing import Any

import pytest
from helpers.training import losses_of
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.train import TrainedRun, train
from vlalign.train.runs.files import EVENTS_FILE, RUN_FILE

SETTINGS: dict[str, Any] = {"objective": "taco", "features": "s3d", "batch_size": 6, "num_steps": 8}
SETTINGS |= {"validate_every": 3, "num_negatives": 2}


class Pruned(Exception):
    pass


def trained(toy, name: str, **options) -> TrainedRun:
    return train(toy.path, run_name=name, settings=SETTINGS, **{"device": "cpu", **options})


@pytest.fixture(scope="module")
def heard(toy) -> tuple[TrainedRun, list[dict[str, float]]]:
    events: list[dict[str, float]] = []
    return trained(toy, "heard", on_step=events.append), events


def test_the_listener_gets_what_the_log_has(heard):
    run, events = heard
    assert events == read_jsonl(run.folder / EVENTS_FILE)
    assert [event["step"] for event in events] == list(range(1, 9))
    assert [event["step"] for event in events if "validation_R@1" in event] == [3, 6, 8]
    for event in events:
        assert event["loss"] == pytest.approx(event["sentence"] + event["token"] + event["fusion"])


def test_the_best_validation_and_the_last_step_are_returned(toy, heard):
    run, events = heard
    ranks = {event["step"]: event["validation_mean_rank"] for event in events if "validation_mean_rank" in event}
    best = max(step for step, rank in ranks.items() if rank == min(ranks.values()))  # the later one of equals
    assert run.best == events[best - 1] and run.last == events[-1]
    assert read_json(run.folder / RUN_FILE)["result"]["best"] == {
        "step": best,
        "validation_mean_rank": run.best["validation_mean_rank"],
    }
    again = trained(toy, "heard")
    assert again.was_trained_before and (again.best, again.last) == (run.best, run.last)


def test_a_listener_that_raises_ends_the_training_which_resumes_to_the_same_model(toy, heard):
    def prune(event: dict[str, float]) -> None:
        if "validation_R@1" in event:
            raise Pruned

    with pytest.raises(Pruned):
        trained(toy, "pruned", on_step=prune)
    folder = toy.runs / "pruned"
    assert not (folder / RUN_FILE).exists() and len(read_jsonl(folder / EVENTS_FILE)) == 3
    later: list[dict[str, float]] = []
    run = trained(toy, "pruned", on_step=later.append)
    assert [event["step"] for event in later] == [4, 5, 6, 7, 8]
    assert losses_of(folder) == losses_of(heard[0].folder) and run.best == heard[0].best


def test_a_run_without_its_log_still_returns_its_best_step(toy, heard):
    run = trained(toy, "logless")
    (run.folder / EVENTS_FILE).unlink()
    again = trained(toy, "logless")
    assert again.best == {name: run.best[name] for name in ("step", "validation_mean_rank")} and again.last == {}


def test_several_processes_tell_the_calling_one(toy):
    events: list[dict[str, float]] = []  # a list of this process: a child could not add to it
    run = trained(toy, "two", device="cpu,cpu", on_step=events.append)
    assert events == read_jsonl(run.folder / EVENTS_FILE) and len(events) == 8 and run.last == events[-1]


def test_a_listener_that_raises_ends_all_processes(toy):
    def prune(event: dict[str, float]) -> None:
        if event["step"] == 4:
            raise Pruned

    with pytest.raises(Pruned):
        trained(toy, "two-pruned", device="cpu,cpu", on_step=prune)
    again = trained(toy, "two-pruned", device="cpu,cpu")
    assert again.last["step"] == 8
