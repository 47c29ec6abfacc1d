"""The reader of S-MiT."""

import random

import pytest
from helpers.readers import untimed_captions_of, warnings
from vlalign.preprocess.datasets import smit


def rows(captions):
    return [(c.split, c.video_id, c.recording, c.caption) for c in captions]


def smit_files(folder, lists, transcripts):
    """{name of a list: lines}, {clip: content of its transcript}"""
    for name, lines in lists.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "transcriptions").mkdir(exist_ok=True)
    for clip, content in transcripts.items():
        path = folder / "transcriptions" / f"{clip}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


SETS = {"train_set.txt": ["run/a", "fly/b.1"], "val_set.txt": ["run/c"], "test_set.txt": ["fly/d", "run/e", "fly/d"]}


SAID = {
    "run/a": "a man  runs\nnot this",
    "fly/b.1": "birds — 😀\n",
    "run/c": "dogs run",
    "fly/d": "a plane flies",
    "run/e": "\ufeffhe runs",
}


def test_smit(tmp_path):
    captions, problems = untimed_captions_of(smit, smit_files(tmp_path, SETS, SAID))
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
    transcripts = SAID | {"run/empty": "", "run/blank": " \nsecond line", "run/latin": b"caf\xe9"}
    smit_files(tmp_path, SETS | {"val_set.txt": [*names, "run/c"]}, transcripts)
    captions, problems = untimed_captions_of(smit, tmp_path)
    assert [c.video_id for c in captions if c.split == "validation"] == ["run/c"] and problems == len(names)
    said = warnings(capsys)
    assert all(line.startswith(f"{tmp_path / 'val_set.txt'}, clip ") and line.endswith("; left out") for line in said)
    words = [
        "the caption is ''",
        "the caption is ' \\n'",
        f"no transcript in {tmp_path / 'transcriptions'}",
        "can't decode",
    ]
    for line, word in zip(
        said, [*words, "leads out of the folder", "leads out of the folder", "too long", "null"], strict=True
    ):
        assert word in line
    assert "a secret" not in repr(captions)


def test_smit_without_a_list_has_the_other_splits(tmp_path, capsys):
    smit_files(tmp_path, {"train_set.txt": SETS["train_set.txt"]}, SAID)
    captions, problems = untimed_captions_of(smit, tmp_path)
    assert {c.split for c in captions} == {"train"} and problems == 2
    assert [line.split(" (http")[0] for line in warnings(capsys)] == [
        f"{tmp_path}: no {name}" for name in ("val_set.txt", "test_set.txt")
    ]


@pytest.mark.parametrize("number", range(1, 6))
def test_smit_draws_a_thousand_test_pairs_of_its_own(tmp_path, number):
    names = [f"run/clip{n:04d}" for n in range(1100)]
    smit_files(
        tmp_path, SETS | {"test_set.txt": names}, {name: f"caption of {name}" for name in names} | {names[7]: ""}
    )
    captions, problems = untimed_captions_of(smit, tmp_path, f"test-1k-{number}")
    drawn = {c.video_id for c in captions}
    assert len(captions) == len(drawn) == 1000 and {c.split for c in captions} == {"test"} and problems == 1
    assert drawn < set(names) - {names[7]}
    random.Random(0).shuffle(names)
    smit_files(tmp_path, {"test_set.txt": names}, {})
    assert untimed_captions_of(smit, tmp_path, f"test-1k-{number}")[0] == captions
    other = untimed_captions_of(smit, tmp_path, f"test-1k-{number % 5 + 1}")[0]
    assert 850 < len(drawn & {c.video_id for c in other}) < 950  # 1000 * 1000 / 1099 by chance


def test_smit_says_where_there_are_too_few_to_draw_from(tmp_path, capsys):
    captions, problems = untimed_captions_of(smit, smit_files(tmp_path, SETS, SAID), "test-1k-2")
    assert {c.video_id for c in captions} == {"fly/d", "run/e"} and problems == 1
    assert warnings(capsys) == [f"{tmp_path / 'test_set.txt'}: only 2 captions can be used, expected 1,000"]
