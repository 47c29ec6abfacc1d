"""The reader of S-MiT."""

import random

import pytest
from helpers.readers import untimed_captions_of, warnings
from helpers.spoken_files import SMIT_LISTS, SMIT_TRANSCRIPTS, smit_files
from vlalign.preprocess.datasets import smit


def rows(captions):
    return [(c.split, c.video_id, c.recording, c.caption) for c in captions]


def test_smit(tmp_path):
    captions, problems = untimed_captions_of(smit, smit_files(tmp_path, SMIT_LISTS, SMIT_TRANSCRIPTS))
    assert problems == 0
    assert rows(captions) == [
        ("train", "run/a", "audio/run/a", "a man runs"),
        ("train", "fly/b.1", "audio/fly/b.1", "birds — 😀"),
        ("validation", "run/c", "audio/run/c", "dogs run"),
        ("test", "fly/d", "audio/fly/d", "a plane flies"),
        ("test", "run/e", "audio/run/e", "he runs"),
    ]


def test_smit_clips_without_a_transcript_are_left_out_and_named(tmp_path, capsys):
    (tmp_path / "secret.txt").write_text("a secret")
    names = [
        "run/empty",
        "run/blank",
        "run/absent",
        "run/latin",
        "../secret",
        str(tmp_path / "secret"),
        "run/" + "x" * 300,
        "nul\0",
    ]
    transcripts = SMIT_TRANSCRIPTS | {"run/empty": "", "run/blank": " \nsecond line", "run/latin": b"caf\xe9"}
    smit_files(tmp_path, SMIT_LISTS | {"val_set.txt": [*names, "run/c"]}, transcripts)
    captions, problems = untimed_captions_of(smit, tmp_path)
    assert [c.video_id for c in captions if c.split == "validation"] == ["run/c"] and problems == len(names)
    said = warnings(capsys)
    assert all(line.startswith(f"{tmp_path / 'val_set.txt'}, clip ") for line in said)
    values = [
        "''",
        "' \\n'",
        str(tmp_path / "transcriptions"),
        "0xe9",
        "'../secret'",
        repr(str(tmp_path / "secret")),
        "File name too long",  # by the system
        "null",
    ]
    for line, name, value in zip(said, names, values, strict=True):
        assert f", clip {name!r}: " in line and value in line
    assert "a secret" not in repr(captions)


def test_smit_without_a_list_has_the_other_splits(tmp_path, capsys):
    smit_files(tmp_path, {"train_set.txt": SMIT_LISTS["train_set.txt"]}, SMIT_TRANSCRIPTS)
    captions, problems = untimed_captions_of(smit, tmp_path)
    assert {c.split for c in captions} == {"train"} and problems == 2
    assert [line.split(" (http")[0] for line in warnings(capsys)] == [
        f"{tmp_path}: no {name}" for name in ("val_set.txt", "test_set.txt")
    ]


@pytest.mark.parametrize("number", range(1, 6))
def test_smit_draws_a_thousand_test_pairs(tmp_path, number):
    names = [f"run/clip{n:04d}" for n in range(1100)]
    smit_files(
        tmp_path, SMIT_LISTS | {"test_set.txt": names}, {name: f"caption of {name}" for name in names} | {names[7]: ""}
    )
    captions, problems = untimed_captions_of(smit, tmp_path, f"test-1k-{number}")
    drawn = {c.video_id for c in captions}
    assert len(captions) == len(drawn) == 1000 and {c.split for c in captions} == {"test"} and problems == 1
    assert drawn < set(names) - {names[7]}
    random.Random(0).shuffle(names)
    smit_files(tmp_path, {"test_set.txt": names}, {})
    assert untimed_captions_of(smit, tmp_path, f"test-1k-{number}")[0] == captions
    other = untimed_captions_of(smit, tmp_path, f"test-1k-{number % 5 + 1}")[0]
    assert 850 < len(drawn & {c.video_id for c in other}) < 950  # 1000 * 1000 / 1099 expected


def test_smit_reports_too_few_captions_to_draw_from(tmp_path, capsys):
    captions, problems = untimed_captions_of(smit, smit_files(tmp_path, SMIT_LISTS, SMIT_TRANSCRIPTS), "test-1k-2")
    assert {c.video_id for c in captions} == {"fly/d", "run/e"} and problems == 1
    [warning] = warnings(capsys)
    assert warning.startswith(f"{tmp_path / 'test_set.txt'}: ") and " 2 " in warning and " 1,000" in warning
