"""Where scores do not fit into memory, and how long fusing all pairs takes."""

import re

import pytest
from helpers.training import TRAIN, at
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation import retrieval
from vlalign.train.metrics import TIES

WORDS = ["--recipe", "default", "--features", "s3d", "--batch-size", "6", "--num-steps", "4", "--validate-every", "2"]


@pytest.mark.parametrize(
    "ties",
    [
        ties if ties in ("average", "optimistic") else pytest.param(ties, marks=pytest.mark.slow)
        for ties in TIES
        if ties != "coot"
    ],
)
def test_scores_in_tiles_give_the_same_metrics_and_queries(toy, ties, monkeypatch):
    if not (toy.runs / "in-tiles").exists():
        assert train_main([*at(toy), *WORDS, "--run-name", "in-tiles"]) == 0
    name = "train" if ties == "average" else f"train-ties={ties}"
    folder = toy.runs / "in-tiles" / "evaluations" / name
    results = []
    for most_bytes in (retrieval.MAX_BYTES, 0):
        monkeypatch.setattr(retrieval, "MAX_BYTES", most_bytes)
        for made in folder.glob("metrics.json"):
            made.unlink()
        assert evaluate_main([*at(toy), "in-tiles", "--split", "train", "--ties", ties]) == 0
        results.append((read_json(folder / "metrics.json"), (folder / "queries.jsonl").read_text()))
    assert results[0] == results[1]


def test_what_needs_all_scores_at_once_is_refused_with_what_to_do(toy, whole, monkeypatch, capsys):
    monkeypatch.setattr(retrieval, "MAX_BYTES", 0)
    call = [*at(toy), whole.name, "--split", "train"]
    assert evaluate_main(call) == 2
    assert "--rerank is missing: " in (error := capsys.readouterr().err) and " 100" in error
    assert evaluate_main([*call, "--rerank", "2"]) == 0
    metrics = whole / "evaluations" / "train-rerank=2" / "metrics.json"
    tiled = read_json(metrics)
    assert evaluate_main([*call, "--rerank", "2", "--normalize", "dsl"]) == 2
    assert "--normalize dsl: " in capsys.readouterr().err
    monkeypatch.undo()
    metrics.unlink()
    assert evaluate_main([*call, "--rerank", "2"]) == 0
    assert read_json(metrics)["metrics"] == tiled["metrics"]


@pytest.mark.slow
def test_the_time_is_printed_if_fusing_all_pairs_takes_long(toy, monkeypatch, capsys):
    assert train_main([*at(toy), *TRAIN, "--run-name", "long"]) == 0
    call = [*at(toy), "long", "--split", "train"]
    assert evaluate_main(call) == 0
    assert not re.search(r"^note: .*\bmin\b", capsys.readouterr().err, re.MULTILINE)
    (toy.runs / "long" / "evaluations" / "train" / "metrics.json").unlink()
    monkeypatch.setattr(retrieval, "NUM_TIMED", 1)
    monkeypatch.setattr(retrieval, "LONG_SECONDS", 0)
    assert evaluate_main(call) == 0
    captured = capsys.readouterr()
    assert re.search(r"^note: .*\b1 min\b.*\b100\b.*\b1 min\b", captured.out + captured.err, re.MULTILINE)
