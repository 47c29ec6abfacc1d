"""The dynamic programme that places steps: against CrossTask's own, and against all ways."""

import itertools
import math

import numpy as np
import pytest
from helpers.golden import reference_numbers
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from vlalign.train.evaluation.steps import order_steps


@pytest.mark.parametrize("size", ["12x3", "30x5", "80x11", "5x5"])
@pytest.mark.parametrize("exactly_one", [True, False])
def test_cost_and_path_are_those_of_crosstasks_own_programme(size, exactly_one):
    expected, inputs = reference_numbers()
    golden = expected["crosstask_dp"][f"{size}_exactly_one={exactly_one}"]
    found = order_steps(inputs[f"dp_C_{size}"], exactly_one=exactly_one)
    assert found.cost == pytest.approx(golden["cost"], rel=1e-9)
    assert [np.flatnonzero(found.step_T == step + 1).tolist() for step in range(len(golden["frames"]))] == golden[
        "frames"
    ]


def exhaustive(cost_TK: np.ndarray, *, exactly_one: bool) -> float:
    """The least cost over all ways to label the frames that show every step, in order."""
    num_frames, num_steps = cost_TK.shape
    best = math.inf
    for labels in itertools.product(range(num_steps + 1), repeat=num_frames):
        runs = [
            step for step, _ in itertools.groupby(labels) if step
        ]  # a step once: no second run of it, before or after background
        if runs != list(range(1, num_steps + 1)) or (exactly_one and sum(map(bool, labels)) != num_steps):
            continue
        best = min(best, sum(float(cost_TK[frame, step - 1]) for frame, step in enumerate(labels) if step))
    return best


SMALL_COSTS = st.tuples(st.integers(1, 6), st.integers(1, 3)).flatmap(
    lambda shape: arrays(np.float32, shape, elements=st.integers(-4, 4).map(lambda n: n / 2))
)


@given(SMALL_COSTS, st.booleans())
def test_the_cheapest_of_all_paths_is_found(cost_TK, exactly_one):
    if len(cost_TK) < cost_TK.shape[1]:
        with pytest.raises(ValueError, match=rf"^{len(cost_TK)} .*\b{cost_TK.shape[1]} "):
            order_steps(cost_TK, exactly_one=exactly_one)
        return
    found = order_steps(cost_TK, exactly_one=exactly_one)
    assert found.cost == exhaustive(cost_TK, exactly_one=exactly_one)
    assert sum(float(cost_TK[frame, step - 1]) for frame, step in enumerate(found.step_T) if step) == found.cost
    assert [step for step, _ in itertools.groupby(found.step_T) if step] == list(range(1, cost_TK.shape[1] + 1))


@pytest.mark.slow
@pytest.mark.parametrize("exactly_one", [True, False])
def test_the_cheapest_way_of_all_is_found_for_every_size_up_to_8_frames_and_3_steps(exactly_one):
    rng = np.random.default_rng(0)
    for num_frames in range(1, 9):
        for num_steps in range(1, min(num_frames, 3) + 1):
            cost_TK = rng.integers(-3, 4, (num_frames, num_steps)).astype(np.float32)  # whole numbers: with ties
            assert order_steps(cost_TK, exactly_one=exactly_one).cost == exhaustive(cost_TK, exactly_one=exactly_one)


def test_ties_are_resolved_as_in_the_published_program():
    # All costs 0. The end is the last step, for the background is not cheaper; before it, what may stay as it is does.
    assert order_steps(np.zeros((4, 2))).step_T.tolist() == [1, 0, 0, 2]
    assert order_steps(np.zeros((4, 2)), exactly_one=False).step_T.tolist() == [1, 2, 2, 2]
