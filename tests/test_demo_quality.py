"""What the demo shows is true: its queries have a right answer, and (slow) its model has learned something."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.demo_query import demo_query, scenes_for
from helpers.runs import newest_figures
from vlalign.extract.cli.extract import main as extract_main
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.preprocess.datasets.demo import COLOURS, SHAPES, VERBS
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main

SEEDS = (0, 1, 2)
TOP = Path(__file__).resolve().parents[1]
ASKED = [
    *(TOP / "docs").rglob("*.md"),
    *(TOP / name for name in ("README.md", "Makefile", "docs/take_pictures.py", "train/cli/search.py")),
    TOP / "train" / "search" / "query_checks.py",
]
"""What shows queries for the demo."""
QUERY = re.compile(
    rf"\ba (?:{'|'.join(COLOURS)}) (?:{'|'.join(SHAPES)}) (?:{'|'.join(v for v, _ in VERBS.values())})\b"
)


def test_the_query_of_the_demo_is_about_scenes_that_the_model_has_not_seen():
    assert {split for split, _ in scenes_for(demo_query())} == {"test"}


def test_every_query_that_is_shown_has_a_right_answer():
    text = {path: path.read_text(encoding="utf-8").replace("+", " ") for path in ASKED}
    asked = {
        (query, path.relative_to(TOP))
        for path in ASKED
        for query in re.findall(rf"[\"'=]({QUERY.pattern})[\"'&]", text[path])
    }
    assert {path.name for _, path in asked} >= {"Makefile", "demo.md", "search.md", "train.md", "take_pictures.py"}
    assert [(query, str(path)) for query, path in asked if not scenes_for(query)] == []


@pytest.mark.slow
def test_unseen_scenes_are_retrieved_thirty_times_as_often_as_by_chance(tmp_path):
    call = ["--root", str(tmp_path), "--dataset", "demo"]
    assert preprocess_main(call) == 0
    assert extract_main([*call, "--features", "s3d", "--weights", "random"]) == 0
    recalls = []
    for seed in SEEDS:
        assert train_main([*call, "--features", "s3d", "--seed", str(seed)]) == 0
        assert evaluate_main([*call, f"words-s3d-seed{seed}"]) == 0
        result = read_json(tmp_path / "demo" / "runs" / f"words-s3d-seed{seed}" / "metrics.json")
        assert result["num_clips"] >= 100
        recalls.append(result["metrics"]["text_to_video"]["R@1"])
    chance = result["metrics"]["text_to_video"]["chance"]["R@1"]
    print(f"text-to-video R@1 of seeds {SEEDS}: {recalls}, chance {chance:.2f}")
    assert np.mean(recalls) >= 30 * chance, recalls

    assert train_main([*call, "--features", "s3d", "--recipe", "ncl-small"]) == 0
    errors = {}
    for name in ("none", "ncl", "ncl-oracle"):
        assert evaluate_main([*call, "ncl-s3d-seed0", "--normalize", name]) == 0
        errors[name] = newest_figures(tmp_path / "demo" / "runs" / "ncl-s3d-seed0")["normalization"]["error"]
    print(f"normalisation errors (NCL, Eq. 5): {errors}")
    for way in ("text_to_video", "video_to_text"):
        assert errors["none"][way] > errors["ncl"][way] >= errors["ncl-oracle"][way], way
