"""The task vqa: accuracies, and what it prints."""

from collections import Counter

import numpy as np
import pytest
from helpers.labelled import make_questions
from helpers.needs import shared
from helpers.training import at
from vlalign.preprocess.datasets import msvd_qa
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.files import read_json, read_jsonl
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.evaluation import TASKS
from vlalign.train.evaluation.vqa import accuracies

TYPES = {"all": 25.0, "other": 50.0, "what": 0.0}
FIGURES = {
    "run": "vqa",
    "trained_on": "asked",
    "dataset": "asked",
    "split": "test",
    "num_captions": 24,
    "num_captions_of_split": 24,
    "num_videos": 12,
    "num_videos_of_split": 13,
    "num_questions": 1024,
    "num_answers": 1500,
    "accuracy": TYPES,
    "question_only": TYPES | {"all": 41.667},
    "most_frequent_answer": TYPES | {"answer": "cut", "all": 20.83},
    "answerable": TYPES | {"all": 95.83},
    "num_of_type": {"other": 512, "what": 512},
    "split_checksum": "74e433fa196e53ae",
}
TABLE = """\
percent               all    other     what
accuracy            25.00    50.00     0.00
question alone      41.67    50.00     0.00
usual answer        20.83    50.00     0.00
answerable          95.83    50.00     0.00
questions           1,024      512      512"""


def test_accuracies_are_of_all_questions_and_of_each_type():
    assert accuracies([True, False, True], ["what", "what", "who"]) == {
        "all": pytest.approx(200 / 3),
        "what": 50,
        "who": 100,
    }


def test_the_summary_has_a_column_for_each_type_of_question():
    task = TASKS["vqa"]
    assert (
        task.heading(FIGURES) == "vqa: 24 questions about 12 of 13 videos of asked, test; 1,500 answers to choose from"
    )
    table, explanation, checksum = task.summary(FIGURES)
    assert table == TABLE
    assert "always 'cut'" in explanation and checksum.endswith("74e433fa196e53ae")


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> DatasetFolder:
    return make_questions(tmp_path_factory.mktemp("asked"))


@pytest.mark.parametrize("encoder", ["gated", pytest.param("transformer", marks=pytest.mark.slow)])
def test_questions_are_answered_better_with_the_video_than_without(asked, encoder, capsys):
    call = [
        *at(asked),
        "--features",
        "resnet152",
        "--encoder",
        encoder,
        *(["--embedding-size", "32"] if encoder == "gated" else []),
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
    assert "what is done with" in report and "(not among the answers)" in report

    for wrong, words in (
        (["--task", "retrieval"], "--task retrieval: "),
        (["--split", "validation", "--rerank", "3"], "--rerank 3"),
    ):
        assert evaluate_main([*at(asked), f"vqa-{encoder}", *wrong]) == 2
        assert words in capsys.readouterr().err
    assert search_main([*at(asked), f"vqa-{encoder}", "onion"]) == 2
    assert f"vqa-{encoder}" in capsys.readouterr().err


def answers_of(dataset: DatasetFolder, split: str) -> list[dict]:
    from vlalign.storage.captions.files import read_captions

    return [vars(c) for c in read_captions(dataset.captions) if c.split == split]


def test_the_usual_answer_of_the_real_msvd_qa(tmp_path):
    for path in [*shared("data/msvd_qa").glob("*_qa.json"), shared("data/msvd/youtube_mapping.txt")]:
        (tmp_path / path.name).symlink_to(path)
    captions = list(msvd_qa.DATASET.read(Annotations(tmp_path, msvd_qa.DATASET.published, Problems(quiet=True)), ""))
    usual, _ = Counter(c.answer for c in captions if c.split == "train").most_common(1)[0]
    test = [c for c in captions if c.split == "test"]
    right = accuracies([c.answer == usual for c in test], [c.question_type or "other" for c in test])
    assert len(test) == 13_157 and 5 < right["all"] < 15
    assert sum(right[kind] > right["all"] for kind in right) >= 1 and set(right) > {"all", "what", "who"}
