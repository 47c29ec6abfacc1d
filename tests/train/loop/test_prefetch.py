"""Inputs of the next steps: made and read ahead, in order, and counted when training waits for them."""

import threading
from types import SimpleNamespace

import pytest
import torch
from vlalign.storage.remote.file_systems import S3_CLIENT
from vlalign.storage.remote.store import SHARDS_AT_ONCE
from vlalign.train.data.examples import Inputs
from vlalign.train.loop import prefetch as ahead
from vlalign.train.loop.prefetch import (
    NUM_PREFETCHED_BATCHES,
    NUM_PREFETCHED_READS,
    NUM_READER_THREADS,
    PrefetchedInputs,
)

CPU = torch.device("cpu")
STEPS = range(5, 45)


def inputs_of(step: int) -> Inputs:
    return Inputs({}, torch.full((1, 1, 1), float(step)), torch.ones(1, 1, dtype=torch.bool))


def test_inputs_come_in_order_and_no_further_ahead_than_stated():
    read, made = [], []

    def make(step: int) -> Inputs:
        assert step in read, "made before its rows were asked for"
        made.append(step)
        return inputs_of(step)

    seen = []
    for inputs in PrefetchedInputs(STEPS, read=read.append, make=make, device=CPU):
        seen.append(int(inputs.rows.item()))
        assert len(made) <= len(seen) + NUM_PREFETCHED_BATCHES
        assert len(read) <= len(made) + NUM_PREFETCHED_READS + NUM_PREFETCHED_BATCHES
    assert seen == made == sorted(read) == list(STEPS)


def test_rows_of_many_steps_are_asked_for_while_the_first_inputs_are_made():
    asked_for_all = threading.Event()

    def read(step: int) -> None:
        if step == STEPS[NUM_PREFETCHED_READS - 1]:
            asked_for_all.set()

    def make(step: int) -> Inputs:
        assert asked_for_all.wait(60), "making the first inputs held reading up"
        return inputs_of(step)

    stream = iter(PrefetchedInputs(STEPS, read=read, make=make, device=CPU))
    assert next(stream).rows.item() == STEPS[0]
    stream.close()


def test_rows_of_several_steps_are_on_their_way_at_once():
    together = threading.Barrier(NUM_READER_THREADS)

    def read(step: int) -> None:
        if step < STEPS[NUM_READER_THREADS]:
            together.wait(60)

    for inputs in PrefetchedInputs(STEPS, read=read, make=inputs_of, device=CPU):
        assert not together.broken, f"one after the other: {inputs}"


def test_an_error_of_reading_comes_from_making_and_ends_the_threads():
    def fail(step: int) -> None:
        raise OSError(f"no rows for {step}")

    def make(step: int) -> Inputs:
        if step == STEPS[2]:
            fail(step)
        return inputs_of(step)

    before = threading.active_count()
    seen = []
    with pytest.raises(OSError, match=f"no rows for {STEPS[2]}"):
        for inputs in PrefetchedInputs(STEPS, read=fail, make=make, device=CPU):
            seen.append(int(inputs.rows.item()))
    assert seen == list(STEPS[:2]) and threading.active_count() == before


def test_the_share_of_waiting_is_the_time_between_asking_and_getting(monkeypatch):
    clock, may_make = SimpleNamespace(now=0.0, reads=0), threading.Semaphore(0)

    def monotonic() -> float:
        now = clock.now
        clock.reads += 1
        if clock.reads > 2 and clock.reads % 2:  # it was read twice before the first step, and twice for each
            may_make.release()
        return now

    def make(step: int) -> Inputs:
        may_make.acquire()
        clock.now += 3.0
        return inputs_of(step)

    monkeypatch.setattr(ahead, "time", SimpleNamespace(monotonic=monotonic))
    stream = PrefetchedInputs(range(4), read=lambda _: None, make=make, device=CPU)
    for _ in stream:
        clock.now += 1.0  # the model computes
    assert stream.waited_share == pytest.approx(12 / 16)


def test_a_server_is_asked_for_all_shards_at_once_that_are_read_at_once():
    assert S3_CLIENT["max_pool_connections"] >= NUM_READER_THREADS * SHARDS_AT_ONCE
