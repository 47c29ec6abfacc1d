"""The list of queries and the overview of a retrieval report."""

import numpy as np
import pytest
import torch
from vlalign.storage.common.problems import Problems
from vlalign.train import train
from vlalign.train.data.pairs import read_pairs
from vlalign.train.evaluation import query_list
from vlalign.train.evaluation.query_list import DIGITS, QueryList, list_queries, word_maps
from vlalign.train.evaluation.ranking import SplitRanking, Weightings, rank_split
from vlalign.train.evaluation.retrieval_figures import NEAREST
from vlalign.train.metrics import retrieval_metrics, right_ranks
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores

SETTINGS = {"features": "s3d", "batch_size": 6, "num_steps": 8, "validate_every": 3}


@pytest.fixture(scope="module", params=["default", "taco-small"])
def asked(request, toy):
    """Return a run, the pairs of the training split and their scores."""
    run = train(toy.path, recipe=request.param, run_name=f"listed-{request.param}", settings=SETTINGS)
    loaded = open_run(run.folder, toy, "cpu")
    with Problems(quiet=True) as problems:
        pairs = read_pairs(toy, loaded.features, problems)["train"]
    return loaded, pairs, stage_scores(loaded.scorer, pairs.captions, pairs.clips)


def ranked_by(run, pairs, scores) -> SplitRanking:
    return rank_split(scores, pairs, Weightings(run.score_weights, []), "average", temperature=1.0)


def listed(run, pairs, scores) -> QueryList:
    ranked = ranked_by(run, pairs, scores)
    return list_queries(run, pairs, ranked.captions.ranks, ranked.stage_ranks, ranked.captions.found)


def test_ranks_and_clips_are_those_of_the_scores(asked):
    run, pairs, scores = asked
    total = scores.fused(run.score_weights).by_caption
    found = listed(run, pairs, scores)
    assert len(found["queries"]) == found["num_queries"] == len(pairs.captions)
    ranks = [query["rank"] for query in found["queries"]]
    metrics = retrieval_metrics(total, pairs.clip_of_caption)["text_to_video"]
    assert np.mean(ranks) == pytest.approx(metrics["mean_rank"])
    for index, query in enumerate(found["queries"]):
        clips = [found["clips"][clip]["video_id"] for clip, _ in query["found"]]
        assert clips == [pairs.clips[clip].video_id for clip in np.argsort(-total[index], kind="stable")[:5]]
        assert found["clips"][query["clip"]]["video_id"] == pairs.clips[pairs.clip_of_caption[index]].video_id


def test_maps_lead_to_the_word_score_of_the_model(asked):
    """The token score of TACo, or the default recipe's word score, computed from maps in another way."""
    run, pairs, scores = asked
    scorer, objective = run.scorer, run.config.objective
    captions = list(pairs.captions)[:6]
    clips = [pairs.clips[index] for index in pairs.clip_of_caption[:6]]
    with torch.inference_mode():
        texts, videos = scorer.encode_texts(captions), scorer.encode_videos(clips)
        fits = objective.word_similarity(texts, videos)
        for index in range(6):
            weights = texts.weights_BN[index]
            rows = fits[index][:, videos.mask_BM[index]]
            if objective.name == "taco":
                stage, expected = "token", (weights * rows.amax(dim=1)).sum()
            else:
                sharpness, scale = (getattr(scorer.model, f"log_{name}").exp() for name in ("sharpness", "word_scale"))
                soft = torch.log(torch.exp(rows * sharpness).mean(dim=1)) / sharpness
                stage, expected = "word", scale * (weights / weights.norm() * soft).sum()
            assert scores.stages[stage][index, pairs.clip_of_caption[index]] == pytest.approx(float(expected), rel=1e-3)


def test_maps_have_the_words_of_the_caption_and_all_levels(asked):
    run, pairs, _ = asked
    for caption, found in zip(pairs.captions, word_maps(run, pairs, np.arange(len(pairs.captions))), strict=True):
        words = [word for word, _ in found["words"]]
        assert words == list(dict.fromkeys(word.lower() for word in caption.words if word.lower() in words))
        digits = "".join(of_word for _, of_word in found["words"])
        assert set(digits) <= set(DIGITS)
        assert len(set(digits)) == 1 or {"0", "z"} <= set(digits)
        assert all(len(of_word) == len(found["starts"]) for _, of_word in found["words"])


def test_of_too_many_queries_some_are_chosen_evenly(asked, monkeypatch):
    run, pairs, scores = asked
    monkeypatch.setattr(query_list, "MAX_BYTES", 3000)
    found = listed(run, pairs, scores)
    texts = [caption.caption for caption in pairs.captions]
    assert 0 < len(found["queries"]) < found["num_queries"] == len(texts)
    assert {query["text"] for query in found["queries"]} <= set(texts)
    assert max(query["clip"] for query in found["queries"]) < len(found["clips"])


def test_overview_counts_as_one_would_by_hand(asked):
    run, pairs, scores = asked
    total = scores.fused(run.score_weights).by_caption
    overview = ranked_by(run, pairs, scores).overview
    first = [int(np.argmax(row)) for row in total]
    nearest = [np.argsort(-row, kind="stable")[:NEAREST] for row in total]
    found = [sum(clip in of_row for of_row in nearest) for clip in range(len(pairs.clips))]
    assert overview["num_found"] == pytest.approx(np.array(found) / np.mean(found))
    assert overview["num_never"] == len(set(range(len(pairs.clips))) - set(first))
    clip = overview["found_most"][0]
    assert clip["times_first"] == max(first.count(clip) for clip in range(len(pairs.clips)))
    order = np.argsort(pairs.clip_of_caption, kind="stable")
    diagonal = overview["reciprocal_ranks"][np.arange(len(order)), pairs.clip_of_caption[order]]
    assert diagonal == pytest.approx(1 / right_ranks(total, pairs.clip_of_caption)[order])
