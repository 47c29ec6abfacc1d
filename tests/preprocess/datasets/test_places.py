"""The reader of Places Audio Captions."""

import pytest
from helpers.readers import (
    untimed_captions_of,
    warnings,
)
from helpers.spoken_files import PLACES_TRAIN, PLACES_VAL, places_entry, places_files
from helpers.videos import touch
from vlalign.extract.videos.selection import list_folder
from vlalign.preprocess.datasets import places
from vlalign.preprocess.datasets.places import id_of
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems


def rows(captions):
    return [(c.split, c.video_id, c.recording, c.caption) for c in captions]


def test_places(tmp_path):
    captions, problems = untimed_captions_of(places, places_files(tmp_path, PLACES_TRAIN, PLACES_VAL))
    assert problems == 0
    assert rows(captions) == [
        ("train", "k/kitchen/a.b", "wavs/1/utt1", "a small kitchen"),
        ("train", "k/kitchen/a.b", "wavs/1/utt3", "pots"),
        ("train", "b/beach/c", "wavs/0/utt2", "ein Strand — 😀"),
        ("test", "b/beach/d", "wavs/0/utt4", "two people walk"),
    ]


def test_places_ids_are_those_of_extraction(tmp_path):
    touch(
        tmp_path, "images/k/kitchen/a.b.jpg", "images/b/c.JPG", "corpus/wavs/1/utt1.wav", "corpus/metadata/train.json"
    )
    images = list_folder(tmp_path / "images", Problems(), instead=(".jpg",))
    assert {v.video_id for v in images} == {id_of("k/kitchen/a.b.jpg"), id_of("b/c.JPG")}
    (recording,) = list_folder(tmp_path / "corpus", Problems(), suffixes=(".wav",))
    assert recording.video_id == id_of("wavs/1/utt1.wav") == id_of("./wavs/1/utt1.wav")


def test_places_unusable_rows_are_left_out_and_located(tmp_path, capsys):
    bad = [
        (places_entry(5, "a.jpg", ""), "entry 2 of data: ", "''"),
        (places_entry(6, "a.jpg", " \n"), "entry 3 of data: ", "' \\n'"),
        (places_entry(7, "a.jpg", None), "entry 4 of data: ", "None"),
        (places_entry(8, "", "text"), "entry 5 of data: ", "''"),
        (places_entry(9, None, "text"), "entry 6 of data: ", "None"),
        (places_entry(10, "../a.jpg", "text"), "entry 7 of data: ", "'../a.jpg'"),
        (places_entry(11, "/etc/a.jpg", "text"), "entry 8 of data: ", "'/etc/a.jpg'"),
        (places_entry(12, "a.jpg", "text") | {"wav": 7}, "entry 9 of data: ", " 7,"),
        (PLACES_TRAIN[0] | {"image": "z.jpg"}, "entry 10 of data: ", "'wavs/1/utt1.wav'"),
        (places_entry(13, "a.jpg", "half \ud800"), "entry 11 of data: ", "surrogate"),
    ]
    captions, problems = untimed_captions_of(
        places, places_files(tmp_path, [PLACES_TRAIN[0], *(row for row, _, _ in bad)], PLACES_VAL)
    )
    assert [c.recording for c in captions] == ["wavs/1/utt1", "wavs/0/utt4"] and problems == len(bad)
    said = sorted(warnings(capsys), key=lambda line: int(line.split("entry ")[1].split()[0]))
    path = tmp_path / "metadata" / "train.json"
    for line, (_, place, value) in zip(said, bad, strict=True):
        assert line.startswith(f"{path}, {place}") and value in line


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", ["JSON", "line 1 column 1"]),
        ("[]", ["list", "dict"]),
        ("{}", ["'data'"]),
        ('{"data": 7}', ["not iterable"]),
        ('{"data": {"a": 7}}', ["entry 1 of data: "]),
        ('{"data": [7]}', ["entry 1 of data: "]),
        ('{"data": [{"wav": "a.wav"}]}', ["entry 1 of data: ", "'image'"]),
        ('{"data": [{"image": [], "wav": "a.wav", "asr_text": "a"}]}', ["entry 1 of data: "]),
        ('{"data": [{"image": "a.jpg", "wav": "a.wav"}]}', ["entry 1 of data: ", "'asr_text'"]),
        ('{"data": [{"image": "a.jpg", "asr_text": "a"}]}', ["entry 1 of data: ", "'wav'"]),
    ],
)
def test_places_rejects_other_structures_in_one_line(tmp_path, content, named):
    path = places_files(tmp_path, PLACES_TRAIN, PLACES_VAL) / "metadata" / "val.json"
    path.write_text(content)
    with pytest.raises(UserError) as refused:
        untimed_captions_of(places, tmp_path)
    message = str(refused.value)
    assert message.startswith(str(path)) and all(each in message for each in named) and "\n" not in message, message
