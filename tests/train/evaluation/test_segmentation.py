"""The task segmentation: metrics against plain loops, and what it prints."""

import numpy as np
import pytest
from helpers.labelled import make_segments
from helpers.training import at
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation import TASKS

ROW = {"accuracy": 98.765, "steps_accuracy": 90.0, "macro_accuracy": 50.5, "edit": 100.0}
ROW |= {"F1@10": 80.0, "F1@25": 70.0, "F1@50": 60.0}
FIGURES = {
    "run": "seg",
    "trained_on": "segmented",
    "dataset": "segmented",
    "split": "test",
    "num_videos": 4,
    "num_videos_of_split": 5,
    "num_frames": 1800,
    "num_labels": 778,
    "segmentation": ROW,
    "all_background": dict.fromkeys(ROW, 0.0) | {"accuracy": 48.89},
    "split_checksum": "985747cea94915f2",
}
TABLE = """\
percent           accuracy     steps     macro      edit     F1@10     F1@25     F1@50
segmentation         98.77     90.00     50.50    100.00     80.00     70.00     60.00
all background       48.89      0.00      0.00      0.00      0.00      0.00      0.00"""


def test_the_summary_shows_all_background_below_the_run():
    task = TASKS["segmentation"]
    expected = "seg: 1,800 seconds of 4 of 5 videos of segmented, test; 778 steps to choose from"
    assert task.heading(FIGURES) == expected
    table, explanation, checksum = task.summary(FIGURES)
    assert table == TABLE
    assert explanation and checksum.endswith("985747cea94915f2")


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> DatasetFolder:
    return make_segments(tmp_path_factory.mktemp("segmented"))


def test_segments_are_found_and_said_with_the_background_beside(segmented, capsys):
    call = [
        *at(segmented),
        "--features",
        "resnet152",
        "--run-name",
        "s",
        "--num-steps",
        "60",
        "--batch-size",
        "8",
        "--validate-every",
        "20",
    ]
    assert train_main(call) == 0
    assert evaluate_main([*at(segmented), "s"]) == 0
    said, folder = capsys.readouterr().out, segmented.runs / "s"
    result = read_json(folder / "metrics.json")
    assert (result["task"], result["num_videos"], result["num_frames"], result["num_labels"]) == (
        "segmentation",
        4,
        4 * 45,
        3,
    )
    found, background = result["segmentation"], result["all_background"]
    assert found["accuracy"] > background["accuracy"] + 15 and found["steps_accuracy"] > 80 and found["F1@50"] > 50
    assert background["steps_accuracy"] == 0 and background["F1@10"] == 0 and "all background" in said
    assert read_json(folder / "labels.json") == ["7: cut the bread", "8: fry the fish", "12: cut the bread"]
    lines = list(read_jsonl(folder / "queries.jsonl"))
    assert found["accuracy"] == pytest.approx(
        np.mean([line["accuracy"] for line in lines]), abs=0.01
    )  # equally long videos
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == 5 and "All background" not in report and "all background" in report
