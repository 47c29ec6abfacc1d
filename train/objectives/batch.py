"""The input of an objective: an encoded batch, with access to the parts that other processes have.

Shape letters: B pairs in the whole batch, R of them in this process, M video tokens, N text tokens, D width, P pairs
that are fused, S tokens of interest. In methods of objectives that score, T are texts and V videos.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...storage.common.device import on_device
from ..data.extra_inputs import BatchIds
from ..distributed import Workers
from ..losses import hard_negatives, shares_of, sinkhorn_biases, token_similarity
from ..models.base import PairModel
from ..models.fusion import FusionScores, TokenBank
from ..models.masked_words import MaskedTexts
from ..models.tokens import EXTRA, TextTokens, VideoTokens, present, tokens_of
from .base import Objective


@dataclass(frozen=True)
class Batch:
    """A process's share of the pairs of a batch, already encoded, with access to other processes' shares.

    Example:
        >>> import torch
        >>> from vlalign.train import Batch, TextTokens, VideoTokens
        >>> from vlalign.train.distributed import Workers
        >>> mask = torch.ones(2, 3, dtype=torch.bool)
        >>> texts = TextTokens(torch.randn(2, 3, 4), mask, torch.zeros(2, 3))
        >>> videos = VideoTokens(torch.randn(2, 3, 4), mask)
        >>> batch = Batch(texts, videos, Workers(), torch.Generator())
        >>> batch.first_index, batch.all_videos().mean_BD.shape
        (0, torch.Size([2, 4]))
    """

    encoded_texts: TextTokens | None
    """None if the objective reads no texts."""
    videos: VideoTokens
    """This process's clips."""
    workers: Workers
    """The processes that share the batch; ``workers.gather`` returns the rows of all of them."""
    generator: torch.Generator
    """Random generator for draws for the whole batch; on the CPU, the same in every process."""
    recompute: int | None = None
    """Number of rows to compare at a time. Results of these parts, and of the fusion layers, are then recomputed for
    the gradient. None: compare all at once, and store results."""
    weights_R: Tensor | None = None
    """The weight of each pair. None: equal weights."""
    video_of_R: Tensor | None = None
    """Index of each clip's video, if the loss needs to know which clips are of the same video."""
    labels: Tensor | None = None
    """Indices of the questions' answers [R], or of the rows' labels [R, M]."""
    ids: BatchIds | None = None
    """This process's videos, clips and captions, for an objective with ``needs_ids``."""
    max_text_tokens: int = 0
    """Position of a video's first token in the fusion layers."""
    masked: MaskedTexts | None = None
    """This process's texts with masked subwords, for an objective with ``masks_words``."""

    @property
    def texts(self) -> TextTokens:
        """This process's texts."""
        assert self.encoded_texts is not None, "an objective without texts asks for some"
        return self.encoded_texts

    @property
    def first_index(self) -> int:
        """Index of this process's first pair in the whole batch."""
        return self.workers.rank * len(self.texts.mask_BN)

    def all_weights(self) -> Tensor | None:
        """Return the weight of each pair of the whole batch [B], or None if all weigh the same."""
        return None if self.weights_R is None else self.workers.gather(self.weights_R)

    def all_ids(self) -> BatchIds:
        """Return the videos, clips and captions of the whole batch. The objective must set ``needs_ids``."""
        assert self.ids is not None, "an objective asks for ids without needs_ids"
        return BatchIds(*map(self.workers.gather_list, self.ids))

    def all_videos(self) -> VideoTokens:
        """Return the videos of the whole batch."""
        if self.workers.size == 1:
            return self.videos
        return tokens_of(VideoTokens, self._all(present(self.videos), self.videos.mask_BM.shape[1]))

    def all_texts(self) -> TextTokens:
        """Return the texts of the whole batch."""
        if self.workers.size == 1:
            return self.texts
        return tokens_of(TextTokens, self._all(present(self.texts), self.texts.mask_BN.shape[1]))

    def _all(self, tensors: Mapping[str, Tensor], length: int) -> dict[str, Tensor]:
        """Return tensors of all processes. Tensors with tokens or rows are padded to the longest."""
        longest = self.workers.largest(length)

        def of_all(name: str, value: Tensor) -> Tensor:
            if name == "whole_BD" or value.ndim == 1:
                return self.workers.gather(value)
            return self._gathered(value, self.workers.largest(value.shape[1]) if name.startswith(EXTRA) else longest)

        return {name: of_all(name, value) for name, value in tensors.items()}

    def _gathered(self, x_RL: Tensor, longest: int) -> Tensor:
        missing = longest - x_RL.shape[1]
        padded = x_RL if missing == 0 else torch.cat([x_RL, x_RL.new_zeros(len(x_RL), missing, *x_RL.shape[2:])], dim=1)
        return self.workers.gather(padded)

    def video_biases(
        self,
        similarity_RB: Tensor,
        temperature: float,
        weights_R: Tensor | None = None,
        text_of_R: Tensor | None = None,
    ) -> Tensor:
        """Return NCL's biases of the batch's videos [B], from the similarities of all processes' rows with them.

        Args:
            similarity_RB: This process's rows: its texts, or tokens of them.
            temperature: Divides the similarities.
            weights_R: Weight of each row and of the video that it must pick: their share of the probability, up to a
                factor, as in ``losses.pair_biases``. None: equal weights.
            text_of_R: Index of each row's text in this process. None: each text has one row.
        """
        similarity_RB = similarity_RB.detach()
        weights_R = similarity_RB.new_ones(len(similarity_RB)) if weights_R is None else weights_R.detach()
        text_of_R = torch.arange(len(similarity_RB), device=similarity_RB.device) if text_of_R is None else text_of_R
        similarity_SB, weights_S, target_S = similarity_RB, weights_R, self.first_index + text_of_R
        if self.workers.size > 1:  # each process has its own number of tokens
            missing = self.workers.largest(len(weights_R)) - len(weights_R)
            similarity_SB = self.workers.gather(F.pad(similarity_SB, (0, 0, 0, missing)))
            weights_S = self.workers.gather(F.pad(weights_S, (0, missing)))
            target_S = self.workers.gather(F.pad(target_S, (0, missing), value=-1))
            is_row = target_S >= 0
            similarity_SB, weights_S, target_S = similarity_SB[is_row], weights_S[is_row], target_S[is_row]
        if not len(similarity_SB):  # a batch without a token of interest
            return similarity_SB.new_zeros(similarity_SB.shape[1])
        of_videos_B = weights_S.new_zeros(similarity_SB.shape[1]).index_add(0, target_S, weights_S)
        return sinkhorn_biases(
            similarity_SB,
            temperature,
            text_marginals_M=shares_of(weights_S),
            video_marginals_N=shares_of(of_videos_B),
        ).video_N

    def fuse(self, model: PairModel, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor) -> FusionScores:
        """Score pairs of the whole batch with the fusion layers; each process computes its share.

        Args:
            model: A model with fusion layers.
            bank: Tokens of the whole batch.
            text_of_P: Index of each pair's text, on the CPU.
            video_of_P: Index of each pair's video, on the CPU.
        """
        assert model.fusion is not None, "an objective without fusion layers fuses"
        size, rank, num_pairs = self.workers.size, self.workers.rank, len(text_of_P)
        num_each = -(-num_pairs // size)
        own = torch.arange(rank, num_each * size, size).clamp(max=num_pairs - 1)
        scores = model.fusion(bank, text_of_P[own], video_of_P[own], recompute=self.recompute is not None)

        def of_all(x_PN: Tensor) -> Tensor:  # this process has every size-th pair
            return self.workers.gather(x_PN).unflatten(0, (size, num_each)).transpose(0, 1).flatten(0, 1)[:num_pairs]

        return FusionScores(of_all(scores.pair_P), None if scores.token_PN is None else of_all(scores.token_PN))

    def all_vectors(self, objective: Objective, model: PairModel) -> tuple[Tensor, Tensor]:
        """Return the vectors of the whole batch's texts and videos.

        All processes compute the same loss from them, which costs little beside the encoders.

        Args:
            objective: The objective, whose ``text_vectors`` and ``video_vectors`` are called.
            model: The model.
        """
        text_RD = objective.text_vectors(model, self.texts)
        video_RD = objective.video_vectors(model, self.videos)
        return self.workers.gather(text_RD), self.workers.gather(video_RD)


def choose_negatives(
    batch: Batch, guidance_RB: Tensor | None, negatives: str, num_negatives: int
) -> tuple[Tensor, Tensor]:
    """Choose the pairs that the fusion layers see.

    Args:
        batch: The batch.
        guidance_RB: Early scores of this process's texts; only "cascade" needs them.
        negatives: "cascade", "random" or "all" (``fusion.NEGATIVES``).
        num_negatives: Number of negatives of each text and each video.

    Returns:
        The masks of ``losses.hard_negatives`` for the whole batch.
    """
    num_pairs, device = batch.workers.size * len(batch.texts.mask_BN), batch.texts.mask_BN.device
    if negatives == "all":
        everything = torch.ones(num_pairs, num_pairs, dtype=torch.bool, device=device)
        return everything, everything
    if negatives == "random":
        drawn = torch.rand(num_pairs, num_pairs, generator=batch.generator)
        return hard_negatives(on_device(drawn, device), num_negatives)
    assert guidance_RB is not None, "the cascade needs early scores"
    return hard_negatives(batch.workers.gather(guidance_RB.detach()), num_negatives)


def pair_matrix(scores_P: Tensor, text_of_P: Tensor, video_of_P: Tensor, like_BB: Tensor) -> Tensor:
    """Return pairs' scores by text and video, [B, B, ...]; 0 for pairs that were not scored."""
    empty = scores_P.new_zeros(*like_BB.shape, *scores_P.shape[1:])
    text_of_P, video_of_P = on_device(torch.stack([text_of_P, video_of_P]), empty.device)
    return empty.index_put((text_of_P, video_of_P), scores_P)


def best_matches(batch: Batch, videos: VideoTokens) -> tuple[Tensor, Tensor, Tensor]:
    """Compare this process's tokens of interest with all videos.

    Returns:
        The indices of their texts [S], their weights [S], and s(x_j, y^p) of TACo Eq. 4 with each video [S, B].
    """
    text_of_S, weights_S, tokens_SD = batch.texts.of_interest
    if batch.recompute is None:
        similarity_SB = token_similarity(tokens_SD, video_BMD=videos.tokens_BMD, video_mask_BM=videos.mask_BM)
    else:  # the products with every token of every video are many times the size of the result
        parts = [
            checkpoint(
                token_similarity, part, video_BMD=videos.tokens_BMD, video_mask_BM=videos.mask_BM, use_reentrant=False
            )
            for part in tokens_SD.split(batch.recompute)
        ]
        similarity_SB = torch.cat(parts)
    return text_of_S, weights_S, similarity_SB
