"""The examples in CONTRIBUTING.md work: an extractor, a data set, an objective and a task, each a file and a row."""

import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from helpers.toy import make_toy
from helpers.videos import scene
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.storage import FeatureStore, read_captions
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = {
    path: text for text, path in re.findall(r"```\w+\n((?:# |<!-- )(\S+/\S+)(?: -->)?\n.*?)```", PAGE, flags=re.DOTALL)
}
"""{path in the repository: text of the file} of the examples."""
ROWS = {
    path: "\n".join(re.findall(r"^\+(.*)$", diff, flags=re.MULTILINE))
    for path, diff in re.findall(r"```diff\n\+\+\+ (\S+)\n(.*?)```", PAGE, flags=re.DOTALL)
}
"""{path in the repository: lines that an example adds to a table} of the examples."""


@pytest.fixture
def add(monkeypatch, tmp_path):
    """Return a function that adds a file of the examples to the package, and one that adds a row to a table."""

    def add_file(path: str):
        name = "vlalign." + path.removesuffix(".py").replace("/", ".")
        copy = tmp_path / "added" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(FILES[path], encoding="utf-8")
        if copy.suffix != ".py":
            return None
        spec = importlib.util.spec_from_file_location(name, copy)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    def add_row(path: str, table: str, **names: object):
        module = importlib.import_module(
            "vlalign." + path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
        )
        for name, value in eval("{" + ROWS[path] + "}", {**vars(module), **names}).items():
            monkeypatch.setitem(getattr(module, table), name, value)

    return add_file, add_row


def test_all_examples_are_tested():
    assert set(FILES) == {
        "extract/models/mean_color.py",
        "preprocess/datasets/kitchens.py",
        "train/objectives/triplet.py",
        "train/evaluation/counting.py",
        "train/evaluation/counting.html.jinja",
    }
    assert set(ROWS) == {
        "extract/models/__init__.py",
        "storage/profiles.py",
        "preprocess/datasets/__init__.py",
        "train/objectives/__init__.py",
        "train/evaluation/__init__.py",
    }


def test_the_extractor(add, tmp_path):
    add_file, add_row = add
    network = add_file("extract/models/mean_color.py")
    add_row("extract/models/__init__.py", "MODELS", MeanColor=network.MeanColor)
    add_row("storage/profiles.py", "PROFILES")
    (tmp_path / "videos").mkdir()
    render_video(scene(), tmp_path / "videos" / "clip.mp4")
    call = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    assert extract_main([*call, "--features", "mean_color", "--weights", "random"]) == 0
    store = FeatureStore(DatasetFolder(tmp_path, "mine").features("mean_color"))
    assert store.get("clip").features.shape[1] == 4
    assert store.profile.model == "mean colour"


def test_the_data_set(add, tmp_path, capsys):
    add_file, add_row = add
    add_row("preprocess/datasets/__init__.py", "DATASETS", kitchens=add_file("preprocess/datasets/kitchens.py"))
    dataset = DatasetFolder(tmp_path, "kitchens")
    (dataset.path / "annotations").mkdir(parents=True)
    lines = ["v1|train|someone cuts an onion", "v2|test|the fish is fried", "v3|test|"]
    (dataset.path / "annotations" / "kitchens.txt").write_text("\n".join(lines), encoding="utf-8")
    assert preprocess_main(["--root", str(tmp_path), "--dataset", "kitchens", "--workers", "1"]) == 1
    assert "kitchens.txt, line 3:" in capsys.readouterr().err
    assert [(c.video_id, c.split, c.caption) for c in read_captions(dataset.captions)] == [
        ("v1", "train", "someone cuts an onion"),
        ("v2", "test", "the fish is fried"),
    ]


def train(root: Path, *options: str) -> int:
    call = ["--root", str(root), "--dataset", "toy", "--features", "s3d", "--run-name", "r"]
    return train_main([*call, "--num-steps", "4", "--batch-size", "4", *options])


def test_the_objective(add, tmp_path):
    add_file, add_row = add
    toy = make_toy(tmp_path)
    add_row("train/objectives/__init__.py", "OBJECTIVES", Triplet=add_file("train/objectives/triplet.py").Triplet)
    assert train(tmp_path, "--objective", "triplet", "--distance", "0.3") == 0
    about = read_json(toy.runs / "r" / "run.json")
    assert about["config"]["objective"] == "triplet" and about["config"]["distance"] == 0.3
    steps = [event for event in read_jsonl(toy.runs / "r" / "events.jsonl") if "triplet" in json.dumps(event)]
    assert len(steps) == 4
    assert evaluate_main(["--root", str(tmp_path), "--dataset", "toy", "r"]) == 0


def test_the_task(add, tmp_path, capsys):
    add_file, add_row = add
    toy = make_toy(tmp_path)
    add_file("train/evaluation/counting.html.jinja")
    add_row("train/evaluation/__init__.py", "TASKS", Counting=add_file("train/evaluation/counting.py").Counting)
    assert train(tmp_path) == 0
    assert evaluate_main(["--root", str(tmp_path), "--dataset", "toy", "r", "--task", "counting"]) == 0
    folder = toy.runs / "r" / "evaluations" / "counting"
    figures = read_json(folder / "metrics.json")
    expected = sum("a" in c.caption.split() for c in read_captions(toy.captions) if c.split == "test")
    assert figures["num_with_a"] == expected
    assert f"captions with the word a: {expected}" in capsys.readouterr().out
    assert f"{expected} captions have the word a." in (folder / "report.html").read_text(encoding="utf-8")
