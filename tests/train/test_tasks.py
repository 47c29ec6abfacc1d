"""Questions about videos, and their segments: losses and metrics against plain loops, and the way from captions to report."""

import itertools
import json
import shutil
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.labelled import make_questions, make_segments
from helpers.shared import shared
from helpers.training import QUESTIONS, SEGMENTS, TASK_CASES, at, check_processes, gradient, losses_of, trainer
from hypothesis import given
from hypothesis import strategies as st
from vlalign.preprocess.datasets import coin, msvd_qa
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage import Caption
from vlalign.storage.captions import write_captions_about, write_part
from vlalign.storage.common.problems import Problems
from vlalign.storage.files import read_json, read_jsonl
from vlalign.storage.layout import DatasetFolder
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_search import main as search_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.data.segments import LabelledVideo, label_frames, labels_of_rows, segments_of, windows
from vlalign.train.tasks.ask_vqa import accuracies
from vlalign.train.tasks.segment_metrics import edit_score, match_segments, segmentation_metrics, stretches_of
from vlalign.train.trainer import Trainer


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> DatasetFolder:
    return make_questions(tmp_path_factory.mktemp("asked"))


@pytest.fixture(scope="module")
def segmented(tmp_path_factory) -> DatasetFolder:
    return make_segments(tmp_path_factory.mktemp("segmented"))


def made_trainer(dataset: DatasetFolder, folder, **settings) -> Trainer:
    return trainer(dataset, folder, dataset=dataset.name, features="resnet152", **settings)


# The losses


def test_the_answers_loss_is_that_of_plain_loops(asked, tmp_path):
    made = made_trainer(asked, tmp_path, **QUESTIONS)
    model, inputs = made.model.eval(), made.make_inputs(0)
    terms, _ = gradient(made)
    with torch.no_grad():
        texts = torch.nn.functional.normalize(model.encode_texts(inputs.texts).sentence_BD, dim=-1)
        videos = torch.nn.functional.normalize(model.encode_videos(inputs.rows, inputs.mask).mean_BD, dim=-1)
        head = model.head
        for name, asked_by in (("answers", head.asked), ("blind", head.blind_asked)):
            answer_of, total, size = (head.answer if name == "answers" else head.blind_answer), 0.0, len(videos)

            def vector(x: torch.Tensor) -> torch.Tensor:
                return x / x.norm()

            given = [vector(answer_of(text)) for text in texts[size:]]
            wanted = [
                vector(asked_by(torch.cat([texts[n], videos[n]]) if name == "answers" else texts[n]))
                for n in range(size)
            ]
            for question, own in enumerate(inputs.labels.tolist()):
                for answer in range(len(given)):
                    if answer != own:
                        total += max(0.0, 0.1 + float(wanted[question] @ given[answer] - wanted[question] @ given[own]))
            assert terms[name] == pytest.approx(total / (size * len(given)), rel=1e-4)
    words = [c.answer for c in made.examples.pairs["train"].captions]
    assert sorted(made.examples.labels) == sorted(set(words)) and "nothing" not in made.examples.labels


def test_what_is_asked_blindly_teaches_the_encoders_nothing(asked, tmp_path):
    made = made_trainer(asked, tmp_path, **QUESTIONS)
    texts = made.model.encode_texts(made.make_inputs(0).texts)
    made.model.head.blind_questions(texts.sentence_BD).sum().backward()
    assert all(p.grad is None for p in made.model.text.parameters())


def test_the_labels_loss_is_that_of_plain_loops(segmented, tmp_path):
    made = made_trainer(segmented, tmp_path, **SEGMENTS)
    inputs = made.make_inputs(0)
    terms, _ = gradient(made)
    assert inputs.texts == {} and set(inputs.labels[inputs.mask].tolist()) == {0, 1, 2, 3}
    with torch.no_grad():
        tokens = made.model.eval().encode_videos(inputs.rows, inputs.mask).tokens_BMD
        losses = []
        for window, row in inputs.mask.nonzero().tolist():
            scores = made.model.head(tokens[window, row])
            losses.append(float(torch.logsumexp(scores, 0) - scores[inputs.labels[window, row]]))
    assert terms["labels"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_two_processes_have_the_loss_and_the_gradient_of_one(asked, segmented, tmp_path):
    datasets = {"asked": asked, "segmented": segmented}
    cases = {case: (datasets[case], {"features": "resnet152", **TASK_CASES[case]}) for case in TASK_CASES}
    check_processes(cases, tmp_path, 2)


@pytest.mark.parametrize("encoder", ["gated", "transformer"])
def test_questions_are_answered_better_with_the_video_than_without(asked, encoder, capsys):
    call = [
        *at(asked),
        "--features",
        "resnet152",
        "--encoder",
        encoder,
        "--embedding-size",
        "32",
        "--run-name",
        f"vqa-{encoder}",
    ]
    assert (
        train_main(
            [*call, "--num-steps", "150", "--batch-size", "24", "--learning-rate", "2e-3", "--validate-every", "50"]
        )
        == 0
    )
    capsys.readouterr()
    assert evaluate_main([*at(asked), f"vqa-{encoder}"]) == 0
    said, folder = capsys.readouterr().out, asked.runs / f"vqa-{encoder}"
    result, about = read_json(folder / "metrics.json"), read_json(folder / "run.json")
    assert about["config"]["objective"] == "vqa" and set(about["result"]["best"]) == {"step", "validation_error"}
    assert (result["task"], result["num_questions"], result["num_videos"], result["num_answers"]) == ("vqa", 24, 12, 7)
    lines = list(read_jsonl(folder / "queries.jsonl"))
    assert result["accuracy"]["all"] == pytest.approx(
        100 * np.mean([line["given"] == line["answer"] for line in lines])
    )
    assert result["question_only"]["all"] == pytest.approx(
        100 * np.mean([line["without_video"] == line["answer"] for line in lines])
    )
    train_answers = Counter(c["answer"] for c in answers_of(asked, "train"))
    usual = result["most_frequent_answer"]
    assert train_answers[usual["answer"]] == max(train_answers.values())
    assert usual["all"] == pytest.approx(100 * np.mean([line["answer"] == usual["answer"] for line in lines]))
    assert result["answerable"]["all"] == pytest.approx(100 * 23 / 24)  # "nothing" stays in the denominator
    assert result["accuracy"]["all"] > result["question_only"]["all"] + 20
    assert result["num_of_type"] == {"other": 12, "what": 12} and "question alone" in said
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "what is done with" in report and "(not to choose from)" in report

    for wrong, words in (
        (["--task", "retrieval"], "can be asked for vqa only"),
        (["--split", "validation", "--rerank", "3"], "--rerank 3"),
    ):
        assert evaluate_main([*at(asked), f"vqa-{encoder}", *wrong]) == 2
        assert words in capsys.readouterr().err
    assert search_main([*at(asked), f"vqa-{encoder}", "onion"]) == 2
    assert "finds no videos by text" in capsys.readouterr().err


def answers_of(dataset: DatasetFolder, split: str) -> list[dict]:
    from vlalign.storage.captions import read_captions

    return [vars(c) for c in read_captions(dataset.captions) if c.split == split]


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


@pytest.mark.parametrize("case", TASK_CASES)
def test_a_stopped_run_goes_on_and_another_objectives_model_is_gone_on_from(case, request, monkeypatch, capsys):
    dataset = request.getfixturevalue(case)
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in TASK_CASES[case].items()]
    call = [
        *at(dataset),
        "--features",
        "resnet152",
        "--batch-size",
        "6",
        "--num-steps",
        "8",
        "--validate-every",
        "3",
        *settings,
    ]
    assert train_main([*call, "--run-name", f"{case}-whole"]) == 0
    step = Trainer.train_step

    def dies(self, inputs):
        if self.step == 5:
            raise KeyboardInterrupt
        return step(self, inputs)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", dies)
        assert train_main([*call, "--run-name", f"{case}-stopped"]) == 130
    assert train_main([*call, "--run-name", f"{case}-stopped"]) == 0
    assert losses_of(dataset.runs / f"{case}-stopped") == losses_of(dataset.runs / f"{case}-whole")

    before = (
        ["--objective", "ncl", "--encoder", "gated", "--embedding-size", "16"]
        if case == "asked"
        else ["--objective", "taco"]
    )
    pretrained = [
        *at(dataset),
        "--features",
        "resnet152",
        "--num-steps",
        "2",
        "--batch-size",
        "4",
        *before,
        "--run-name",
        f"{case}-before",
    ]
    assert train_main([*pretrained, "--num-negatives", "2"]) == 0
    recipe = [
        "--recipe",
        "vqa-small" if case == "asked" else "segmentation-small",
        "--init",
        f"{dataset.runs / case}-before",
    ]
    assert train_main([*call, *recipe, "--run-name", f"{case}-after"]) == 0, capsys.readouterr().err
    assert read_json(dataset.runs / f"{case}-after" / "run.json")["inputs"]["init"]["run"] == f"{case}-before"


def test_a_data_set_that_has_nothing_of_the_kind_is_one_line(asked, segmented, tmp_path, capsys):
    few = ["--num-steps", "2", "--batch-size", "4", "--features", "resnet152"]
    assert train_main([*at(asked), *few, "--objective", "segmentation"]) == 2
    assert "no caption is a step of a segment" in capsys.readouterr().err
    assert train_main([*at(segmented), *few, "--objective", "vqa", "--encoder", "gated"]) == 2
    assert "no training caption is a question with an answer" in capsys.readouterr().err
    assert train_main([*at(asked), *few, "--objective", "vqa", "--pair-weights", "density"]) == 2
    assert "no pairs of clips and captions" in capsys.readouterr().err
    assert train_main([*at(segmented), *few, "--run-name", "short"]) == 0
    shutil.copytree(segmented.path, tmp_path / "other")
    other = DatasetFolder(tmp_path, "other")
    shutil.rmtree(other.captions)
    strange = Caption(
        video_id="v03", caption="wash the rice", split="test", start_seconds=1.0, end_seconds=3.0, step=99
    )
    write_part(other.captions, 0, [strange], {})
    write_captions_about(other.captions, {"protocol": "", "task": "segmentation"})
    shutil.copytree(other.path, segmented.root / "other")
    assert evaluate_main(["--root", str(segmented.root), str(segmented.runs / "short"), "--on", "other"]) == 2
    assert "none of its 1 steps is one that short was trained on" in capsys.readouterr().err
    shutil.rmtree(segmented.root / "other")


# Metrics


LABELS = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def edit_distance(a: list[int], b: list[int]) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(edit_distance(a[1:], b) + 1, edit_distance(a, b[1:]) + 1, edit_distance(a[1:], b[1:]) + (a[0] != b[0]))


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(*2 * [st.lists(st.integers(0, 3), min_size=n, max_size=n)])))
def test_edit_score_and_segments_are_those_of_plain_loops(both):
    found, true = map(np.array, both)
    orders = [[label for label, _ in itertools.groupby(labels) if label] for labels in both]
    longest = max(map(len, orders))
    assert edit_score(found, true) == pytest.approx(100 * (1 - edit_distance(*orders) / longest) if longest else 100)

    def stretches(labels: list[int]) -> list[tuple[int, set[int]]]:
        made, place = [], 0
        for label, group in itertools.groupby(labels):
            length = len(list(group))
            if label:
                made.append((label, set(range(place, place + length))))
            place += length
        return made

    assert [(label, set(range(start, end))) for label, start, end in stretches_of(true)] == stretches(both[1])
    for overlap in (0.1, 0.25, 0.5):
        right, taken = 0, []
        for label, frames in stretches(both[0]):
            best, which = 0.0, None
            for number, (other, others) in enumerate(stretches(both[1])):
                share = len(frames & others) / len(frames | others) if other == label else 0.0
                if share > best:
                    best, which = share, number
            if best >= overlap and which not in taken:
                taken.append(which)
                right += 1
        assert match_segments(found, true, overlap) == (
            right,
            len(stretches(both[0])) - right,
            len(stretches(both[1])) - right,
        )


def test_metrics_are_counted_as_by_hand():
    true, found = [np.array([0, 1, 1, 2]), np.array([0, 0])], [np.array([0, 1, 2, 2]), np.array([0, 3])]
    metrics = segmentation_metrics(found, true)
    assert metrics["accuracy"] == pytest.approx(100 * 4 / 6) and metrics["steps_accuracy"] == pytest.approx(100 * 2 / 3)
    assert metrics["macro_accuracy"] == pytest.approx(100 * (2 / 3 + 1 / 2 + 1) / 3)
    assert metrics["edit"] == pytest.approx((100 + 0) / 2)
    assert metrics["F1@50"] == pytest.approx(100 * 4 / (4 + 1)) and metrics["F1@25"] == metrics["F1@50"]
    assert accuracies([True, False, True], ["what", "what", "who"]) == {
        "all": pytest.approx(200 / 3),
        "what": 50,
        "who": 100,
    }


def test_seconds_rows_and_windows_are_labelled_by_their_times():
    segments = [
        Caption(video_id="v", caption="a", split="test", start_seconds=start, end_seconds=end, step=step)
        for start, end, step in ((1.5, 4.2, 7), (4.0, 6.0, 8), (9.0, 30.0, 7))
    ]
    segments = segments_of(segments)
    video = LabelledVideo("v", 10, segments)
    assert label_frames(video, {7: 1, 8: 2}).tolist() == [
        0,
        1,
        1,
        1,
        2,
        2,
        0,
        0,
        0,
        1,
    ]  # the later segment counts, and the video ends
    assert label_frames(video, {8: 2}).tolist() == [0, -1, -1, -1, 2, 2, 0, 0, 0, -1]
    times = np.array([[0.0, 1.0], [1.2, 1.8], [1.4, 1.8], [3.9, 4.2], [5.5, 6.5]])
    assert labels_of_rows(times, segments, {7: 1, 8: 2}).tolist() == [0, 1, 1, 2, 0]
    for num_frames in range(1, 100):
        clips = windows("v", num_frames)
        covered = {second for clip in clips for second in range(int(clip.start_seconds), int(clip.end_seconds))}
        assert covered == set(range(num_frames)) and all(clip.end_seconds - clip.start_seconds <= 32 for clip in clips)
        assert len(clips) == 1 + max(0, -(-(num_frames - 32) // 8))


def test_the_background_of_the_real_coin_is_as_published():
    folder = shared("data/coin")
    database = json.loads((folder / "COIN_assembled.json").read_text())["database"]
    annotations = Annotations(folder, {"COIN.json": ""}, Problems(quiet=True))
    true = []
    for video_id, video in database.items():
        if video["subset"] == "testing":
            segments = segments_of(coin._captions(annotations, folder, video_id, video))
            true.append(
                label_frames(
                    LabelledVideo(video_id, int(video["duration"]), segments), {c.step: c.step for c in segments}
                )
            )
    metrics = segmentation_metrics([np.zeros_like(labels) for labels in true], true)
    assert len(true) == 2797 and metrics["accuracy"] == pytest.approx(58.53, abs=0.005)
    assert (
        metrics["steps_accuracy"] == 0
        and metrics["macro_accuracy"] == pytest.approx(100 / 779)
        and metrics["F1@10"] == 0
    )


def test_the_usual_answer_of_the_real_msvd_qa(tmp_path):
    for path in [*shared("data/msvd_qa").glob("*_qa.json"), shared("data/msvd/youtube_mapping.txt")]:
        (tmp_path / path.name).symlink_to(path)
    captions = list(msvd_qa.DATASET.read(Annotations(tmp_path, msvd_qa.DATASET.published, Problems(quiet=True)), ""))
    usual, _ = Counter(c.answer for c in captions if c.split == "train").most_common(1)[0]
    test = [c for c in captions if c.split == "test"]
    right = accuracies([c.answer == usual for c in test], [c.question_type or "other" for c in test])
    assert len(test) == 13_157 and 5 < right["all"] < 15
    assert sum(right[kind] > right["all"] for kind in right) >= 1 and set(right) > {"all", "what", "who"}
