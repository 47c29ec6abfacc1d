"""Scores that were normalised, on a real matrix (trained Cap4Video scores of MSR-VTT's 1,000 test pairs) and on made
ones."""

import numpy as np
import pytest
import torch
from helpers.golden import reference_numbers
from helpers.needs import shared
from vlalign.train.evaluation.normalization import SummedProbabilities, biased, normalization_error, normalize
from vlalign.train.evaluation.retrieval import NORMALIZATIONS
from vlalign.train.losses import sinkhorn_biases
from vlalign.train.metrics import retrieval_metrics
from vlalign.train.scoring.scores import QuerySimilarities

OWN = np.arange(1000)
GAMMA = 0.01


@pytest.fixture(scope="module")
def real() -> np.ndarray:
    return np.load(shared("data/msrvtt/sim_matrix/msrvtt_video_matrix.npy"))


def recall(scores: np.ndarray) -> float:
    return retrieval_metrics(scores)["text_to_video"]["R@1"]


def test_the_oracle_lifts_a_real_matrix_and_leaves_no_error(real):
    assert recall(real) == pytest.approx(48.0)
    found = normalize("ncl-oracle", real, GAMMA, OWN)
    golden = reference_numbers()[0]["retrieval"]["cap4video_video"]
    theirs = golden["t2v_after_sinkhorn_tau0.01_200it"]
    metrics = retrieval_metrics(found.by_caption)["text_to_video"]
    assert metrics["R@1"] == pytest.approx(theirs["R1"]) and metrics["R@1"] >= 53.5
    assert metrics["mean_rank"] == pytest.approx(theirs["MeanR"], rel=0.01)
    assert normalization_error(real, GAMMA) > 0.4
    assert normalization_error(found.by_caption, GAMMA) < 2e-3
    assert normalization_error(found.by_clip.T, GAMMA) < 2e-3


def test_dual_softmax_is_that_of_camoe(real):
    golden = reference_numbers()[0]["retrieval"]["cap4video_video"]["t2v_after_dsl_x100"]
    metrics = retrieval_metrics(normalize("dsl", real, GAMMA, OWN).by_caption)["text_to_video"]
    assert metrics["R@1"] == pytest.approx(golden["R1"]) and metrics["mean_rank"] == pytest.approx(golden["MeanR"])


def draws(matrix: np.ndarray, size: int, number: int):
    """Some pairs as the test set, and the other texts as training queries."""
    for seed in range(number):
        order = np.random.default_rng(seed).permutation(len(matrix))
        test, others = order[:size], order[size:]
        yield matrix[np.ix_(test, test)], matrix[np.ix_(others, test)]


@pytest.mark.parametrize("size", [100, 200, 500])
def test_queries_of_the_same_kind_reduce_the_error_and_cost_no_recall(real, size):
    before, after = [], []
    for scores, known in draws(real, size, 6):
        adjusted, _ = biased(scores, known, GAMMA)
        before.append((normalization_error(scores, GAMMA), recall(scores)))
        after.append((normalization_error(adjusted, GAMMA), recall(adjusted)))
    (error, hits), (new_error, new_hits) = np.mean(before, axis=0), np.mean(after, axis=0)
    assert new_error < error
    assert new_hits >= hits - 0.3


@pytest.mark.parametrize("kind", ["noise", "permuted", "hubs"])
def test_queries_of_another_kind_are_not_used_and_that_is_said(real, kind):
    for scores, known in draws(real, 200, 3):
        rng = np.random.default_rng(1)
        noise = rng.normal(real.mean(), real.std(), known.shape)
        known = {
            "noise": noise,
            "permuted": rng.permuted(known, axis=1),
            "hubs": noise + rng.normal(0, 0.05, known.shape[1]),
        }[kind]
        adjusted, words = biased(scores, known, GAMMA)
        assert recall(adjusted) >= recall(scores) - 0.3
        assert kind == "noise" or (
            adjusted is scores and "not added" in words
        )  # noise may reduce the error by as little as chance does


def hubs(num_pairs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Test scores, and those of 2,000 training texts and videos: some videos and some texts are near to everything."""
    videos, texts = (0.2 * rng.standard_normal(num_pairs) for _ in range(2))
    scores = 0.1 * rng.standard_normal((num_pairs, num_pairs)) + videos + texts[:, None] + 0.3 * np.eye(num_pairs)
    known = [0.1 * rng.standard_normal((2000, num_pairs)) + popular for popular in (videos, texts)]
    return scores.astype(np.float32), *(x.astype(np.float32) for x in known)


@pytest.mark.parametrize("name", [n for n in NORMALIZATIONS if n != "none"])
def test_hubs_are_undone_both_ways(name):
    scores, texts, videos = hubs(200, np.random.default_rng(0))
    found = normalize(name, scores, 0.05, np.arange(200), QuerySimilarities(texts, videos))
    before = retrieval_metrics(scores)
    by_caption, by_clip = (
        retrieval_metrics(found.by_caption)["text_to_video"],
        retrieval_metrics(found.by_clip)["video_to_text"],
    )
    assert by_caption["R@1"] > before["text_to_video"]["R@1"] + 20
    assert by_clip["R@1"] > before["video_to_text"]["R@1"] + 20


def test_biases_of_many_queries_are_added_whole_and_come_near_the_oracle():
    scores, texts, videos = hubs(200, np.random.default_rng(0))
    errors = {
        name: normalization_error(
            normalize(name, scores, 0.05, np.arange(200), QuerySimilarities(texts, videos)).by_caption, 0.05
        )
        for name in ("none", "ncl", "ncl-oracle")
    }
    assert errors["ncl-oracle"] < 1e-3 < errors["ncl"] < errors["none"] / 2
    assert "strength 1.0" in biased(scores, texts, 0.05)[1]


def test_captions_of_a_clip_have_their_share_in_the_oracle():
    rng = np.random.default_rng(0)
    clip_of_caption = np.repeat(np.arange(20), rng.integers(1, 6, 20))
    scores = rng.standard_normal((len(clip_of_caption), 20)).astype(np.float32)
    found = normalize("ncl-oracle", scores, 0.5, clip_of_caption)
    counts = np.bincount(clip_of_caption)

    def errors(by_caption: np.ndarray, by_clip: np.ndarray) -> list[float]:
        clips, captions = SummedProbabilities(0.5, counts), SummedProbabilities(0.5, np.ones(len(scores)))
        clips.add(by_caption)
        captions.add(by_clip.T, counts)
        return [clips.mean_difference(), captions.mean_difference()]

    assert max(errors(found.by_caption, found.by_clip)) < 1e-3 < 0.05 < min(errors(scores, scores))


def test_one_query_and_one_candidate():
    one = np.ones((1, 1), dtype=np.float32)
    for name in NORMALIZATIONS:
        found = normalize(name, one, 0.05, np.zeros(1, dtype=int), QuerySimilarities(one, one))
        assert np.isfinite(found.by_caption).all() and np.isfinite(found.by_clip).all()


@pytest.mark.parametrize("num_iterations", [0, -1])
def test_biases_of_no_iteration_are_refused_by_name(num_iterations):
    with pytest.raises(ValueError, match=f"num_iterations {num_iterations}: "):
        sinkhorn_biases(torch.eye(3), 0.1, num_iterations=num_iterations)
