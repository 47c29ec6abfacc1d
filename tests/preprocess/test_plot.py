"""The plot of inverse document frequencies."""

from matplotlib import rc_context
from vlalign.preprocess.plot import plot_idf
from vlalign.storage import IdfEntry

FORMULA = r"$\frac{$ \input{secret}"


def test_a_word_that_looks_like_a_formula_is_drawn_as_it_is(tmp_path):
    with rc_context({"text.usetex": False}):
        plot_idf([IdfEntry(word=FORMULA, part_of_speech="NOUN", document_count=1, idf=1.0)], tmp_path / "idf.png")
    assert (tmp_path / "idf.png").exists()
