"""MSR-VTT and VATEX as mirrors on the hub have them."""

import json
from pathlib import Path

import pytest
from vlalign.preprocess.datasets import DATASETS
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems

MSRVTT = {"source": "MSR-VTT", "category": 9, "url": "https://example.org", "start time": 1.0, "end time": 2.0}


def read(folder: Path, name: str, protocol: str = "") -> tuple[list[tuple[str, str, str]], int]:
    problems = Problems(quiet=True)
    dataset = DATASETS[name]
    records = dataset.read(Annotations(folder, dataset.published, problems), protocol)
    return [(record.split, record.video_id, record.caption) for record in records], problems.count


def clip(video_id: str, caption: object, number: int = 0) -> dict:
    return {"video_id": video_id, "video": f"{video_id}.mp4", "caption": caption, "id": number, **MSRVTT}


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def test_msrvtt_of_the_hub(tmp_path):
    train = [clip("video0", ["a car", "a person  drives"]), clip("video1", ["a dog runs"], 1)]
    write(tmp_path, "msrvtt_train_9k.json", train)
    write(tmp_path, "msrvtt_train_7k.json", train[:1])
    write(tmp_path, "msrvtt_test_1k.json", [clip("video7", "a test", 7)])
    test = [("test", "video7", "a test")]
    first = [("train", "video0", "a car"), ("train", "video0", "a person drives")]
    assert read(tmp_path, "msrvtt", "1k-A") == ([*first, ("train", "video1", "a dog runs"), *test], 0)
    assert read(tmp_path, "msrvtt", "1k-A-7k") == ([*first, *test], 0)


@pytest.mark.parametrize(
    "content", [{}, [1], [{"video_id": "x"}], [clip("x", 3)], [clip(["x"], "a")], [{"caption": "a"}]]
)
def test_damaged_mirrors_are_one_line(tmp_path, content):
    write(tmp_path, "msrvtt_train_9k.json", content)
    write(tmp_path, "msrvtt_test_1k.json", [clip("video7", "a test", 7)])
    with pytest.raises(UserError) as refused:
        read(tmp_path, "msrvtt", "1k-A")
    assert "msrvtt_train_9k.json" in str(refused.value) and "\n" not in str(refused.value)


def test_empty_captions_of_a_mirror_are_named(tmp_path):
    write(tmp_path, "msrvtt_train_9k.json", [clip("video0", ["", "a car", None])])
    write(tmp_path, "msrvtt_test_1k.json", [clip("video7", "a test", 7)])
    captions, num_problems = read(tmp_path, "msrvtt", "1k-A")
    assert captions == [("train", "video0", "a car"), ("test", "video7", "a test")] and num_problems == 2


def vatex(video_id: str, *captions: object) -> dict:
    return {"videoID": video_id, "enCap": list(captions), "chCap": ["\u4e00"]}


def write_vatex(folder: Path, train: object, test: object) -> None:
    write(folder, "vatex_training_v1.0.json", train)
    write(folder, "vatex_validation_v1.0.json", [vatex("v_000001_000011", "Validation.")])
    write(folder, "vatex_public_test_english_v1.1.json", test)


def test_vatex_in_its_official_splits(tmp_path):
    write_vatex(
        tmp_path,
        [vatex("G9zN5TTuGO4_000179_000189", "A man  runs.", "", "He runs."), vatex("t_000000_000010", "Both.")],
        [{"videoID": "t_000000_000010", "enCap": ["Both."]}, {"videoID": "u_000000_000010", "enCap": ["Test."]}],
    )
    captions, num_problems = read(tmp_path, "vatex")
    assert captions == [
        ("train", "G9zN5TTuGO4_000179_000189", "A man runs."),
        ("train", "G9zN5TTuGO4_000179_000189", "He runs."),
        ("train", "t_000000_000010", "Both."),
        ("validation", "v_000001_000011", "Validation."),
        ("test", "u_000000_000010", "Test."),
    ]
    assert num_problems == 2


@pytest.mark.parametrize("train", [{}, [[]], [{"videoID": "x"}], [{"videoID": 1, "enCap": []}], [{"enCap": ["a"]}]])
def test_damaged_vatex_is_one_line(tmp_path, train):
    write_vatex(tmp_path, train, [])
    with pytest.raises(UserError) as refused:
        read(tmp_path, "vatex")
    assert "vatex_training_v1.0.json" in str(refused.value) and "\n" not in str(refused.value)


def test_missing_files_of_vatex_are_all_named(tmp_path):
    with pytest.raises(UserError, match=r"vatex_training_v1\.0\.json .*vatex_public_test_english_v1\.1\.json"):
        read(tmp_path, "vatex")
