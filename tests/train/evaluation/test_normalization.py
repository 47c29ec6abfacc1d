"""Scores that were normalised, on a real matrix (trained Cap4Video scores of MSR-VTT's 1,000 test pairs) and on made
ones."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.golden import reference_numbers
from helpers.needs import shared
from helpers.toy import make_toy
from helpers.training import at
from safetensors.numpy import load_file
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import read_pairs
from vlalign.train.evaluation.normalization import (
    Normalized,
    SummedProbabilities,
    normalization_error,
    normalize,
    training_biases,
    tuned,
)
from vlalign.train.evaluation.retrieval import NORMALIZATIONS
from vlalign.train.losses import sinkhorn_biases
from vlalign.train.metrics import retrieval_metrics
from vlalign.train.runs.load import open_run
from vlalign.train.scoring import query_biases as module
from vlalign.train.scoring.query_biases import DotProducts, biases_of, fit_biases
from vlalign.train.scoring.scorer import clip_vectors, text_vectors
from vlalign.train.scoring.scores import QuerySimilarities

OWN = np.arange(1000)
GAMMA = 0.01


@pytest.fixture(scope="module")
def real() -> np.ndarray:
    return np.load(shared("data/msrvtt/sim_matrix/msrvtt_video_matrix.npy"))


def figure_4(similarity: np.ndarray, gamma: float) -> np.ndarray:
    """The biases of the columns as NCL's Figure 4 and Eq. 7 to 11 have them: 4 iterations on the matrix exp(S)."""
    matrix = np.exp(similarity.astype(np.float64) / gamma)
    m, n = matrix.shape
    beta = np.ones(n)
    for _ in range(4):
        alpha = (1 / m) / (matrix @ beta)
        beta = (1 / n) / (matrix.T @ alpha)
    return gamma * np.log(beta / beta.sum())


def normalised(name: str, scores: np.ndarray, gamma: float, own: np.ndarray, queries: QuerySimilarities) -> Normalized:
    """Scores that are normalised in any way."""
    if name != "ncl":
        return normalize(name, scores, gamma, own, queries)
    biases, whole = training_biases(queries, gamma), slice(None)
    return Normalized(biases.rows(whole, scores), biases.columns(whole, scores), biases.notes)


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
        adjusted, _ = tuned(scores, known, GAMMA)
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
        adjusted, words = tuned(scores, known, GAMMA)
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
    found = normalised(name, scores, 0.05, np.arange(200), QuerySimilarities(texts, videos))
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
            normalised(name, scores, 0.05, np.arange(200), QuerySimilarities(texts, videos)).by_caption, 0.05
        )
        for name in ("none", "ncl", "ncl-tuned", "ncl-oracle")
    }
    assert errors["ncl-oracle"] < 1e-3 < errors["ncl"] < errors["none"] / 2
    assert errors["ncl"] == errors["ncl-tuned"] and "strength 1.0" in tuned(scores, texts, 0.05)[1]


@pytest.mark.parametrize("num_at_once", [1, 70, 1 << 22])
def test_biases_of_training_queries_are_those_of_figure_4(monkeypatch, num_at_once):
    scores, texts, videos = hubs(200, np.random.default_rng(0))
    monkeypatch.setattr(module, "MAX_SIMILARITIES_AT_ONCE", 200 * num_at_once)
    biases = training_biases(QuerySimilarities(texts, videos), 0.05)
    np.testing.assert_allclose(biases.video_N, figure_4(texts, 0.05), rtol=1e-9)
    np.testing.assert_allclose(biases.text_M, figure_4(videos, 0.05), rtol=1e-9)
    np.testing.assert_allclose(biases.video_N, sinkhorn_biases(torch.from_numpy(texts).double(), 0.05).video_N)
    expected = scores + figure_4(texts, 0.05)
    np.testing.assert_allclose(biases.rows(slice(None), scores), expected, rtol=1e-5)
    np.testing.assert_allclose(biases.rows(slice(7, 9), scores[7:9]), expected[7:9], rtol=1e-5)
    expected = scores + figure_4(videos, 0.05)[:, None]
    np.testing.assert_allclose(biases.columns(slice(None), scores), expected, rtol=1e-5)
    np.testing.assert_allclose(biases.columns(slice(7, 9), scores[:, 7:9]), expected[:, 7:9], rtol=1e-5)


def test_biases_are_finite_where_the_matrix_of_the_paper_is_not():
    rng = np.random.default_rng(0)
    known = rng.standard_normal((50, 20)).astype(np.float32)
    with np.errstate(all="ignore"):
        assert not np.isfinite(figure_4(known, 1e-3)).all()
    biases, log_weights = fit_biases(known, 1e-3)
    np.testing.assert_allclose(biases_of(known[:, 5:7], log_weights, 1e-3), biases[5:7])
    assert np.isfinite(biases).all()
    np.testing.assert_allclose(biases, sinkhorn_biases(torch.from_numpy(known).double(), 1e-3).video_N)


def test_similarities_of_training_queries_are_never_all_in_memory(monkeypatch):
    read = []

    class Counted(DotProducts):
        def __getitem__(self, queries):
            block = super().__getitem__(queries)
            read.append(block.size)
            return block

    monkeypatch.setattr(module, "MAX_SIMILARITIES_AT_ONCE", 3000)
    queries, candidates = (torch.nn.functional.normalize(torch.randn(n, 8), dim=1) for n in (500, 40))
    biases = fit_biases(Counted(queries, candidates), 0.07).bias_N
    assert max(read) <= 3000 and sum(read) == 4 * 500 * 40
    np.testing.assert_allclose(biases, figure_4((queries @ candidates.T).numpy(), 0.07), rtol=1e-6)


def test_an_evaluation_of_a_run_is_section_3_4(tmp_path, capsys):
    """Ranks and errors of a trained run, beside plain numpy from the vectors and the queue in its file."""
    toy, gamma = make_toy(tmp_path), 0.2
    settings = ["--objective", "ncl", "--normalized-loss", "--query-queue", "50", "--temperature", str(gamma)]
    common = ["--features", "s3d", "--batch-size", "6", "--num-steps", "20", "--validate-every", "10"]
    assert train_main([*at(toy), *settings, *common, "--run-name", "r"]) == 0
    capsys.readouterr()
    assert evaluate_main([*at(toy), "r"]) == 0
    printed = capsys.readouterr().out
    assert "normalised by ncl, inductive" in printed and "note: biases of 50 training queries" in printed
    found = read_json(toy.runs / "r" / "metrics.json")

    run = open_run(toy.runs / "r")
    pairs = read_pairs(run.dataset, run.features, lambda *_: None, None)["test"]
    scores = text_vectors(run.scorer, pairs.captions) @ clip_vectors(run.scorer, pairs.clips).T
    queue = load_file(toy.runs / "r" / "model.safetensors")
    assert int(queue["queries.pushed"]) > 50 and len(queue["queries.texts"]) == 50
    videos = queue["queries.texts"] @ clip_vectors(run.scorer, pairs.clips).T
    texts = queue["queries.videos"] @ text_vectors(run.scorer, pairs.captions).T
    by_caption, by_clip = scores + figure_4(videos, gamma), scores + figure_4(texts, gamma)[:, None]
    expected = {
        "text_to_video": retrieval_metrics(by_caption, pairs.clip_of_caption)["text_to_video"],
        "video_to_text": retrieval_metrics(by_clip, pairs.clip_of_caption)["video_to_text"],
    }
    assert found["metrics"] == expected
    assert found["normalization"]["num_queries"] == 50
    error = found["normalization"]["error"]["text_to_video"]
    if (np.bincount(pairs.clip_of_caption) == 1).all():
        assert error == pytest.approx(normalization_error(by_caption, gamma), rel=1e-4)
    rows = [json.loads(line) for line in (toy.runs / "r" / "queries.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["direction"] == "text_to_video"]
    own = by_caption[np.arange(len(rows)), pairs.clip_of_caption]
    np.testing.assert_allclose([row["score"] for row in rows], own, rtol=1e-4)

    assert evaluate_main([*at(toy), "r", "--normalize", "none"]) == 0
    printed = capsys.readouterr().out
    assert "normalised by" not in printed and "omit --normalize none" in printed
    [path] = re.findall(r"^metrics: (.*)$", printed, re.MULTILINE)
    assert Path(path).parent.name == "normalize=none"
    assert read_json(Path(path))["metrics"] == retrieval_metrics(scores, pairs.clip_of_caption)


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
        found = normalised(name, one, 0.05, np.zeros(1, dtype=int), QuerySimilarities(one, one))
        assert np.isfinite(found.by_caption).all() and np.isfinite(found.by_clip).all()


@pytest.mark.parametrize("num_iterations", [0, -1])
def test_biases_of_no_iteration_are_refused_by_name(num_iterations):
    with pytest.raises(ValueError, match=f"num_iterations {num_iterations}: "):
        sinkhorn_biases(torch.eye(3), 0.1, num_iterations=num_iterations)
