"""Readers of spoken captions, Places and S-MiT: synthetic rows in the published shapes."""

import json
import random
from itertools import groupby

import pytest
from helpers.videos import touch
from vlalign.extract.work import list_folder
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import DATASETS, places, smit
from vlalign.preprocess.datasets.places import id_of
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage import read_captions
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.layout import DatasetFolder


def captions_of(reader, folder, protocol=None):
    """(captions, problems); those of a video must come together in each split."""
    annotations = Annotations(folder, reader.DATASET.published, Problems())
    captions = list(reader.DATASET.read(annotations, reader.DATASET.protocols[0] if protocol is None else protocol))
    runs = [key for key, _ in groupby((c.split, c.video_id) for c in captions)]
    assert len(runs) == len(set(runs)) and all(c.start_seconds is None for c in captions)
    return captions, annotations.problems.count


def rows(captions):
    return [(c.split, c.video_id, c.recording, c.caption) for c in captions]


def warnings(capsys):
    return [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines()]


def test_both_are_known_by_name():
    assert DATASETS["places"] is places.DATASET and DATASETS["smit"] is smit.DATASET


# Places


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


def test_places(tmp_path):
    captions, problems = captions_of(places, places_files(tmp_path, TRAIN, VAL))
    assert problems == 0
    assert rows(captions) == [
        ("train", "k/kitchen/a.b", "wavs/1/utt1", "a small kitchen"),
        ("train", "k/kitchen/a.b", "wavs/1/utt3", "pots"),
        ("train", "b/beach/c", "wavs/0/utt2", "ein Strand — 😀"),
        ("test", "b/beach/d", "wavs/0/utt4", "two people walk"),
    ]


def test_places_names_files_as_they_are_extracted(tmp_path):
    touch(
        tmp_path, "images/k/kitchen/a.b.jpg", "images/b/c.JPG", "corpus/wavs/1/utt1.wav", "corpus/metadata/train.json"
    )
    images = list_folder(tmp_path / "images", Problems(), instead=(".jpg",))
    assert {v.video_id for v in images} == {id_of("k/kitchen/a.b.jpg"), id_of("b/c.JPG")}
    (recording,) = list_folder(tmp_path / "corpus", Problems(), suffixes=(".wav",))
    assert recording.video_id == id_of("wavs/1/utt1.wav") == id_of("./wavs/1/utt1.wav")


def test_places_bad_rows_are_left_out_with_their_place(tmp_path, capsys):
    bad = [
        (entry(5, "a.jpg", ""), "entry 2 of data: the caption is '', expected a sentence"),
        (entry(6, "a.jpg", " \n"), "entry 3 of data: the caption is ' \\n', expected a sentence"),
        (entry(7, "a.jpg", None), "entry 4 of data: the caption is None"),
        (entry(8, "", "text"), "entry 5 of data: the file is ''"),
        (entry(9, None, "text"), "entry 6 of data: the file is None"),
        (entry(10, "../a.jpg", "text"), "entry 7 of data: the file is '../a.jpg', expected a path below"),
        (entry(11, "/etc/a.jpg", "text"), "entry 8 of data: the file is '/etc/a.jpg'"),
        (entry(12, "a.jpg", "text") | {"wav": 7}, "entry 9 of data: the file is 7"),
        (TRAIN[0] | {"image": "z.jpg"}, "entry 10 of data: the second with the recording 'wavs/1/utt1.wav'"),
        (entry(13, "a.jpg", "half \ud800"), "entry 11 of data: "),
    ]
    captions, problems = captions_of(places, places_files(tmp_path, [TRAIN[0], *(row for row, _ in bad)], VAL))
    assert [c.recording for c in captions] == ["wavs/1/utt1", "wavs/0/utt4"] and problems == len(bad)
    said = sorted(warnings(capsys), key=lambda line: int(line.split("entry ")[1].split()[0]))
    path = tmp_path / "metadata" / "train.json"
    for line, (_, words) in zip(said, bad, strict=True):
        assert line.startswith(f"{path}, {words}") and line.endswith("; left out")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "not valid JSON in UTF-8"),
        ("[]", "the top level is a list, not a dict"),
        ("{}", "no 'data'"),
        ('{"data": 7}', "not iterable"),
        ('{"data": {"a": 7}}', "entry 1 of data: "),
        ('{"data": [7]}', "entry 1 of data: "),
        ('{"data": [{"wav": "a.wav"}]}', "entry 1 of data: no 'image'"),
        ('{"data": [{"image": [], "wav": "a.wav", "asr_text": "a"}]}', "entry 1 of data: "),
        ('{"data": [{"image": "a.jpg", "wav": "a.wav"}]}', "entry 1 of data: no 'asr_text'"),
        ('{"data": [{"image": "a.jpg", "asr_text": "a"}]}', "entry 1 of data: no 'wav'"),
    ],
)
def test_places_of_another_shape_is_one_line(tmp_path, content, said):
    path = places_files(tmp_path, TRAIN, VAL) / "metadata" / "val.json"
    path.write_text(content)
    with pytest.raises(UserError) as refused:
        captions_of(places, tmp_path)
    message = str(refused.value)
    assert (
        message.startswith(str(path))
        and said in message
        and "as its authors publish it" in message
        and "\n" not in message
    )


# S-MiT


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
    captions, problems = captions_of(smit, smit_files(tmp_path, SETS, SAID))
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
    captions, problems = captions_of(smit, tmp_path)
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
    captions, problems = captions_of(smit, tmp_path)
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
    captions, problems = captions_of(smit, tmp_path, f"test-1k-{number}")
    drawn = {c.video_id for c in captions}
    assert len(captions) == len(drawn) == 1000 and {c.split for c in captions} == {"test"} and problems == 1
    assert drawn < set(names) - {names[7]}
    random.Random(0).shuffle(names)
    smit_files(tmp_path, {"test_set.txt": names}, {})
    assert captions_of(smit, tmp_path, f"test-1k-{number}")[0] == captions
    other = captions_of(smit, tmp_path, f"test-1k-{number % 5 + 1}")[0]
    assert 850 < len(drawn & {c.video_id for c in other}) < 950  # 1000 * 1000 / 1099 by chance


def test_smit_says_where_there_are_too_few_to_draw_from(tmp_path, capsys):
    captions, problems = captions_of(smit, smit_files(tmp_path, SETS, SAID), "test-1k-2")
    assert {c.video_id for c in captions} == {"fly/d", "run/e"} and problems == 1
    assert warnings(capsys) == [f"{tmp_path / 'test_set.txt'}: only 2 captions can be used, expected 1,000"]


# Both


@pytest.mark.parametrize("reader", [places, smit], ids=["places", "smit"])
def test_an_empty_folder_lists_what_is_missing_and_from_where(tmp_path, reader):
    for protocol in reader.DATASET.protocols:
        with pytest.raises(UserError) as refused:
            captions_of(reader, tmp_path, protocol)
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
