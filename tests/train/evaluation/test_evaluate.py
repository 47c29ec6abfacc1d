"""The Python call ``evaluate``: what it returns and refuses, and that it prints nothing."""

import json
import re

import numpy as np
import pytest
from helpers.fake_cuda import pretended
from helpers.toy import make_toy
from helpers.training import TWO_STEPS, at
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.train import evaluate
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison.run_metrics import parse_run_metrics
from vlalign.train.evaluation.evaluate import EvaluationSettings
from vlalign.train.evaluation.retrieval import RetrievalSettings
from vlalign.train.metrics import retrieval_metrics


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main([*at(toy), *TWO_STEPS, "--run-name", "r"]) == 0
    return toy


def test_a_second_evaluation_returns_the_same_result(toy, capsys):
    capsys.readouterr()
    heard = []
    first = evaluate("r", dataset=toy.path, on_progress=heard.append)
    assert capsys.readouterr().out == "" and {progress.what for progress in heard} == {"fusion"}
    assert first.metrics == read_json(first.metrics_file) and first.report_file.is_file() and first.is_complete
    assert first.folder == toy.runs / "r" and first.summary[0] == "r: 6 captions and 6 clips of toy, test"
    written = first.metrics_file.stat().st_mtime_ns
    again = evaluate(toy.runs / "r")
    assert (again.metrics, again.summary) == (first.metrics, first.summary)
    assert again.metrics_file.stat().st_mtime_ns == written


def test_saved_scores_give_the_metrics_again(toy):
    """With the lines of queries.jsonl, as a user would read them. An earlier evaluation without them is done again."""
    evaluate("r", dataset=toy.path)
    assert not (toy.runs / "r" / "scores.npz").exists()
    saved = evaluate("r", dataset=toy.path, settings=EvaluationSettings(save_scores=True))
    path = toy.runs / "r" / "scores.npz"
    assert saved.folder == toy.runs / "r" and "scores.npz" not in json.dumps(saved.metrics)
    with np.load(path) as arrays:
        similarity, right, video = (arrays[name] for name in ("similarity", "text_to_video", "video_of_clip"))
    assert retrieval_metrics(similarity, right) == saved.metrics["metrics"]
    rows = read_jsonl(toy.runs / "r" / "queries.jsonl")
    captions, clips = rows[: len(similarity)], rows[len(similarity) :]
    assert len(clips) == similarity.shape[1] == len(set(video))
    for caption, scores, clip in zip(captions, similarity, right, strict=True):
        assert caption["clip"] == clips[clip]["clip"] and caption["score"] == scores[clip]
        assert [found["score"] for found in caption["found"]] == sorted(scores.tolist(), reverse=True)[:10]
    written = path.stat().st_mtime_ns
    evaluate("r", dataset=toy.path, settings=EvaluationSettings(save_scores=True))
    assert path.stat().st_mtime_ns == written, "nothing to do"


def test_scores_of_a_task_without_any_are_not_saved(toy):
    with pytest.raises(SettingError, match=r"^save_scores True: .*\bretrieval\b.*\bsteps\b"):
        evaluate("r", dataset=toy.path, settings=EvaluationSettings(task="steps", save_scores=True))


def test_another_device_is_evaluated_again(toy):
    on_cpu = evaluate("r", dataset=toy.path, settings=EvaluationSettings(device="cpu"))
    written = on_cpu.metrics_file.stat().st_mtime_ns
    with pretended():
        on_gpu = evaluate("r", dataset=toy.path, settings=EvaluationSettings(device="cuda"))
    assert on_gpu.folder == on_cpu.folder and on_gpu.metrics_file.stat().st_mtime_ns > written
    devices = [of.metrics["fingerprint"].pop("device") for of in (on_cpu, on_gpu)]
    assert devices == ["cpu", "pretended GPU"]
    assert on_gpu.metrics["fingerprint"] == on_cpu.metrics["fingerprint"]
    assert (
        parse_run_metrics(on_gpu.metrics | {"fingerprint": {"device": "a"}}).request
        == parse_run_metrics(on_cpu.metrics | {"fingerprint": {"device": "b"}}).request
    ), "runs on two devices can be compared"


def test_settings_reach_the_metrics(toy):
    settings = EvaluationSettings(
        split="validation", score_weights={"token": 2.0}, task_settings=RetrievalSettings(ties="ce", rerank=2)
    )
    metrics = evaluate("r", dataset=toy.path, settings=settings).metrics
    assert (metrics["split"], metrics["ties"], metrics["rerank"]) == ("validation", "ce", 2)
    assert metrics["weights"] == {"sentence": 1.0, "token": 2.0, "fusion": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "guess"}, "^task guess: .*retrieval, steps, vqa, segmentation"),
        ({"split": "all"}, "^split all: .*train, validation, test"),
        ({"score_weights": {"pooled": 1.0}}, "^score_weights pooled: .*sentence, token, fusion"),
        ({"score_weights": {"token": float("nan")}}, "^token_weight nan: expected a finite number, 0 or more"),
        ({"score_weights": {"token": float("inf")}}, "^token_weight inf: "),
        ({"score_weights": {"token": -1.0}}, "^token_weight -1.0: "),
    ],
)
def test_unknown_values_are_refused_where_the_settings_are_made(settings, message):
    with pytest.raises(SettingError, match=message):
        EvaluationSettings(**settings)


def test_a_score_without_any_weight_is_refused(toy):
    weights = {"sentence": 0.0, "token": 0.0, "fusion": 0.0}
    with pytest.raises(SettingError, match=r"^sentence_weight 0\.0: leaves no stage with a weight"):
        evaluate("r", dataset=toy.path, settings=EvaluationSettings(score_weights=weights))


def test_unsuitable_settings_are_refused_with_python_names(toy):
    with pytest.raises(SettingError, match=r"^task vqa: .*\btaco\b"):
        evaluate("r", dataset=toy.path, settings=EvaluationSettings(task="vqa"))
    steps = EvaluationSettings(task="steps", task_settings=RetrievalSettings(normalize="dsl"))
    with pytest.raises(SettingError, match=r"^normalize dsl: .*\bretrieval\b.*\bsteps\b"):
        evaluate("r", dataset=toy.path, settings=steps)
    with pytest.raises(SettingError, match=r"^task_settings 3: .*\bRetrievalSettings\b"):
        evaluate("r", dataset=toy.path, settings=EvaluationSettings(task_settings=3))
    with pytest.raises(SettingError, match=r"^protocol x: "):
        evaluate("r", dataset=toy.path, protocol="x")
    with pytest.raises(UserError, match=re.escape(str(toy.root))):
        evaluate("nothing", dataset=toy.path)
