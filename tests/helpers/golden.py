"""Golden numbers: what published programs computed. ``tests/golden/`` has them, and says how they were made."""

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

GOLDEN_FOLDER = Path(__file__).resolve().parents[1] / "golden"


def reference_numbers() -> tuple[dict, dict[str, np.ndarray]]:
    """Return what reference programs computed, and their inputs by name."""
    with np.load(GOLDEN_FOLDER / "reference" / "inputs.npz") as arrays:
        inputs = dict(arrays)
    return json.loads((GOLDEN_FOLDER / "reference" / "goldens.json").read_text(encoding="utf-8")), inputs


def golden_shapes(network: str) -> dict[str, list[int]]:
    """Return the shape of every entry of a published checkpoint."""
    return json.loads((GOLDEN_FOLDER / "networks" / f"{network}.keys.json").read_text(encoding="utf-8"))


def golden_rows(entry: str) -> np.ndarray:
    """Return the features [B, D] that the authors' own network computed."""
    with np.load(GOLDEN_FOLDER / "networks" / "golden.npz") as arrays:
        return arrays[entry]


def fill(shapes: Mapping[str, list[int]], gain: float) -> dict[str, torch.Tensor]:
    """Return weights that depend on the names and shapes of a checkpoint's entries alone: the same on every machine.

    Args:
        shapes: The shape of every entry.
        gain: Variance of the output of a layer, relative to that of its input.
    """
    state = {}
    for name, shape in shapes.items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "num_batches_tracked":
            state[name] = torch.zeros((), dtype=torch.long)
            continue
        values = np.random.default_rng([0, zlib.crc32(name.encode())]).standard_normal(tuple(shape))
        if leaf == "running_var":
            values = 1.0 + 0.1 * np.abs(values)
        elif leaf == "weight" and len(shape) == 1:
            values = 1.0 + 0.1 * values
        elif leaf in ("running_mean", "bias"):
            values = 0.1 * values
        else:
            values = values * math.sqrt(gain / (math.prod(shape[1:]) or 1))
        state[name] = torch.from_numpy(np.asarray(values, dtype=np.float32))
    return state


def pixels(shape: tuple[int, ...]) -> np.ndarray:
    """Return random frames, uint8 [B, T, H, W, 3] or [B, H, W, 3]: blocks of 16 pixels, each shown for 4 frames."""
    batch, *length, height, width, channels = shape
    coarse = (batch, *(-(-frames // 4) for frames in length), -(-height // 16), -(-width // 16), channels)
    frames = np.random.default_rng([0, 7]).integers(0, 256, size=coarse, dtype=np.uint8)
    if length:
        frames = frames.repeat(4, axis=1)[:, : length[0]]
    return np.ascontiguousarray(frames.repeat(16, axis=-3).repeat(16, axis=-2)[..., :height, :width, :])
