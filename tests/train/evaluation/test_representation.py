"""NCL's figures in the report of a retrieval, beside plain loops over made scores."""

import html
import re

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import at
from vlalign.storage.captions.files import caption_table
from vlalign.storage.common.files import read_json
from vlalign.storage.records import Caption
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import Pairs, make_pairs
from vlalign.train.evaluation import normalization_figures, representation
from vlalign.train.evaluation.embedding_space import mean_similarities, project
from vlalign.train.evaluation.normalization import normalization_error, training_biases
from vlalign.train.evaluation.ranking import SplitRanking, Weightings, rank_split
from vlalign.train.evaluation.representation import examples, false_rates, queue_sizes
from vlalign.train.scoring.scores import QuerySimilarities, StageScores, Vectors

GAMMA = 0.05
NUM_CLIPS = 60


def pairs_of(num_clips: int, captions_of_clip: int = 1) -> Pairs:
    listed = [
        Caption(video_id=f"v{clip:03d}", caption=f"caption {number} of {clip}", split="test")
        for clip in range(num_clips)
        for number in range(captions_of_clip)
    ]
    return make_pairs(caption_table(listed))


@pytest.fixture(scope="module")
def made() -> tuple[Pairs, StageScores, QuerySimilarities]:
    """Scores in which some clips are near to everything, and training queries that know which."""
    rng = np.random.default_rng(0)
    clips, texts = 0.2 * rng.standard_normal(NUM_CLIPS), 0.1 * rng.standard_normal(NUM_CLIPS)
    scores = 0.1 * rng.standard_normal((NUM_CLIPS, NUM_CLIPS)) + clips + texts[:, None] + 0.3 * np.eye(NUM_CLIPS)
    known = [0.1 * rng.standard_normal((300, NUM_CLIPS)) + popular for popular in (clips, texts)]
    queries = QuerySimilarities(*(of.astype(np.float32) for of in known))
    return pairs_of(NUM_CLIPS), StageScores({"pair": scores.astype(np.float32)}, None, queries), queries


def ranked(made, *, normalized: bool) -> SplitRanking:
    pairs, scores, queries = made
    biases = training_biases(queries, GAMMA) if normalized else None
    return rank_split(scores, pairs, Weightings({"pair": 1.0}, [], biases), "average", GAMMA)


def probabilities(scores: np.ndarray) -> np.ndarray:
    exponents = np.exp(scores.astype(np.float64) / GAMMA)
    return exponents / exponents.sum(axis=1, keepdims=True)


def test_errors_and_sums_without_and_with_biases(made):
    _, scores, queries = made
    plain, biases = scores.stages["pair"], training_biases(queries, GAMMA)
    found = ranked(made, normalized=True)
    after = plain + biases.video_N
    assert found.error_before["text_to_video"] == pytest.approx(normalization_error(plain, GAMMA))
    assert found.error["text_to_video"] == pytest.approx(normalization_error(after, GAMMA), rel=1e-5)
    assert found.error_before["video_to_text"] == pytest.approx(normalization_error(plain.T, GAMMA))
    assert found.error["text_to_video"] < found.error_before["text_to_video"] / 2
    np.testing.assert_allclose(found.retrieved_before.sums, probabilities(plain).sum(axis=0), rtol=1e-6)
    np.testing.assert_allclose(found.retrieved.sums, probabilities(after).sum(axis=0), rtol=1e-4)
    assert (found.retrieved_before.first == plain.argmax(axis=1)).all()
    assert (found.retrieved.first == after.argmax(axis=1)).all()
    bare = ranked(made, normalized=False)
    assert bare.error == bare.error_before == found.error_before
    assert np.array_equal(bare.retrieved.sums, bare.retrieved_before.sums)


def test_rates_of_false_clips(made):
    pairs, scores, _ = made
    first, sums = scores.stages["pair"].argmax(axis=1), probabilities(scores.stages["pair"]).sum(axis=0)
    rates = false_rates(ranked(made, normalized=False).retrieved_before, pairs)
    assert len(rates) == 10 and sum(each["num_clips"] for each in rates) == NUM_CLIPS
    order = np.argsort(sums)
    for number, each in enumerate(rates):
        part = order[6 * number : 6 * number + 6]
        assert each["sum"] == pytest.approx(sums[part].mean())
        assert each["false_negative"] == pytest.approx(100 * np.mean([first[clip] != clip for clip in part]))
        wrong = [sum(first[text] == clip for text in range(NUM_CLIPS) if text != clip) for clip in part]
        assert each["false_positive"] == pytest.approx(100 * np.mean(wrong) / (NUM_CLIPS - 1))
    assert rates[0]["false_negative"] > rates[-1]["false_negative"]
    assert rates[0]["false_positive"] < rates[-1]["false_positive"]


def test_sums_of_clips_with_several_captions_are_multiples_of_their_share():
    pairs = pairs_of(5, 3)
    scores = StageScores({"pair": np.zeros((15, 5), np.float32)}, None)
    found = rank_split(scores, pairs, Weightings({"pair": 1.0}, []), "average", GAMMA)
    np.testing.assert_allclose(found.retrieved.sums, 1)
    rates = false_rates(found.retrieved, pairs)
    assert len(rates) == 5 and {each["num_clips"] for each in rates} == {1}
    assert sorted(each["false_negative"] for each in rates) == [0, 100, 100, 100, 100]  # of equal clips, the first


def test_recall_by_the_size_of_the_queue(made, monkeypatch):
    pairs, scores, queries = made
    plain = scores.stages["pair"]
    found = queue_sizes(plain, queries, GAMMA, pairs.clip_of_caption)
    assert [each["num_queries"] for each in found] == [0, 64, 256, 300]
    for each in found:
        last = QuerySimilarities(*(of[300 - each["num_queries"] :] for of in (queries.texts, queries.videos)))
        after = plain + training_biases(last, GAMMA).video_N if each["num_queries"] else plain
        assert each["recall"] == pytest.approx(100 * np.mean(after.argmax(axis=1) == np.arange(NUM_CLIPS)))
    assert found[-1]["recall"] > found[0]["recall"] + 10
    monkeypatch.setattr(representation, "MAX_PAIRS", plain.size - 1)
    assert queue_sizes(plain, queries, GAMMA, pairs.clip_of_caption) == []


def test_examples_are_captions_whose_first_clip_changed(made):
    pairs, _, _ = made
    found = ranked(made, normalized=True)
    shown = examples(found.retrieved_before, found.retrieved, pairs)
    gained = [each for each in shown if each["rank"] == 1]
    assert len(gained) == 3 and len(shown) <= 6
    for each in gained:
        assert each["rank_before"] > 1 and each["first"] == each["right"] != each["first_before"]
        assert each["right"]["sum_before"] < each["right"]["sum"]
    sums = [each["right"]["sum_before"] for each in gained]
    assert sums == sorted(sums)


def test_similarities_are_means_over_all_pairs():
    rng = np.random.default_rng(0)
    vectors = Vectors(rng.standard_normal((7, 5)).astype(np.float32), rng.standard_normal((4, 5)).astype(np.float32))
    texts, clips = (of / np.linalg.norm(of, axis=1, keepdims=True) for of in vectors)
    found = mean_similarities(vectors)
    assert found["text_text"] == pytest.approx((texts @ texts.T)[~np.eye(7, dtype=bool)].mean(), rel=1e-5)
    assert found["clip_clip"] == pytest.approx((clips @ clips.T)[~np.eye(4, dtype=bool)].mean(), rel=1e-5)
    assert found["text_clip"] == pytest.approx((texts @ clips.T).mean(), rel=1e-5)
    assert mean_similarities(Vectors(vectors[0], vectors[1][:1]))["clip_clip"] is None


def test_modalities_that_lie_apart_do_so_in_the_picture():
    rng = np.random.default_rng(0)
    texts, clips = (rng.standard_normal((40, 8)) * 0.1 + np.eye(8)[axis] for axis in (0, 1))
    space = project(Vectors(texts.astype(np.float32), clips.astype(np.float32)))
    assert np.abs(space["mean_text"] - space["mean_clip"]).max() > 10 * space["texts"].std(axis=0).max()
    together = np.concatenate([space["texts"], space["clips"]])
    units = np.concatenate([of / np.linalg.norm(of, axis=1, keepdims=True) for of in (texts, clips)])
    assert together.var(axis=0).sum() <= units.var(axis=0).sum() + 1e-6
    assert together.var(axis=0)[0] == pytest.approx(np.linalg.eigvalsh(np.cov(units.T, bias=True))[-1], rel=1e-5)


def test_the_report_of_a_run_of_ncl_has_the_figures(tmp_path, capsys):
    toy = make_toy(tmp_path)
    settings = ["--objective", "ncl", "--normalized-loss", "--query-queue", "100", "--temperature", "0.1"]
    common = ["--features", "s3d", "--batch-size", "6", "--num-steps", "20", "--validate-every", "10"]
    assert train_main([*at(toy), *settings, *common, "--run-name", "r"]) == 0
    assert evaluate_main([*at(toy), "r"]) == 0
    figures = read_json(toy.runs / "r" / "metrics.json")
    about = figures["normalization"]
    assert about["error_before"] != about["error"] and len(about["false_rates"]) > 1
    assert [each["num_queries"] for each in about["queue_sizes"]] == [0, 64, 100]
    assert about["queue_sizes"][-1]["recall"] == pytest.approx(figures["metrics"]["text_to_video"]["R@1"])
    assert -1 <= figures["similarities"]["text_clip"] <= 1
    page = html.unescape((toy.runs / "r" / "report.html").read_text(encoding="utf-8"))
    for text in ("normalisation error", "false positives", "training queries", "principal component", "mean cosine"):
        assert re.search(rf"<text[^>]*>{text}|{text}", page), text
    assert evaluate_main([*at(toy), "r", "--normalize", "none"]) == 0


def test_figures_draw_what_they_are_given():
    errors = {"text_to_video": 0.123, "video_to_text": 4.567}
    drawn = normalization_figures.errors_figure(errors, errors, "ncl")
    assert "0.12" in drawn and "4.57" in drawn
    assert "-" in normalization_figures.similarities_figure({"text_text": 0.5, "clip_clip": None, "text_clip": 0.25})
