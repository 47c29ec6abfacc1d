"""Random square crops and flips of training clips' frames (the setting ``frame_augmentation``)."""

import random
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.examples import Inputs
from ..distributed import Workers
from ..recipes.train_config import TrainConfig

SMALLEST_AREA = 0.8
"""Smallest area of a random square crop, as a share of the frame's area."""


@dataclass(frozen=True)
class ClipDraw:
    """The random crop and flip of all frames of a clip (augmentation). Numbers are from 0 to 1."""

    area: float
    """The square's area: 0 is the smallest area, 1 the whole frame's."""
    top: float
    left: float
    """Horizontal position of the square: 0 is the left end, 1 the right end."""
    is_mirrored: bool

    def applied(self, frames_NHWC: Tensor, *, crops: bool, flips: bool) -> Tensor:
        """Crop and flip frames [N, H, W, 3], uint8, keeping their size. Resizing is bicubic, antialiased, as CLIP's."""
        frames_NCHW, side = frames_NHWC.movedim(-1, 1), frames_NHWC.shape[1]
        if crops:
            size = round(side * (SMALLEST_AREA + (1 - SMALLEST_AREA) * self.area) ** 0.5)
            top, left = (int(part * (side - size + 1)) for part in (self.top, self.left))
            square = frames_NCHW[:, :, top : top + size, left : left + size].float()
            scaled = F.interpolate(square, size=(side, side), mode="bicubic", antialias=True)
            frames_NCHW = scaled.round().clamp(0, 255).to(torch.uint8)
        if flips and self.is_mirrored:
            frames_NCHW = frames_NCHW.flip(-1)
        return frames_NCHW.movedim(1, -1)


def draws_of_batch(seed: int, step: int, num_clips: int) -> list[ClipDraw]:
    """Return the draws of a whole batch, the same in every process and for any micro-batches."""
    chance = random.Random(f"{seed} step {step} frames")
    drawn = ([chance.random() for _ in range(4)] for _ in range(num_clips))
    return [ClipDraw(area, top, left, flip < 0.5) for area, top, left, flip in drawn]


def augmented(
    inputs: Inputs, config: TrainConfig, step: int, workers: Workers, frame_shape: tuple[int, int, int, int]
) -> Inputs:
    """Return a process's share of a batch with its frames cropped and flipped.

    Args:
        inputs: The share. Its rows are frames, uint8 [B, M, window * side * side * 3].
        config: The run's settings.
        step: Counts from 0.
        workers: The processes that share the batch.
        frame_shape: (window, side, side, 3) of a row.
    """
    kind = config.model.frame_augmentation
    if kind == "none":
        return inputs
    num_clips, frames = len(inputs.rows), torch.empty_like(inputs.rows)
    draws = draws_of_batch(config.optimization.seed, step, workers.size * num_clips)[workers.rank * num_clips :]
    for clip, (rows_MK, draw) in enumerate(zip(inputs.rows, draws[:num_clips], strict=True)):
        frames_NHWC = rows_MK.reshape(-1, *frame_shape[1:])
        changed = draw.applied(frames_NHWC, crops="crop" in kind, flips="flip" in kind)
        frames[clip] = changed.reshape(rows_MK.shape)
    return replace(inputs, rows=frames)
