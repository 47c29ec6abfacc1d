"""What can be told from the rows of two makers alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.foreign import rows
from vlalign.extract.verification.compare import DIFFERENT, NOT_TOLD, SAME, Hypothesis, compare
from vlalign.storage import VideoFeatures
from vlalign.storage.common.errors import UserError

# What can be told from rows alone


def ours(features: np.ndarray) -> VideoFeatures:
    starts = np.arange(len(features)) * 2 / 3
    return VideoFeatures(
        video_id="x",
        features=features,
        start_seconds=starts,
        end_seconds=starts + 2 / 3,
        valid_frames=np.full(len(features), 16),
        duration_seconds=len(features) * 2 / 3,
    )


def at_one_row_a_second(features: np.ndarray) -> np.ndarray:
    seconds = np.arange(int(len(features) * 2 / 3)) + 0.5
    return features[(seconds * 1.5).astype(int)]


OTHERS = np.concatenate([rows(6, seed=seed) for seed in range(20, 24)])


def another_recipe(places, num_rows) -> list[Hypothesis]:
    return [Hypothesis("something else", rows(12, seed=9)[places])]


def reordered(features: np.ndarray, *places: int) -> np.ndarray:
    order = np.arange(len(features))
    order[sorted(places)] = places
    return features[order]


def with_row(features: np.ndarray, place: int, row: np.ndarray) -> np.ndarray:
    features = features.copy()
    features[place] = row
    return features


@pytest.mark.parametrize(
    "change, verdict, remark",
    [
        (lambda f: f, SAME, None),
        (lambda f: f.astype(np.float16), SAME, None),
        (lambda f: f[:-1], DIFFERENT, "the last window was dropped"),
        (lambda f: f[:-3], DIFFERENT, "theirs has 3 rows fewer at the end"),
        (lambda f: np.concatenate([f, f[-2:]]), DIFFERENT, "theirs has 2 rows more at the end"),
        (lambda f: f / np.linalg.norm(f, axis=1, keepdims=True), SAME, "their rows are L2-normalised, ours raw"),
        (lambda f: f * 7, SAME, "their rows are 7 times as long"),
        (lambda f: f + 30, DIFFERENT, "their values are ours +30.00 throughout: another reference"),
        (lambda f: f[2:], DIFFERENT, "theirs have rows 2 places earlier"),
        (lambda f: np.concatenate([f[2:], f[-2:]]), DIFFERENT, "theirs have rows 2 places earlier"),
        (lambda f: np.concatenate([rows(3, seed=9), f]), DIFFERENT, "theirs have rows 3 places later"),
        (lambda f: f[::-1], DIFFERENT, "rows in another order (12 of 12 equal ours at other places)"),
        (lambda f: reordered(f, 7, 4), DIFFERENT, "rows in another order (2 of 12 equal ours at other places)"),
        (lambda f: with_row(f, 4, rows(1, seed=9)[0]), DIFFERENT, "1 of 12 rows differ, from row 4 on"),
        (at_one_row_a_second, DIFFERENT, "another rate: 1.00 rows a second, ours 1.50"),
        (lambda f: f.mean(axis=0), SAME, "one row a video; compared with the mean of ours"),
        (lambda f: f.max(axis=0)[None], SAME, "one row a video; compared with the maximum of ours"),
        (lambda f: rows(12, seed=5), DIFFERENT, "no cause known here explains it"),
        (lambda f: rows(12, seed=9), DIFFERENT, "theirs have something else (distance 0.0000, ours "),
        (lambda f: (f + rows(12, seed=9)) / 2, DIFFERENT, "no cause known here explains it"),
    ],
    ids=str.split(
        "itself float16 dropped shorter longer normalised scaled level cut earlier later reversed two-swapped "
        "one-other rate mean maximum other explained between"
    ),
)
def test_differences_visible_in_the_rows_are_named(change, verdict, remark):
    mine = rows(12)
    found = compare(ours(mine), change(mine), OTHERS, another_recipe)
    assert found.verdict == verdict, found
    assert (remark is None and not found.notes) or any(remark in r for r in found.notes), found.notes


@pytest.mark.parametrize(
    "mine, others, why",
    [
        (rows(1), OTHERS[:0], "no rows of other videos that differ"),
        (np.repeat(rows(1), 5, axis=0), OTHERS, "their order and rate cannot be compared"),
        (rows(1), OTHERS, ""),
    ],
    ids=["one row alone", "still", "one row"],
)
def test_equal_rows_are_not_called_the_same_where_all_rows_are_equal(mine, others, why):
    found = compare(ours(mine), mine, others, another_recipe)
    assert found.verdict == (NOT_TOLD if why else SAME)
    assert not why or why in found.notes[0]


def test_a_rate_that_explains_the_rows_explains_their_number():
    mine, made = rows(12), rows(12, seed=9)
    rate = Hypothesis("16 frames a second", made[:11], another_rate=True)
    found = compare(ours(mine), made[:11], OTHERS, lambda places, _: [replace(rate, rows=rate.rows[places])])
    assert found.verdict == DIFFERENT and found.cause == rate.name and len(found.notes) == 1, (
        "no last window was dropped"
    )


def test_rows_that_differ_are_not_judged_where_nothing_can_be_computed():
    mine = rows(12)
    found = compare(ours(mine), mine + 0.01 * rows(12, seed=3), OTHERS, None)
    assert found.verdict == NOT_TOLD


def test_equivalent_recipes_are_reported_together():
    mine, made = rows(12), rows(12, seed=9)
    found = compare(
        ours(mine), made, OTHERS, lambda places, _: [Hypothesis(name, made[places]) for name in ("this", "that")]
    )
    assert found.verdict == DIFFERENT and not found.cause
    assert "this or that" in found.notes[0] and " 2 " in found.notes[1]


def test_our_recipe_is_not_confirmed_by_a_video_that_another_leaves_as_it_is():
    mine = rows(12)
    rounded = torch.from_numpy(mine).bfloat16().float().numpy()

    def alternatives(places, _):
        return [
            Hypothesis("our recipe, computed in bf16", rounded[places], ours=True),
            Hypothesis("another", mine[places]),
        ]

    found = compare(
        ours(mine), rounded, OTHERS, lambda places, n: alternatives(places, n)[:1] + another_recipe(places, n)
    )
    assert found.verdict == SAME and found.notes == ["our recipe, computed in bf16"]
    found = compare(ours(mine), mine + 0.5 * (rounded - mine), OTHERS, alternatives)
    assert found.verdict == NOT_TOLD and "another" in found.notes[0]


def test_other_dimensions_and_rows_that_are_not_finite_are_refused():
    with pytest.raises(UserError, match=r"\b32 .*\b64"):
        compare(ours(rows()), rows(dimension=32), OTHERS, another_recipe)
    broken = rows()
    broken[3, 1] = np.nan
    with pytest.raises(UserError, match=r"^1 .*\b12 "):
        compare(ours(rows()), broken, OTHERS, another_recipe)
