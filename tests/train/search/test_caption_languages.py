"""Captions in many languages: the right subtitle comes first although questions are full of stop words."""

import json
import os
import sqlite3

import numpy as np
import pytest
from helpers.spoken_lines import LINES, QUESTIONS
from helpers.toy import make_toy
from vlalign.storage import Caption, UserError, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.languages import LANGUAGES, stop_words
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train import open_search
from vlalign.train.cli.index import main as index_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.search.caption_index import FILE_NAME, CaptionIndex, open_caption_index
from vlalign.train.search.caption_terms import CaptionTerms

HARD = {"co se to dává na pánvi"}
"""Its verb is in another line, and its noun has another stem (pánev, pánvi): the right line comes second."""


def write_lines(dataset, lines):
    """Write captions of four seconds: {video: texts}."""
    captions = [
        Caption(video_id=v, caption=text, split="test", start_seconds=4.0 * n, end_seconds=4.0 * n + 3)
        for v, texts in lines.items()
        for n, text in enumerate(texts)
    ]
    write_part(dataset.captions, 0, captions, {})
    write_captions_about(dataset.captions, {})
    return dataset


def found(dataset, query, num_results=5):
    return [match.text for match in open_caption_index(dataset).find(query, num_results, {"v", *LINES})]


@pytest.mark.parametrize("language", LINES)
def test_the_right_subtitle_is_first(tmp_path, language):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), {language: LINES[language]})
    assert open_caption_index(dataset).languages == (language,)
    for question, line in QUESTIONS[language].items():
        first = 2 if question in HARD else 1
        assert LINES[language].index(found(dataset, question)[first - 1]) == line, question


def test_captions_of_a_data_set_may_have_several_languages(tmp_path):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), LINES)
    assert set(open_caption_index(dataset).languages) == set(LINES)
    for language, questions in QUESTIONS.items():
        for question, line in questions.items():
            assert LINES[language][line] in found(dataset, question)[:2], question
    assert found(dataset, "kočka")[0] == LINES["cs"][12] and found(dataset, "der Hund")[0] == LINES["de"][4]


ONLY_STOP_WORDS = ["where is it that he does this", "wo ist denn das", "kde je to", "你在哪里", "それはどこですか"]


def test_a_query_of_stop_words_finds_no_caption_and_says_so(tmp_path, capsys):
    starts = np.arange(60.0)
    times = {"start_seconds": starts, "end_seconds": starts + 1, "valid_frames": np.ones(60, int)}
    videos = [VideoFeatures(video_id=v, features=np.ones((60, 1024)), duration_seconds=60.0, **times) for v in LINES]
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), LINES)
    write_shard(dataset.features("s3d"), PROFILES["s3d"], Weights(name="w", sha256="0" * 64), videos, made_with={})
    search = open_search(dataset.path, features="s3d")
    for query in ONLY_STOP_WORDS:
        assert search(query) == [] and search(query, by="text") == []
        for by in ("both", "text"):
            assert any("stop words" in warning for warning in search.warnings(query, by)), query
    for query in ("😀", "(", "♥ ★"):
        [line] = search.warnings(query, "text")
        assert "the text has no words;" in line and search(query) == []
    assert search.warnings("the oven", "text") == [] and not any("stop" in w for w in search.warnings("the oven"))
    call = ["--root", str(tmp_path), "--dataset", "mine", "--features", "s3d"]
    assert search_main([*call, "where is it"]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "stop words" in line]
    assert line.startswith("note: ")


@pytest.mark.parametrize(
    ("text", "queries", "others"),
    [
        ("黒い猫が走る", ["猫", "黒い猫", "走る"], ["犬", "が", "い"]),
        ("我们去上海动物园", ["上海", "动物园", "在上海的哪里"], ["的"]),
        ("赤いりんごを切る", ["りんご", "りんごはどこですか"], ["みかん", "を"]),
        ("ラーメンとすし", ["ラーメン", "すし"], ["カメラ"]),
        ("고양이가 부엌에서 자고 있다", ["고양이", "고양이는 어디", "부엌"], ["강아지", "가"]),
        ("แมวดำวิ่งในสวน", ["แมว", "แมวอยู่ที่ไหน", "สวน"], ["ปลา"]),
        ("ឆ្មាខ្មៅរត់", ["ឆ្មា"], ["ឆ្កែ"]),
        ("ແມວດຳແລ່ນ", ["ແມວ"], ["ປາ"]),
        ("ကြောင်နက်ပြေး", ["ကြောင်"], ["ခွေး"]),
        (
            "Die Straße ist naß, sagt die Tänzerin",
            ["strasse", "STRASSE", "Straßen", "tanzerin", "nass"],
            ["die", "ist"],
        ),
        ("Le garçon élève des œufs", ["garcon", "GARÇONS", "eleve", "oeufs"], ["des", "le"]),
        ("Los niños comen piñas en la cocina", ["nino", "niño", "pina"], ["los"]),
        ("Кошка спит на крыше", ["кошки", "КРЫША"], ["на", "собака"]),
        ("I can't find the café's ovens", ["find a cafe", "oven"], ["can't", "don't"]),
        ("ﬁve ＯＶＥＮＳ", ["five", "oven"], []),  # noqa: RUF001
        ("Przędza i łódka", ["lodka", "przedza"], ["i"]),
        ("लड़के किताब पढ़ते हैं", ["किताब"], ["हैं"]),
        ("the cat 猫 runs on the 屋根", ["cat", "猫", "屋根"], ["the", "犬"]),
    ],
)
def test_words_are_found_in_any_script(tmp_path, text, queries, others):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), {"v": [text, "zzz", "yyy", "xxx", "www"]})
    for query in queries:
        assert found(dataset, query) == [text], query
    for query in others:
        assert found(dataset, query) == [], query


SAME_WORDS = {
    "en": "cafe café Cafe CAFÉ|resume résumé resumé|fiancee fiancée",
    "de": "cafe café Cafe|resume Résumé|Löffel Loeffel loffel|Straße strasse|Äpfel Aepfel",
    "fr": "fiancée fiancee FIANCÉE|élève eleve|œuf oeuf|cafe café",
    "cs": "pánev panev|dítě dite|sýrový syrovy",
    "es": "jamón jamon|canción cancion|corazón corazon",
    "pt": "coração coracao|limões limoes",
    "pl": "łódka lodka|gotowała gotowala",
    "hu": "almát almat|könyvből konyvbol",
    "ro": "mașină masina|brânză branza",
    "tr": "çocuğu cocugu|ekmeğin ekmegin",
    "fi": "pöydällä poydalla",
    "sv": "smörgåsar smorgasar",
    "lt": "žuvėmis zuvemis",
}


@pytest.mark.parametrize("language", SAME_WORDS)
def test_accents_do_not_count(language):
    terms = CaptionTerms([language])
    for words in SAME_WORDS[language].split("|"):
        for word in words.split():
            for other in words.split():
                assert set(terms.of_caption(word, language).split()) & set(terms.of_query(other)), (word, other)


def test_a_german_caption_is_found_without_its_accent(tmp_path):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), {"v": ["wir sitzen im Café", *LINES["de"]]})
    assert [found(dataset, word) for word in ("cafe", "Café", "das CAFE")] == [["wir sitzen im Café"]] * 3
    assert open_caption_index(dataset).videos_with("cafe") == {"v"}


IN_TWO_LANGUAGES = {
    "en": ["the roses die in the winter", "a man in a red hat", "they go to the war", *LINES["en"][:4]],
    "de": ["die Katze hat einen Ball", "was ist das für ein Hut", "der Mann war in der Küche", *LINES["de"][:4]],
}


@pytest.mark.parametrize(
    ("languages", "query", "expected"),
    [
        ("en", "die", ["en0"]),
        ("en", "man in hat", ["en1"]),
        ("de", "die", []),
        ("de", "was hat der Mann", ["de2"]),
        ("en de", "die", ["en0"]),
        ("en de", "red hat", ["en1"]),
        ("en de", "man in hat", ["en1"]),
        ("en de", "die Katze", ["de0"]),
        ("en de", "the war", ["en2"]),
        ("en de", "a", []),
        ("en de", "was ist das", []),
    ],
)
def test_stop_words_are_those_of_the_captions_languages(tmp_path, languages, query, expected):
    lines = {language: IN_TWO_LANGUAGES[language] for language in languages.split()}
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), lines)
    index = open_caption_index(dataset)
    assert set(index.languages) == set(lines)
    match = next(iter(index.find(query, 1, set(lines))), None)
    assert [f"{match.video_id}{lines[match.video_id].index(match.text)}"] == expected if match else expected == []
    assert index.has_content_words(query) == bool(expected)
    if expected:
        assert expected[0][:2] in index.videos_with(query)
    else:
        with pytest.raises(UserError, match="only stop words"):
            index.videos_with(query)


def test_a_word_that_is_a_stop_word_elsewhere_makes_no_language():
    """Danish has "dog" as a stop word, French "car"."""
    terms = CaptionTerms.detect([["dog snow", "car dog", "snow forest", "red car"] * 10])
    assert terms.languages == ("en",) and terms.of_query("dog car") == ["dog", "car"]
    few = CaptionTerms.detect([["a woman cooks pasta", "a cat eats fish", "a boy kicks ball"]])
    assert few.languages == ("en",) and few.of_query("a cat") == ["cat"]


def test_stop_words_in_chinese_characters_are_those_of_the_captions_language():
    assert CaptionTerms(["ja"]).of_query("大家") and not CaptionTerms(["zh"]).of_query("大家")


def test_long_texts_are_asked_for_in_all_languages(tmp_path):
    index = open_caption_index(write_lines(DatasetFolder(tmp_path, "mine"), LINES))
    text = " ".join([*(f"word{n}" for n in range(40)), "Ofen"])
    assert next(iter(index.find(text, 1, set(LINES)))).video_id == "de"
    assert index.videos_with(text) == set() and index.videos_with("Ofen " * 100) == {"de"}
    assert index.videos_with(" ".join(f"{n}é" for n in range(10**3))) == set()


def test_a_text_of_any_bytes_becomes_terms():
    terms = CaptionTerms(["en", "ja"])
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), 0x20000, 0x10FFFF]))
    for language in terms.languages:
        assert '"' not in terms.of_caption(everything, language)
    assert not any('"' in term or " " in term for term in terms.of_query(everything))
    assert terms.of_query("") == terms.of_query("  ?! 🙂") == []


def test_every_language_has_its_lists():
    for language in LANGUAGES:
        assert CaptionTerms([language]).of_caption("oven", language)
    assert all(stop_words(language) for language in LANGUAGES - {"ka"}) and not stop_words("../en")


def languages_of(dataset):
    return open_caption_index(dataset).languages


def test_a_language_that_is_given_stays(tmp_path, capsys):
    toy = make_toy(tmp_path)
    call = ["--root", str(toy.root), "--dataset", "toy"]
    options = ["--features", "s3d", "--num-steps", "2", "--run-name", "r", "--device", "cpu"]
    assert train_main([*call, *options]) in (0, 1)
    assert languages_of(toy) == ("en",)
    assert index_main([*call, "r", "--language", "cs"]) == 0 and languages_of(toy) == ("cs",)
    part = next(toy.captions.glob("part-*.parquet"))
    os.utime(part, (1, 1))
    assert languages_of(toy) == ("cs",), "made again, since the captions changed"
    assert index_main([*call, "r"]) == 0 and languages_of(toy) == ("cs",)
    assert index_main([*call, "r", "--language", "auto"]) == 0 and languages_of(toy) == ("en",)
    capsys.readouterr()
    assert index_main([*call, "r", "--language", "klingon"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "klingon" in line and " de," in line and "auto" in line


def test_an_index_of_before_is_made_again(tmp_path):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), {"de": LINES["de"]})
    path = dataset.path / "index" / FILE_NAME
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE about(made_from TEXT)")
        database.execute(
            "CREATE VIRTUAL TABLE said USING fts5(text, video_id UNINDEXED, start_seconds UNINDEXED, "
            "end_seconds UNINDEXED, tokenize='porter unicode61')"
        )
        database.execute("INSERT INTO about VALUES ('{\"format\": 1}')")
    assert open_caption_index(dataset).languages == ("de",)


@pytest.mark.parametrize("languages", ["", "5", '"de"', "[]", "[5]", '["../../x"]', '["de", null]', '{"de": 1}'])
def test_languages_of_a_file_are_checked(tmp_path, languages):
    dataset = write_lines(DatasetFolder(tmp_path, "mine"), {"de": LINES["de"]})
    path = open_caption_index(dataset).path
    with sqlite3.connect(path) as database:
        database.execute("UPDATE about SET languages = ?", (languages,))
    with pytest.raises(UserError, match="not a readable caption index"):
        CaptionIndex(path).find("ofen", 3, {"de"})
    for made_from in ("[]", "null", "{", json.dumps({"language": "../x"}), json.dumps({"language": ["de"]})):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE about SET made_from = ?", (made_from,))
        assert open_caption_index(dataset).languages == ("de",), "made again"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    toy = make_toy(tmp_path_factory.mktemp("order"))
    call = ["--root", str(toy.root), "--dataset", "toy", "--features", "s3d", "--num-steps", "2", "--run-name", "r"]
    assert train_main([*call, "--device", "cpu"]) in (0, 1)
    return open_search(toy.path, run="r")


@pytest.mark.parametrize("by", ["video", "text", "both"])
@pytest.mark.parametrize("query", ["the onion", "bread"])
def test_the_first_moments_do_not_depend_on_how_many_are_asked_for(trained, monkeypatch, by, query):
    monkeypatch.setattr("vlalign.train.search.search.HITS_AT_ONCE", 20)  # few windows, so that there are several blocks
    monkeypatch.setattr("vlalign.train.search.moments.FUSED_AT_ONCE", 4)
    monkeypatch.setattr("vlalign.train.search.caption_index.CAPTIONS_AT_ONCE", 3)

    def listed(num_results):
        moments = trained(query, by=by, num_results=num_results, rerank=10)
        return [(m.video_id, m.start_seconds, m.end_seconds, m.score, m.found_by, m.caption) for m in moments]

    every = listed(50)
    assert len(every) > 1
    for num_results in range(1, 21):
        assert [m[:3] for m in listed(num_results)] == [m[:3] for m in every[:num_results]]
        for few, many in zip(listed(num_results), every, strict=False):
            assert few[3] == pytest.approx(many[3], abs=1e-5) and few[4:] == many[4:]
