"""The preparing step as a whole: parts, processes, stopped runs, protocols, official files."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pyarrow.parquet as pq
import pytest
from helpers.shared import shared
from PIL import Image
from vlalign.preprocess import prepare as preparing
from vlalign.preprocess.census import Census, LeftOut, format_statistics
from vlalign.preprocess.cli import main
from vlalign.preprocess.datasets import DATASETS
from vlalign.preprocess.plot import choose_evenly, plot_idf
from vlalign.preprocess.prepare import prepare_records
from vlalign.storage import Caption, IdfEntry, read_captions, read_idf
from vlalign.storage.captions import choose_protocol, read_captions_about
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems
from vlalign.storage.layout import DatasetFolder

SMALL = "en_core_web_sm"


def captions(count: int, changed: int | None = None) -> list[Caption]:
    """Two a video; every tenth for testing."""
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


def files(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()
    }


def ten_line_idf(folder) -> dict:
    """Eq. 7 of TACo from the tables on disk, another way."""
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


def test_how_many_processes_made_it_changes_no_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 40)
    made = {}
    for workers in (1, 2):
        dataset = DatasetFolder(tmp_path / str(workers), "mine")
        prepare_records(dataset, read(130), spacy_model=SMALL, problems=Problems(), num_processes=workers)
        made[workers] = files(dataset.path)
    assert made[1] == made[2]
    assert {f"captions/part-0000{n}.parquet" for n in range(4)} <= made[1].keys()
    stored = read_captions(dataset.captions)
    assert [replace(c, words=[], word_starts=[], pos_tags=[]) for c in stored] == captions(130)
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


def test_the_idf_of_parts_adds_up_to_that_of_the_whole(tmp_path, monkeypatch):
    tables = []
    for size in (1000, 7):
        monkeypatch.setattr(preparing, "PART_CAPTIONS", size)
        dataset = DatasetFolder(tmp_path / str(size), "mine")
        prepare_records(dataset, read(50), spacy_model=SMALL, problems=Problems())
        tables.append(read_idf(dataset.idf))
    assert tables[0] == tables[1]


def test_only_what_changed_is_tagged_again_and_what_is_too_many_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 20)
    dataset = DatasetFolder(tmp_path, "mine")
    prepare_records(dataset, read(70), spacy_model=SMALL, problems=Problems())
    before = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    prepare_records(dataset, read(60, changed=25), spacy_model=SMALL, problems=Problems())
    after = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    assert [name for name in after if after[name] != before[name]] == ["part-00001.parquet"]
    assert sorted(after) == [f"part-0000{n}.parquet" for n in range(3)]
    assert sorted(p.name for p in (dataset.captions / "counts").iterdir()) == sorted(after)
    assert len(read_captions(dataset.captions)) == 60
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_prepare import SMALL, preparing, read
from vlalign.storage.common.problems import Problems
from vlalign.storage.layout import DatasetFolder
preparing.PART_CAPTIONS = 300
preparing.prepare_records(DatasetFolder(Path(sys.argv[1]), "mine"), read(6000), spacy_model=SMALL, problems=Problems(), num_processes=2)
"""


def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "PART_CAPTIONS", 300)
    dataset = DatasetFolder(tmp_path, "mine")
    run = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), os.path.dirname(__file__)], start_new_session=True
    )
    deadline = time.monotonic() + 120
    while len(list(dataset.captions.glob("part-*.parquet"))) < 2 and time.monotonic() < deadline and run.poll() is None:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    before = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    assert 2 <= len(before) < 20
    with pytest.raises(UserError, match="run vlalign-preprocess"):
        read_captions(dataset.captions)  # not half of a data set
    prepare_records(dataset, read(6000), spacy_model=SMALL, problems=Problems())
    after = {p.name: p.stat().st_mtime_ns for p in dataset.captions.glob("part-*.parquet")}
    assert len(after) == 20 and all(after[name] == made for name, made in before.items())
    assert [c.caption for c in read_captions(dataset.captions)] == [c.caption for c in captions(6000)]


# Official files


def official(folder, *, clips=2):
    """YouCook2 in its authors' schema, of sentences of our own."""
    database = {
        f"{subset}{n}": {
            "subset": subset,
            "duration": 90.0,
            "recipe_type": "101",
            "annotations": [
                {"id": i, "segment": [10 * i, 10 * i + 5], "sentence": f"cut {n} onions {i}"} for i in range(clips)
            ],
        }
        for subset in ("training", "validation")
        for n in range(3)
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "youcookii_annotations_trainval.json").write_text(json.dumps({"database": database}))
    rows = ["end,start,task,text,video_id", *(f"{5},{0},101,cut {n} onions 0,validation{n}" for n in range(2))]
    (folder / "validation_youcook.csv").write_text("\n".join(rows))
    return database


def call(root, *args):
    return main(["--root", str(root), *map(str, args)])


def test_official_files_are_read_from_their_usual_place(tmp_path, capsys):
    official(tmp_path / "youcook2" / "annotations")
    assert call(tmp_path, "--dataset", "youcook2") == 0
    out, _ = capsys.readouterr()
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [["train", "3", "6", "6"], ["test", "2", "2", "2"]]
    dataset = DatasetFolder(tmp_path, "youcook2")
    assert read_captions_about(dataset.captions)["protocol"] == "retrieval"
    assert {c.task for c in read_captions(dataset.captions)} == {"101"}


def test_protocols_lie_beside_each_other(tmp_path):
    official(tmp_path / "there")
    for protocol in ("retrieval", "all"):
        assert call(tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there", "--protocol", protocol) == 0
    usual = DatasetFolder(tmp_path, "youcook2")
    assert choose_protocol(usual, "") == choose_protocol(usual, "retrieval") == usual
    other = choose_protocol(usual, "all")
    assert other.features("s3d") == usual.features("s3d"), "and share the features"
    assert [sum(c.split == "test" for c in read_captions(d.captions)) for d in (usual, other)] == [2, 6]
    assert other.idf != usual.idf and len(read_idf(other.idf)) == len(read_idf(usual.idf))
    with pytest.raises(UserError, match="--protocol none first"):
        choose_protocol(usual, "none")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--dataset", "youcook2"],
            ["annotations: no such folder", "youcookii_annotations_trainval.json", "http://youcook2"],
        ),
        (
            ["--dataset", "youcook2", "--annotations", "{empty}"],
            [
                "missing youcookii_annotations_trainval.json (http://youcook2",
                "validation_youcook.csv (https://github.com",
            ],
        ),
        (["--dataset", "youcook2", "--protocol", "1k"], ["--protocol 1k", "expected one of retrieval, all"]),
        (["--dataset", "mine", "--protocol", "1k"], ["--protocol 1k", "it has no protocols"]),
        (["--dataset", "youcook2", "--annotations", "{there}", "--workers", "0"], ["--workers 0: expected 1 or more"]),
    ],
)
def test_mistakes_get_one_line(tmp_path, capsys, argv, said):
    (tmp_path / "empty").mkdir()
    official(tmp_path / "there")
    assert call(tmp_path, *(word.format(empty=tmp_path / "empty", there=tmp_path / "there") for word in argv)) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert all(words in error for words in said), error


@pytest.mark.parametrize("strict", [False, True])
def test_bad_rows_are_counted_or_with_strict_stop_the_run(tmp_path, capsys, strict):
    database = official(tmp_path / "there")
    database["training1"]["annotations"][0]["segment"] = [9, 3]
    database["training2"]["annotations"][1]["sentence"] = "  "
    path = tmp_path / "there" / "youcookii_annotations_trainval.json"
    path.write_text(json.dumps({"database": database}))
    code = call(
        tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there", *(["--strict"] if strict else [])
    )
    err = capsys.readouterr().err
    assert f"{path}, video 'training1', clip 0: " in err and "0 <= start < end" in err
    dataset = DatasetFolder(tmp_path, "youcook2")
    if strict:
        assert code == 2 and "(--strict stops here)" in err and not dataset.captions.exists()
    else:
        assert code == 1 and len(read_captions(dataset.captions)) == 6
        summary = json.loads((dataset.captions / "summary.json").read_text())
        assert summary["left_out"]["count"] == 2 and len(summary["left_out"]["first"]) == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"database": []}',
        '{"database": {"v": {}}}',
        '{"database": {"v": {"subset": "training", "annotations": [3]}}}',
        b"\xff",
    ],
)
def test_other_files_under_official_names_get_one_line(tmp_path, capsys, content):
    official(tmp_path / "there")
    path = tmp_path / "there" / "youcookii_annotations_trainval.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert call(tmp_path, "--dataset", "youcook2", "--annotations", tmp_path / "there") == 2
    [error] = capsys.readouterr().err.splitlines()
    assert str(path) in error


def test_the_summary_says_what_splits_share():
    census = Census()
    for video, split, text in (
        ("a", "train", "x"),
        ("a", "train", "x"),
        ("b", "train", "x"),
        ("b", "test", "y"),
        ("c", "test", "x"),
    ):
        census.add(Caption(video_id=video, caption=text, split=split))
    statistics = census.statistics(changed={}, left_out=LeftOut(count=0))
    train = statistics.splits["train"]
    assert (train.videos, train.clips, train.captions, train.shared_texts) == (2, 2, 3, 1)
    assert statistics.splits["test"].shared_texts == 0
    assert statistics.videos_in_both == {"train, test": 1}
    assert "videos in both train and test: 1" in format_statistics(statistics)


def test_the_picture_shows_words_from_rare_to_frequent(tmp_path):
    def entries(tag, count):
        return [
            IdfEntry(word=f"{tag}{n}", part_of_speech=tag, document_count=n, idf=10 - n / 100) for n in range(count)
        ]

    nouns = choose_evenly([*entries("NOUN", 500), *entries("VERB", 3)][::-1], "NOUN")
    assert len(nouns) == 60 and (nouns[0].word, nouns[-1].word) == ("NOUN0", "NOUN499")
    steps = [b.document_count - a.document_count for a, b in pairwise(nouns)]
    assert set(steps) <= {8, 9}
    assert [e.word for e in choose_evenly(entries("VERB", 3), "VERB")] == ["VERB0", "VERB1", "VERB2"]
    odd = [
        IdfEntry(word=word, part_of_speech="NOUN", document_count=1, idf=1.0)
        for word in ("$a_{", "日本", "\\frac", "😀")
    ]
    for table in ([], entries("VERB", 1), entries("NOUN", 500), odd):
        plot_idf(table, tmp_path / "idf.png")
        with Image.open(tmp_path / "idf.png") as picture:
            assert picture.size == (1400, 700) and len(picture.convert("RGB").getcolors(1 << 20)) > 10


# The real files


@pytest.mark.slow
def test_youcook2_is_the_same_whoever_makes_it(tmp_path):
    """Its counts by the command itself, and its idf against ten lines; by 1, 2 and 7 processes."""
    there, made = shared("data/youcook2"), {}
    for workers in (1, 2, 7):
        root = tmp_path / str(workers)
        assert (
            call(root, "--dataset", "youcook2", "--annotations", there, "--protocol", "all", "--workers", workers) == 0
        )
        dataset = DatasetFolder(root, "youcook2", "all")
        made[workers] = files(dataset.path)
    assert made[1] == made[2] == made[7]
    splits = json.loads((dataset.captions / "summary.json").read_text())["splits"]
    assert [splits[split][name] for split in ("train", "test") for name in ("videos", "captions")] == [
        1333,
        10337,
        457,
        3492,
    ]
    assert_idf_is(dataset, ten_line_idf(dataset.captions))


def test_every_data_set_says_where_its_files_are_published():
    for name, spec in DATASETS.items():
        assert spec.protocols and all("http" in source for source in spec.published.values()), name
        with pytest.raises(UserError, match="missing"):
            from vlalign.preprocess.datasets.sources import Annotations

            list(partial(spec.read, Annotations(shared("zoo"), spec.published, Problems()))(spec.protocols[0]))
