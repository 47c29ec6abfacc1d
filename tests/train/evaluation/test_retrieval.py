"""The task retrieval: what it prints, its settings, and how stages and normalisations make a ranking."""

import hashlib

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import CODEBOOK, at
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_json
from vlalign.storage.common.problems import Problems
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import read_pairs
from vlalign.train.evaluation import TASKS
from vlalign.train.evaluation.evaluate import EvaluationSettings, evaluate
from vlalign.train.evaluation.retrieval import (
    USUAL_DRAWS,
    RetrievalSettings,
    metrics_table,
    normalized_scores,
    stages_table,
)
from vlalign.train.evaluation.task import EvaluationRequest
from vlalign.train.metrics import retrieval_metrics
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.query_biases import fit_biases
from vlalign.train.scoring.scorer import stage_scores
from vlalign.train.scoring.scores import QuerySimilarities, StageScores

ROW = {"R@1": 10.0, "R@5": 60.0, "R@10": 100.0, "R@50": 100.0, "median_rank": 4.0, "mean_rank": 4.9, "num_tied": 1234}
CHANCE = {"R@1": 10.0, "R@5": 50.0, "R@10": 100.0, "R@50": 100.0, "median_rank": 5.5, "mean_rank": 5.5}
METRICS = {"text_to_video": ROW | {"chance": CHANCE}, "video_to_text": ROW | {"R@1": 20.0, "chance": CHANCE}}
FIGURES = {
    "run": "taco",
    "trained_on": "howto100m",
    "dataset": "toy",
    "split": "test",
    "num_captions": 10,
    "num_captions_of_split": 1200,
    "num_clips": 10,
    "num_clips_of_split": 10,
    "metrics": METRICS,
    "stages": {"sentence": METRICS, "fusion": METRICS},
    "weights": {"sentence": 1.0, "fusion": 0.5},
    "rerank": 50,
    "normalization": {
        "name": "dsl",
        "temperature": 0.5,
        "error": {"text_to_video": 1.6368, "video_to_text": 0.0614},
        "notes": ["why"],
    },
    "ties": "average",
    "split_checksum": "df66af91314c2361",
}
PRINTED = """\
                         R@1         R@5        R@10        R@50     nDCG@10         mAP median rank   mean rank    tied
text to video           10.0        60.0       100.0       100.0           -           -         4.0         4.9   1,234
  chance                10.0        50.0       100.0       100.0           -           -         5.5         5.5
video to text           20.0        60.0       100.0       100.0           -           -         4.0         4.9   1,234
  chance                10.0        50.0       100.0       100.0           -           -         5.5         5.5
alone                    R@1         R@5        R@10        R@50     nDCG@10         mAP median rank   mean rank  weight
sentence                10.0        60.0       100.0       100.0           -           -         4.0         4.9       1
fusion of 50            10.0        60.0       100.0       100.0           -           -         4.0         4.9     0.5
normalised by dsl, transductive: CAMoE's dual softmax over all queries of the split
note: why
normalisation error at temperature 0.5: 1.6368 text to video, 0.0614 video to text
ties: average; checksum of the split's clips and captions: df66af91314c2361"""
TASK = TASKS["retrieval"]


def test_the_summary_has_both_tables_and_what_was_done_to_the_scores():
    assert TASK.heading(FIGURES) == "taco (trained on howto100m): 10 of 1,200 captions and 10 clips of toy, test"
    assert "\n".join(TASK.summary(FIGURES)) == PRINTED


def test_intervals_stand_below_their_metrics():
    intervals = {"R@1": [2.5, 17.25], "median_rank": [3.0, 5.0]}
    figures = FIGURES | {"intervals": {"text_to_video": intervals, "video_to_text": intervals}}
    lines = "\n".join(TASK.summary(figures)).splitlines()
    assert lines[2].split() == ["95", "%", "interval", "2.5-17.2", "-", "-", "-", "-", "-", "3.0-5.0", "-"]


def test_a_single_stage_gets_no_table_and_a_codebook_gets_a_line():
    figures = FIGURES | {"stages": {"pair": METRICS}, "codebook": {"live": 30, "size": 1024, "joint": 0.52}}
    printed = "\n".join(TASK.summary(figures))
    assert (
        "alone" not in printed and "codebook: 30 of 1,024 codewords in use, 52 % by both clips and captions" in printed
    )


def test_the_table_of_real_metrics_shows_chance_below_each_direction():
    lines = metrics_table(retrieval_metrics(np.eye(100))).splitlines()
    assert lines[1].split() == ["text", "to", "video", *["100.0"] * 6, "1.0", "1.0", "0"]
    assert lines[2].split() == ["chance", "1.0", "5.0", "10.0", "50.0", "4.5", "5.2", "50.5", "50.5"]


def test_a_stage_without_a_weight_is_shown_with_0():
    assert stages_table({"pooled": METRICS}, {}, None).splitlines()[1].split()[-1] == "0"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rerank": 0}, "^rerank 0: .*1"),
        ({"temperature": 0.0}, "^temperature 0.0: .*0"),
        ({"temperature": float("nan")}, "^temperature nan: .*0"),
        ({"ties": "best"}, "^ties best: .*average, "),
        ({"normalize": "all"}, "^normalize all: .*none, "),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings, message):
    with pytest.raises(SettingError, match=message):
        RetrievalSettings(**settings)


def request(weights: dict[str, float], **settings) -> EvaluationRequest[RetrievalSettings]:
    return EvaluationRequest("test", weights, RetrievalSettings(**{"temperature": 0.5, **settings}))


def stages(*names: str, queries: int | None = None) -> StageScores:
    rng = np.random.default_rng(0)
    similarities = None
    if queries is not None:
        known = rng.normal(size=(2, queries, 6)).astype(np.float32)
        similarities = QuerySimilarities(known[0], known[1])
    return StageScores({name: rng.normal(size=(6, 6)).astype(np.float32) for name in names}, None, similarities)


@pytest.mark.parametrize(
    ("weights", "queries", "name", "message"),
    [
        ({"pair": 1.0}, None, "ncl", "--normalized-loss"),
        ({"pair": 1.0}, 0, "qbnorm", "--normalized-loss"),
        ({"pair": 1.0, "token": 0.5}, 9, "qbnorm", r"\bpair\b.*\btoken\b.*0"),
        ({"pair": 0.0, "token": 0.5}, 9, "ncl", r"\bpair\b.*\btoken\b.*0"),
        ({"pair": 0.0}, 9, "ncl", r"\bpair\b.*\bpair\b"),
    ],
)
def test_normalisations_by_training_queries_say_what_they_need(weights, queries, name, message):
    scores = stages(*weights, queries=queries)
    with pytest.raises(SettingError, match=f"^normalize {name}: .*{message}"):
        normalized_scores(scores, np.arange(6), "pair", request(weights, normalize=name))


def test_biases_are_added_to_the_part_of_the_score_that_its_stage_has():
    weights, scores, clips = {"pair": 2.0, "token": 0.5}, stages("pair", "token", queries=400), np.arange(6)
    biases = normalized_scores(scores, clips, "pair", request(weights, normalize="ncl"))
    expected = 2 * (scores.stages["pair"] + fit_biases(scores.queries.texts, 0.5).bias_N) + 0.5 * scores.stages["token"]
    np.testing.assert_allclose(biases.rows(slice(None), scores.by_caption(weights)), expected, rtol=1e-5)
    alone = normalized_scores(scores, clips, "pair", request({"pair": 2.0}, normalize="ncl-tuned"))
    both = normalized_scores(scores, clips, "pair", request(weights, normalize="ncl-tuned"))
    # Alone, the stage's own scores are normalised without their weight: it changes no order.
    expected = 2 * alone.by_caption + 0.5 * scores.stages["token"]
    np.testing.assert_allclose(both.by_caption, expected, rtol=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"), num_videos=80)
    assert train_main([*at(toy), *CODEBOOK, "--run-name", "codes"]) == 0
    return toy.runs / "codes"


def test_draws_are_ranked_alone_and_averaged(run, capsys):
    where = ["--root", str(run.parents[2]), "--dataset", "toy", "codes"]
    assert evaluate_main([*where, "--draws", "3", "--draw-size", "12"]) == 0
    printed = capsys.readouterr().out
    metrics = read_json(run / "evaluations/draws=3-draw_size=12/metrics.json")
    loaded = open_run(run)
    pairs = read_pairs(loaded.dataset, loaded.features, Problems())["test"]
    scores = stage_scores(loaded.scorer, pairs.captions, pairs.clips).by_caption({"pair": 1.0})
    expected, members = [], []
    for number in (1, 2, 3):
        digests = {
            hashlib.sha256(f"{number}:{clip.video_id}".encode()).hexdigest(): i for i, clip in enumerate(pairs.clips)
        }
        drawn = sorted(index for _, index in sorted(digests.items())[:12])
        members.append(set(drawn))
        texts = [index for index in range(len(pairs.captions)) if pairs.clip_of_caption[index] in drawn]
        of_texts = [drawn.index(pairs.clip_of_caption[index]) for index in texts]
        expected.append(retrieval_metrics(scores[texts][:, drawn], of_texts))
    assert len(set.union(*members)) > 12, "draws differ"
    draws = metrics["draws"]
    assert (draws["number"], draws["size"], len(draws["each"])) == (3, 12, 3)
    for way in ("text_to_video", "video_to_text"):
        for name in ("R@1", "R@5", "mean_rank"):
            values = [each[way][name] for each in expected]
            assert [each[way][name] for each in draws["each"]] == pytest.approx(values)
            assert draws["metrics"][way][name] == pytest.approx(np.mean(values))
            assert draws["deviation"][way][name] == pytest.approx(np.std(values, ddof=1))
    table = TASK.table_metrics(metrics)
    assert table["R@1"] == draws["metrics"]["text_to_video"]["R@1"] != metrics["metrics"]["text_to_video"]["R@1"]
    assert metrics["metrics"]["text_to_video"]["num_queries"] == len(pairs.captions) == 20
    assert "mean of 3 random draws of 12 clips:" in printed and "over the draws" in printed
    assert 'id="draws"' in (run / "evaluations/draws=3-draw_size=12/report.html").read_text(encoding="utf-8")


def test_spoken_moments_is_drawn_from_by_default_and_a_small_split_is_not(run, monkeypatch, capsys):
    monkeypatch.setitem(USUAL_DRAWS, "toy", 5)
    small = evaluate(run, settings=EvaluationSettings(task_settings=RetrievalSettings(draw_size=20)))
    assert "draws" not in small.metrics, "20 clips are no more than a draw"
    usual = evaluate(run, settings=EvaluationSettings(task_settings=RetrievalSettings(draw_size=5)))
    assert usual.metrics["draws"]["number"] == 5
    assert "draws" not in evaluate(run, settings=EvaluationSettings(split="validation")).metrics
    whole = EvaluationSettings(task_settings=RetrievalSettings(draws=0))
    assert "draws" not in evaluate(run, settings=whole).metrics
    without = EvaluationSettings(task_settings=RetrievalSettings(draws=0, draw_size=5))
    with pytest.raises(SettingError, match=r"^draw_size 5: has no effect"):
        evaluate(run, settings=without)
    with pytest.raises(SettingError, match=r"^draws 2: .* 20 usable clips; pass a --draw-size below"):
        evaluate(run, settings=EvaluationSettings(task_settings=RetrievalSettings(draws=2)))
    assert USUAL_DRAWS["smit"] == 5
