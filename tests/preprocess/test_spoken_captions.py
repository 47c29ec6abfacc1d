"""Spoken captions through the command."""

import json

import pytest
from helpers.readers import (
    untimed_captions_of,
)
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import places, smit
from vlalign.storage import read_captions
from vlalign.storage.common.errors import UserError
from vlalign.storage.layout import DatasetFolder


def entry(number, image, transcript):
    return {
        "uttid": f"speaker{number}-utt{number}",
        "speaker": f"speaker{number}",
        "asr_text": transcript,
        "wav": f"wavs/{number % 2}/utt{number}.wav",
        "image": image,
    }


def places_files(folder, train, val):
    (folder / "metadata").mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("val", val)):
        content = {"image_base_path": "/their/images/", "audio_base_path": "/their/audio/", "data": data}
        (folder / "metadata" / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


TRAIN = [
    entry(1, "k/kitchen/a.b.jpg", "a  small kitchen"),
    entry(2, "b/beach/c.jpg", "ein Strand — 😀"),
    entry(3, "k/kitchen/a.b.jpg", "pots"),
]


VAL = [entry(4, "b/beach/d.jpg", "two people walk")]


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


@pytest.mark.parametrize("reader", [places, smit], ids=["places", "smit"])
def test_an_empty_folder_lists_what_is_missing_and_from_where(tmp_path, reader):
    for protocol in reader.DATASET.protocols:
        with pytest.raises(UserError) as refused:
            untimed_captions_of(reader, tmp_path, protocol)
        message = str(refused.value)
        assert message.startswith(f"{tmp_path}: missing ") and message.count("(http") >= 2 and "\n" not in message


def test_the_tables_say_where_captions_were_spoken(tmp_path, capsys):
    places_files(tmp_path / "places/annotations", TRAIN, VAL)
    assert main(["--root", str(tmp_path), "--dataset", "places"]) == 0
    made = {c.recording: c for c in read_captions(DatasetFolder(tmp_path, "places").captions)}
    assert list(made) == ["wavs/1/utt1", "wavs/1/utt3", "wavs/0/utt2", "wavs/0/utt4"]
    assert made["wavs/0/utt4"].words == ["two", "people", "walk"] and made["wavs/0/utt4"].video_id == "b/beach/d"

    folder = tmp_path / "smit/annotations"
    folder.mkdir(parents=True)
    smit_files(folder, SETS, SAID)
    assert (
        main(["--root", str(tmp_path), "--dataset", "smit", "--protocol", "test-1k-1"]) == 1
    )  # there are two, not a thousand
    drawn = read_captions(DatasetFolder(tmp_path, "smit", "test-1k-1").captions)
    assert {(c.split, c.recording) for c in drawn} == {("test", "audio/fly/d"), ("test", "audio/run/e")}
    assert "protocol: test-1k-1" in capsys.readouterr().out
