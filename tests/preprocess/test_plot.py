"""The picture of an IDF table."""

from itertools import pairwise

from matplotlib import rc_context
from PIL import Image
from vlalign.preprocess.plot import choose_evenly, plot_idf
from vlalign.storage import IdfEntry


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
