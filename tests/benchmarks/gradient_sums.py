"""Steps of TACo in two processes on a CPU, their gradients summed during the backward pass, or in one call after it.

``python tests/benchmarks/gradient_sums.py`` prints times of a step, and ratios.
"""

import contextlib
import sys
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from helpers import paper_step
from helpers.training import map_in_processes
from vlalign.train.distributed import Workers, join_workers
from vlalign.train.loop import step
from vlalign.train.loop.gradients import summed_gradients
from vlalign.train.recipes.train_config import train_config

TURNS, BATCH, WIDTH = 7, 16, 256


@contextlib.contextmanager
def summed_afterwards(model: nn.Module, workers: Workers):
    """Sum all gradients in one call, as before 2026-11-26."""
    yield
    gradients = [parameter.grad for parameter in model.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for parameter, part in zip(model.parameters(), flat.split([p.numel() for p in model.parameters()]), strict=True):
        parameter.grad = part.view_as(parameter)


WAYS = {"during": summed_gradients, "after": summed_afterwards, "not at all": lambda *_: contextlib.nullcontext()}


def measure() -> None:
    paper_step.WIDTH = WIDTH
    config = train_config(dataset="none", features="s3d", batch_size=2 * BATCH)
    with join_workers("cpu") as (workers, _):
        model = paper_step.make_model()
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(TURNS + 1):
            inputs = paper_step.make_inputs(2 * turn + workers.rank, BATCH)
            for way, context in WAYS.items():
                step.summed_gradients = context
                workers.wait()
                started = time.perf_counter()
                step.backward(model, inputs, config, turn, workers)
                workers.wait()
                if turn:  # the first one warms up
                    seconds[way].append(time.perf_counter() - started)
        if workers.is_first:
            megabytes = sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6
            print(f"{megabytes:.0f} MB of gradients; median of {TURNS} alternating steps")
            for way, of_way in seconds.items():
                ratios = [a / b for a, b in zip(of_way, seconds["after"], strict=True)]
                spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
                print(f"{way}: {median(of_way):.2f} s; of after: {median(ratios):.3f} ({spread})")


if __name__ == "__main__":
    map_in_processes(2, measure)
