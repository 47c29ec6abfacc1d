"""A split that is ranked part by part, against the same scores as a whole."""

import numpy as np
import pytest
from vlalign.storage.captions.files import caption_table
from vlalign.storage.records import Caption
from vlalign.train.data.pairs import Pairs, make_pairs
from vlalign.train.evaluation.query_list import best_of
from vlalign.train.evaluation.ranking import Weightings, rank_split
from vlalign.train.metrics import TIES, Ranking, RetrievalMetrics, retrieval_metrics, right_ranks
from vlalign.train.scoring import scores as scores_module
from vlalign.train.scoring.scores import Shortlist, StageScores

WEIGHTS = {"sentence": 1.0, "fusion": 0.5}


def made_pairs(num_clips: int, captions_of_a_clip: int, rng: np.random.Generator) -> Pairs:
    """Return captions of whole videos, in a random order."""
    videos = rng.permutation(np.repeat(np.arange(num_clips), captions_of_a_clip))
    records = [
        Caption(video_id=f"v{video}", caption=f"caption {number}", split="test") for number, video in enumerate(videos)
    ]
    return make_pairs(caption_table(records))


def made_scores(pairs: Pairs, rng: np.random.Generator, *, cut: bool) -> StageScores:
    shape = len(pairs.captions), len(pairs.clips)
    early, late = rng.normal(size=(2, *shape)).round(1).astype(np.float32)
    if not cut:
        return StageScores({"sentence": early, "fusion": late}, None)
    by_caption, by_clip = early > 1, early > 0.8
    by_caption[:, 0] = by_clip[0] = True  # each query has a shortlist
    return StageScores({"sentence": early, "fusion": late * (by_caption | by_clip)}, Shortlist(by_caption, by_clip))


def both_ways(scores: StageScores, weights: dict[str, float], pairs: Pairs, ties: str) -> RetrievalMetrics:
    total = scores.fused(weights)
    texts, videos = (retrieval_metrics(of, pairs.clip_of_caption, ties) for of in total)
    return {"text_to_video": texts["text_to_video"], "video_to_text": videos["video_to_text"]}


@pytest.mark.parametrize(
    "ties, captions_of_a_clip", [*((ties, 1) for ties in TIES), *((ties, 3) for ties in TIES if ties != "coot")]
)
@pytest.mark.parametrize("cut", [False, True], ids=["all fused", "reranked"])
def test_parts_give_the_figures_of_the_whole(ties, cut, captions_of_a_clip, monkeypatch):
    rng = np.random.default_rng(0)
    pairs = made_pairs(50, captions_of_a_clip, rng)
    scores = made_scores(pairs, rng, cut=cut)
    monkeypatch.setattr(scores_module, "PART_SIZE", 16)
    found = rank_split(scores, pairs, Weightings(WEIGHTS, ["sentence", "fusion"]), ties, temperature=0.5)
    assert found.metrics == both_ways(scores, WEIGHTS, pairs, ties)
    assert found.stages == {stage: both_ways(scores, {stage: 1.0}, pairs, ties) for stage in WEIGHTS}
    assert found.without == {
        stage: both_ways(scores, WEIGHTS | {stage: 0.0}, pairs, ties)["text_to_video"]["R@1"] for stage in WEIGHTS
    }
    total = scores.fused(WEIGHTS).by_caption
    np.testing.assert_array_equal(found.captions.ranks, right_ranks(total, pairs.clip_of_caption))
    best = np.argsort(-total, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.captions.found.candidates, best)
    np.testing.assert_array_equal(found.captions.found.scores, np.take_along_axis(total, best, axis=1))
    by_clip = scores.fused(WEIGHTS).by_clip
    best = np.argsort(-by_clip.T, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(found.clips.found.candidates, best)
    own = [max(by_clip[pairs.clip_of_caption == clip, clip]) for clip in range(50)]
    np.testing.assert_array_equal(found.clips.right_scores, own)
    for direction, of_direction in found.metrics.items():
        for name, (low, high) in found.intervals[direction].items():
            assert low <= of_direction[name] <= high, name


@pytest.mark.parametrize("total", ["sentence", "fusion"])
def test_a_stage_that_is_the_total_is_ranked_once(total, monkeypatch):
    rng = np.random.default_rng(0)
    pairs = made_pairs(40, 2, rng)
    scores = made_scores(pairs, rng, cut=False)
    ranked, of_texts = [], Ranking.of_texts
    monkeypatch.setattr(Ranking, "of_texts", lambda *of: ranked.append(of) or of_texts(*of))
    found = rank_split(scores, pairs, Weightings({total: 1.0}, []), "average", temperature=1.0)
    assert len(ranked) == 2, "the total and the other stage"
    assert found.metrics == found.stages[total]
    assert found.stages == {stage: both_ways(scores, {stage: 1.0}, pairs, "average") for stage in WEIGHTS}


@pytest.mark.parametrize("cut", [False, True], ids=["all fused", "reranked"])
def test_the_normalisation_error_is_that_of_the_definition(cut, monkeypatch):
    """NCL, Eq. 5, computed over all scores at once."""
    rng = np.random.default_rng(0)
    pairs = made_pairs(50, 3, rng)
    scores = made_scores(pairs, rng, cut=cut)
    by_caption, by_clip = (total.astype(float) / 0.5 for total in scores.fused(WEIGHTS))
    clips, captions = np.exp(by_caption), np.exp(by_clip)
    expected = {
        "text_to_video": np.abs((clips / clips.sum(axis=1, keepdims=True)).sum(axis=0) - 3).mean(),
        "video_to_text": np.abs((3 * captions / captions.sum(axis=0)).sum(axis=1) - 1).mean(),
    }
    monkeypatch.setattr(scores_module, "PART_SIZE", 16)
    error = rank_split(scores, pairs, Weightings(WEIGHTS, []), "average", temperature=0.5).error
    assert error == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 5, 39, 40, 99])
def test_the_best_are_those_of_a_stable_sort(count):
    scores = np.random.default_rng(0).normal(size=40).round(0).astype(np.float32)
    assert best_of(scores, count).tolist() == np.argsort(-scores, kind="stable")[:count].tolist()


def test_scores_that_are_not_numbers_are_refused():
    pairs = made_pairs(4, 1, np.random.default_rng(0))
    scores = np.zeros((4, 4), dtype=np.float32)
    scores[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"similarity: 1\b.*NaN"):
        rank_split(StageScores({"pair": scores}, None), pairs, Weightings({"pair": 1.0}, []), "average", 1.0)
