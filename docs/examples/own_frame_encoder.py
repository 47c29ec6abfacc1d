"""An encoder of one's own that reads frames: a small convolutional network, trained from scratch with all else.

What becomes of its rows is the self-attention model's. Beside this file:

    vlalign-extract --dataset demo --features clip_vit_b32_frames
    vlalign-train --dataset demo --features clip_vit_b32_frames --encoder own_frame_encoder:FrameNetwork --objective ncl
    vlalign-evaluate --dataset demo --trust own_frame_encoder
"""

import math
from dataclasses import replace
from typing import ClassVar

from torch import nn
from vlalign.train import ClipRows, EncoderTraits, ModelPlan, ModelSettings
from vlalign.train.models.transformer import VideoTextModel

WIDTH = 64


class FrameNetwork(VideoTextModel):
    """The self-attention model, whose rows of features a network of its own makes of frames."""

    traits: ClassVar[EncoderTraits] = replace(
        VideoTextModel.traits, description="a small network and self-attention over a clip's frames", reads_frames=True
    )
    network: nn.Module
    side: int

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "FrameNetwork":
        """Return a new model; a row of the store is a square of pixels in three colours."""
        model = super().from_settings(settings, replace(plan, feature_dim=WIDTH))
        model.side = math.isqrt(plan.feature_dim // 3)
        model.network = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, WIDTH)
        )
        return model

    def rows_of_frames(self, clips: ClipRows) -> ClipRows:
        """Return a row of features for each frame [B, M, side * side * 3], uint8."""
        frames_BMHWC = clips.rows_BMF.unflatten(2, (self.side, self.side, 3))
        pixels_NCHW = frames_BMHWC.flatten(0, 1).movedim(-1, 1).float() / 255 - 0.5
        return clips._replace(rows_BMF=self.network(pixels_NCHW).unflatten(0, clips.mask_BM.shape))
