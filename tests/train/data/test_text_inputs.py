"""Words and their weights as tokens: the small tokenizer, weights of tokens of interest, queries."""

import math
from dataclasses import replace

import pytest
from vlalign.storage import Caption, IdfEntry
from vlalign.storage.common.errors import UserError
from vlalign.train.data.text_encoders import new_text_encoder, small_tokenizer
from vlalign.train.data.text_inputs import TokenWeights, tokenize
from vlalign.train.distributed import Workers

IDF = [
    IdfEntry(word="circle", part_of_speech="NOUN", document_count=9, idf=1.0),
    IdfEntry(word="falls", part_of_speech="VERB", document_count=3, idf=3.0),
    IdfEntry(word="video", part_of_speech="NOUN", document_count=99, idf=-0.1),
    IdfEntry(word="fall", part_of_speech="NOUN", document_count=1, idf=4.0),
    IdfEntry(word="fall", part_of_speech="VERB", document_count=2, idf=3.5),
]
TAGGED = Caption(
    video_id="v",
    caption="A red circle falls",
    split="train",
    words=["A", "red", "circle", "falls"],
    word_starts=[0, 2, 6, 13],
    pos_tags=["DET", "ADJ", "NOUN", "VERB"],
)


def caption(text: str, tags: str) -> Caption:
    words = text.split()
    starts = [sum(len(w) + 1 for w in words[:i]) for i in range(len(words))]
    return Caption(video_id="v", caption=text, split="train", words=words, word_starts=starts, pos_tags=tags.split())


@pytest.mark.parametrize(
    ("given", "pos_tags", "expected"),
    [
        (TAGGED, ("NOUN", "VERB"), [0, 0, 0.25, 0.75]),
        (TAGGED, ("VERB",), [0, 0, 0, 1]),
        (TAGGED, (), [0, 0, 0, 0]),
        (caption("video falls", "NOUN VERB"), ("NOUN", "VERB"), [0, 1]),
        (caption("a video", "DET NOUN"), ("NOUN", "VERB"), [0, 1]),
        (caption("zebra falls", "NOUN VERB"), ("NOUN", "VERB"), [4 / 7, 3 / 7]),
    ],
    ids=["noun and verb", "verb", "nothing", "below zero is zero", "only a zero one", "never seen is rarest"],
)
def test_word_weights_are_normalised_idfs(given, pos_tags, expected):
    assert TokenWeights(IDF, pos_tags).word_weights(given) == pytest.approx(expected)


NUM_CAPTIONS = 20
COUNTS = {("cook", "NOUN"): (1, 4), ("cook", "VERB"): (3, 4), ("pan", "NOUN"): (7, 7), ("all", "NOUN"): (20, 20)}
"""{(word, tag): training captions that contain the word with this tag, and with any}"""
BY_TOKEN = [
    IdfEntry(
        word=word,
        part_of_speech=tag,
        document_count=count,
        idf=math.log(NUM_CAPTIONS / (1 + count)),
        token_count=any_tag,
        token_idf=math.log(NUM_CAPTIONS / (1 + any_tag)),
    )
    for (word, tag), (count, any_tag) in COUNTS.items()
]


@pytest.mark.parametrize(
    ("text", "tags", "idfs"),
    [
        ("cook pan", "NOUN NOUN", [20 / 5, 20 / 8]),
        ("cook pan", "VERB NOUN", [20 / 5, 20 / 8]),
        ("Pan cook", "VERB NOUN", [20 / 8, 20 / 5]),
        ("zebra cook", "NOUN VERB", [20 / 1, 20 / 5]),
        ("all cook", "NOUN VERB", [1, 20 / 5]),
        ("all the all", "NOUN DET NOUN", [math.e, 1, math.e]),
    ],
    ids=["noun", "verb", "a tag that it never has", "no caption: log |D|", "below zero is zero", "all zero"],
)
def test_word_weights_are_normalised_idfs_of_tokens(text, tags, idfs):
    """TACo's Eq. 7, of |D| = 20 captions: log(20 / (1 + captions with the word))."""
    idfs = [math.log(value) for value in idfs]
    weights = TokenWeights(BY_TOKEN, ("NOUN", "VERB"), "token").word_weights(caption(text, tags))
    assert weights == pytest.approx([idf / sum(idfs) for idf in idfs])


def test_tf_idf_multiplies_by_how_often_the_caption_has_the_word():
    """ToCo's section 3.3: each of the two pans weighs 2 log(20 / 8); the pan that is tagged otherwise counts, too."""
    weights = TokenWeights(BY_TOKEN, ("NOUN", "VERB"), "tf-idf")
    for text, tags, wanted in (
        ("cook Pan pan", "VERB NOUN NOUN", [math.log(20 / 5), 2 * math.log(20 / 8), 2 * math.log(20 / 8)]),
        ("cook pan pan", "VERB NOUN DET", [math.log(20 / 5), 2 * math.log(20 / 8), 0]),
        ("all the all", "NOUN DET NOUN", [1, 0, 1]),
    ):
        found = weights.word_weights(caption(text, tags))
        assert found == pytest.approx([weight / sum(wanted) for weight in wanted]), text


def test_words_are_counted_by_tag_on_request_and_with_a_table_of_an_earlier_version():
    given, wanted = caption("cook pan", "VERB NOUN"), [math.log(20 / 4), math.log(20 / 8)]
    old = [replace(entry, token_count=None, token_idf=None) for entry in BY_TOKEN]
    for weights in (TokenWeights(BY_TOKEN, ("NOUN", "VERB")), TokenWeights(old, ("NOUN", "VERB"), "token")):
        assert weights.word_weights(given) == pytest.approx([idf / sum(wanted) for idf in wanted])


def test_all_pieces_of_a_word_have_its_weight():
    tokenizer = small_tokenizer(["a red circle falls"], max_words=0)  # nothing but letters
    tokens = tokenize(tokenizer, [TAGGED], TokenWeights(IDF, ("NOUN", "VERB")), max_tokens=30)
    pieces = tokenizer.convert_ids_to_tokens(tokens["input_ids"][0].tolist())
    assert pieces[0] == "[CLS]" and pieces[-1] == "[SEP]"
    word, weight_of = "", []
    for piece in pieces[1:-1]:
        word = word + piece[2:] if piece.startswith("##") else piece
        weight_of.append(0.25 if "circle".startswith(word) else 0.75 if "falls".startswith(word) else 0.0)
    assert len(pieces) > 6, "the words should be in pieces"
    assert tokens["token_weights"][0].tolist() == pytest.approx([0.0, *weight_of, 0.0])


def test_the_small_tokenizer_has_the_captions_words_and_spells_others_in_letters():
    tokenizer = small_tokenizer(["A red circle falls.", "a circle"])
    assert tokenizer.tokenize("A circle falls.") == ["a", "circle", "falls", "."]
    assert tokenizer.tokenize("call") == ["c", "##a", "##l", "##l"]
    assert tokenizer.tokenize("zoo") == ["[UNK]"]
    assert tokenizer.get_vocab() == small_tokenizer(["A red circle falls.", "a circle"]).get_vocab()


def test_a_query_gets_the_usual_tags_of_its_words():
    query = TokenWeights(IDF, ("NOUN",)).tag_query("Circle, fall & zebra!")
    assert query.words == ["Circle", "fall", "zebra"]
    assert query.pos_tags == ["NOUN", "VERB", "X"]
    assert [query.caption[s : s + len(w)] for s, w in zip(query.word_starts, query.words, strict=True)] == query.words


def test_a_missing_text_encoder_is_one_line():
    with pytest.raises(UserError, match=r"'/no/such': .*'small'"):
        new_text_encoder("/no/such", [], Workers())
