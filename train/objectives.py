"""The objectives that a model can be trained with, and the scores that go with them.

A loss is the sum of its terms; each is logged under its name. A score is the weighted sum of its stages: early ones, which need a
text's and a video's tokens only once, and late ones, for which the fusion layers see every pair.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .config import TrainConfig
from .losses import cascade_scores, fusion_nce, fusion_token_nce, hard_negatives, nce, token_similarity, weighted_nce
from .model import FusionScores, TextTokens, TokenBank, VideoTextModel, VideoTokens
from .workers import Workers

Scores = dict[str, Tensor]
SIMILARITIES = 1 << 25
"""Products of a token of a text and one of a video that are in memory at once."""


@dataclass(frozen=True)
class Batch:
    """A process's share of the pairs of a batch, already encoded, and how to reach the others'."""

    texts: TextTokens
    videos: VideoTokens
    workers: Workers
    generator: torch.Generator
    """On the CPU, and the same in every process: for what is drawn for the batch as a whole."""
    recompute: int | None = None
    """Rows that are compared, and pairs' groups that are fused, without keeping what the gradient needs; None: all is kept."""

    @property
    def first(self) -> int:
        """The number of this process's first pair in the batch."""
        return self.workers.rank * len(self.texts.mask_BN)

    def everyones_videos(self) -> VideoTokens:
        longest = self.workers.largest(self.videos.mask_BM.shape[1])
        return VideoTokens(*(self._everyones(x, longest) for x in (self.videos.tokens_BMD, self.videos.mask_BM)))

    def everyones_texts(self) -> TextTokens:
        longest = self.workers.largest(self.texts.mask_BN.shape[1])
        parts = self.texts.tokens_BND, self.texts.mask_BN, self.texts.weights_BN, self.texts.types_BND
        return TextTokens(*(None if x is None else self._everyones(x, longest) for x in parts))

    def _everyones(self, x_BL: Tensor, longest: int) -> Tensor:
        missing = longest - x_BL.shape[1]
        padded = x_BL if missing == 0 else torch.cat([x_BL, x_BL.new_zeros(len(x_BL), missing, *x_BL.shape[2:])], dim=1)
        return self.workers.gather(padded)

    def fuse(self, model: VideoTextModel, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor) -> FusionScores:
        """Scores of the batch's pairs, of which each process computes its share."""
        size, rank, num_pairs = self.workers.size, self.workers.rank, len(text_of_P)
        each = -(-num_pairs // size)
        own = torch.arange(rank, each * size, size).clamp(max=num_pairs - 1)
        scores = model.fusion(bank, text_of_P[own], video_of_P[own], recompute=self.recompute is not None)

        def everyones(x_PN: Tensor) -> Tensor:  # this process has every size-th pair
            return self.workers.gather(x_PN).unflatten(0, (size, each)).transpose(0, 1).flatten(0, 1)[:num_pairs]

        return FusionScores(everyones(scores.pair_P), None if scores.token_PN is None else everyones(scores.token_PN))


def negatives(batch: Batch, guidance_RB: Tensor | None, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """``hard_negatives`` of the whole batch; ``guidance_RB``: early scores of this process's texts, for the cascade."""
    num_pairs = batch.workers.size * len(batch.texts.mask_BN)
    if config.negatives == "all":
        everything = torch.ones(num_pairs, num_pairs, dtype=torch.bool, device=batch.texts.mask_BN.device)
        return everything, everything
    if config.negatives == "random":
        drawn = torch.rand(num_pairs, num_pairs, generator=batch.generator)
        return hard_negatives(drawn.to(batch.texts.mask_BN.device), config.num_negatives)
    return hard_negatives(batch.workers.gather(guidance_RB.detach()), config.num_negatives)


def best_matches(batch: Batch, videos: VideoTokens) -> tuple[Tensor, Tensor, Tensor]:
    """Of this process's tokens of interest: the numbers of their texts, their weights, and s(x_j, y^p) with each video of the batch."""
    text_of_S, weights_S, tokens_SD = batch.texts.of_interest
    arguments = videos.tokens_BMD, videos.mask_BM
    if batch.recompute is None:
        similarity_SB = token_similarity(*arguments, tokens_SD)
    else:  # products with every token of every video are many times what is kept of them
        parts = tokens_SD.split(batch.recompute)
        similarity_SB = torch.cat([checkpoint(token_similarity, *arguments, part, use_reentrant=False) for part in parts])
    return text_of_S, weights_S, similarity_SB


def taco_terms(model: VideoTextModel, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """TACo Eq. 6: L1 + lambda_t L2 + L3, or those of them that ``config.losses`` names (Table 3)."""
    videos, terms, guidance_RB = batch.everyones_videos(), {}, None
    if "sentence" in config.loss_names:
        guidance_RB = batch.texts.sentence_BD @ videos.mean_BD.T
        terms["sentence"] = nce(guidance_RB / config.temperature, batch.first)
    if "token" in config.loss_names:
        text_of_S, weights_S, similarity_SB = best_matches(batch, videos)
        per_text = weighted_nce(similarity_SB / config.temperature, batch.first + text_of_S, weights_S) / len(batch.texts.mask_BN)
        terms["token"] = config.token_loss_weight * per_text
        before_SB = similarity_SB.new_zeros(len(batch.texts.mask_BN), similarity_SB.shape[1]) if guidance_RB is None else guidance_RB
        guidance_RB = cascade_scores(before_SB.detach(), similarity_SB.detach(), text_of_S)
    if "fusion" in config.loss_names:
        of_texts, of_videos = negatives(batch, guidance_RB, config)
        text_of_P, video_of_P = (of_texts | of_videos).cpu().nonzero(as_tuple=True)
        bank = model.token_bank(batch.everyones_texts(), videos, config.max_text_tokens)
        scores = batch.fuse(model, bank, text_of_P, video_of_P)
        terms["fusion"] = fusion_nce(_matrix(scores.pair_P, text_of_P, video_of_P, of_texts), of_texts, of_videos)
    return terms


def toco_terms(model: VideoTextModel, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """ToCo Eq. 3: L + lambda L^t over hard videos for each text, and the loss of what finds them ("another contrastive loss", 3.3)."""
    videos, terms = batch.everyones_videos(), {}
    pooled_RB = batch.texts.mean_BD @ videos.mean_BD.T
    if "pooled" in config.loss_names:
        terms["pooled"] = nce(pooled_RB / config.temperature, batch.first)
    of_texts, _ = negatives(batch, pooled_RB, config)  # Eq. 1 and 2: texts choose among videos, not the other way
    text_of_P, video_of_P = of_texts.cpu().nonzero(as_tuple=True)
    texts = batch.everyones_texts()
    scores = batch.fuse(model, model.token_bank(texts, videos, config.max_text_tokens), text_of_P, video_of_P)
    if "fusion" in config.loss_names:
        terms["fusion"] = nce(_matrix(scores.pair_P, text_of_P, video_of_P, of_texts).masked_fill(~of_texts, float("-inf")))
    if "token" in config.loss_names:
        token_PN = torch.nn.functional.pad(scores.token_PN, (0, texts.mask_BN.shape[1] - scores.token_PN.shape[1]))
        token_BBN = _matrix(token_PN, text_of_P, video_of_P, of_texts)
        terms["token"] = config.token_loss_weight * fusion_token_nce(token_BBN, of_texts, texts.weights_BN)
    return terms


def _matrix(scores_P: Tensor, text_of_P: Tensor, video_of_P: Tensor, like_BB: Tensor) -> Tensor:
    """Pairs' scores, by text and video; 0 for those that were not scored."""
    empty = scores_P.new_zeros(*like_BB.shape, *scores_P.shape[1:])
    return empty.index_put((text_of_P.to(empty.device), video_of_P.to(empty.device)), scores_P)


def taco_early(texts: TextTokens, videos: VideoTokens) -> Scores:
    text_of_S, weights_S, tokens_SD = texts.of_interest
    parts = tokens_SD.split(max(SIMILARITIES // videos.mask_BM.numel(), 1))
    best_SV = torch.cat([token_similarity(videos.tokens_BMD, videos.mask_BM, part) for part in parts])
    sentence_TV = texts.sentence_BD @ videos.mean_BD.T
    return {"sentence": sentence_TV, "token": torch.zeros_like(sentence_TV).index_add(0, text_of_S, weights_S[:, None] * best_SV)}


def toco_early(texts: TextTokens, videos: VideoTokens) -> Scores:
    return {"pooled": texts.mean_BD @ videos.mean_BD.T}


def taco_late(fused: FusionScores, weights_PN: Tensor) -> Scores:
    return {"fusion": fused.pair_P}


def toco_late(fused: FusionScores, weights_PN: Tensor) -> Scores:
    """f, and f^t summed over the tokens of interest by their weights."""
    return {"fusion": fused.pair_P, "fusion_token": (weights_PN[:, : fused.token_PN.shape[1]] * fused.token_PN).sum(dim=1)}


@dataclass(frozen=True)
class Objective:
    terms: Callable[[VideoTextModel, Batch, TrainConfig], dict[str, Tensor]]
    early: Callable[[TextTokens, VideoTokens], Scores]
    """[num_texts, num_videos] of each early stage."""
    late: Callable[[FusionScores, Tensor], Scores]
    """[P] of each late stage, from the fusion layers' scores and the token weights [P, N] of the pairs' texts."""
    token_head: bool = False


OBJECTIVES: dict[str, Objective] = {
    "taco": Objective(taco_terms, taco_early, taco_late),
    "toco": Objective(toco_terms, toco_early, toco_late, token_head=True),
}
