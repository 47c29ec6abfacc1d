"""Small files whose content would take much more memory than they do, and notes with values of other types."""

import argparse
import gzip
import json
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest
from vlalign.preprocess.corpus_statistics import CorpusCounter
from vlalign.preprocess.first_pass import ChunkCounts, FirstPassLine, open_first_pass_log
from vlalign.preprocess.word_vector_formats import select_vectors
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.cli.option_files import read_option_file
from vlalign.storage.common.errors import UserError
from vlalign.storage.exchange.readers import source_videos


def refusals(path: Path) -> list[str]:
    """Return why the videos of a file, or the whole file, are refused."""
    lines = []
    try:
        with source_videos(path) as videos:
            for video in videos:
                try:
                    video.read()
                except UserError as error:
                    lines.append(str(error))
    except UserError as error:
        return [str(error)]
    return lines


def test_arrays_of_hdf5_take_a_multiple_of_the_file_together(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(11):
            file.create_dataset(f"v{number}", data=np.zeros((2**20, 2), "f4"), chunks=(2**20, 2), compression="gzip")
    lines = refusals(path)
    assert path.stat().st_size < 2**20 and len(lines) == 3
    assert all(f"{path.stat().st_size:,}" in line for line in lines)


def test_arrays_of_npz_take_a_multiple_of_the_file_together(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **{f"v{number}": np.zeros((2**20, 2), "f4") for number in range(9)})
    (line,) = refusals(path)
    assert path.stat().st_size < 2**20 and f"{path.stat().st_size:,}" in line


def test_word_vectors_take_a_multiple_of_the_file(tmp_path):
    path = tmp_path / "a.bin.gz"
    words = b"".join(b"w%d " % number + bytes(4 * 60_000) for number in range(500))
    path.write_bytes(gzip.compress(b"500 60000\n" + words))
    with pytest.raises(UserError, match=r"a\.bin\.gz: "):
        select_vectors(path, set())


ABOUTS = {
    "a list": [],
    "a number": 1,
    "steps that are a text": {"steps": "x"},
    "steps that are numbers": {"steps": {"a": [1]}},
    "a task that is a list": {"task": ["x"]},
    "a protocol that is a number": {"protocol": 1e308},
    "speech that is a text": {"speech": "yes"},
    "languages that are a list": {"other_languages": ["de"]},
    "languages whose share is a text": {"other_languages": {"de": "half"}},
    "languages whose share is not a number": {"other_languages": {"de": float("nan")}},
    "half of a surrogate pair": {"task": "\ud800"},
}


@pytest.mark.parametrize("what", ABOUTS)
def test_an_odd_note_about_captions_is_refused_in_a_line(tmp_path, what):
    (tmp_path / "about.json").write_text(json.dumps(ABOUTS[what]))
    with pytest.raises(UserError) as caught:
        read_captions_about(tmp_path)
    line = str(caught.value)
    assert line.startswith(str(tmp_path / "about.json")) and "vlalign-preprocess" in line and "\n" not in line


def test_settings_that_repeat_each_other_are_refused_in_a_line(tmp_path):
    """Each list has the one before nine times: written out, they would fill the memory."""
    lines = ["a0: &a0 [1, 2]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    actions = {f"a{n}": argparse.ArgumentParser().add_argument(f"--a{n}") for n in range(12)}
    with pytest.raises(UserError, match=r"a\.yaml, line 12: a11: ") as caught:
        read_option_file(tmp_path / "a.yaml", actions, [f"--a{n}=1" for n in range(11)])
    assert len(str(caught.value)) < 500


def test_the_log_of_a_first_pass_keeps_what_was_changed_and_drops_odd_lines(tmp_path):
    counts = ChunkCounts(CorpusCounter(), ["a problem"], Counter({"cut": 2}))
    with open_first_pass_log(tmp_path / "survey.jsonl", {"file": "x"}) as log:
        log.add(FirstPassLine(["key"], [counts]))
    for odd in ({"keys": "abc"}, {"keys": [1]}, {"pieces": [{"census": {}, "messages": [1], "changed": {}}]}):
        with (tmp_path / "survey.jsonl").open("a") as file:
            file.write(json.dumps({"keys": [], "pieces": [], "is_last": False} | odd) + "\n")
        with open_first_pass_log(tmp_path / "survey.jsonl", {"file": "x"}) as log:
            (line,) = log.lines
            assert line.chunks[0].changed == {"cut": 2} and line.keys == ["key"]
