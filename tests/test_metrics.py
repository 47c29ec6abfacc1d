"""Retrieval metrics against plain loops, and chance against draws."""

import numpy as np
import pytest
from conftest import shared
from vlalign.train.metrics import chance, format_metrics, retrieval_metrics


def loop_ranks(similarity, right):
    """Average rank over all orders of ties, text to video and best caption of each video, by sorting."""
    text_ranks = []
    for scores, answer in zip(similarity, right, strict=True):
        places = [place for place, s in enumerate(sorted(scores, reverse=True), start=1) if s == scores[answer]]
        text_ranks.append(sum(places) / len(places))
    video_ranks = []
    for video in range(similarity.shape[1]):
        own = [i for i, answer in enumerate(right) if answer == video]
        if own:
            best = max(similarity[i, video] for i in own)
            others = [similarity[i, video] for i in range(len(right)) if i not in own]
            places = [place for place, s in enumerate(sorted([*others, best], reverse=True), start=1) if s == best]
            video_ranks.append(sum(places) / len(places))
    return text_ranks, video_ranks


@pytest.mark.parametrize("decimals", [6, 1, 0], ids=["distinct", "some ties", "mostly ties"])
@pytest.mark.parametrize("num_captions", [1, 3])
def test_equal_to_plain_loops(decimals, num_captions):
    rng = np.random.default_rng(0)
    right = np.repeat(np.arange(20), num_captions)
    similarity = rng.normal(size=(len(right), 20)).round(decimals).astype(np.float32)
    metrics = retrieval_metrics(similarity, right)
    for direction, ranks in zip(("text_to_video", "video_to_text"), loop_ranks(similarity, right), strict=True):
        got = metrics[direction]
        assert got["num_queries"] == len(ranks)
        assert got["median_rank"] == pytest.approx(np.median(ranks))
        assert got["mean_rank"] == pytest.approx(np.mean(ranks))
        for k in (1, 5, 10, 50):
            assert got[f"R@{k}"] == pytest.approx(100 * np.mean([rank < k + 1 for rank in ranks]))


def test_perfect_scores():
    metrics = retrieval_metrics(np.eye(30))
    assert metrics["text_to_video"]["R@1"] == metrics["video_to_text"]["R@1"] == 100.0
    assert metrics["text_to_video"]["median_rank"] == 1.0


def test_constant_scores_are_no_success():
    metrics = retrieval_metrics(np.zeros((10, 10)))["text_to_video"]
    assert metrics["R@1"] == 0.0
    assert metrics["median_rank"] == 5.5


@pytest.mark.parametrize(("num_candidates", "num_right"), [(40, [1] * 10), (60, [3] * 5), (30, [1, 2, 5])])
def test_chance_is_what_random_scores_give(num_candidates, num_right):
    rng = np.random.default_rng(1)
    ranks = np.array([1 + np.sort(rng.permutation(num_candidates)[:m])[0] for m in num_right for _ in range(20000)])
    expected = chance(num_candidates, np.array(num_right))
    for k in (1, 5, 10):
        assert expected[f"R@{k}"] == pytest.approx(100 * np.mean(ranks <= k), abs=0.6)
    assert expected["mean_rank"] == pytest.approx(ranks.mean(), rel=0.02)
    assert abs(expected["median_rank"] - np.median(ranks)) <= 1


def test_chance_of_one_right_answer_is_exact():
    assert chance(100, np.array([1]))["R@1"] == pytest.approx(1.0)
    assert chance(100, np.array([1]))["median_rank"] == 50.5
    assert chance(3, np.array([1]))["R@50"] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("similarity", "right", "words"),
    [
        (np.full((2, 2), np.nan), None, "4 of the similarities are NaN"),
        (np.zeros((3, 2)), None, "text_to_video must say"),
        (np.zeros((2, 2)), [0, 2], "numbers in 0..1"),
        (np.zeros((0, 2)), None, "not empty"),
    ],
)
def test_what_cannot_be_scored_is_refused(similarity, right, words):
    with pytest.raises(ValueError, match=words):
        retrieval_metrics(similarity, right)


def test_real_similarity_matrix():
    """Text to video of a trained model on MSR-VTT 1k-A: R@1 48.0, R@5 73.0, R@10 82.9, median 2, mean 13.129; no ties."""
    matrix = next(shared("data/msrvtt/sim_matrix").glob("*.npy"))
    got = retrieval_metrics(np.load(matrix))["text_to_video"]
    assert [got["R@1"], got["R@5"], got["R@10"], got["median_rank"]] == pytest.approx([48.0, 73.0, 82.9, 2.0])
    assert got["mean_rank"] == pytest.approx(13.129)


def test_table_for_people_names_chance():
    lines = format_metrics(retrieval_metrics(np.eye(100))).splitlines()
    assert lines[1].split() == ["text", "to", "video", "100.0", "100.0", "100.0", "1.0"]
    assert lines[2].split() == ["chance", "1.0", "5.0", "10.0", "50.5"]
