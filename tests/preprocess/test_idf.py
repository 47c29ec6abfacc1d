"""Inverse document frequencies, and their figure."""

from itertools import pairwise

import pytest
from helpers.captions import SMALL
from helpers.idf import approx_log, idf_by_word, loop_idf, loop_token_idf, token_idf_by_word
from matplotlib import rc_context
from PIL import Image
from vlalign.preprocess.datasets import demo
from vlalign.preprocess.idf import choose_evenly, count_words, idf_table, plot_idf
from vlalign.preprocess.tag import tag_captions
from vlalign.storage import Caption, IdfEntry


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


@pytest.mark.parametrize(
    ("captions", "expected"),
    [
        pytest.param(["cook/NOUN", "cook/VERB", "a/DET"], {"cook": (2, approx_log(1)), "a": (1, approx_log(3 / 2))}),
        pytest.param(["cook/NOUN cook/VERB", "eat/VERB"], {"cook": (1, approx_log(1)), "eat": (1, approx_log(1))}),
        pytest.param(["x/NOUN", "x/X", "a/DET"], {"x": (2, approx_log(1)), "a": (1, approx_log(3 / 2))}),
        pytest.param(["./PUNCT", "Eat/VERB", "eat/NOUN"], {"eat": (2, approx_log(1))}),
    ],
    ids=["two tags, two captions", "two tags, one caption", "a tag that is none of a word", "no word, and case"],
)
def test_the_idf_of_a_token_counts_all_captions_that_contain_it(captions, expected):
    assert token_idf_by_word(idf_of([caption_of(words) for words in captions])) == expected


def test_idf_equals_a_plain_loop():
    planned = demo.plan_scenes(3, {"train": 12, "test": 6})
    captions = list(tag_captions((r for r in demo.records(planned) if isinstance(r, Caption)), SMALL))
    table = idf_by_word(idf_of(captions))
    expected = loop_idf(captions)
    assert len(expected) > 20 and ("a", "DET") in expected
    assert table == expected
    of_tokens = loop_token_idf(captions)
    assert token_idf_by_word(idf_of(captions)) == {word: of_tokens[word] for word, _ in expected}


def test_idf_counts_training_captions_only():
    train = [caption_of("a/DET cat/NOUN"), caption_of("a/DET dog/NOUN")]
    held = [caption_of("a/DET fish/NOUN", split) for split in ("validation", "test")]
    assert idf_of([held[0], train[0], held[1], train[1]]) == idf_of(train)
    assert idf_of(held) == []


def test_the_plot_shows_words_from_rare_to_frequent(tmp_path):
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


FORMULA = r"$\frac{$ \input{secret}"


def test_a_word_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path):
    with rc_context({"text.usetex": True}):  # as a matplotlibrc in the current folder may have it
        plot_idf([IdfEntry(word=FORMULA, part_of_speech="NOUN", document_count=1, idf=1.0)], tmp_path / "idf.png")
    assert (tmp_path / "idf.png").exists()
