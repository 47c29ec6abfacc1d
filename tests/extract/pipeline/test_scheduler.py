"""Assigning videos to workers, in small cases and in random histories."""

import random
from collections import Counter

import pytest
from vlalign.extract.pipeline.scheduler import ENDS_OF_A_SUSPECT, MAX_ENDS, MAX_WAITING, VideoScheduler


def take(scheduler: VideoScheduler, worker: int) -> list[int]:
    return scheduler.next(worker, 0)[0]


def test_the_largest_videos_come_first_and_equal_ones_in_order():
    scheduler = VideoScheduler([5, 9, 5, 7])
    assert [take(scheduler, worker) for worker in range(5)] == [[1, 3], [0], [2], [], []]
    assert scheduler.num_left == 4


def test_many_videos_wait_at_first_and_few_towards_the_end():
    scheduler = VideoScheduler([1] * 1000)
    most = [len(scheduler.next(worker, 0)[0]) for worker in range(10)]
    assert most == [MAX_WAITING] * 10
    assert scheduler.next(0, 5) == (list(range(160, 171)), MAX_WAITING // 2), "waiting videos count"
    while (given := scheduler.next(0, 0))[0]:
        most.append(len(given[0]))
    assert most[10:] == sorted(most[10:], reverse=True) and most[-1] == 1
    assert given == ([], None), "and it finishes what it has"


def test_a_video_counts_once_it_is_on_disk():
    scheduler = VideoScheduler([1, 1])
    take(scheduler, 0)
    take(scheduler, 0)
    scheduler.mark_computed(0, 0)
    assert scheduler.num_left == 2
    scheduler.mark_completed(0, 0)
    scheduler.mark_completed(0, 1)  # a failed video is completed without being computed
    assert scheduler.num_left == 0


def test_videos_on_disk_are_not_assigned_again():
    scheduler = VideoScheduler([6, 5, 4, 3, 2, 1])
    assert take(scheduler, 0) == [0, 1, 2]
    scheduler.mark_computed(0, 0)
    assert scheduler.num_computed == 1
    scheduler.mark_written([0, 2, 4])
    assert (scheduler.num_left, scheduler.num_computed) == (3, 0)
    assert scheduler.worker_ended(0) == []
    assert [take(scheduler, 1) for _ in range(3)] == [[1, 3], [5], []]
    for video in (1, 3, 5, 1):  # reported twice, counted once
        scheduler.mark_completed(1, video)
    assert scheduler.num_left == 0


def test_videos_of_a_worker_that_ended_come_before_new_ones():
    scheduler = VideoScheduler([4, 3, 2, 1])
    assert take(scheduler, 0) == [0, 1]
    scheduler.mark_computed(0, 0)
    assert scheduler.worker_ended(0) == []
    assert [take(scheduler, 1) for _ in range(4)] == [[1, 0], [2], [3], []]


def test_a_video_that_ends_its_workers_is_given_up():
    scheduler, given_up = VideoScheduler([1] * 20), []
    for worker in range(100):
        while scheduler.num_left:
            given = take(scheduler, worker)
            if 7 in given:
                given_up += scheduler.worker_ended(worker)
                break
            for video in given:
                scheduler.mark_completed(worker, video)
    assert given_up == [7] and scheduler.num_left == 0 and worker < 100


def test_a_suspect_gets_a_worker_for_itself():
    scheduler = VideoScheduler([1] * 4)
    for worker in (0, 1):
        assert take(scheduler, worker) == [0, 1]
        scheduler.worker_ended(worker)
    assert scheduler.next(2, 0) == ([0], None)
    assert scheduler.next(2, 0) == ([], None), "nothing else while it is in hand"
    assert scheduler.next(3, 0) == ([1], None)
    assert scheduler.next(4, 0) == ([2], 0)
    scheduler.mark_completed(2, 0)
    assert take(scheduler, 2) == [3]
    for worker in range(5, 5 + MAX_ENDS - ENDS_OF_A_SUSPECT - 1):
        assert scheduler.worker_ended(3 if worker == 5 else worker - 1) == [], "it may have had another reason"
        assert scheduler.next(worker, 0) == ([1], None)
    assert scheduler.worker_ended(worker) == [1] and scheduler.num_left == 2


def test_a_busy_worker_finishes_before_it_gets_a_suspect():
    scheduler = VideoScheduler([1] * 4)
    assert take(scheduler, 0) == [0, 1]
    scheduler.worker_ended(0)
    assert [take(scheduler, 1), take(scheduler, 1)] == [[0, 1], [2]]
    assert take(scheduler, 2) == [3]
    scheduler.worker_ended(1)
    assert scheduler.next(2, 0) == ([], None)
    scheduler.mark_completed(2, 3)
    assert scheduler.next(2, 0) == ([0], None)


def test_an_end_that_no_video_caused_does_not_count():
    scheduler = VideoScheduler([1])
    for worker in range(2 * MAX_ENDS):
        assert take(scheduler, worker) == [0]
        assert scheduler.worker_ended(worker, blame_videos=False) == []


def test_videos_of_an_earlier_calls_worker_are_not_assigned():
    scheduler = VideoScheduler([1] * 6)
    scheduler.take_over(0, unwritten=[1, 3], written=[0])
    assert scheduler.num_left == 5
    assert [take(scheduler, 1) for _ in range(4)] == [[2], [4], [5], []]
    scheduler.mark_completed(0, 3)
    assert scheduler.worker_ended(0) == []
    assert take(scheduler, 1) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_lose_nothing_and_assign_nothing_twice_at_once(seed):
    rng = random.Random(seed)
    bad = {video for video in range(60) if rng.random() < 0.05}
    scheduler, holder, state, given_up = VideoScheduler([rng.randrange(100) for _ in range(60)]), {}, {}, set()
    new_worker, workers, ends = 0, [], Counter()
    for _ in range(100_000):
        if not scheduler.num_left:
            break
        while len(workers) < 4:
            workers.append(new_worker)
            new_worker += 1
        worker = rng.choice(workers)
        its = [video for video, held_by in holder.items() if held_by == worker]
        action = rng.random()
        if any(video in bad and state[video] == "in hand" for video in its) or action < 0.02:
            for video in scheduler.worker_ended(worker):
                given_up.add(video)
            ends.update(video for video in its if state[video] == "in hand")
            for video in its:
                del holder[video]
            workers.remove(worker)
        elif action < 0.5:
            given = scheduler.next(worker, rng.randrange(4))[0]
            for video in given:
                assert video not in holder and video not in given_up
                holder[video], state[video] = worker, "in hand"
        else:
            for video in its:
                if state[video] == "in hand" and rng.random() < 0.7:
                    scheduler.mark_computed(worker, video)
                    state[video] = "computed"
                elif state[video] == "computed":
                    scheduler.mark_completed(worker, video)
                    state[video] = "completed"
                    del holder[video]
    assert scheduler.num_left == 0
    assert {video for video, what in state.items() if what == "completed"} | given_up == set(range(60))
    assert bad <= given_up and all(ends[video] >= MAX_ENDS for video in given_up)
