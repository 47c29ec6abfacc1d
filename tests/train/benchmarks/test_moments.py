"""Moments of made videos: what search finds of them, and what the command writes."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from helpers.planted_search import open_planted, plant
from vlalign.storage import Caption
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.train.benchmarks.moments import MomentQuery, clip_scores, measure_moments, random_moments, read_queries
from vlalign.train.search.moments import ScoreCurve
from vlalign.train.search.search import Search

WORDS = ["cat", "dog", "bird", "fish", "horse", "cow", "sheep", "goat", "duck", "frog"]
NUM_VIDEOS, SCENES, SECONDS = 12, 5, 12


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Videos of five scenes of 12 s; each scene shows one word, which is its caption."""
    rng = np.random.default_rng(0)
    words = {f"v{n}": rng.choice(WORDS, SCENES, replace=False).tolist() for n in range(NUM_VIDEOS)}
    captions = {
        video_id: [(n * SECONDS, (n + 1) * SECONDS, word) for n, word in enumerate(of_video)]
        for video_id, of_video in words.items()
    }
    scenes = {video_id: [(SECONDS, word) for word in of_video] for video_id, of_video in words.items()}
    return plant(tmp_path_factory.mktemp("root"), scenes, captions)


@pytest.fixture(scope="module")
def search(dataset) -> Search:
    found = open_planted(dataset)
    return Search(found.encoder, found.index)  # without captions


def measured(search, queries):
    problems = Problems(quiet=True)
    result = measure_moments(search, queries, problems)
    assert problems.count == 0
    return result


def test_scenes_are_found_and_the_random_baseline_is_far_below(dataset, search):
    queries = read_queries(dataset, "", "test")
    assert len(queries) == NUM_VIDEOS * SCENES
    result = measured(search, queries)
    found, chance = result.metrics["search"], result.metrics["random baseline"]
    print(found, chance)
    assert found["R@1, IoU 0.5"] >= 95 and found["mAP@0.5"] >= 95
    assert chance["R@1, IoU 0.5"] <= 35 and chance["mAP"] <= found["mAP"] / 2
    assert "HIT@1" not in found, "these captions have no saliency"
    assert result.rows[0]["right"] == [[0, SECONDS]] and len(result.rows) == len(queries)


def test_queries_of_other_scenes_are_found_as_often_as_at_random(dataset, search):
    """Each text looks for a scene of another video; with as many scenes, the right one is first now and then."""
    queries = read_queries(dataset, "", "test")
    texts = np.random.default_rng(1).permutation([query.text for query in queries]).tolist()
    shuffled = measured(search, [replace(q, text=text) for q, text in zip(queries, texts, strict=True)])
    assert abs(shuffled.metrics["search"]["R@1, IoU 0.5"] - shuffled.metrics["random baseline"]["R@1, IoU 0.5"]) <= 25
    assert shuffled.metrics["search"]["R@1, IoU 0.5"] <= 45


def test_a_query_with_two_moments_and_saliency(tmp_path):
    scenes = {"v": [(10, "cat"), (10, "dog"), (10, "cat"), (10, "cow")]}
    made = plant(tmp_path, scenes)
    times = [(0, 10), (20, 30)]
    captions = [
        Caption(
            video_id="v",
            caption="cat",
            split="validation",
            start_seconds=start,
            end_seconds=end,
            query="7",
            saliency=[4, 3, 2] * 5,
        )
        for start, end in times
    ]
    write_part(made.captions, 0, captions, {})
    write_captions_about(made.captions, {"protocol": ""})
    [query] = read_queries(made, "", "validation")
    assert query.spans == times and query.moments[1].saliency == [4, 3, 2] * 5
    result = measured(open_planted(made), [query])
    found = result.metrics["search"]
    assert found["HIT@1"] == 100 and found["highlight mAP"] == pytest.approx(100 / 3), "of three, one says very good"
    assert found["mAP@0.5"] == 100 and result.metrics["random baseline"]["HIT@1"] in (0, 100)
    with pytest.raises(UserError, match=r"no caption with times has split 'test'.*validation 2"):
        read_queries(made, "", "test")


def test_videos_that_are_not_there_are_skipped_by_name(dataset, search):
    queries = [*read_queries(dataset, "", "test")[:2], MomentQuery("cat", "gone", [])]
    problems = Problems(quiet=True)
    assert measure_moments(search, queries, problems).what == "2 of 3 queries in 1 video"
    assert problems.count == 1 and "'gone'" in problems.messages[0]
    with pytest.raises(UserError, match="no query is about a video of the index"):
        measure_moments(search, queries[2:], Problems(quiet=True))


def test_clips_have_the_mean_of_their_rows_or_the_nearest_ones():
    starts = np.array([0.0, 1, 2, 8])
    curve = ScoreCurve(starts, starts + 1, np.array([1.0, 3, 5, 7], np.float32))
    assert clip_scores(curve, 5).tolist() == [2, 5, 5, 7, 7]


def test_random_moments_do_not_overlap_and_depend_on_the_seed():
    first, second = (random_moments("v", 60.0, np.random.default_rng(seed)) for seed in (0, 1))
    assert first.tolist() != second.tolist() and len(first) > 1
    spans = sorted(first.tolist())
    assert all(before[1] <= after[0] for before, after in pairwise(spans))
    assert random_moments("v", 1.0, np.random.default_rng(0)).tolist() == [[0, 1]]
