"""Preparing captions in parts: by any number of processes, again after a stop, and only what changed."""

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from helpers.captions import SMALL, call, caption_file, tables
from helpers.needs import shared
from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.chunks import in_one_process
from vlalign.preprocess.prepare import prepare_captions, prepare_records
from vlalign.preprocess.settings import PreprocessingSettings
from vlalign.preprocess.tables import Preparation
from vlalign.storage import Caption, VideoRecord, read_captions, read_idf, write_idf
from vlalign.storage.captions.files import CACHE_NAME
from vlalign.storage.captions.idf import has_token_idf
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder


def captions(count: int, changed: int | None = None) -> list[Caption]:
    """Return two captions per video; every tenth caption is test."""
    return [
        Caption(
            video_id=f"v{n // 2}",
            caption=f"the {['man', 'dog', 'old cook'][n % 3]} cuts {n} {'onions' if n != changed else 'carrots'}",
            split="test" if n % 10 == 0 else "train",
            start_seconds=float(n),
            end_seconds=n + 1.5,
        )
        for n in range(count)
    ]


def read(count, changed=None):
    return lambda problems: iter(captions(count, changed))


def prepare_read(dataset, read, problems=None, num_processes=1):
    return prepare_records(
        Preparation(
            dataset=dataset,
            chunks=in_one_process(read),
            spacy_model=SMALL,
            problems=problems or Problems(),
            num_processes=num_processes,
        )
    )


def ten_line_idf(folder) -> dict:
    """Compute Eq. 7 of TACo from the tables on disk in another way."""
    rows = [
        row
        for path in sorted(folder.glob("part-*.parquet"))
        for row in pq.read_table(path).to_pylist()
        if row["split"] == "train"
    ]
    found = Counter()
    for row in rows:
        for pair in {(w.lower(), t) for w, t in zip(row["words"], row["pos_tags"], strict=True)}:
            found[pair] += pair[1] not in ("PUNCT", "SPACE", "SYM", "X")
    return {pair: (n, math.log(len(rows)) - math.log(n + 1)) for pair, n in found.items() if n}


def assert_idf_is(dataset, expected):
    made = {(e.word, e.part_of_speech): (e.document_count, e.idf) for e in read_idf(dataset.idf)}
    assert made.keys() == expected.keys()
    for pair, (count, idf) in expected.items():
        assert made[pair] == (count, pytest.approx(idf, abs=1e-12))


@pytest.mark.slow
def test_the_number_of_processes_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 40)
    made = {}
    for workers in (1, 2):
        dataset = DatasetFolder(tmp_path / str(workers), "mine")
        prepare_read(dataset, read(130), num_processes=workers)
        made[workers] = tables(dataset.path)
    assert made[1] == made[2]
    assert {*(f"captions/part-0000{n}.parquet" for n in range(4)), f"captions/{CACHE_NAME}"} <= made[1].keys()
    written = (dataset.captions / CACHE_NAME).stat().st_ino
    stored = read_captions(dataset.captions)
    assert (dataset.captions / CACHE_NAME).stat().st_ino == written, "training finds the file"
    assert [replace(c, words=[], word_starts=[], pos_tags=[]) for c in stored] == captions(130)
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


def test_the_idf_does_not_depend_on_the_size_of_parts(tmp_path, monkeypatch):
    idfs = []
    for size in (1000, 7):
        monkeypatch.setattr(preparing, "PART_CAPTIONS", size)
        dataset = DatasetFolder(tmp_path / str(size), "mine")
        prepare_read(dataset, read(50))
        idfs.append(read_idf(dataset.idf))
    assert idfs[0] == idfs[1]


def test_only_changed_parts_are_tagged_again_and_surplus_parts_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 20)
    dataset = DatasetFolder(tmp_path, "mine")
    prepare_read(dataset, read(70))
    before = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    prepare_read(dataset, read(60, changed=25))
    after = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    assert [name for name in after if after[name] != before[name]] == ["part-00001.parquet"]
    assert sorted(after) == [f"part-0000{n}.parquet" for n in range(3)]
    assert sorted(p.name for p in (dataset.captions / "counts").iterdir()) == sorted(after)
    assert len(read_captions(dataset.captions)) == 60
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


def test_tables_of_an_earlier_version_get_the_counts_of_tokens_without_tagging(tmp_path, monkeypatch):
    """They have neither the rows of words with any tag in the counts of parts, nor the IDF table's last columns."""
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 20)
    dataset = DatasetFolder(tmp_path, "mine")
    prepare_read(dataset, read(50))
    expected = read_idf(dataset.idf)
    for path in (dataset.captions / "counts").iterdir():
        counts = pq.read_table(path)
        pq.write_table(counts.filter([tag != "" for tag in counts["part_of_speech"].to_pylist()]), path)
    write_idf(dataset.idf, [replace(entry, token_count=None, token_idf=None) for entry in expected])
    assert not has_token_idf(dataset.idf)
    before = {path: path.stat().st_mtime_ns for path in dataset.captions.glob("part-*.parquet")}
    prepare_read(dataset, read(50))
    assert read_idf(dataset.idf) == expected
    assert {path: path.stat().st_mtime_ns for path in before} == before


VIDEOS = [VideoRecord(video_id="v1", path="a.mp4"), VideoRecord(video_id="v2", path="b.mp4")]


CAPTIONS = [
    Caption(video_id="v1", caption="a man cooks", split="train"),
    Caption(video_id="v2", caption="a dog runs", split="test"),
]


def test_changed_captions_are_tagged_again(tmp_path):
    dataset = DatasetFolder(tmp_path, "two")
    problems = Problems()
    prepare_read(dataset, lambda _: iter([*VIDEOS, *CAPTIONS]), problems=problems)
    assert dataset.read_videos() == VIDEOS
    assert [e.word for e in read_idf(dataset.idf)] == ["a", "cooks", "man"]
    changed = [CAPTIONS[0], Caption(video_id="v2", caption="two dogs run", split="train")]
    prepare_read(dataset, lambda _: iter([*VIDEOS, *changed]), problems=problems)
    made = read_captions(dataset.captions)
    assert [c.caption for c in made] == ["a man cooks", "two dogs run"]
    assert [e.word for e in read_idf(dataset.idf)] == ["a", "cooks", "dogs", "man", "run", "two"]
    assert set(json.loads((dataset.captions / "summary.json").read_text())["splits"]) == {"train"}
    assert problems.count == 0
    spoken = [changed[0], replace(changed[1], recording="r")]
    prepare_read(dataset, lambda _: iter([*VIDEOS, *spoken]), problems=problems)
    assert [c.recording for c in read_captions(dataset.captions)] == [None, "r"]


def test_a_caption_of_an_unknown_split_is_left_out_and_named(tmp_path):
    dataset = DatasetFolder(tmp_path, "three")
    problems = Problems()
    unknown = Caption(video_id="v3", caption="a cat sleeps", split="val")
    made = prepare_read(dataset, lambda _: iter([*CAPTIONS, unknown]), problems=problems)
    [line] = problems.messages
    assert all(value in line for value in ("'v3'", "'val'", "train, validation, test")) and made.num_captions == 2
    assert [c.video_id for c in read_captions(dataset.captions)] == ["v1", "v2"]
    with pytest.raises(UserError, match=r"'v3'.*'val'"):
        prepare_read(dataset, lambda _: iter([*CAPTIONS, unknown]), problems=Problems(strict=True))


@pytest.mark.parametrize(
    "lost",
    [
        "captions/part-00000.parquet",
        "captions/counts/part-00000.parquet",
        "captions/about.json",
        "idf.parquet",
        "captions/summary.json",
    ],
)
def test_missing_files_are_written_by_the_next_call(tmp_path, lost):
    dataset = DatasetFolder(tmp_path, "two")
    prepare_read(dataset, lambda _: iter(CAPTIONS))
    (dataset.path / lost).unlink()
    prepare_read(dataset, lambda _: iter(CAPTIONS))
    assert (dataset.path / lost).exists()


@pytest.mark.slow
def test_youcook2_does_not_depend_on_the_number_of_processes(tmp_path):
    """Also compares counts and IDF with a second implementation."""
    there, made = shared("data/youcook2"), {}
    for workers in (1, 2, 7):
        root = tmp_path / str(workers)
        assert (
            call(root, "--dataset", "youcook2", "--annotations", there, "--protocol", "all", "--workers", workers) == 0
        )
        dataset = DatasetFolder(root, "youcook2", "all")
        made[workers] = tables(dataset.path)
    assert made[1] == made[2] == made[7]
    splits = json.loads((dataset.captions / "summary.json").read_text())["splits"]
    assert [splits[split][name] for split in ("train", "test") for name in ("videos", "captions")] == [
        1333,
        10337,
        457,
        3492,
    ]
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


@pytest.mark.slow
def test_the_python_call_prints_nothing_and_reports_progress(tmp_path, capfd):
    rows = [{"video_id": f"v{n}", "caption": "a man cooks rice", "split": "train"} for n in range(4)]
    path = caption_file(tmp_path, [*rows, rows[0] | {"caption": ""}])
    program = f"""
from vlalign.preprocess import PreprocessingSettings, prepare_captions
states = []
settings = PreprocessingSettings({str(tmp_path / "mine")!r}, annotations={str(path)!r})
prepared = prepare_captions(settings, num_processes=1, on_progress=states.append)
assert {{state.what for state in states}} == {{"tagging", "writing captions"}}
assert states[-1].ended and states[-1].done == 4
assert prepared.dataset.name == "mine" and prepared.provenance.seed == 0 and prepared.word_vectors is None
assert prepared.statistics.num_captions == 4 and prepared.statistics.splits["train"].videos == 4
assert prepared.num_problems == 1 and "line 6" in prepared.problems[0]
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("arguments", "setting", "named"),
    [
        ({"protocol": "x"}, "protocol x: ", "'mine'"),
        ({"annotations": "absent.csv"}, "annotations absent.csv: ", ".csv"),
    ],
)
def test_mistakes_are_named_as_in_python(tmp_path, arguments, setting, named):
    with pytest.raises(UserError) as refused:
        prepare_captions(PreprocessingSettings(tmp_path / "mine", **arguments))
    message = str(refused.value)
    assert message.startswith(setting) and named in message.removeprefix(setting)


def test_a_number_of_processes_below_1_is_refused(tmp_path):
    with pytest.raises(SettingError) as refused:
        prepare_captions(PreprocessingSettings(tmp_path / "mine"), num_processes=0)
    assert (refused.value.setting, refused.value.value) == ("num_processes", 0)


def rated(count, changed=None):
    """Return ``captions`` of which every third one has a rating, its number."""
    return [
        replace(caption, extra={"rating": float(number)} if number % 3 == 0 else {})
        for number, caption in enumerate(captions(count, changed))
    ]


def test_numbers_in_columns_of_ones_own_are_kept_in_every_part(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 4)
    with_numbers, without = DatasetFolder(tmp_path, "rated"), DatasetFolder(tmp_path, "plain")
    prepare_read(with_numbers, lambda problems: iter(rated(10)), num_processes=2)
    prepare_read(without, read(10))
    table = read_captions(with_numbers.captions)
    assert {c.caption: dict(c.extra) for c in table} == {c.caption: dict(c.extra) for c in rated(10)}
    about = json.loads((with_numbers.captions / "about.json").read_text())
    assert about["extra_columns"] == ["rating"]
    assert "extra_columns" not in json.loads((without.captions / "about.json").read_text())
    prepare_read(with_numbers, lambda problems: iter(rated(10)))  # nothing to do
    assert json.loads((with_numbers.captions / "about.json").read_text()) == about
