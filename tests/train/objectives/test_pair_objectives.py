"""Training with SSML, MIL-NCE, NCL and CMCM: resumed, by two processes, evaluated and searched, as with TACo."""

import shutil
from pathlib import Path

import pytest
from helpers.training import EIGHT_STEPS, PAIR_CASES, at, check_processes, check_stopped_run, options
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main


@pytest.mark.slow
def test_two_processes_have_the_loss_the_gradient_and_the_codebook_of_one(toy, tmp_path):
    check_processes({case: (toy, settings) for case, settings in PAIR_CASES.items()}, tmp_path, 2)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow if case.endswith("-both") or case == "ncl" else ())
        for case in PAIR_CASES
    ],
)
def test_a_stopped_run_goes_on_is_evaluated_and_searched(toy, case, capsys):
    call = [
        *at(toy),
        "--features",
        "s3d",
        *EIGHT_STEPS,
        *options(PAIR_CASES[case]),
    ]
    call += ["--num-negatives", "2"] if case == "taco-both" else []
    check_stopped_run(toy, call, case)

    capsys.readouterr()
    assert evaluate_main([*at(toy), f"{case}-whole"]) == 0
    assert "normalisation error at temperature" in capsys.readouterr().out
    result = read_json(toy.runs / f"{case}-whole" / "metrics.json")
    assert result["metrics"]["text_to_video"]["num_queries"] == 6
    assert search_main([*at(toy), f"{case}-whole", "cut the onion", "--num-results", "3"]) == 0
    assert "among 24 videos" in capsys.readouterr().out


def test_impossible_combinations_of_settings_are_one_line(toy, capsys, tmp_path):
    def error_of(*call: str, root: Path = toy.root) -> str:
        assert (
            train_main(["--root", str(root), "--dataset", "toy", "--features", "s3d", "--run-name", "wrong", *call])
            == 2
        )
        return capsys.readouterr().err.splitlines()[-1]

    assert "there are 12 training pairs" in error_of("--pair-weights", "density", "--density-neighbors", "12")
    assert "needs tokens" in error_of("--encoder", "gated")
    assert "whole groups of clips" in error_of("--objective", "ssml", "--batch-size", "10", "--clips-per-video", "4")
    assert "has no retrieval probabilities" in error_of("--objective", "ssml", "--normalized-loss")
    assert "contrast among them" in error_of("--objective", "cmcm", "--losses", "codes")
    shutil.copytree(toy.path, tmp_path / "toy")
    (tmp_path / "toy" / "word_vectors.npz").unlink()
    assert "run vlalign-preprocess with --word-vectors" in error_of("--recipe", "ssml-small", root=tmp_path)


def test_normalising_needs_kept_queries_and_names_the_stage(toy, capsys):
    call = [*at(toy), "--features", "s3d", "--num-steps", "2", "--batch-size", "6", "--validate-every", "2"]
    assert train_main([*call, "--run-name", "plain", "--objective", "ncl", "--no-normalized-loss"]) == 0
    assert evaluate_main([*at(toy), "plain", "--normalize", "ncl"]) == 2
    assert "kept no training queries" in capsys.readouterr().err
    assert train_main([*call, "--run-name", "taco-ncl", *options(PAIR_CASES["taco-both"]), "--num-negatives", "2"]) == 0
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "qbnorm"]) == 2
    assert "set the weight of token, fusion to 0" in capsys.readouterr().err
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl"]) == 0
    assert "normalised by ncl, inductive" in capsys.readouterr().out
    for way in ("ncl-oracle", "dsl"):
        assert evaluate_main([*at(toy), "taco-ncl", "--normalize", way]) == 0
        assert f"normalised by {way}, transductive" in capsys.readouterr().out
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl", "--temperature", "0"]) == 2
