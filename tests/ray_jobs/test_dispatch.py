"""Assigning videos to workers, in small cases and in random histories."""

import random
from collections import Counter

import pytest
from vlalign.ray_jobs.dispatch import AHEAD, MOST_ENDS, Dispatch


def take(dispatch: Dispatch, worker: int) -> list[int]:
    return dispatch.next(worker, 0)[0]


def test_the_largest_videos_come_first_and_equal_ones_in_order():
    dispatch = Dispatch([5, 9, 5, 7])
    assert [take(dispatch, worker) for worker in range(5)] == [[1, 3], [0], [2], [], []]
    assert dispatch.num_left == 4


def test_many_videos_wait_at_first_and_few_towards_the_end():
    dispatch = Dispatch([1] * 1000)
    most = [len(dispatch.next(worker, 0)[0]) for worker in range(10)]
    assert most == [AHEAD] * 10
    assert dispatch.next(0, 5) == (list(range(160, 171)), AHEAD // 2), "waiting videos count"
    while (given := dispatch.next(0, 0))[0]:
        most.append(len(given[0]))
    assert most[10:] == sorted(most[10:], reverse=True) and most[-1] == 1
    assert given == ([], None), "and it finishes what it has"


def test_a_video_counts_once_it_is_on_disk():
    dispatch = Dispatch([1, 1])
    take(dispatch, 0)
    take(dispatch, 0)
    dispatch.finished(0, 0)
    assert dispatch.num_left == 2
    dispatch.done(0, 0)
    dispatch.done(0, 1)  # a failed video is done without being finished
    assert dispatch.num_left == 0


def test_videos_on_disk_are_not_assigned_again():
    dispatch = Dispatch([6, 5, 4, 3, 2, 1])
    assert take(dispatch, 0) == [0, 1, 2]
    dispatch.finished(0, 0)
    dispatch.on_disk([0, 2, 4])
    assert dispatch.num_left == 3
    assert dispatch.ended(0) == []
    assert [take(dispatch, 1) for _ in range(3)] == [[1, 3], [5], []]
    for video in (1, 3, 5, 1):  # reported twice, counted once
        dispatch.done(1, video)
    assert dispatch.num_left == 0


def test_videos_of_a_worker_that_ended_come_before_new_ones():
    dispatch = Dispatch([4, 3, 2, 1])
    assert take(dispatch, 0) == [0, 1]
    dispatch.finished(0, 0)
    assert dispatch.ended(0) == []
    assert [take(dispatch, 1) for _ in range(4)] == [[1, 0], [2], [3], []]


def test_a_video_that_ends_its_workers_is_given_up():
    dispatch, given_up = Dispatch([1] * 20), []
    for worker in range(100):
        while dispatch.num_left:
            given = take(dispatch, worker)
            if 7 in given:
                given_up += dispatch.ended(worker)
                break
            for video in given:
                dispatch.done(worker, video)
    assert given_up == [7] and dispatch.num_left == 0 and worker < 100


def test_a_suspect_gets_a_worker_for_itself():
    dispatch = Dispatch([1] * 4)
    for worker in (0, 1):
        assert take(dispatch, worker) == [0, 1]
        dispatch.ended(worker)
    assert dispatch.next(2, 0) == ([0], None)
    assert dispatch.next(2, 0) == ([], None), "nothing else while it is in hand"
    assert dispatch.next(3, 0) == ([1], None)
    assert dispatch.next(4, 0) == ([2], 0)
    dispatch.done(2, 0)
    assert take(dispatch, 2) == [3]
    assert dispatch.ended(3) == [1] and dispatch.num_left == 2


def test_a_busy_worker_finishes_before_it_gets_a_suspect():
    dispatch = Dispatch([1] * 4)
    assert take(dispatch, 0) == [0, 1]
    dispatch.ended(0)
    assert [take(dispatch, 1), take(dispatch, 1)] == [[0, 1], [2]]
    assert take(dispatch, 2) == [3]
    dispatch.ended(1)
    assert dispatch.next(2, 0) == ([], None)
    dispatch.done(2, 3)
    assert dispatch.next(2, 0) == ([0], None)


def test_an_end_that_no_video_caused_does_not_count():
    dispatch = Dispatch([1])
    for worker in range(2 * MOST_ENDS):
        assert take(dispatch, worker) == [0]
        assert dispatch.ended(worker, by_a_video=False) == []


def test_videos_of_an_earlier_calls_worker_are_not_assigned():
    dispatch = Dispatch([1] * 6)
    dispatch.take_over(0, held=[1, 3], kept=[0])
    assert dispatch.num_left == 5
    assert [take(dispatch, 1) for _ in range(4)] == [[2], [4], [5], []]
    dispatch.done(0, 3)
    assert dispatch.ended(0) == []
    assert take(dispatch, 1) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_lose_nothing_and_assign_nothing_twice_at_once(seed):
    rng = random.Random(seed)
    bad = {video for video in range(60) if rng.random() < 0.05}
    dispatch, holder, state, given_up = Dispatch([rng.randrange(100) for _ in range(60)]), {}, {}, set()
    new_worker, workers, ends = 0, [], Counter()
    for _ in range(100_000):
        if not dispatch.num_left:
            break
        while len(workers) < 4:
            workers.append(new_worker)
            new_worker += 1
        worker = rng.choice(workers)
        its = [video for video, held_by in holder.items() if held_by == worker]
        action = rng.random()
        if any(video in bad and state[video] == "in hand" for video in its) or action < 0.02:
            for video in dispatch.ended(worker):
                given_up.add(video)
            ends.update(video for video in its if state[video] == "in hand")
            for video in its:
                del holder[video]
            workers.remove(worker)
        elif action < 0.5:
            given = dispatch.next(worker, rng.randrange(4))[0]
            for video in given:
                assert video not in holder and video not in given_up
                holder[video], state[video] = worker, "in hand"
        else:
            for video in its:
                if state[video] == "in hand" and rng.random() < 0.7:
                    dispatch.finished(worker, video)
                    state[video] = "finished"
                elif state[video] == "finished":
                    dispatch.done(worker, video)
                    state[video] = "done"
                    del holder[video]
    assert dispatch.num_left == 0
    assert {video for video, what in state.items() if what == "done"} | given_up == set(range(60))
    assert bad <= given_up and all(ends[video] >= MOST_ENDS for video in given_up)
