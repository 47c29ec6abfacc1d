"""Inverse document frequencies."""

import pytest
from helpers.captions import SMALL
from helpers.idf import approx_log, idf_by_word, loop_idf
from vlalign.preprocess.datasets import demo
from vlalign.preprocess.idf import count_words, idf_table
from vlalign.preprocess.tag import tag_captions
from vlalign.storage import Caption


def idf_of(captions):
    captions = list(captions)
    return idf_table(sum(c.split == "train" for c in captions), count_words(captions))


def caption_of(words, split="train"):
    """ "cook/NOUN ,/PUNCT" as a tagged caption."""
    pairs = [word.split("/") for word in words.split()]
    return Caption(
        video_id="v",
        caption=words,
        split=split,
        words=[word for word, _ in pairs],
        word_starts=list(range(len(pairs))),
        pos_tags=[tag for _, tag in pairs],
    )


@pytest.mark.parametrize(
    ("captions", "expected"),
    [
        pytest.param(
            ["a/DET b/NOUN", "a/DET"],
            {("a", "DET"): (2, approx_log(2 / 3)), ("b", "NOUN"): (1, approx_log(1))},
            id="common words are below 0",
        ),
        pytest.param(
            ["cook/NOUN", "cook/VERB"],
            {("cook", "NOUN"): (1, approx_log(1)), ("cook", "VERB"): (1, approx_log(1))},
            id="noun and verb are two",
        ),
        pytest.param(
            ["The/DET the/DET", "THE/DET"], {("the", "DET"): (2, approx_log(2 / 3))}, id="case, and twice in a caption"
        ),
        pytest.param(
            ["a/NOUN ,/PUNCT %/SYM x/X", "b/NOUN", "b/NOUN"],
            {("a", "NOUN"): (1, approx_log(3 / 2)), ("b", "NOUN"): (2, approx_log(1))},
            id="no word",
        ),
        pytest.param([], {}, id="none"),
    ],
)
def test_idf_by_hand(captions, expected):
    assert idf_by_word(idf_of([caption_of(words) for words in captions])) == expected


def test_idf_equals_a_plain_loop():
    planned = demo.plan_scenes(3, {"train": 12, "test": 6})
    captions = list(tag_captions((r for r in demo.records(planned) if isinstance(r, Caption)), SMALL))
    table = idf_by_word(idf_of(captions))
    expected = loop_idf(captions)
    assert len(expected) > 20 and ("a", "DET") in expected
    assert table == expected


def test_idf_counts_training_captions_only():
    train = [caption_of("a/DET cat/NOUN"), caption_of("a/DET dog/NOUN")]
    held = [caption_of("a/DET fish/NOUN", split) for split in ("validation", "test")]
    assert idf_of([held[0], train[0], held[1], train[1]]) == idf_of(train)
    assert idf_of(held) == []
