"""A video aggregator of one's own: attention decides how much each row of a clip counts in the clip's vector.

All else is the default model's: its words, its vectors of rows, its score. Beside this file:

    vlalign-train --dataset demo --features s3d --encoder own_video_aggregator:AttentionPool
    vlalign-evaluate --dataset demo --trust own_video_aggregator
    vlalign-search --dataset demo --trust own_video_aggregator "a red ball"
"""

from dataclasses import replace
from typing import ClassVar

from torch import Tensor, nn
from vlalign.train import EncoderTraits, ModelPlan, ModelSettings, VideoTokens
from vlalign.train.models.words import WordPair


class AttentionPool(WordPair):
    """The default model, whose clips are weighted means of their rows, by a learned weight of each row."""

    traits: ClassVar[EncoderTraits] = replace(WordPair.traits, description="attention over a clip's feature vectors")
    attention: nn.Module
    pooled: nn.Module

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "AttentionPool":
        """Return a new model: the default one, and two layers of its own."""
        model = super().from_settings(settings, plan)
        model.attention = nn.Sequential(nn.Linear(plan.feature_dim, 128), nn.Tanh(), nn.Linear(128, 1))
        model.pooled = nn.Linear(plan.feature_dim, model.width // 2)
        return model

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Return the default model's tokens of clips, and the vector of each whole clip by attention."""
        default = super().encode_videos(features_BMF, mask_BM, lengths_B)
        x_BMF = self.standardised(features_BMF)
        scores_BM = self.attention(x_BMF).squeeze(2).masked_fill(~mask_BM, float("-inf"))
        attended_BF = (scores_BM.softmax(dim=1)[:, :, None] * x_BMF).sum(dim=1)
        return replace(default, whole_BD=default.whole + self.pooled(attended_BF))
