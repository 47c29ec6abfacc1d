"""Placing the steps of a task in a video, in order and at the lowest cost: CrossTask's dynamic programme."""

from dataclasses import dataclass

import numpy as np

BACKGROUND = 0


@dataclass(frozen=True)
class Ordered:
    """The cheapest way to place the steps."""

    step_T: np.ndarray
    """[T], for each frame the number of its step, from 1, or ``BACKGROUND``."""
    cost: float


def order_steps(cost_TK: np.ndarray, *, exactly_one: bool = True) -> Ordered:
    """Place K steps in T frames, all of them and in order.

    Frames before, between and after the steps are background, at cost 0, where that is cheaper. Equal costs are
    resolved as in CrossTask's published ``dp.pyx``: of equally cheap ways into a state, staying comes first, then the
    state before it; of two equally cheap ends, the last step is taken.

    Args:
        cost_TK: [T, K], the cost of showing step k in frame t.
        exactly_one: Each step has one frame, as in CrossTask's evaluation. False: one or more.

    Raises:
        ValueError: There is no step, or there are fewer frames than steps.
    """
    num_frames, num_steps = cost_TK.shape
    if num_frames < num_steps or not num_steps:
        raise ValueError(f"{num_frames} frames for {num_steps} steps; expected at least one step and a frame for each")
    num_states = 2 * num_steps + 1  # background, step 1, background, step 2, ..., background
    frame_costs = np.zeros((num_frames, num_states))
    frame_costs[:, 1::2] = cost_TK
    staying = np.zeros(num_states)
    staying[1::2] = np.inf if exactly_one else 0.0
    costs = np.full(num_states, np.inf)
    costs[0] = 0.0
    came_from = np.empty((num_frames, num_states), dtype=np.int8)
    ways = np.full((3, num_states), np.inf)  # from the same state, from the one before, from a step to the next step
    for frame in range(num_frames):
        np.add(costs, staying, out=ways[0])
        ways[1, 1:] = costs[:-1]
        ways[2, 3::2] = costs[1:-2:2]
        came_from[frame] = ways.argmin(axis=0)
        costs = ways.min(axis=0) + frame_costs[frame]
    state = num_states - 1 if costs[-1] < costs[-2] else num_states - 2
    total = float(costs[state])
    step_T = np.zeros(num_frames, dtype=int)
    for frame in reversed(range(num_frames)):
        step_T[frame] = (state + 1) // 2 if state % 2 else BACKGROUND
        state -= int(came_from[frame, state])
    return Ordered(step_T, total)


def found_steps(step_T: np.ndarray, shown_TK: np.ndarray) -> float:
    """Return how many of a video's steps were found.

    A step counts as the share of its frames in which it is shown: 0 or 1 if it has one frame.

    Args:
        step_T: [T], step of each frame, from 1; 0 for background.
        shown_TK: bool [T, K], whether step k is shown in frame t.
    """
    placed_TK = step_T[:, None] == np.arange(1, shown_TK.shape[1] + 1)
    return float(((placed_TK & shown_TK).sum(axis=0) / np.maximum(placed_TK.sum(axis=0), 1)).sum())
