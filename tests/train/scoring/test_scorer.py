"""The stages of a score: each alone, all together, and reranking a shortlist."""

import pytest
from helpers.runs import newest_figures
from helpers.training import TRAIN, at
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main


@pytest.mark.parametrize("objective", ["taco", pytest.param("toco", marks=pytest.mark.slow)])
def test_every_stage_is_reported_alone_and_fused(toy, objective, capsys):
    name = f"stages-{objective}"
    settings = ["--objective", objective, "--stage-weights", "set"]
    assert train_main([*at(toy), *TRAIN, *settings, "--run-name", name]) == 0
    assert evaluate_main([*at(toy), name]) == 0
    result = read_json(toy.runs / name / "metrics.json")
    stages = {"taco": ["sentence", "token", "fusion"], "toco": ["pooled", "fusion", "fusion_token"]}[objective]
    assert list(result["stages"]) == stages
    shown = capsys.readouterr().out
    assert all(f"\n{stage.replace('_', ' ')} " in shown for stage in stages)
    assert '<table id="stages">' in (toy.runs / name / "report.html").read_text()
    for number, stage in enumerate(stages):  # a stage that alone has weight gives its own metrics
        weights = {"sentence": 0, "token": 0, "fusion": 0} if objective == "taco" else {"token": 0, "fusion": 0}
        option = {"fusion_token": "token"}.get(stage, stage)
        if stage == "pooled":
            continue
        call = [arg for key, weight in (weights | {option: 1}).items() for arg in (f"--{key}-weight", str(weight))]
        assert evaluate_main([*at(toy), name, *call]) == 0
        assert newest_figures(toy.runs / name)["metrics"] == result["stages"][stage], number


def test_reranking_looks_at_few_pairs_and_all_of_them_where_k_is_large(toy, whole, capsys):
    call = [*at(toy), "whole", "--split", "train", "--sentence-weight", "1", "--token-weight", "0.5"]
    assert evaluate_main([*call, "--fusion-weight", "1"]) == 0
    everything = newest_figures(whole)
    assert evaluate_main([*call, "--fusion-weight", "1", "--rerank", "99"]) == 0
    assert newest_figures(whole)["metrics"] == everything["metrics"]
    assert evaluate_main([*call, "--fusion-weight", "1", "--rerank", "1"]) == 0
    one = newest_figures(whole)
    early = one["stages"]
    assert one["rerank"] == 1 and "fusion of 1" in capsys.readouterr().out
    # Of one candidate each, the fusion layers can change no order: it is that of the early stages.
    assert evaluate_main([*call, "--fusion-weight", "0"]) == 0
    assert newest_figures(whole)["metrics"] == one["metrics"]
    assert early["sentence"] == everything["stages"]["sentence"]
    assert evaluate_main([*call, "--rerank", "0"]) == 2


@pytest.mark.slow
def test_only_the_fusion_layers_are_trained_without_a_shortlist(toy, capsys):
    assert train_main([*at(toy), *TRAIN, "--losses", "fusion", "--negatives", "random", "--run-name", "late"]) == 0
    assert evaluate_main([*at(toy), "late"]) == 0
    assert list(read_json(toy.runs / "late" / "metrics.json")["stages"]) == ["fusion"]
    assert evaluate_main([*at(toy), "late", "--rerank", "5"]) == 2
    assert "--rerank 5: run late " in capsys.readouterr().err
