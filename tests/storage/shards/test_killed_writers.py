"""Writers that are killed, and many writers at once."""

import os
import signal
import time
from functools import partial

import numpy as np
import pytest
from helpers.store_life import (
    SHARD_VIDEOS,
    contents,
    copies,
    ended,
    extract,
    findings,
    killed,
    leftovers,
    logged,
    make,
    read,
    seconds_of,
    start,
)
from vlalign.storage import FeatureStore
from vlalign.storage.stores import maintenance


@pytest.mark.parametrize("num_kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_killed_many_times_loses_nothing_and_makes_nothing_twice(tmp_path, num_kills):
    rng, videos = np.random.default_rng(0), [make(f"v{n}") for n in range(72)]
    two_shards = min(
        seconds_of(partial(extract, tmp_path / f"pace{n}", videos[: 2 * SHARD_VIDEOS], tmp_path / "pace"))
        for n in range(3)
    )
    kills = hits = runs = 0
    while kills < num_kills:
        folder, log = tmp_path / f"run{runs}", tmp_path / f"log{runs}"
        run, before, kills_here = partial(extract, folder, videos, log, seconds=0.0005), {}, 0
        while kills + kills_here < num_kills and killed(run, rng.uniform(0, 1.1) * two_shards):
            kills_here += 1
            after = read(folder)
            assert not findings(folder)
            assert before.items() <= after.items()
            assert set(logged(log, "safe")) <= set(after)
            before = after
        run()  # what is left, if anything is
        assert read(folder) == contents(videos) and not findings(folder)
        assert set(copies(folder).values()) == {1}
        assert len(logged(log, "made")) <= len(videos) + kills_here * SHARD_VIDEOS
        kills, hits, runs = kills + kills_here, hits + len(leftovers(folder)), runs + 1
    print(f"{kills} kills in {runs} runs, {hits} while a shard was written")
    assert hits > 2 or num_kills < 200


@pytest.mark.parametrize("writers", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_writers_at_once_of_which_one_is_killed(tmp_path, writers):
    """Each has videos of its own, and all have some in common."""
    rng, folder, log = np.random.default_rng(writers), tmp_path / "s3d", tmp_path / "log"
    common, at = [make(f"common{n}") for n in range(16)], time.monotonic() + 0.1 * writers
    own = [[make(f"of{w}-{n}") for n in range(24)] for w in range(writers)]
    whole = contents(v for videos in [common, *own] for v in videos)
    runs = [
        partial(extract, folder, rng.permutation([*common, *videos]).tolist(), log, seconds=0.001, at=at)
        for videos in own
    ]
    children = [start(run) for run in runs]
    time.sleep(max(at + 0.05 - time.monotonic(), 0))
    os.kill(children[0], signal.SIGKILL)
    assert ended(children[0]) is False
    children[0] = start(runs[0])
    while children:
        assert read(folder).items() <= whole.items()  # while they write
        children = [child for child in children if ended(child, wait=False) is None]
    assert read(folder) == whole and not findings(folder)
    video_ids = FeatureStore(folder).video_ids()
    assert len(video_ids) == len(set(video_ids)) == len(whole)
    found = copies(folder)
    assert {found[v.video_id] for videos in own for v in videos} == {1}
    maintenance.compact(folder)
    assert read(folder) == whole and set(copies(folder).values()) == {1}
