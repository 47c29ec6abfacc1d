"""A data set costs one file, one row in ``DATASETS`` and tests. This one is added from outside the package."""

import importlib.util

from helpers.captions import call
from vlalign.preprocess.datasets import DATASETS
from vlalign.storage import read_captions
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.dataset.folder import DatasetFolder

READER = '''
"""Toy: one line per caption, as ``video: sentence``."""

from collections.abc import Iterator

from vlalign.preprocess.datasets.sources import Annotations, Dataset, Record, read_lines, text
from vlalign.storage.records import Caption


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    (path,) = annotations.find("toy.txt")
    for number, line in enumerate(read_lines(path), start=1):
        video_id, _, sentence = line.partition(":")
        try:
            split = "test" if protocol == "all-test" or video_id.startswith("t") else "train"
            yield Caption(video_id=video_id, caption=text(sentence), split=split)
        except ValueError as error:
            annotations.drop(path, f"line {number}", str(error))


DATASET = Dataset(
    read,
    {"toy.txt": "https://example.org/toy"},
    protocols=("usual", "all-test"),
    facts=lambda annotations, protocol: {"lines": len(read_lines(*annotations.find("toy.txt")))},
    task="retrieval",
)
'''


def add_dataset(folder, monkeypatch):
    """Write the reader to a file and add its row."""
    (folder / "toy.py").write_text(READER)
    spec = importlib.util.spec_from_file_location("toy", folder / "toy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(DATASETS, "toy", module.DATASET)


def test_a_new_reader_is_run_by_the_command(tmp_path, monkeypatch, capsys):
    add_dataset(tmp_path, monkeypatch)
    annotations = tmp_path / "toy" / "annotations"
    annotations.mkdir(parents=True)
    (annotations / "toy.txt").write_text("a: a man cooks rice\na: he stirs it\nt1: a dog runs\nt2:\n")
    assert call(tmp_path, "--dataset", "toy") == 1
    out, err = capsys.readouterr()
    assert "protocol: usual" in out and "lines: 4" in out
    assert f"{annotations / 'toy.txt'}, line 4: " in err and "''" in err
    dataset = DatasetFolder(tmp_path, "toy")
    captions = read_captions(dataset.captions)
    assert [(c.video_id, c.caption, c.split) for c in captions] == [
        ("a", "a man cooks rice", "train"),
        ("a", "he stirs it", "train"),
        ("t1", "a dog runs", "test"),
    ]
    assert captions[2].pos_tags == ["DET", "NOUN", "VERB"]
    about = read_captions_about(dataset.captions)
    assert about is not None and (about["protocol"], about["task"], about["lines"]) == ("usual", "retrieval", 4)


def test_the_protocols_of_a_new_reader_are_options(tmp_path, monkeypatch, capsys):
    add_dataset(tmp_path, monkeypatch)
    (tmp_path / "toy.txt").write_text("a: a man cooks\n")
    assert call(tmp_path, "--dataset", "toy", "--annotations", tmp_path, "--protocol", "all-test") == 0
    assert {c.split for c in read_captions(DatasetFolder(tmp_path, "toy", "all-test").captions)} == {"test"}
    assert call(tmp_path, "--dataset", "toy", "--annotations", tmp_path, "--protocol", "other") == 2
    assert "expected one of usual, all-test" in capsys.readouterr().err


def test_missing_files_of_a_new_reader_are_named_with_their_source(tmp_path, monkeypatch, capsys):
    add_dataset(tmp_path, monkeypatch)
    assert call(tmp_path, "--dataset", "toy") == 2
    assert "toy.txt (https://example.org/toy)" in capsys.readouterr().err
