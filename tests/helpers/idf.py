"""A second implementation of the IDF, and IDF tables as dicts."""

import math

import pytest


def approx_log(value):
    return pytest.approx(math.log(value), abs=1e-12)


def loop_idf(captions):
    """Compute Eq. 7 of TACo with loops: {(word, tag): (number of captions with it, IDF)}."""
    train = [c for c in captions if c.split == "train"]
    table = {}
    for caption in train:
        for word, tag in zip(caption.words, caption.pos_tags, strict=True):
            if tag in ("PUNCT", "SPACE", "SYM", "X"):
                continue
            num = 0
            for other in train:
                found = False
                for other_word, other_tag in zip(other.words, other.pos_tags, strict=True):
                    if other_word.lower() == word.lower() and other_tag == tag:
                        found = True
                num += found
            table[word.lower(), tag] = num, approx_log(len(train) / (1 + num))
    return table


def loop_token_idf(captions):
    """Compute Eq. 7 of TACo with loops, whatever a word's tags: {word: (number of captions that contain it, IDF)}."""
    train = [c for c in captions if c.split == "train"]
    table = {}
    for word in {word.lower() for caption in train for word in caption.words}:
        num = 0
        for caption in train:
            num += word in [other.lower() for other in caption.words]
        table[word] = num, approx_log(len(train) / (1 + num))
    return table


def token_idf_by_word(entries):
    table = {e.word: (e.token_count, e.token_idf) for e in entries}
    assert {(e.word, e.token_count, e.token_idf) for e in entries} == {(word, *both) for word, both in table.items()}
    return table


def idf_by_word(entries):
    table = {(e.word, e.part_of_speech): (e.document_count, e.idf) for e in entries}
    assert len(table) == len(entries)
    assert list(table) == sorted(table)
    return table
