"""The task segmentation: metrics against plain loops, and what it prints."""

from vlalign.train.tasks import TASKS

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
    assert explanation.startswith("accuracy: of all seconds") and checksum.endswith("985747cea94915f2")
