"""CrossTask's dynamic programme beside the obvious double loop: ``python tests/benchmarks/steps.py``.

1,850 videos of 300 s, a frame a second, with 8 steps, one after the other; the loop places the first 185 of them, and
equally.
"""

import time

import numpy as np
from vlalign.train.evaluation.steps import PlacedSteps, order_steps

VIDEOS, PLAIN_VIDEOS, FRAMES, STEPS = 1850, 185, 300, 8


def plain(cost_TK: np.ndarray) -> PlacedSteps:
    """``order_steps`` with a frame for each step, state by state."""
    num_frames, num_steps = cost_TK.shape
    num_states = 2 * num_steps + 1
    best = np.full((num_frames + 1, num_states), np.inf)
    best[0, 0] = 0.0
    came_from = np.zeros((num_frames, num_states), dtype=int)
    for frame in range(num_frames):
        for state in range(num_states):
            is_step = state % 2
            ways = [(np.inf if is_step else best[frame, state], state)]
            if state:
                ways.append((best[frame, state - 1], state - 1))
            if is_step and state > 1:
                ways.append((best[frame, state - 2], state - 2))
            cost, came_from[frame, state] = min(ways, key=lambda way: way[0])
            best[frame + 1, state] = cost + (cost_TK[frame, state // 2] if is_step else 0.0)
    state = num_states - 1 if best[-1, -1] < best[-1, -2] else num_states - 2
    total, step_T = float(best[-1, state]), np.zeros(num_frames, dtype=int)
    for frame in reversed(range(num_frames)):
        step_T[frame] = (state + 1) // 2 if state % 2 else 0
        state = came_from[frame, state]
    return PlacedSteps(step_T, total)


def main() -> None:
    costs = np.random.default_rng(0).standard_normal((VIDEOS, FRAMES, STEPS))
    start = time.perf_counter()
    ours = [order_steps(cost_TK) for cost_TK in costs]
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    plainly = [plain(cost_TK) for cost_TK in costs[:PLAIN_VIDEOS]]
    plain_seconds = (time.perf_counter() - start) * VIDEOS / PLAIN_VIDEOS
    same = all(
        np.array_equal(a.step_T, b.step_T) and np.isclose(a.cost, b.cost) for a, b in zip(ours, plainly, strict=False)
    )
    print(f"{VIDEOS:,} videos of {FRAMES} s with {STEPS} steps: {seconds:.1f} s")
    print(
        f"plain loops, worked out from {PLAIN_VIDEOS}: {plain_seconds:.1f} s, {plain_seconds / seconds:.1f} times as "
        "long"
    )
    print(f"places and costs: {'the same' if same else 'DIFFERENT'}")


if __name__ == "__main__":
    main()
