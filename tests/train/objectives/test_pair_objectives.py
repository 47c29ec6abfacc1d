"""Training with SSML, MIL-NCE, NCL and CMCM: resumed, by two processes, evaluated and searched, as with TACo."""

import re
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
        pytest.param(case, marks=pytest.mark.slow if case.endswith("-both") or case in ("ncl", "hard-triplet") else ())
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
    shown = capsys.readouterr().out
    result = read_json(toy.runs / f"{case}-whole" / "metrics.json")
    about = result["normalization"]
    errors = r"\b.*".join(f"{about['error'][way]:.4f}" for way in ("text_to_video", "video_to_text"))
    assert re.search(rf"\b{about['temperature']:g}: {errors}\b", shown)
    assert result["metrics"]["text_to_video"]["num_queries"] == 6
    assert search_main([*at(toy), f"{case}-whole", "cut the onion", "--num-results", "3"]) == 0
    assert re.search(r"^'cut the onion' .*\b24\b.*\btoy$", capsys.readouterr().out, re.MULTILINE)


def test_impossible_combinations_of_settings_are_one_line(toy, capsys, tmp_path):
    def error_of(*call: str, root: Path = toy.root) -> str:
        assert (
            train_main(["--root", str(root), "--dataset", "toy", "--features", "s3d", "--run-name", "wrong", *call])
            == 2
        )
        return capsys.readouterr().err.splitlines()[-1]

    refused = {
        r"--density-neighbors 12: .*\b12\b": ["--pair-weights", "density", "--density-neighbors", "12"],
        r"--encoder gated: .*\bwords: .*\btokens; .*\bmil-nce\b": ["--encoder", "gated"],
        r"--batch-size 10: .*\bclips_per_video 4\b": [
            *["--objective", "ssml", "--batch-size", "10", "--clips-per-video", "4"]
        ],
        r"--normalized-loss True: .*\bssml\b": ["--objective", "ssml", "--normalized-loss"],
        r"--losses codes: .*\bcontrast\b": ["--objective", "cmcm", "--losses", "codes"],
    }
    for place, call in refused.items():
        assert re.match(f"vlalign-train: error: {place}", line := error_of(*call)), line
    shutil.copytree(toy.path, tmp_path / "toy")
    (tmp_path / "toy" / "word_vectors.npz").unlink()
    line = error_of("--recipe", "ssml-small", root=tmp_path)
    assert str(tmp_path / "toy" / "word_vectors.npz") in line and "vlalign-preprocess" in line
    assert "--word-vectors" in line


def test_normalising_needs_kept_queries_and_names_the_stage(toy, capsys):
    call = [*at(toy), "--features", "s3d", "--num-steps", "2", "--batch-size", "6", "--validate-every", "2"]
    assert train_main([*call, "--run-name", "plain", "--objective", "ncl", "--no-normalized-loss"]) == 0
    assert evaluate_main([*at(toy), "plain", "--normalize", "ncl"]) == 2
    assert re.search(r"--normalize ncl: .*--normalized-loss\b", capsys.readouterr().err)
    taco = [*options(PAIR_CASES["taco-both"]), "--num-negatives", "2", "--stage-weights", "set"]
    assert train_main([*call, "--run-name", "taco-ncl", *taco]) == 0
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "qbnorm"]) == 2
    assert re.search(r"--normalize qbnorm: .*\btoken, fusion\b.*\b0$", capsys.readouterr().err.strip())
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl"]) == 0
    assert re.search(r"^.*\bncl, inductive\b", capsys.readouterr().out, re.MULTILINE)  # its name, and its kind
    for way in ("ncl-oracle", "dsl"):
        assert evaluate_main([*at(toy), "taco-ncl", "--normalize", way]) == 0
        assert re.search(rf"^.*\b{way}, transductive\b", capsys.readouterr().out, re.MULTILINE)
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl", "--temperature", "0"]) == 2
