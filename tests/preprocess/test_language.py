"""Captions in languages that the tagger does not speak: what is noticed, and how another tagger is chosen."""

import importlib
import json
from pathlib import Path

import pytest
import spacy
from helpers.needs import shared
from spacy.tokens import Doc
from spacy.training import Example
from vlalign.preprocess import PreprocessingSettings, language
from vlalign.preprocess.cli import main
from vlalign.preprocess.language import MODELS, model_of_language, other_languages
from vlalign.preprocess.tag import SAME_MODEL, load_pipeline
from vlalign.storage import read_captions
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.captions.languages import guess_language, languages_among
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder

SENTENCES = {
    "en": "the man is in the kitchen and cuts an onion",
    "de": "der Mann ist in der Küche und schneidet eine Zwiebel",
    "fr": "l' homme est dans la cuisine et il coupe un oignon avec une lame",
    "es": "el hombre está en la cocina y corta una cebolla con su cuchillo",
    "it": "il signore è nella cucina e sta tagliando una cipolla con il coltello",
    "ru": "он стоит на кухне и режет лук для супа",
    "uk": "він стоїть на кухні та ріже цибулю для супу",
    "ja": "男が台所で玉ねぎを切る",
    "zh": "一个男人在厨房里切洋葱",
    "ko": "남자가 부엌에서 양파를 썬다",
    "el": "ο άντρας κόβει ένα κρεμμύδι",  # noqa: RUF001
    "he": "האיש חותך בצל במטבח",
    "ar": "رجل يقطع البصل في المطبخ",
    "hi": "आदमी प्याज काटता है",
    "th": "ผู้ชายหั่นหัวหอม",
}


@pytest.mark.parametrize("code", SENTENCES)
@pytest.mark.parametrize("expected", ["en", "de"])
def test_sentences_are_taken_for_their_language(code, expected):
    assert guess_language(SENTENCES[code], expected) == code


@pytest.mark.parametrize("text", ["", "12:30", "onion soup", "zwiebelsuppe", "😀", "a" * 100_000])
def test_what_nothing_tells_counts_for_no_language(text):
    assert guess_language(text, "en") in ("", "en")


def test_english_captions_are_not_reported():
    database = json.loads(shared("data/youcook2/youcookii_annotations_trainval.json").read_text())["database"]
    texts = [clip["sentence"] for video in database.values() for clip in video["annotations"]]
    for first in range(0, len(texts), 2000):
        assert other_languages(languages_among(texts[first : first + 2000], "en"), "en") == {}


def test_shares_are_of_the_captions_that_are_told():
    assert other_languages({"en": 60, "de": 30, "fr": 10, "": 900}, "en") == {"de": 0.3, "fr": 0.1}
    assert other_languages({"en": 99, "de": 1}, "en") == {} == other_languages({"": 5}, "en")


def captions_file(folder: Path, *codes: str) -> Path:
    path = folder / "captions.csv"
    rows = [f"v{n},{SENTENCES[code]},{'train' if n % 4 else 'test'}" for n, code in enumerate(codes)]
    path.write_text("\n".join(["video_id,caption,split", *rows]) + "\n", encoding="utf-8")
    return path


def prepare(folder: Path, *more: object) -> int:
    call = ["--root", folder, "--dataset", "mine", "--annotations", folder / "captions.csv", "--workers", 1, *more]
    return main(list(map(str, call)))


def test_other_languages_are_said_and_kept(tmp_path, capsys):
    captions_file(tmp_path, *["de"] * 60, *["en"] * 30, *["ja"] * 10)
    for _ in range(2):  # made, and found
        assert prepare(tmp_path) == 0
        [line] = [line for line in capsys.readouterr().err.splitlines() if "en_core_web_sm" in line]
        assert " 70 %" in line and "de 60 %, ja 10 %" in line and line.endswith(" --language de")
    dataset = DatasetFolder(tmp_path, "mine")
    shares = {"de": 0.6, "ja": 0.1}
    assert read_json(dataset.captions / "summary.json")["other_languages"] == shares
    assert (read_captions_about(dataset.captions) or {})["other_languages"] == shares
    captions_file(tmp_path, *["en"] * 96, *["de"] * 2)
    assert prepare(tmp_path) == 0 and "en_core_web_sm" not in capsys.readouterr().err
    assert "other_languages" not in (read_captions_about(dataset.captions) or {})


def test_advice_fits_what_there_is(tmp_path, capsys):
    assert "--language" in language.in_other_languages({"de": 0.3}, "m") and "--language de" not in (
        language.in_other_languages({"de": 0.3}, "m")
    ), "most captions are in the tagger's language"
    assert "--language ar" not in language.in_other_languages({"ar": 0.9}, "m"), "spaCy has no tagger of it"


def test_a_model_that_is_not_installed_is_named(tmp_path, capsys):
    captions_file(tmp_path, "de")
    assert prepare(tmp_path, "--language", "de") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "'de_core_news_sm'" in line and "spacy download de_core_news_sm" in line
    with pytest.raises(SettingError, match=r"^language ar: .*\bde\b.*--spacy-model"):
        model_of_language("ar")
    with pytest.raises(UserError, match=r"language de: .*'mine'"):
        PreprocessingSettings(tmp_path / "mine", tmp_path / "c.csv", language="de", spacy_model="mine")
    assert model_of_language("en") in SAME_MODEL and set(MODELS) >= {"de", "fr", "ja"}


@pytest.fixture
def german(tmp_path, monkeypatch) -> Path:
    """A pipeline with the parts of spaCy's German ones, installed as one of them: two words decide what "das" is."""
    nlp = spacy.blank("de")
    morphologizer = nlp.add_pipe("morphologizer")
    ruler = nlp.add_pipe("attribute_ruler")
    words, tags = ["Der", "Mann", "schneidet", "das"], ["DET", "NOUN", "VERB", "PRON"]
    for tag in set(tags):
        morphologizer.add_label(f"POS={tag}")
    doc = Doc(nlp.vocab, words=words)
    example = Example(doc, Doc(nlp.vocab, words=words, pos=tags, morphs=[""] * 4))
    optimizer = nlp.initialize(lambda: [example])
    ruler.add([[{"LOWER": "zwiebel"}]], {"TAG": "NN"})
    for _ in range(30):
        nlp.update([example], sgd=optimizer)
    package = tmp_path / "site" / "de_core_news_md"
    package.mkdir(parents=True)
    nlp.to_disk(package / "model")
    (package / "__init__.py").write_text(
        "from pathlib import Path\nfrom spacy.util import load_model_from_path\n"
        "def load(**options):\n    return load_model_from_path(Path(__file__).parent / 'model', **options)\n"
    )
    about = package.parent / "de_core_news_md-3.8.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: de_core_news_md\nVersion: 3.8.0\n")
    monkeypatch.syspath_prepend(str(package.parent))
    importlib.invalidate_caches()
    return package


def test_an_installed_model_of_the_language_tags(tmp_path, german, capsys):
    captions_file(tmp_path, *["de"] * 8)
    assert prepare(tmp_path, "--language", "de") == 0
    assert "--language" not in capsys.readouterr().err
    nlp = spacy.load(german / "model")
    dataset = DatasetFolder(tmp_path, "mine")
    expected = [token.pos_ for token in nlp(SENTENCES["de"])]
    assert len(set(expected)) > 1, "the model tells words apart"
    assert [caption.pos_tags for caption in read_captions(dataset.captions)] == [expected] * 8
    assert "de_core_news_md 3.8.0" in (read_captions_about(dataset.captions) or {})["tagger"]
    load_pipeline.cache_clear()
