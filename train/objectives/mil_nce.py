"""MIL-NCE: several candidate captions for each clip (Miech et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.batches import Batches
    from ..data.pairs import Pairs
    from ..models.base import PairModel
    from ..models.tokens import TextTokens, VideoTokens
    from ..settings import DataSettings, OptimizationSettings
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class MilNceObjective(Objective):
    """MIL-NCE Eq. 1: a clip must pick some of its candidate captions."""

    name: ClassVar[str] = "mil-nce"
    description: ClassVar[str] = "contrastive loss with several candidate captions of each clip (MIL-NCE, Eq. 1)"
    loss_terms: ClassVar[tuple[str, ...]] = ("candidates",)
    needs_words: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = frozenset(
        {
            "tokens_of_interest",
            "num_fusion_layers",
            "clips_per_video",
            "temperature",
            "normalized_loss",
            "query_queue",
            "stage_weights",
        }
    )

    captions_per_clip: int = setting(
        3, "positive candidates of MIL-NCE: the clip's caption and its neighbours in time", ge=1
    )

    def make_batches(self, pairs: Pairs, data: DataSettings, optimization: OptimizationSettings) -> Batches:
        """Draw several captions for each clip."""
        from ..data.batches import CandidateBatches

        return CandidateBatches(pairs, optimization.batch_size, optimization.seed, self.captions_per_clip)

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return Eq. 1. The texts of a batch are the candidates of each clip, one clip after the other."""
        from ..losses import mil_nce

        text_CD, video_BD = batch.all_vectors(self, model)
        return {
            "candidates": mil_nce(video_BD, text_CD.unflatten(0, (len(video_BD), -1)), weights_B=batch.all_weights())
        }

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return the texts' summaries unchanged."""
        return texts.sentence_BD

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the videos' average tokens."""
        return videos.mean_BD
