"""CMCM: starting from its baseline, a collapsing codebook, and spoken captions from the stores to the report."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.spoken import make_spoken
from helpers.training import (
    CODEBOOK,
    SPOKEN,
    at,
    check_processes,
    check_stopped_run,
    gradient,
    losses_of,
    options,
    trainer,
)
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.models.codebook import SharedCodebook
from vlalign.train.runs.load import open_run


def test_cmcm_starts_from_the_weights_of_its_baseline(toy, capsys):
    call = [*at(toy), *CODEBOOK, "--run-name"]
    assert train_main([*call, "baseline", "--codebook-size", "0"]) == 0
    nearly_unchanged = ["--codebook-size", "8", "--init", "baseline", "--learning-rate", "1e-12"]
    assert train_main([*call, "warm", *nearly_unchanged]) == 0
    baseline, warm = (open_run(toy.runs / name).scorer.model for name in ("baseline", "warm"))
    torch.testing.assert_close(warm.codebook.high["text"].weight, baseline.codebook.high["text"].weight)
    torch.testing.assert_close(warm.project.weight, baseline.project.weight)


@pytest.mark.parametrize(
    "settings",
    [
        {"code_layers": "conv-lstm", "summary_layer": "none"},
        {"code_vector": "codes"},
        {"code_vector": "unquantized"},
        pytest.param({"encoder": "spoken", "glu_size": 20, "summary_layer": "none"}, marks=pytest.mark.slow),
    ],
)
def test_the_parts_of_tables_3_and_4_train_and_are_evaluated(tmp_path, settings):
    dataset = make_spoken(tmp_path, num_clips=16, features="clip_vit_b32_map")
    baseline = {"objective": "cmcm", "video_grid": "2x2x2", "batch_size": 4, "num_steps": 2, "codebook_size": 0}
    shared = {name: value for name, value in settings.items() if not name.startswith("code_")}
    call = [*at(dataset), "--features", "clip_vit_b32_map"]
    assert train_main([*call, *options(baseline | shared), "--run-name", "baseline"]) == 0
    given = baseline | settings | {"codebook_size": 8}
    warm = given | {"init": dataset.runs / "baseline"}
    assert train_main([*call, *options(warm), "--run-name", "made"]) == 0
    assert evaluate_main([*at(dataset), "made"]) == 0
    metrics, losses = read_json(dataset.runs / "made" / "metrics.json"), dict(losses_of(dataset.runs / "made")[0])
    is_free = settings.get("code_vector") == "unquantized"
    assert ("codebook" in metrics) == (not is_free) and ("codes" in losses) == (not is_free)
    check_gradients(dataset, tmp_path / "again", given)


def check_gradients(dataset: DatasetFolder, folder: Path, settings: dict[str, Any]) -> None:
    """Check that every parameter that is trained has a gradient."""
    made = trainer(dataset, folder, dataset=dataset.name, features="clip_vit_b32_map", **settings)
    gradient(made)
    assert [name for name, of in made.model.named_parameters() if of.grad is None] == []


def test_convolutions_need_a_grid(toy, capsys):
    assert train_main([*at(toy), *CODEBOOK, "--code-layers", "conv-lstm"]) == 2
    assert re.search(r"--code-layers conv-lstm: .*video_grid", capsys.readouterr().err)


def test_a_collapsed_codebook_is_reported_with_the_number_of_codewords_in_use(toy, capsys, monkeypatch):
    monkeypatch.setattr(
        SharedCodebook, "nearest", lambda self, tokens: torch.zeros(tokens.shape[:-1], dtype=torch.int64)
    )
    assert train_main([*at(toy), *CODEBOOK, "--run-name", "collapsed"]) == 0
    assert re.search(r"note: \w+ 3: .*\b1 of 128 codewords\b", capsys.readouterr().err)
    assert [dict(event)["codewords_in_use"] for event in losses_of(toy.runs / "collapsed")] == [1, 1, 1]


@pytest.mark.slow
def test_a_run_with_spoken_captions_resumes_and_is_evaluated(spoken, capsys):
    call = [
        *at(spoken),
        "--features",
        "resnet152",
        *options(SPOKEN),
        "--batch-size",
        "6",
        "--validate-every",
        "3",
        "--num-steps",
        "6",
    ]
    check_stopped_run(spoken, call, "spoken", stop_at=4)

    assert evaluate_main([*at(spoken), "spoken-whole"]) == 0
    run = spoken.runs / "spoken-whole"
    result, about = read_json(run / "metrics.json"), read_json(run / "run.json")
    assert result["metrics"]["text_to_video"]["num_queries"] == 9 and result["codebook"]["live"] >= 1
    assert about["inputs"]["recordings"]["features"] == "logmel"
    report = (run / "report.html").read_text(encoding="utf-8")
    assert 'viewBox="0 0 230.4 93.6"' in report  # a spectrogram
    capsys.readouterr()
    assert search_main([*at(spoken), "spoken-whole", "thing1"]) == 2
    assert re.search(r"error: run spoken-whole: .*\bspoken\b", capsys.readouterr().err)


@pytest.mark.slow
def test_spoken_captions_retrieve_their_clips(tmp_path):
    spoken = make_spoken(tmp_path, num_clips=160)
    call = [
        *at(spoken),
        "--features",
        "resnet152",
        "--objective",
        "ncl",
        "--encoder",
        "spoken",
        "--temperature",
        "0.1",
        "--run-name",
        "ncl",
    ]
    assert (
        train_main(
            [*call, "--batch-size", "20", "--num-steps", "60", "--learning-rate", "1e-3", "--validate-every", "60"]
        )
        == 0
    )
    assert evaluate_main([*at(spoken), "ncl"]) == 0
    found = read_json(spoken.runs / "ncl" / "metrics.json")["metrics"]
    mean_rank = np.mean([found[way]["mean_rank"] for way in ("text_to_video", "video_to_text")])
    assert mean_rank < 0.6 * found["text_to_video"]["chance"]["mean_rank"]


def is_steady(dataset: DatasetFolder, folder: Path, settings: dict[str, Any]) -> bool:
    """Return whether weights that differ by a millionth have the same gradient.

    A gate of ReLU that is within rounding of 0 is open in one order of adding, and closed in another.
    """
    gradients = []
    for change in (0.0, 1e-6):
        made = trainer(dataset, folder / str(change), dataset=dataset.name, **settings)
        torch.manual_seed(0)
        for parameter in made.model.parameters():
            parameter.data.mul_(1 + change * torch.randn_like(parameter))
        gradients.append(gradient(made)[1])
    return torch.allclose(*gradients, atol=1e-3, rtol=1e-2)


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradient_of_one(spoken, tmp_path):
    """However long the recordings are that each has, and so its padding."""
    every = [SPOKEN | {"features": "resnet152", "batch_size": 6, "seed": seed} for seed in range(6)]
    settings = next(of for of in every if is_steady(spoken, tmp_path / str(of["seed"]), of))
    check_processes({"spoken": (spoken, settings)}, tmp_path, 2, atol=1e-4)  # sums of twenty layers, in another order


@pytest.mark.slow
def test_the_report_of_images_shows_where_codewords_are(tmp_path):
    dataset = make_spoken(tmp_path, num_clips=16, features="clip_vit_b32_map")
    call = [
        *at(dataset),
        "--features",
        "clip_vit_b32_map",
        "--video-grid",
        "1x7x7",
        *options(SPOKEN),
        "--batch-size",
        "4",
        "--num-steps",
        "2",
    ]
    assert train_main([*call, "--run-name", "pictures"]) == 0
    assert evaluate_main([*at(dataset), "pictures"]) == 0
    report = (dataset.runs / "pictures" / "report.html").read_text(encoding="utf-8")
    grids = re.findall(r'<svg viewBox="0 0 7 7" preserveAspectRatio="none">(.*?)</svg>', report)
    assert grids and all(1 <= grid.count("<rect") <= 49 for grid in grids)
