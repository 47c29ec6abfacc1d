"""The reader of S-MiT."""

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
