"""Step localisation: the dynamic programme against other programs, recall as CrossTask counts it, and the way from captions to report."""

import itertools
import json
import math

import numpy as np
import pytest
from helpers.shared import shared
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from vlalign.preprocess.datasets import crosstask
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage import Caption, IdfEntry, VideoFeatures, Weights, write_shard
from vlalign.storage.captions import write_captions_about, write_idf, write_part
from vlalign.storage.common.problems import Problems
from vlalign.storage.files import read_json, read_jsonl
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.tasks.ask_steps import StepTask, StepVideo, localize_steps
from vlalign.train.tasks.step_order import found_steps, order_steps


@pytest.mark.parametrize("size", ["12x3", "30x5", "80x11", "5x5"])
@pytest.mark.parametrize("exactly_one", [True, False])
def test_cost_and_path_are_those_of_crosstasks_own_programme(size, exactly_one):
    folder = shared("data/goldens")
    golden = json.loads((folder / "goldens.json").read_text())["crosstask_dp"][f"{size}_exactly_one={exactly_one}"]
    with np.load(folder / "inputs.npz") as inputs:
        found = order_steps(inputs[f"dp_C_{size}"], exactly_one=exactly_one)
    assert found.cost == pytest.approx(golden["cost"], rel=1e-9)
    assert [np.flatnonzero(found.step_T == step + 1).tolist() for step in range(len(golden["frames"]))] == golden[
        "frames"
    ]


def exhaustive(cost_TK: np.ndarray, *, exactly_one: bool) -> float:
    """The least cost over all ways to label the frames that show every step, in order."""
    num_frames, num_steps = cost_TK.shape
    best = math.inf
    for labels in itertools.product(range(num_steps + 1), repeat=num_frames):
        runs = [
            step for step, _ in itertools.groupby(labels) if step
        ]  # a step once: no second run of it, before or after background
        if runs != list(range(1, num_steps + 1)) or (exactly_one and sum(map(bool, labels)) != num_steps):
            continue
        best = min(best, sum(float(cost_TK[frame, step - 1]) for frame, step in enumerate(labels) if step))
    return best


SMALL_COSTS = st.tuples(st.integers(1, 6), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.integers(-4, 4).map(lambda n: n / 2))
)


@given(SMALL_COSTS, st.booleans())
def test_the_cheapest_way_of_all_is_found(cost_TK, exactly_one):
    if len(cost_TK) < cost_TK.shape[1]:
        with pytest.raises(ValueError, match="frames for"):
            order_steps(cost_TK, exactly_one=exactly_one)
        return
    found = order_steps(cost_TK, exactly_one=exactly_one)
    assert found.cost == exhaustive(cost_TK, exactly_one=exactly_one)
    assert sum(float(cost_TK[frame, step - 1]) for frame, step in enumerate(found.step_T) if step) == found.cost
    assert [step for step, _ in itertools.groupby(found.step_T) if step] == list(range(1, cost_TK.shape[1] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("exactly_one", [True, False])
def test_the_cheapest_way_of_all_is_found_for_every_size_up_to_8_frames_and_3_steps(exactly_one):
    rng = np.random.default_rng(0)
    for num_frames in range(1, 9):
        for num_steps in range(1, min(num_frames, 3) + 1):
            cost_TK = rng.integers(-3, 4, (num_frames, num_steps)).astype(np.float32)  # whole numbers: with ties
            assert order_steps(cost_TK, exactly_one=exactly_one).cost == exhaustive(cost_TK, exactly_one=exactly_one)


def test_of_equally_good_ways_it_is_the_published_one():
    # All costs 0. The end is the last step, for the background is not cheaper; before it, what may stay as it is does.
    assert order_steps(np.zeros((4, 2))).step_T.tolist() == [1, 0, 0, 2]
    assert order_steps(np.zeros((4, 2)), exactly_one=False).step_T.tolist() == [1, 2, 2, 2]


def test_recall_is_counted_as_by_hand():
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
    listed = [(task, video) for task in tasks for video in task.videos]
    perfect, _ = localize_steps(((t, v, 50.0 * v.shown_TK) for t, v in listed), Problems(quiet=True))
    print(
        f"perfect scores {perfect['recall']:.2f}, in the order of the task at most {perfect['ceiling']:.2f}, chance {perfect['chance']:.2f}"
    )
    # Scores pass through a softmax over steps, where a wrong place costs more in some frames than in others: a little is lost by it.
    assert 80 < perfect["recall"] <= perfect["ceiling"] < 90
    assert 10 < perfect["chance"] < 15


def make_steps(root, *, num_videos=12) -> DatasetFolder:
    """Videos of two tasks with three and two steps, of which the second has one that is never shown; a row a second."""
    rng, dataset = np.random.default_rng(0), DatasetFolder(root, "made")
    steps = {"Make Tea": ["boil water", "pour water", "stir tea"], "Cut Bread": ["cut bread", "eat bread"]}
    profile = PROFILES["resnet152"]
    directions = {text: rng.normal(size=profile.dimension) for texts in steps.values() for text in texts}
    captions, videos = [], []
    for number in range(num_videos):
        title = list(steps)[number % 2]
        rows = 0.3 * rng.normal(size=(20, profile.dimension))
        for step, text in enumerate(steps[title][: 3 if number % 2 == 0 else 1], start=1):
            start = 5 * step - 3 + number % 3
            rows[start : start + 3] += directions[text]
            words = text.split()
            captions.append(
                Caption(
                    video_id=f"v{number}",
                    caption=text,
                    split=("train", "test")[number >= num_videos // 2],
                    start_seconds=float(start),
                    end_seconds=start + 3.0,
                    words=words,
                    word_starts=[0, len(words[0]) + 1],
                    pos_tags=["VERB", "NOUN"],
                    task=title,
                    step=step,
                )
            )
        times = {"start_seconds": np.arange(20), "end_seconds": np.arange(20) + 1, "valid_frames": np.ones(20, int)}
        videos.append(VideoFeatures(video_id=f"v{number}", features=rows, duration_seconds=20.0, **times))
    write_shard(dataset.features("resnet152"), profile, Weights(name="made", sha256="0" * 64), videos, made_with={})
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {"protocol": "official", "task": "steps", "steps": steps})
    write_idf(
        dataset.idf,
        [IdfEntry(word=w, part_of_speech="VERB", document_count=1, idf=1.0) for w in ("boil", "pour", "stir", "cut")],
    )
    return dataset


@pytest.mark.parametrize("objective", ["taco", "ncl"])
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
    assert read_json(folder / "metrics.json")["task"] == "retrieval"
    assert evaluate_main([*call, "r", "--ties", "coot"]) == 2
    assert "--ties coot: applies to the task retrieval" in capsys.readouterr().err


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
    assert "steps of video 'gone': no features of it" in capsys.readouterr().err
    write_captions_about(dataset.captions, {"protocol": "official"})
    assert evaluate_main([*call, "r", "--task", "steps"]) == 2
    assert "do not name the steps of tasks" in capsys.readouterr().err
