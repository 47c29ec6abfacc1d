"""The reader of MSVD-QA."""

import json
from collections import Counter

from helpers.annotation_files import MAPPING, QUESTION_SPLITS, QUESTION_TYPES, QUESTIONS, question_files
from helpers.needs import shared
from helpers.readers import (
    counts,
    lines,
    untimed_captions_of,
    warnings,
    write_named,
)
from vlalign.preprocess.datasets import msvd_qa


def test_msvd_qa_names_clips_as_msvd_does(tmp_path):
    captions, problems = untimed_captions_of(
        msvd_qa, write_named(tmp_path, **question_files("json"), youtube_mapping__txt=MAPPING)
    )
    assert (counts(captions), problems) == (dict.fromkeys(QUESTION_SPLITS.values(), (3, 18)), 0)
    assert {c.video_id for c in captions if c.split == "validation"} == {
        f"clip-_{v}_{v}_{v + 4}" for v in (103, 112, 107)
    }
    assert {(c.question_type, c.answer) for c in captions} == {
        (QUESTION_TYPES[n % 6], a) for n, (_, _, a) in enumerate(QUESTIONS)
    }


def test_msvd_qa_clips_without_a_name_are_reported(tmp_path, capsys):
    write_named(
        tmp_path, **question_files("json", QUESTIONS[:1]), youtube_mapping__txt=lines("a_1_2 vid3", "b_1_2 vid103")
    )
    captions, problems = untimed_captions_of(msvd_qa, tmp_path)
    assert ([c.video_id for c in captions], problems) == (["a_1_2", "b_1_2"], 1)
    [said] = warnings(capsys)
    assert said.startswith(f"{tmp_path / 'test_qa.json'}, question 0: ") and " 203 " in said
    assert str(tmp_path / "youtube_mapping.txt") in said


def test_msvd_qa_real_counts(tmp_path):
    for path in (
        *(shared("data/msvd_qa") / name for name in msvd_qa.OFFICIAL),
        shared("data/msvd/youtube_mapping.txt"),
    ):
        (tmp_path / path.name).symlink_to(path)
    captions, problems = untimed_captions_of(msvd_qa, tmp_path)
    assert (counts(captions), problems) == (
        {"train": (1161, 30933), "validation": (245, 6415), "test": (504, 13157)},
        0,
    )
    assert Counter(c.question_type for c in captions if c.split == "test") == dict(
        what=8149, who=4552, how=370, when=58, where=28
    )
    assert {c.video_id for c in captions} <= set(json.loads(shared("data/msvd/captions_msvd.json").read_text()))
