"""Captions and names appear in drawings as they are: never as a formula, never sent to LaTeX."""

import re

import numpy as np
import pytest
from matplotlib import rc_context
from vlalign.train.evaluation.codeword_figures import codebook_figures
from vlalign.train.evaluation.report import loss_curve
from vlalign.train.evaluation.steps import LocalizedVideo, PlacedSteps, step_figure

FORMULA = r"$\frac{$ \input{secret}"


def steps() -> str:
    scores_TK = np.zeros((4, 1))
    placed = {"recall": PlacedSteps(np.array([1, 0, 0, 0]), 0.0)}
    return step_figure(LocalizedVideo("task", "v", scores_TK, scores_TK > 0, placed), [FORMULA])


def words() -> str:
    one = [[0.5]]
    matrices = {"labels": [FORMULA], "codewords": [1], "clips": one, "captions": one}
    about = {"matrices": matrices, "label_name": "verb", "sharing": {"part_of_clips": [0.5]}, "vectors": []}
    return codebook_figures(about)


DRAWN = {"a step's name": steps, "a word": words, "a term of the loss": lambda: loss_curve([{"step": 1, FORMULA: 1.0}])}


@pytest.mark.parametrize("what", DRAWN)
@pytest.mark.parametrize("usetex", [False, True])
def test_text_that_looks_like_a_formula_is_shown_as_it_is(what, usetex):
    """Once, Matplotlib's formula parser ended the whole evaluation."""
    with rc_context({"text.usetex": usetex, "svg.fonttype": "none"}):
        svg = DRAWN[what]()
    assert FORMULA in re.sub(r"&\w+;", "", svg)
