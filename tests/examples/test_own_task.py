"""The example of a task and a metric of one's own, on a run, as a user runs it; and what they may not do."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.toy import make_toy
from vlalign.storage.captions.files import write_captions_about
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
MULTIPLE_CHOICE, MRR = "own_task:MultipleChoice", "own_task:mean_reciprocal_rank"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of a small data set, in the current folder, which has the example."""
    toy = make_toy(tmp_path)
    few = ["--num-steps", "2", "--batch-size", "4", "--run-name", "r"]
    assert train_main(["--root", str(tmp_path), "--dataset", "toy", "--features", "s3d", *few]) == 0
    shutil.copy(EXAMPLES / "own_task.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    return toy.runs / "r"


def evaluate(run, *more):
    return evaluate_main(["--root", str(run.parents[2]), "--dataset", "toy", "r", *more])


def test_a_task_and_a_metric_of_ones_own(run, capsys):
    assert evaluate(run, "--task", MULTIPLE_CHOICE, "--num-choices", "3") == 0
    folder = run / "evaluations" / "own_task.MultipleChoice-num_choices=3"
    metrics = read_json(folder / "metrics.json")
    right = [row["right"] for row in read_jsonl(folder / "queries.jsonl")]
    assert metrics["accuracy"] == pytest.approx(100 * np.mean(right)) and len(right) == 6
    assert metrics["plugins"]["task"].keys() == {"name", "module", "sha256"}
    assert "accuracy" in capsys.readouterr().out and "accuracy" in (folder / "report.html").read_text("utf-8")

    assert evaluate(run, "--metric", MRR) == 0
    folder = run / "evaluations" / "metric=own_task.mean_reciprocal_rank"
    metrics = read_json(folder / "metrics.json")
    ranks = np.array([row["rank"] for row in read_jsonl(folder / "queries.jsonl") if "caption" in row])
    assert metrics["own_metrics"] == {MRR: {"MRR": pytest.approx(np.mean(1 / ranks))}}
    assert [part["name"] for part in metrics["plugins"]["metrics"]] == [MRR]
    assert "MRR" in (folder / "report.html").read_text("utf-8")

    (run.parents[2] / "own_task.py").unlink()  # the table needs no module
    assert runs_main(["--root", str(run.parents[2]), "--dataset", "toy"]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown
    assert f"MRR {metrics['own_metrics'][MRR]['MRR']:.1f}" in shown


def test_a_file_that_names_a_module_does_not_import_it(run, tmp_path, capsys):
    (tmp_path / "marked.py").write_text("from pathlib import Path\nPath('imported').touch()\n")
    write_captions_about(tmp_path / "toy" / "captions", {"task": "marked:Task"})
    options = tmp_path / "options.yaml"
    for text in ("task: marked:Task", "task: [marked:Task]", "metric: marked:metric", "metric: [marked:metric]"):
        options.write_text(text)
        with pytest.raises(SystemExit) as stopped:
            evaluate(run, "--config", str(options))
        assert stopped.value.code == 2
        assert "--trust" in capsys.readouterr().err
    options.unlink()
    assert evaluate(run) == 2
    assert "--trust" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()


def test_a_metric_must_return_numbers_and_cannot_change_the_scores(run, tmp_path, capsys):
    (tmp_path / "bad.py").write_text(
        "def text(similarity, right): return 'high'\n"
        "def nan(similarity, right): return {'a': float('nan')}\n"
        "def write(similarity, right): similarity[:] = 0\n"
        "def fail(similarity, right): return right[99]\n"
        "def same(similarity, right): return {'R@1': 12.5}\n"
    )
    for name in ("text", "nan", "write", "fail"):
        assert evaluate(run, "--metric", f"bad:{name}") == 2
        error = capsys.readouterr().err
        assert f"bad:{name}" in error and "Traceback" not in error
    assert evaluate(run, "--metric", "bad:same") == 0
    assert "own R@1" in capsys.readouterr().out
