"""The reader of MSRVTT-QA, and what it shares with that of MSVD-QA."""

import csv
import math
from collections import Counter

import pytest
from helpers.annotation_files import (
    MAPPING,
    QUESTION_SPLITS,
    QUESTION_TYPES,
    QUESTIONS,
    official_questions,
    question_files,
)
from helpers.needs import shared
from helpers.readers import (
    counts,
    untimed_captions_of,
    warnings,
    write_named,
)
from vlalign.preprocess.datasets import msrvtt_qa, msvd_qa


@pytest.mark.parametrize("form", ["json", "jsonl", "csv"])
def test_msrvtt_qa_reads_the_same_from_every_file_format(tmp_path, form):
    captions, problems = untimed_captions_of(msrvtt_qa, write_named(tmp_path, **question_files(form)))
    assert problems == 0
    assert counts(captions) == dict.fromkeys(QUESTION_SPLITS.values(), (3, 18))
    got = {(c.split, c.video_id, c.caption, c.answer, c.question_type) for c in captions}
    assert got == {
        (split, f"video{video + 100 * number}", question, answer, QUESTION_TYPES[n % 6])
        for number, split in enumerate(QUESTION_SPLITS.values())
        for n, (video, question, answer) in enumerate(QUESTIONS)
    }


def test_msrvtt_qa_reports_a_missing_split_once(tmp_path, capsys):
    write_named(tmp_path, **question_files("json", splits=("val", "test")))
    captions, problems = untimed_captions_of(msrvtt_qa, tmp_path)
    assert (counts(captions), problems) == ({"validation": (3, 18), "test": (3, 18)}, 1)
    source = "https://data.mendeley.com/datasets/bvxhs33bw6, by https://github.com/xudejing/video-question-answering"
    [warning] = warnings(capsys)
    assert (
        warning.startswith(f"{tmp_path}: ") and f" train_qa.json ({source})" in warning and warning.endswith(" train")
    )


def test_msrvtt_qa_prefers_the_format_with_the_most_splits_then_the_official_one(tmp_path):
    """Formats differ in question marks, so splits of different formats are mixed only if necessary."""

    def marked(question):
        return [(v, question, a) for v, _, a in QUESTIONS[:2]]

    write_named(
        tmp_path,
        **question_files("jsonl", marked("what?"), ["val"]),
        **question_files("csv", marked("what"), ["val", "test"]),
    )
    captions, _ = untimed_captions_of(msrvtt_qa, tmp_path)
    assert {(c.split, c.caption) for c in captions} == {("validation", "what"), ("test", "what")}
    write_named(tmp_path, **question_files("jsonl", marked("what?"), ["train"]))
    write_named(tmp_path, **question_files("json", marked("what is that?"), ["val", "test"]))
    captions, problems = untimed_captions_of(msrvtt_qa, tmp_path)
    assert {(c.split, c.caption) for c in captions} == {
        ("train", "what?"),
        ("validation", "what is that?"),
        ("test", "what is that?"),
    }
    assert problems == 0


def test_msrvtt_qa_real_counts():
    captions, problems = untimed_captions_of(msrvtt_qa, shared("data/msrvtt_qa"))
    assert (counts(captions), problems) == (
        {"validation": (497, 12278), "test": (2990, 72821)},
        1,
    )  # the folder has no training questions
    kinds = Counter(c.question_type for c in captions if c.split == "test")
    assert kinds == {"what": 49869, "who": 20385, "how": 1640, "when": 677, "where": 250}
    with (shared("data/msrvtt_qa") / "hqga_test.csv").open(newline="") as file:
        rows = Counter((f"video{row['video']}", row["question"], row["answer"]) for row in csv.DictReader(file))
    assert Counter((c.video_id, c.caption, c.answer) for c in captions if c.split == "test") == rows


BAD_QUESTIONS = [
    (3, "", "rice"),
    (3, None, "rice"),
    (3, "what?", ""),
    (3, "what?", None),
    (3, "what?", 5),
    (3, "what?", "half \ud83d"),
    (-1, "what?", "rice"),
    ("", "what?", "rice"),
    (None, "what?", "rice"),
    ([3], "what?", "rice"),
    (True, "what?", "rice"),
    (math.inf, "what?", "rice"),
]


@pytest.mark.parametrize("reader", [msrvtt_qa, msvd_qa])
def test_unusable_questions_are_left_out_and_named(tmp_path, capsys, reader):
    write_named(tmp_path, **question_files("json"), youtube_mapping__txt=MAPPING)
    write_named(tmp_path, train_qa__json=official_questions(QUESTIONS[:2] + BAD_QUESTIONS + QUESTIONS[2:]))
    captions, problems = untimed_captions_of(reader, tmp_path)
    assert counts(captions)["train"] == (3, 18) and problems == len(BAD_QUESTIONS)
    places = {warning.split(": ")[0] for warning in warnings(capsys)}
    assert places == {f"{tmp_path / 'train_qa.json'}, question {n}" for n in range(2, 2 + len(BAD_QUESTIONS))}
