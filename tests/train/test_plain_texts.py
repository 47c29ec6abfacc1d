"""Captions and names in figures are shown as they are: nothing in them is a formula, and none is given to LaTeX."""

import re

import numpy as np
import pytest
from matplotlib import rc_context
from vlalign.preprocess.plot import plot_idf
from vlalign.storage import IdfEntry
from vlalign.train.tasks.ask_steps import LocalizedVideo
from vlalign.train.tasks.codeword_figures import codebook_figures
from vlalign.train.tasks.report import loss_curve
from vlalign.train.tasks.step_order import Ordered
from vlalign.train.tasks.steps import step_figure

FORMULA = r"$\frac{$ \input{secret}"


def steps() -> str:
    scores_TK = np.zeros((4, 1))
    placed = {"recall": Ordered(np.array([1, 0, 0, 0]), 0.0)}
    return step_figure(LocalizedVideo("task", "v", scores_TK, scores_TK > 0, placed), [FORMULA])


def words() -> str:
    one = [[0.5]]
    matrices = {"labels": [FORMULA], "codewords": [1], "clips": one, "captions": one}
    return "".join(codebook_figures({"matrices": matrices, "sharing": {"part_of_clips": [0.5]}}))


DRAWN = {"a step's name": steps, "a word": words, "a term of the loss": lambda: loss_curve([{"step": 1, FORMULA: 1.0}])}


@pytest.mark.parametrize("what", DRAWN)
@pytest.mark.parametrize("usetex", [False, True])
def test_what_looks_like_a_formula_is_shown_as_it_is(what, usetex):
    """Matplotlib's parser of formulas ended the whole evaluation."""
    with rc_context({"text.usetex": usetex, "svg.fonttype": "none"}):
        svg = DRAWN[what]()
    assert FORMULA in re.sub(r"&\w+;", "", svg)


def test_a_word_of_the_idf_plot_is_no_formula(tmp_path):
    with rc_context({"text.usetex": False}):
        plot_idf([IdfEntry(word=FORMULA, part_of_speech="NOUN", document_count=1, idf=1.0)], tmp_path / "idf.png")
    assert (tmp_path / "idf.png").exists()
