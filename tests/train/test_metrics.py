"""Retrieval metrics against plain loops, and chance against draws."""

from typing import get_type_hints

import numpy as np
import pytest
from helpers.golden import reference_numbers
from helpers.needs import shared
from vlalign.train.intervals import paired_bootstrap
from vlalign.train.metrics import (
    TIES,
    Chance,
    DirectionMetrics,
    RankCounts,
    Ranking,
    RetrievalMetrics,
    chance,
    compare_similarities,
    retrieval_metrics,
    text_intervals,
    text_metrics,
    video_intervals,
    video_metrics,
)

pytestmark = pytest.mark.portable


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


@pytest.mark.parametrize("num_captions", [1, 3, 15])
def test_gain_and_precision_are_those_of_plain_loops(num_captions):
    """Of the definitions (Järvelin and Kekäläinen 2002; average precision over all captions), without ties."""
    rng = np.random.default_rng(0)
    right = np.repeat(np.arange(20), num_captions)
    similarity = rng.normal(size=(len(right), 20)).astype(np.float32)
    similarity[np.arange(len(right)), right] += 1
    metrics = retrieval_metrics(similarity, right)
    queries = {
        "text_to_video": [(row, {answer}) for row, answer in zip(similarity, right, strict=True)],
        "video_to_text": [(similarity[:, v], set(np.flatnonzero(right == v))) for v in range(20)],
    }
    for direction, of_direction in queries.items():
        gains, precisions = [], []
        for scores, answers in of_direction:
            order = sorted(range(len(scores)), key=lambda i: -scores[i])
            hits = [place for place, candidate in enumerate(order, start=1) if candidate in answers]
            best = sum(1 / np.log2(1 + place) for place in range(1, min(len(answers), 10) + 1))
            gains.append(sum(1 / np.log2(1 + place) for place in hits if place <= 10) / best)
            precisions.append(np.mean([number / place for number, place in enumerate(hits, start=1)]))
        assert metrics[direction]["nDCG@10"] == pytest.approx(100 * np.mean(gains))
        assert metrics[direction]["mAP"] == pytest.approx(100 * np.mean(precisions))


def test_perfect_scores():
    metrics = retrieval_metrics(np.eye(30))
    assert metrics["text_to_video"]["R@1"] == metrics["video_to_text"]["R@1"] == 100.0
    assert metrics["text_to_video"]["nDCG@10"] == metrics["video_to_text"]["mAP"] == 100.0
    assert metrics["text_to_video"]["median_rank"] == 1.0


def test_constant_scores_rank_at_chance():
    metrics = retrieval_metrics(np.zeros((10, 10)))["text_to_video"]
    assert metrics["R@1"] == 0.0
    assert metrics["median_rank"] == 5.5


@pytest.mark.parametrize(("num_candidates", "num_right"), [(40, [1] * 10), (60, [3] * 5), (30, [1, 2, 5])])
def test_chance_is_what_random_scores_give(num_candidates, num_right):
    rng = np.random.default_rng(1)
    drawn = [1 + np.sort(rng.permutation(num_candidates)[:m]) for m in num_right for _ in range(20000)]
    ranks = np.array([places[0] for places in drawn])
    expected = chance(num_candidates, np.array(num_right))
    precision = np.mean([np.mean(np.arange(1, len(places) + 1) / places) for places in drawn])
    ideal = {m: sum(1 / np.log2(1 + place) for place in range(1, m + 1)) for m in set(num_right)}
    gain = np.mean([(1 / np.log2(1 + places[places <= 10])).sum() / ideal[len(places)] for places in drawn])
    assert expected["mAP"] == pytest.approx(100 * precision, rel=0.02)
    assert expected["nDCG@10"] == pytest.approx(100 * gain, rel=0.02)
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
        (np.full((2, 2), np.nan), None, r"similarity: 4\b.*NaN"),
        (np.zeros((3, 2)), None, r"3 .*2 .*text_to_video"),
        (np.zeros((2, 2)), [0, 2], r"text_to_video: .*0\.\.1"),
        (np.zeros((0, 2)), None, r"similarity: .*\(0, 2\)"),
    ],
)
def test_invalid_similarities_are_refused(similarity, right, words):
    with pytest.raises(ValueError, match=words):
        retrieval_metrics(similarity, right)


def test_real_similarity_matrix():
    """Text to video of a trained model on MSR-VTT 1k-A: R@1 48.0, R@5 73.0, R@10 82.9, median 2, mean 13.129; no
    ties."""
    matrix = next(shared("data/msrvtt/sim_matrix").glob("*.npy"))
    got = retrieval_metrics(np.load(matrix))["text_to_video"]
    assert [got["R@1"], got["R@5"], got["R@10"], got["median_rank"]] == pytest.approx([48.0, 73.0, 82.9, 2.0])
    assert got["mean_rank"] == pytest.approx(13.129)


# What published evaluators make of ties: their own numbers, on their inputs and on a real matrix

NAMES = {
    "R1": "R@1",
    "R5": "R@5",
    "R10": "R@10",
    "R50": "R@50",
    "MR": "median_rank",
    "MedR": "median_rank",
    "MedianR": "median_rank",
}
NAMES |= {"MeanR": "mean_rank", "MdR": "median_rank", "MnR": "mean_rank"}
COOT = {"r1": "R@1", "r5": "R@5", "r10": "R@10", "r50": "R@50", "medr": "median_rank", "meanr": "mean_rank"}


def goldens():
    expected, inputs = reference_numbers()
    return inputs, expected["retrieval"]


def check(got: dict, golden: dict, names: dict = NAMES, percent: float = 1.0):
    compared = 0
    for name, value in golden.items():
        if name in names:
            scale = percent if names[name].startswith("R@") else 1.0
            assert got[names[name]] == pytest.approx(scale * value, rel=1e-6), name
            compared += 1
    assert compared >= 5


@pytest.mark.parametrize("name", ["square", "tied", "const"])
def test_published_evaluators_on_square_matrices(name):
    inputs, golden = goldens()
    similarity = inputs[f"ret_{name}"]
    check(retrieval_metrics(similarity, ties="clip4clip")["text_to_video"], golden[name]["clip4clip"])
    for direction in ("t2v", "v2t"):
        got = retrieval_metrics(similarity, ties="ce")["text_to_video" if direction == "t2v" else "video_to_text"]
        check(got, golden[name][f"ce_{direction}"])
    check(retrieval_metrics(similarity, ties="coot")["text_to_video"], golden[name]["coot"], COOT, percent=100.0)


def test_published_evaluators_with_several_captions():
    inputs, golden = goldens()
    similarity, mask = inputs["ret_multicap"], inputs["ret_multicap_mask"].astype(bool)
    right = np.repeat(np.arange(12), 5)
    got = retrieval_metrics(similarity, right, ties="ce")
    check(got["text_to_video"], golden["multicap"]["ce_t2v"])
    check(got["video_to_text"], golden["multicap"]["ce_v2t"])
    there = mask.ravel()
    for ties, kind in (("ce", "masked"), ("clip4clip", "ragged")):
        got = retrieval_metrics(similarity[there], right[there], ties=ties)
        check(got["text_to_video"], golden["multicap"][f"{ties}_t2v_{kind}"])
        check(got["video_to_text"], golden["multicap"][f"{ties}_v2t_{kind}"])


def test_published_evaluators_and_policies_on_a_real_matrix():
    golden = goldens()[1]["cap4video_video"]
    similarity = np.load(shared("data/msrvtt/sim_matrix/msrvtt_video_matrix.npy"))
    got = retrieval_metrics(similarity, ties="clip4clip")
    check(got["text_to_video"], golden["t2v"])
    check(got["video_to_text"], golden["v2t"])
    got = retrieval_metrics(similarity, ties="ce")
    check(got["text_to_video"], golden["ce_t2v"])
    check(got["video_to_text"], golden["ce_v2t"])
    for ties in ("average", "optimistic", "pessimistic"):
        got = retrieval_metrics(similarity, ties=ties)["video_to_text"]
        check(got, golden["v2t_policies"][ties])
        assert got["num_tied"] == golden["v2t_rows_with_ties"]


def test_tie_policies_bound_every_order_of_tied_items():
    similarity = np.array([[1, 1, 0], [2, 2, 2], [0, 3, 4]], dtype=np.float32)
    means = {
        ties: retrieval_metrics(similarity, ties=ties)["text_to_video"]["mean_rank"]
        for ties in TIES
        if ties not in ("clip4clip", "coot")
    }
    assert means == pytest.approx({"optimistic": 1.0, "average": 1.5, "pessimistic": 2.0, "ce": 1.5})
    assert retrieval_metrics(similarity)["text_to_video"]["num_tied"] == 2


def test_unsupported_tie_policies_are_refused():
    with pytest.raises(ValueError, match=r"ties .*average, optimistic"):
        retrieval_metrics(np.eye(3), ties="best")
    with pytest.raises(ValueError, match="ties 'coot'"):
        retrieval_metrics(np.zeros((4, 2)), [0, 0, 1, 1], ties="coot")


def test_many_queries_are_counted_in_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    right = rng.permutation(np.repeat(np.arange(70), 3))
    similarity = rng.normal(size=(210, 70)).round(1).astype(np.float32)
    whole = [retrieval_metrics(similarity, right, ties) for ties in TIES if ties != "coot"]
    monkeypatch.setattr("vlalign.train.metrics.QUERY_CHUNK", 11)
    assert [retrieval_metrics(similarity, right, ties) for ties in TIES if ties != "coot"] == whole


@pytest.mark.parametrize("ties", TIES)
@pytest.mark.parametrize("num_captions", [1, 3, None], ids=["one caption", "three captions", "none to several"])
def test_scores_in_parts_give_the_same_metrics(ties, num_captions):
    """A part for ``Ranking`` is some texts with all videos, or all texts with some videos."""
    rng = np.random.default_rng(0)
    num_videos = 70
    right = rng.permutation(np.repeat(np.arange(num_videos), num_captions or 1))
    right = rng.integers(0, num_videos, 140) if num_captions is None else right
    similarity = rng.normal(size=(len(right), num_videos)).round(1).astype(np.float32)
    if ties == "coot" and num_captions != 1:
        with pytest.raises(ValueError, match="ties 'coot'"):
            retrieval_metrics(similarity, right, ties)
        return
    ranking = Ranking(right, num_videos, ties)
    texts = RankCounts.join(ranking.of_texts(i, similarity[i : i + 32]) for i in range(0, len(right), 32))
    videos = RankCounts.join(ranking.of_videos(i, similarity[:, i : i + 16]) for i in range(0, num_videos, 16))
    whole = retrieval_metrics(similarity, right, ties)
    assert text_metrics(ranking, texts) == whole["text_to_video"]
    assert video_metrics(ranking, videos) == whole["video_to_text"]


def test_what_is_returned_has_the_fields_and_types_of_its_type():
    assert get_type_hints(retrieval_metrics)["return"] is RetrievalMetrics
    metrics = retrieval_metrics(np.eye(3))
    assert metrics.keys() == RetrievalMetrics.__annotations__.keys()
    for row in metrics.values():
        assert row.keys() == DirectionMetrics.__annotations__.keys()
        assert row["chance"].keys() == Chance.__annotations__.keys()
        for name, kind in get_type_hints(DirectionMetrics).items():
            assert type(row[name]) is (dict if name == "chance" else kind), name


# Two models on the same videos


def test_two_similarities_are_compared_by_their_metrics():
    rng = np.random.default_rng(0)
    right = np.repeat(np.arange(60), 2)
    first, second = rng.normal(size=(2, 120, 60)).astype(np.float32)
    first[np.arange(120), right] += 1
    second[np.arange(120), right] += 3
    found = compare_similarities(first, second, right)
    before, after = retrieval_metrics(first, right), retrieval_metrics(second, right)
    for direction, of_direction in found.items():
        for name, difference in of_direction.items():
            assert difference.difference == pytest.approx(after[direction][name] - before[direction][name]), name
    assert not found["text_to_video"]["R@5"].has_zero and found["text_to_video"]["R@5"].low > 0
    assert all(each.has_zero for of in compare_similarities(first, first, right).values() for each in of.values())


def test_clips_of_a_video_are_drawn_together():
    """As if each video had as many queries: its interval is wider, the difference the same."""
    rng = np.random.default_rng(0)
    first, second = (np.eye(60) + rng.normal(0, spread, (60, 60)) for spread in (2.0, 1.0))
    video_of_clip = np.arange(60) // 6
    apart, together = (
        compare_similarities(first, second, video_of_clip=videos)["text_to_video"]["R@1"]
        for videos in (None, video_of_clip)
    )
    ranks = [1 + (side > np.diag(side)[:, None]).sum(axis=1) for side in (first, second)]
    expected = paired_bootstrap(100.0 * (ranks[0] == 1), 100.0 * (ranks[1] == 1), video_of_clip)
    assert together == pytest.approx(expected) and apart.difference == together.difference and apart != together


@pytest.mark.parametrize(
    ("second", "ties", "words"), [(np.eye(3), "average", r"\(4, 4\).*\(3, 3\)"), (np.eye(4), "clip4clip", "clip4clip")]
)
def test_similarities_that_cannot_be_compared_are_refused(second, ties, words):
    with pytest.raises(ValueError, match=words):
        compare_similarities(np.eye(4), second, ties=ties)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"text_to_video": [0.0, 1.0, 2.0, 3.0]}, "text_to_video: expected 4 integers"),
        ({"video_of_clip": [0, 1]}, "video_of_clip: expected 4 integers"),
        ({"second": {"similarity": np.eye(4)}}, r'got a file of arrays, similarity; .*\["similarity"\]'),
    ],
)
def test_other_arguments_are_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        compare_similarities(np.eye(4), **{"second": np.eye(4), **arguments})


def test_intervals_of_one_video_are_all_that_is_possible():
    """Its clips tell nothing about other videos."""
    ranking, similarity = Ranking(np.arange(5), 5, "average"), np.eye(5, dtype=np.float32)
    for found in (
        text_intervals(ranking, ranking.of_texts(0, similarity), np.zeros(5, dtype=int)),
        video_intervals(ranking, ranking.of_videos(0, similarity), np.zeros(5, dtype=int)),
    ):
        assert found["R@1"] == found["mAP"] == (0, 100) and found["mean_rank"] == (1, 5)
        assert np.isfinite(list(found.values())).all()
