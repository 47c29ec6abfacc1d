"""Published word vectors in each file format, and the selection that a data set needs."""

import bz2
import gzip
import json
import re

import numpy as np
import pytest
from gensim.models import KeyedVectors
from helpers.needs import shared
from vlalign.preprocess import word_vector_formats
from vlalign.preprocess.cli import main
from vlalign.preprocess.word_vector_formats import select_vectors
from vlalign.preprocess.word_vectors import WordCoverage, prepare_word_vectors
from vlalign.storage import Caption
from vlalign.storage.captions.files import write_captions_about, write_part
from vlalign.storage.captions.word_vectors import WordVectors, read_word_vectors, split_words
from vlalign.storage.common.errors import UserError
from vlalign.storage.dataset.folder import DatasetFolder

WORDS = [
    "</s>",
    "the",
    "in",
    "for",
    "that",
    "Paris",
    "naïve",
    "日本",
    "😀",
    "New_York",
    "don't",
    '"',
    "cook",
    "onion",
    "null",
    "NaN",
]
DIMENSION = 12
VECTORS = np.random.default_rng(0).normal(size=(len(WORDS), DIMENSION)).astype(np.float32)


def glove(words=WORDS, vectors=VECTORS) -> str:
    """As GloVe's own program prints them, in full precision."""
    return "".join(
        f"{word} {' '.join(repr(float(value)) for value in row)}\n" for word, row in zip(words, vectors, strict=True)
    )


def save(path, form: str):
    """gensim writes word2vec's forms, numpy npz; GloVe's is written as its program does."""
    if form in ("binary", "text", "binary.gz"):
        model = KeyedVectors(DIMENSION)
        model.add_vectors(WORDS, VECTORS)
        path = path / f"vectors.{form}"
        model.save_word2vec_format(str(path), binary=form != "text")
    elif form == "npz":
        path = path / "vectors.npz"
        np.savez(path, words=np.array(WORDS), vectors=VECTORS)
    else:
        text = {"blanks": f"{len(WORDS)} {DIMENSION}\n" + glove().replace("\n", " \n")}.get(
            form, glove()
        )  # word2vec's C program
        path = path / f"vectors.txt{form.removeprefix('glove').removeprefix('blanks')}"
        pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(text.replace("\n", "\r\n" if form == "glove.crlf" else "\n").encode()))
    return path


@pytest.mark.parametrize(
    "form", ["binary", "binary.gz", "text", "blanks", "glove", "glove.crlf", "glove.gz", "glove.bz2", "npz"]
)
def test_each_form_gives_what_was_written(tmp_path, form):
    words, vectors, num_in_file = select_vectors(save(tmp_path, form), set())
    assert words == WORDS and num_in_file == len(WORDS)
    np.testing.assert_array_equal(vectors, VECTORS)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("form", ["binary", "glove", "npz"])
def test_words_of_captions_and_the_most_frequent_are_kept(tmp_path, form, monkeypatch):
    monkeypatch.setattr(word_vector_formats, "NUM_FREQUENT_WORDS", 2)
    words, vectors, num_in_file = select_vectors(save(tmp_path, form), {"onion", "absent"})
    assert words == ["</s>", "the", "onion"] and num_in_file == len(WORDS)
    np.testing.assert_array_equal(vectors, VECTORS[[0, 1, WORDS.index("onion")]])


def test_text_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vector_formats, "BLOCK_BYTES", 1 << 14)
    vectors = np.random.default_rng(1).normal(size=(3000, 20)).astype(np.float32)
    words = [f"word{n}" for n in range(len(vectors))]
    path = tmp_path / "glove.txt"
    path.write_text(glove(words, vectors))
    read, rows, _ = select_vectors(path, set())
    assert read == words
    np.testing.assert_array_equal(rows, vectors)
    rows_by_gensim = KeyedVectors.load_word2vec_format(str(path), no_header=True)
    np.testing.assert_array_equal(rows, rows_by_gensim.vectors)


@pytest.mark.parametrize("block", [16, 64, 1000])
@pytest.mark.parametrize("ends_lines", [True, False])
def test_the_binary_form_is_read_in_blocks(tmp_path, monkeypatch, block, ends_lines):
    """The C program ends each vector with a line break, gensim does not. A blank or a line break can be in a number."""
    monkeypatch.setattr(word_vector_formats, "BLOCK_BYTES", block)
    words = [*WORDS, *(f"word{n}" for n in range(40))]
    numbers = np.random.default_rng(2).choice([b" ", b"\n", b"a", b"?"], size=(len(words), 4 * DIMENSION))
    end = b"\n" if ends_lines else b""
    rows = (word.encode() + b" " + row.tobytes() + end for word, row in zip(words, numbers, strict=True))
    path = tmp_path / "vectors.bin"
    path.write_bytes(f"{len(words)} {DIMENSION}\n".encode() + b"".join(rows))
    read, vectors, num_in_file = select_vectors(path, set())
    by_gensim = KeyedVectors.load_word2vec_format(str(path), binary=True)
    assert (read, num_in_file) == (by_gensim.index_to_key, len(words))
    np.testing.assert_array_equal(vectors, by_gensim.vectors)


def test_words_with_blanks_as_in_glove_840b_are_passed_over_and_a_word_keeps_its_first_vector(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(glove(["the", ". . .", "at name@domain.com", "the", "onion"], VECTORS[:5]))
    words, vectors, _ = select_vectors(path, set())
    assert words == ["the", "onion"]
    np.testing.assert_array_equal(vectors, VECTORS[[0, 4]])


def refused(path) -> str:
    with pytest.raises(UserError) as caught:
        select_vectors(path, set())
    message = str(caught.value)
    assert "\n" not in message and str(path) in message
    return message


@pytest.mark.parametrize(
    ("content", "value"),
    [
        pytest.param(b"", "word2vec", id="empty"),
        pytest.param(b"PK\x03\x04 glove.txt", " zip ", id="zip"),
        pytest.param(b"some words of prose\nand more\n", "word2vec", id="prose"),
        pytest.param(glove().encode()[:-50], "Expected 13 columns", id="last line cut"),
        pytest.param(glove().replace(repr(float(VECTORS[3, 3])), "x1").encode(), "invalid value 'x1'", id="no number"),
        pytest.param(glove().replace(repr(float(VECTORS[3, 3])), "nan").encode(), " 'for' ", id="not finite"),
        pytest.param(bytes(range(256)) * 20, "word2vec", id="noise"),
        pytest.param(b"3 4\nword " + bytes(16), " 2 of 3 ", id="binary cut short"),
        pytest.param(b"3 4\n" + b"x" * 200_000, " 65,536 ", id="a word without an end"),
        pytest.param(b"3 4000000000\nword " + bytes(64), " 4,000,000,000 ", id="long vectors"),
        pytest.param(b"99999999999 300\nword " + bytes(1200), " 99,999,999,999 ", id="a header that lies"),
        pytest.param(b"\x1f\x8b\x08 broken", "word2vec", id="gzip without its name"),
    ],
)
def test_invalid_text_files_are_refused_with_their_line(tmp_path, content, value):
    path = tmp_path / "vectors.bin"
    path.write_bytes(content)
    assert value in refused(path)


def test_invalid_npz_files_are_refused(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(WORDS), vectors=VECTORS[:5])
    assert " [16], vectors [5, 12]" in refused(path)
    np.savez(path, words=np.array(WORDS, dtype=object), vectors=VECTORS)
    assert "allow_pickle=False" in refused(path)  # NumPy's words
    path.write_bytes(b"no zip")
    assert "word2vec" in refused(path)


def test_a_truncated_gz_is_refused(tmp_path):
    path = tmp_path / "vectors.txt.gz"
    path.write_bytes(gzip.compress(glove().encode())[:-30])
    assert "Truncated" in refused(path) or "stream" in refused(path)  # the words of pyarrow's or Python's reader


def test_words_are_split_as_in_howto100m_and_found_as_written_or_in_lower_case():
    assert split_words("Don't cut it: 2 naïve_cooks, café—日本 😀!") == [
        "Don't",
        "cut",
        "it",
        "2",
        "naïve_cooks",
        "café",
        "日本",
    ]
    vectors = WordVectors(["paris", "Paris", "cook"], np.eye(3, dtype=np.float32), {})
    assert [vectors.find(word) for word in ("Paris", "paris", "PARIS", "Cook", "onion")] == [1, 0, 0, 2, None]


def write_captions(dataset):
    texts = {"train": ["Cook the onion", "the quux, the QUUX and the zork"], "test": ["in Paris"]}
    rows = [Caption(video_id="v", caption=text, split=split) for split in texts for text in texts[split]]
    write_part(dataset.captions, 0, rows, {})
    write_captions_about(dataset.captions, {"tagger": "none"})


def test_coverage_is_reported_and_vectors_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(word_vector_formats, "NUM_FREQUENT_WORDS", 0)
    dataset = DatasetFolder(tmp_path, "mine")
    write_captions(dataset)
    about = prepare_word_vectors(dataset, save(tmp_path, "binary"))
    missing = ["QUUX", "and", "quux", "zork"]
    assert about.coverage == {
        "train": WordCoverage(words=10, found=6, distinct=7, distinct_found=3, missing=missing),
        "test": WordCoverage(words=2, found=2, distinct=2, distinct_found=2, missing=[]),
    }
    stored = read_word_vectors(dataset.word_vectors)
    assert stored.words == ["the", "in", "Paris", "cook", "onion"] and stored.about == json.loads(
        json.dumps(about.to_json())
    )
    np.testing.assert_array_equal(stored.vectors, VECTORS[[WORDS.index(word) for word in stored.words]])
    assert about.sha256 and about.words_in_file == len(WORDS)


def test_vectors_are_prepared_again_only_if_file_or_captions_changed(tmp_path, capsys):
    dataset = DatasetFolder(tmp_path, "mine")
    write_captions(dataset)
    source = save(tmp_path, "glove")
    first = prepare_word_vectors(dataset, source)
    written = dataset.word_vectors.stat().st_mtime_ns
    assert prepare_word_vectors(dataset, source) == first
    assert dataset.word_vectors.stat().st_mtime_ns == written and str(dataset.word_vectors) in capsys.readouterr().err
    source.write_text(glove(WORDS[:14], VECTORS[:14] + 1))
    assert prepare_word_vectors(dataset, source).words_in_file == 14
    written = dataset.word_vectors.stat().st_mtime_ns
    write_captions_about(dataset.captions, {"tagger": "another"})
    prepare_word_vectors(dataset, source)
    assert dataset.word_vectors.stat().st_mtime_ns > written


def test_the_command(tmp_path, capsys):
    annotations = tmp_path / "captions.jsonl"
    annotations.write_text('{"video_id": "v", "caption": "the cook cuts an onion"}\n')
    call = ["--root", str(tmp_path), "--dataset", "mine", "--annotations", str(annotations), "--word-vectors"]
    assert main([*call, str(save(tmp_path, "binary.gz"))]) == 0
    printed = capsys.readouterr().out
    assert "16 of the 16 in vectors.binary.gz, 12 numbers each" in printed
    assert re.search(r"train +5 +60\.0% +5 +60\.0%", printed)
    assert "most frequent words without a vector, train: an, cuts" in printed
    assert read_word_vectors(tmp_path / "mine" / "word_vectors.npz").find("onion") is not None
    assert main([*call, str(tmp_path / "absent.bin")]) == 2
    assert f"--word-vectors {tmp_path / 'absent.bin'}: " in capsys.readouterr().err


def test_real_glove_vectors_of_youcook2(tmp_path, capsys):
    source = shared("data/youcook2/youcook2_vocab_glove.npz")
    with np.load(source) as arrays:
        real = dict(zip(arrays["words"].tolist(), arrays["vectors"], strict=True))
    captions = tmp_path / "captions.csv"
    captions.write_text("video_id,caption\nv,add the chopped onion and garlic to the pan\n")
    assert (
        main(
            [
                "--root",
                str(tmp_path),
                "--dataset",
                "mine",
                "--annotations",
                str(captions),
                "--word-vectors",
                str(source),
            ]
        )
        == 0
    )
    assert "100.0%" in capsys.readouterr().out
    stored = read_word_vectors(tmp_path / "mine" / "word_vectors.npz")
    np.testing.assert_array_equal(stored.vectors[stored.find("onion")], real["onion"])
    rows = np.stack(
        [stored.vectors[stored.find(word)] for word in stored.words if word not in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    )
    names = [word for word in stored.words if word not in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")]
    cosine = rows @ real["onion"] / np.linalg.norm(rows, axis=1) / np.linalg.norm(real["onion"])
    assert {"garlic", "celery"} <= {names[row] for row in np.argsort(-cosine)[:8]}
