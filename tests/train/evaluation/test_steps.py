"""The task steps: recall as CrossTask counts it, what it prints, and from captions to report."""

import itertools
import math
import re

import numpy as np
import pytest
from helpers.labelled import make_steps
from helpers.needs import shared
from vlalign.preprocess.datasets import crosstask
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage import Caption
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.common.problems import Problems
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation import TASKS
from vlalign.train.evaluation.steps import StepTask, StepVideo, found_steps, localize_steps


def test_recall_equals_a_count_by_hand():
    shown = np.zeros((6, 3), dtype=bool)
    shown[1:3, 0] = shown[4, 1] = True  # the third step is never shown: it is placed, and does not count
    assert found_steps(np.array([0, 1, 0, 0, 2, 3]), shown) == 2
    assert found_steps(np.array([1, 0, 2, 0, 0, 3]), shown) == 0
    assert found_steps(np.array([1, 1, 1, 1, 2, 3]), shown) == 1.5  # half of the first one's seconds

    def scored(right: float):
        for title, many in (("one", 3), ("two", 1)):
            task = StepTask(title, [Caption(video_id="query", caption=str(n), split="") for n in range(3)], [])
            for number in range(many):
                yield (
                    task,
                    StepVideo(title, f"{title}{number}", shown),
                    np.where(shown, right if title == "one" else -right, 0.0),
                )

    metrics, videos = localize_steps(scored(50.0), Problems())
    assert metrics["tasks"]["one"]["recall"] == 100 and metrics["tasks"]["two"]["recall"] == 0
    assert metrics["recall"] == 50  # of tasks, not of videos
    assert metrics["ceiling"] == 100 and len(videos) == metrics["num_videos"] == 4
    assert metrics["tasks"]["one"]["num_shown"] == 6


def test_a_video_with_fewer_seconds_than_steps_is_said_and_left_out():
    task = StepTask("t", [Caption(video_id="query", caption=str(n), split="") for n in range(3)], [])
    short, whole = StepVideo("t", "short", np.ones((2, 3), bool)), StepVideo("t", "whole", np.ones((3, 3), bool))
    problems = Problems(quiet=True)
    metrics, videos = localize_steps([(task, short, np.zeros((2, 3))), (task, whole, np.zeros((3, 3)))], problems)
    assert (metrics["num_infeasible"], metrics["num_videos"], metrics["recall"]) == (1, 1, 100)
    assert "short: 2 s" in problems.messages[0] and [v.video_id for v in videos] == ["whole"]


def real_tasks(split: str) -> list[StepTask]:
    """CrossTask's own annotations, each video a frame a second up to the end of its last segment."""
    folder = shared("data/crosstask/crosstask_release")
    annotations = Annotations(folder, crosstask.DATASET.published, Problems(quiet=True))
    steps = crosstask.steps(annotations)
    captions = [c for c in crosstask.DATASET.read(annotations, "official") if c.split == split]
    tasks = {
        title: StepTask(title, [Caption(video_id="query", caption=text, split="") for text in texts], [])
        for title, texts in steps.items()
    }
    for (title, video_id), its in itertools.groupby(captions, key=lambda c: (c.task, c.video_id)):
        its = list(its)
        shown = np.zeros((math.ceil(max(c.end_seconds for c in its)) + 5, len(steps[title])), dtype=bool)
        for c in its:
            shown[math.floor(c.start_seconds) : math.ceil(c.end_seconds), c.step - 1] = True
        tasks[title].videos.append(StepVideo(title, video_id, shown))
    return list(tasks.values())


def test_perfect_scores_on_the_real_annotations_give_what_the_order_allows_and_others_chance():
    tasks = real_tasks("test")
    assert sum(len(task.videos) for task in tasks) == 1850 and sum(len(task.steps) for task in tasks) == 133
    listed = [(task, video) for task in tasks for video in task.videos[::8]]  # some of each: all take long
    perfect, _ = localize_steps(((t, v, 50.0 * v.shown_TK) for t, v in listed), Problems(quiet=True))
    print(
        f"perfect scores {perfect['recall']:.2f}, in the order of the task at most {perfect['ceiling']:.2f}, chance "
        f"{perfect['chance']:.2f}"
    )
    # Scores pass through a softmax over steps, where a wrong place costs more in some frames than in others: a little
    # is lost by it.
    assert 80 < perfect["recall"] <= perfect["ceiling"] < 90
    assert 10 < perfect["chance"] < 15


@pytest.mark.parametrize("objective", ["taco", pytest.param("ncl", marks=pytest.mark.slow)])
def test_a_run_is_asked_for_steps_where_the_data_set_has_them(tmp_path, objective, capsys):
    dataset = make_steps(tmp_path)
    call = ["--root", str(tmp_path), "--dataset", "made"]
    train = [
        "--features",
        "resnet152",
        "--objective",
        objective,
        "--num-steps",
        "60",
        "--batch-size",
        "5",
        "--run-name",
        "r",
    ]
    assert train_main([*call, *train]) == 0
    assert evaluate_main([*call, "r"]) == 0
    said = capsys.readouterr().out
    folder = dataset.runs / "r"
    result = read_json(folder / "metrics.json")
    assert result["task"] == "steps" and result["num_videos"] == 6 and result["steps"]["num_infeasible"] == 0
    assert result["steps"]["ceiling"] == 100 and result["steps"]["recall"] > result["steps"]["chance"]
    assert "Make Tea" in said and result["split_checksum"] in said
    lines = list(read_jsonl(folder / "queries.jsonl"))
    counted = [right for line in lines for right in line["right"] if right is not None]
    shown = {
        title: [r for line in lines if line["task"] == title for r in line["right"] if r is not None]
        for title in ("Make Tea", "Cut Bread")
    }
    assert len(counted) == 3 * 3 + 3  # the step that is never shown is placed and not counted
    assert result["steps"]["recall"] == pytest.approx(np.mean([100 * np.mean(rights) for rights in shown.values()]))
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert (
        report.count("<svg") == 7 and "eat bread" in report and "Most in order" in report
    )  # the losses, and six videos

    assert evaluate_main([*call, "r", "--task", "retrieval"]) == 0
    assert read_json(folder / "evaluations" / "retrieval" / "metrics.json")["task"] == "retrieval"
    assert evaluate_main([*call, "r", "--ties", "coot"]) == 2
    assert "--ties coot: " in capsys.readouterr().err


def test_captions_without_steps_and_videos_without_features_are_said(tmp_path, capsys):
    dataset = make_steps(tmp_path)
    call = ["--root", str(tmp_path), "--dataset", "made"]
    assert (
        train_main([*call, "--features", "resnet152", "--num-steps", "2", "--batch-size", "4", "--run-name", "r"]) == 0
    )
    write_part(
        dataset.captions,
        1,
        [
            Caption(
                video_id="gone",
                caption="cut bread",
                split="test",
                start_seconds=1.0,
                end_seconds=2.0,
                task="Cut Bread",
                step=1,
            )
        ],
        {},
    )
    assert evaluate_main([*call, "r"]) == 1
    assert re.search(r"'gone': .*features", capsys.readouterr().err)
    write_captions_about(dataset.captions, {"protocol": "official"})
    assert evaluate_main([*call, "r", "--task", "steps"]) == 2
    assert f"{dataset.captions}: " in capsys.readouterr().err


FIGURES = {
    "run": "r",
    "trained_on": "made",
    "dataset": "made",
    "split": "test",
    "num_videos": 6,
    "num_videos_of_split": 7,
    "steps": {
        "recall": 33.333,
        "recall_spans": 30.0,
        "chance": 11.1,
        "ceiling": 100.0,
        "num_videos": 1234,
        "num_infeasible": 1,
        "tasks": {
            "Make Tea": {
                "recall": 66.66,
                "recall_spans": 60.0,
                "chance": 22.2,
                "ceiling": 100.0,
                "num_videos": 1234,
                "num_shown": 9,
            }
        },
    },
    "split_checksum": "7920f0090613ef27",
}
TABLE = """\
recall, percent                       recall  with spans      chance    in order   videos
Make Tea                                66.7        60.0        22.2       100.0    1,234
mean over tasks                         33.3        30.0        11.1       100.0    1,234"""


def test_the_summary_has_a_row_for_each_task_and_one_for_their_mean():
    task = TASKS["steps"]
    assert task.heading(FIGURES) == "r: steps of 1 tasks in 6 of 7 videos of made, test"
    table, _, skipped, checksum = task.summary(FIGURES)
    assert table == TABLE
    assert re.match(r"1\b", skipped) and checksum.endswith("7920f0090613ef27")
