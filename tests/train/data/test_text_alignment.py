"""Words and a BERT tokenizer's pieces: each piece of a word has the word's weight, all other pieces have none."""

import json

import numpy as np
import pytest
import spacy
from helpers.needs import shared
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer
from vlalign.storage import Caption
from vlalign.train.data.text_inputs import TokenWeights

WORDS = spacy.blank("en").tokenizer
WEIGHTS = TokenWeights([], ["NOUN"])


def tagged(text: str) -> Caption:
    """Every other word is a noun."""
    tokens = [token for token in WORDS(text) if not token.is_space]
    return Caption(
        video_id="v",
        caption=text,
        split="train",
        words=[token.text for token in tokens],
        word_starts=[token.idx for token in tokens],
        pos_tags=["NOUN" if number % 2 == 0 else "DET" for number in range(len(tokens))],
    )


def weight_of_piece(caption: Caption, start: int, end: int) -> float:
    """By sets of characters: that of the word which has the piece's first character."""
    for word, at, weight in zip(caption.words, caption.word_starts, WEIGHTS.word_weights(caption), strict=True):
        if start in set(range(at, at + len(word))) and end > start:
            return weight
    return 0.0


def check(tokenizer: BertWordPieceTokenizer, text: str) -> int:
    """Returns how many pieces the text has."""
    caption, encoded = tagged(text), tokenizer.encode(text)
    weights = WEIGHTS.subword_weights(caption, encoded.offsets)
    assert weights == [weight_of_piece(caption, start, end) for start, end in encoded.offsets], text
    for word, at in zip(caption.words, caption.word_starts, strict=True):
        own = [
            w
            for w, (start, end) in zip(weights, encoded.offsets, strict=True)
            if at <= start < at + len(word) and end > start
        ]
        assert len(set(own)) <= 1, (text, word)
    return len(weights)


@pytest.fixture(scope="module")
def bert() -> BertWordPieceTokenizer:
    return BertWordPieceTokenizer(str(shared("data/words/bert-base-uncased-vocab.txt")), lowercase=True)


def test_pieces_of_a_word_share_its_weight(bert):
    caption = tagged("unbelievably good risotto, isn't it?")
    assert caption.words == ["unbelievably", "good", "risotto", ",", "is", "n't", "it", "?"]
    encoded = bert.encode(caption.caption, add_special_tokens=False)
    weights = WEIGHTS.subword_weights(caption, encoded.offsets)
    found = {}
    for (start, _), weight in zip(encoded.offsets, weights, strict=True):
        found.setdefault(max(at for at in caption.word_starts if at <= start), []).append(weight)
    assert [found[at] for at in caption.word_starts[:4]] == [[0.25] * 5, [0], [0.25] * 3, [0]], encoded.tokens


@pytest.mark.parametrize("data", ["youcook2", pytest.param("msrvtt", marks=pytest.mark.slow)])
def test_alignment_is_exact_on_all_real_captions(bert, data):
    if data == "youcook2":
        database = json.loads(shared("data/youcook2/youcookii_annotations_trainval.json").read_text())["database"]
        texts = {clip["sentence"] for video in database.values() for clip in video["annotations"]}
    else:
        content = json.loads(shared("data/msrvtt/sgn_test.json").read_text())
        texts = {caption for captions in content.values() for caption in captions.values()}
    lengths = [check(bert, text) for text in texts if text.strip()]
    assert len(lengths) > 10_000 and np.mean(lengths) > 5


@settings(max_examples=500, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip))
def test_alignment_is_exact_on_any_unicode(bert, text):
    check(bert, text)
