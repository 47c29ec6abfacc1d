"""Captions as numbers of their different words."""

import json
import math
import re

import pytest
from helpers.training import map_in_processes
from vlalign.storage.common.errors import UserError
from vlalign.storage.records import Caption
from vlalign.train.data.text_inputs import WORD_LIST_FILE, WordIdInputs
from vlalign.train.distributed import join_workers

TEXTS = ["Cut the onion", "cut the RED pepper", "the cat's onion"]


def caption(text):
    return Caption(video_id="v", caption=text, split="train")


def test_words_are_numbered_by_how_many_texts_have_them():
    words = WordIdInputs.learn(TEXTS, 10)
    assert words.words == ["the", "cut", "onion", "cat's", "pepper", "red"]
    assert words.idf.tolist() == pytest.approx([0, *[math.log(3 / 2)] * 2, *[math.log(3)] * 3])


def test_captions_are_their_different_known_words():
    inputs = WordIdInputs.learn(TEXTS, 10)(
        [caption(text) for text in ("The onion, the Onion and an unknown", "?", "Cut")]
    )
    assert inputs["input_ids"].tolist() == [[0, 2], [0, 0], [1, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [0, 0], [1, 0]]


def test_long_captions_are_cut():
    assert WordIdInputs.learn(TEXTS, 2)([caption("the cut onion")])["input_ids"].tolist() == [[0, 1]]


def test_a_saved_vocabulary_gives_the_same_numbers(tmp_path):
    words = WordIdInputs.learn(TEXTS, 10)
    words.save(tmp_path)
    again = WordIdInputs.read(tmp_path, 10)
    assert again.words == words.words
    assert again.idf is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"words": 1}',
        b'{"words": [1]}',
        b'{"words": ["a", "a"]}',
        b'{"words": ["\\ud800"]}',
        b"\xff",
    ],
)
def test_anything_else_is_refused_in_one_line(tmp_path, content):
    (tmp_path / WORD_LIST_FILE).write_bytes(content)
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path / WORD_LIST_FILE))}: "):
        WordIdInputs.read(tmp_path, 10)


def test_a_vocabulary_of_gigabytes_is_not_read(tmp_path):
    with (tmp_path / WORD_LIST_FILE).open("wb") as file:
        file.write(json.dumps({"words": ["a"]}).encode())
        file.truncate(3 << 30)
    with pytest.raises(UserError, match=rf"{WORD_LIST_FILE}: .*\b16 MiB\b"):
        WordIdInputs.read(tmp_path, 10)


def words_of_one_process(folder):
    with join_workers("cpu") as (workers, _):
        words = workers.from_first(lambda: WordIdInputs.learn(TEXTS if workers.is_first else pytest.fail(), 10))
        words.save(folder / str(workers.rank))


def test_of_processes_that_train_together_the_first_counts_the_words(tmp_path):
    map_in_processes(2, words_of_one_process, tmp_path)
    found = [WordIdInputs.read(tmp_path / str(rank), 10).words for rank in range(2)]
    assert found[0] == found[1] == WordIdInputs.learn(TEXTS, 10).words
