"""The objectives that a model can be trained with, and the scores that go with them.

A loss is the sum of its terms; each is logged under its name. A score is the weighted sum of its stages: early ones, which need a
text's and a video's tokens only once, and late ones, for which the fusion layers see every pair.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .config import TrainConfig
from .losses import (
    cascade_scores,
    code_log_probabilities,
    code_similarity,
    fusion_nce,
    fusion_token_nce,
    hard_negatives,
    intra_video_weights,
    masked_margin_softmax,
    mil_nce,
    nce,
    normalized_nce,
    pair_biases,
    shares_of,
    sinkhorn_biases,
    soft_max_margin,
    token_similarity,
    weighted_nce,
)
from .models.gated import GatedPair, SharedCodebook, unit
from .models.heads import answer_terms, segment_terms
from .models.spoken import SpokenPair
from .models.transformer import FusionScores, TextTokens, TokenBank, VideoTextModel, VideoTokens
from .workers import Workers

Scores = dict[str, Tensor]
Model = VideoTextModel | GatedPair | SpokenPair
SINKHORN_ITERATIONS = 4  # NCL section 3.3
SIMILARITIES = 1 << 25
"""Products of a token of a text and one of a video that are in memory at once."""


@dataclass(frozen=True)
class Batch:
    """A process's share of the pairs of a batch, already encoded, and how to reach the others'."""

    texts: TextTokens | None
    """None where nothing is read."""
    videos: VideoTokens
    workers: Workers
    generator: torch.Generator
    """On the CPU, and the same in every process: for what is drawn for the batch as a whole."""
    recompute: int | None = None
    """Rows that are compared, and pairs' groups that are fused, without keeping what the gradient needs; None: all is kept."""
    weights_R: Tensor | None = None
    """How much each pair counts; None: all the same."""
    video_of_R: Tensor | None = None
    """Numbers of the clips' videos, where it matters which clips are of the same one."""
    labels: Tensor | None = None
    """Numbers of the questions' answers [R], or of the rows' labels [R, M]."""

    @property
    def everyones_weights(self) -> Tensor | None:
        return None if self.weights_R is None else self.workers.gather(self.weights_R)

    @property
    def first(self) -> int:
        """The number of this process's first pair in the batch."""
        return self.workers.rank * len(self.texts.mask_BN)

    def video_biases(
        self,
        similarity_RB: Tensor,
        temperature: float,
        weights_R: Tensor | None = None,
        text_of_R: Tensor | None = None,
    ) -> Tensor:
        """NCL's biases of the batch's videos, from the similarities of this process's rows, and the others', with them.

        Each row, and the video that it must pick, has the share of the probability that ``weights_R`` says, as in ``pair_biases``;
        all the same where not given. ``text_of_R``: whose video that is; where not given, each text has one row.
        """
        similarity_RB = similarity_RB.detach()
        weights_R = similarity_RB.new_ones(len(similarity_RB)) if weights_R is None else weights_R.detach()
        text_of_R = torch.arange(len(similarity_RB), device=similarity_RB.device) if text_of_R is None else text_of_R
        missing = self.workers.largest(len(weights_R)) - len(
            weights_R
        )  # rows are tokens, of which each process has another number
        similarity_SB = self.workers.gather(F.pad(similarity_RB, (0, 0, 0, missing)))
        weights_S = self.workers.gather(F.pad(weights_R, (0, missing)))
        right_S = self.workers.gather(F.pad(self.first + text_of_R, (0, missing), value=-1))
        there = right_S >= 0
        similarity_SB, weights_S, right_S = similarity_SB[there], weights_S[there], right_S[there]
        if not len(similarity_SB):  # a batch without a token of interest
            return similarity_SB.new_zeros(similarity_SB.shape[1])
        of_videos_B = weights_S.new_zeros(similarity_SB.shape[1]).index_add(0, right_S, weights_S)
        shares = {"text_marginals_M": shares_of(weights_S), "video_marginals_N": shares_of(of_videos_B)}
        return sinkhorn_biases(similarity_SB, temperature, **shares).video_N

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
        similarity_SB = torch.cat(
            [checkpoint(token_similarity, *arguments, part, use_reentrant=False) for part in parts]
        )
    return text_of_S, weights_S, similarity_SB


def taco_terms(model: VideoTextModel, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """TACo Eq. 6: L1 + lambda_t L2 + L3, or those of them that ``config.losses`` names (Table 3)."""
    videos, terms, guidance_RB = batch.everyones_videos(), {}, None
    if "sentence" in config.loss_names:
        guidance_RB = batch.texts.sentence_BD @ videos.mean_BD.T
        bias_B = batch.video_biases(guidance_RB, config.temperature, batch.weights_R) if config.normalized_loss else 0.0
        terms["sentence"] = nce((guidance_RB + bias_B) / config.temperature, batch.first, batch.weights_R)
    if "token" in config.loss_names:
        text_of_S, weights_S, similarity_SB = best_matches(batch, videos)
        counted_S = weights_S if batch.weights_R is None else weights_S * batch.weights_R[text_of_S]
        bias_B = (
            batch.video_biases(similarity_SB, config.temperature, counted_S, text_of_S)
            if config.normalized_loss
            else 0.0
        )
        loss = weighted_nce((similarity_SB + bias_B) / config.temperature, batch.first + text_of_S, counted_S)
        terms["token"] = config.token_loss_weight * loss / len(batch.texts.mask_BN)
        before_SB = (
            similarity_SB.new_zeros(len(batch.texts.mask_BN), similarity_SB.shape[1])
            if guidance_RB is None
            else guidance_RB
        )
        guidance_RB = cascade_scores(before_SB.detach(), similarity_SB.detach(), text_of_S)
    if "fusion" in config.loss_names:
        of_texts, of_videos = negatives(batch, guidance_RB, config)
        text_of_P, video_of_P = (of_texts | of_videos).cpu().nonzero(as_tuple=True)
        bank = model.token_bank(batch.everyones_texts(), videos, config.max_text_tokens)
        scores = batch.fuse(model, bank, text_of_P, video_of_P)
        scores_BB = _matrix(scores.pair_P, text_of_P, video_of_P, of_texts)
        weighing = {"weights_B": batch.everyones_weights, "normalized": config.normalized_loss}
        terms["fusion"] = fusion_nce(scores_BB, of_texts, of_videos, **weighing)
    if model.queries is not None:
        model.queries.push(batch.workers.gather(batch.texts.sentence_BD), videos.mean_BD)
    return terms


def toco_terms(model: VideoTextModel, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """ToCo Eq. 3: L + lambda L^t over hard videos for each text, and the loss of what finds them ("another contrastive loss", 3.3)."""
    videos, terms = batch.everyones_videos(), {}
    pooled_RB = batch.texts.mean_BD @ videos.mean_BD.T
    if "pooled" in config.loss_names:
        terms["pooled"] = nce(pooled_RB / config.temperature, batch.first, batch.weights_R)
    of_texts, _ = negatives(batch, pooled_RB, config)  # Eq. 1 and 2: texts choose among videos, not the other way
    text_of_P, video_of_P = of_texts.cpu().nonzero(as_tuple=True)
    texts = batch.everyones_texts()
    scores = batch.fuse(model, model.token_bank(texts, videos, config.max_text_tokens), text_of_P, video_of_P)
    if "fusion" in config.loss_names:
        logits_BB = _matrix(scores.pair_P, text_of_P, video_of_P, of_texts).masked_fill(~of_texts, float("-inf"))
        terms["fusion"] = nce(logits_BB, weights_R=batch.everyones_weights)
    if "token" in config.loss_names:
        token_PN = F.pad(scores.token_PN, (0, texts.mask_BN.shape[1] - scores.token_PN.shape[1]))
        token_BBN = _matrix(token_PN, text_of_P, video_of_P, of_texts)
        weights_B = batch.everyones_weights
        weights_BN = texts.weights_BN if weights_B is None else texts.weights_BN * weights_B[:, None]
        terms["token"] = config.token_loss_weight * fusion_token_nce(token_BBN, of_texts, weights_BN)
    return terms


def _matrix(scores_P: Tensor, text_of_P: Tensor, video_of_P: Tensor, like_BB: Tensor) -> Tensor:
    """Pairs' scores, by text and video; 0 for those that were not scored."""
    empty = scores_P.new_zeros(*like_BB.shape, *scores_P.shape[1:])
    return empty.index_put((text_of_P.to(empty.device), video_of_P.to(empty.device)), scores_P)


def margin_terms(model: Model, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """SSML Eq. 4 on cosine similarities; without weights of the pairs HowTo100M's, which is its baseline."""
    text_BD, video_BD = _everyones_vectors(model, batch, config)
    weights_B, negatives_BB = batch.everyones_weights, None
    if batch.video_of_R is not None:
        negatives_BB = intra_video_weights(batch.workers.gather(batch.video_of_R), config.intra_video_rate)
    weights_B = text_BD.new_ones(len(text_BD)) if weights_B is None else weights_B
    return {"margin": soft_max_margin(text_BD @ video_BD.T, weights_B, config.margin, negatives_BB)}


def candidates_terms(model: Model, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """MIL-NCE: the texts of a batch are the candidates of each clip, one after the other."""
    text_CD, video_BD = _everyones_vectors(model, batch, config)
    return {"candidates": mil_nce(video_BD, text_CD.unflatten(0, (len(video_BD), -1)), batch.everyones_weights)}


def contrast_terms(model: Model, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """NCL Eq. 4 with the similarities of Eq. 12, or, not normalised, with those of Eq. 1."""
    text_BD, video_BD = _everyones_vectors(model, batch, config)
    num_iterations = SINKHORN_ITERATIONS if config.normalized_loss else 0
    weights = {"weights_B": batch.everyones_weights, "num_iterations": num_iterations}
    if model.queries is not None:
        model.queries.push(text_BD, video_BD)
    return {"contrast": normalized_nce(text_BD @ video_BD.T, config.temperature, **weights)}


def cmcm_terms(model: VideoTextModel, batch: Batch, config: TrainConfig) -> dict[str, Tensor]:
    """CMCM section 2.3: L_MMS + alpha L_CMCM, each in both directions."""
    codebook, workers = model.codebook, batch.workers
    text, video = coded_texts(codebook, batch.texts, workers), coded_videos(codebook, batch.videos, workers)
    text_BD, video_BD = (workers.gather(side.vector_BD) for side in (text, video))
    weights_B = batch.everyones_weights

    def both_ways(loss: Callable[[Tensor], Tensor], similarity_BB: Tensor) -> Tensor:
        by_text, by_video = similarity_BB, similarity_BB.T
        if config.normalized_loss:
            biases = pair_biases(similarity_BB, 1.0, weights_B)
            by_text, by_video = by_text + biases.video_N, by_video + biases.text_M
        return (loss(by_text) + loss(by_video)) / 2

    terms = {"contrast": both_ways(lambda s: masked_margin_softmax(s, config.margin, weights_B), text_BD @ video_BD.T)}
    if codebook.size and "codes" in config.loss_names:
        # Distances to the codewords as they are: they move by the tokens that they replace, not by the gradient (appendix A).
        coded = (
            workers.gather(code_log_probabilities(side.tokens_BLD, side.mask_BL, codebook.codewords))
            for side in (text, video)
        )
        terms["codes"] = config.code_loss_weight * both_ways(
            lambda s: nce(s, weights_R=weights_B), code_similarity(*coded)
        )
    if codebook.size:
        codebook.update(
            torch.cat([side.tokens_BLD[side.mask_BL] for side in (text, video)]).detach(), workers, batch.generator
        )
    if model.queries is not None:
        model.queries.push(text_BD, video_BD)
    return terms


@dataclass(frozen=True)
class Coded:
    """One side of a batch as CMCM has it."""

    vector_BD: Tensor
    tokens_BLD: Tensor | None
    """In the space of the codewords; None without a codebook."""
    mask_BL: Tensor


def coded_texts(codebook: SharedCodebook, texts: TextTokens, workers: Workers) -> Coded:
    return _code(codebook, "text", texts.sentence_BD, texts.tokens_BND, texts.mask_BN, workers)


def coded_videos(codebook: SharedCodebook, videos: VideoTokens, workers: Workers) -> Coded:
    return _code(codebook, "video", videos.mean_BD, videos.tokens_BMD, videos.mask_BM, workers)


def _code(
    codebook: SharedCodebook, side: str, summary_BD: Tensor, tokens_BLD: Tensor, mask_BL: Tensor, workers: Workers
) -> Coded:
    tokens_BLD = codebook.tokens(side, tokens_BLD, mask_BL, workers) if codebook.size else None
    return Coded(codebook.vector(side, summary_BD, tokens_BLD, mask_BL), tokens_BLD, mask_BL)


def _everyones_vectors(model: Model, batch: Batch, config: TrainConfig) -> tuple[Tensor, Tensor]:
    """Of texts and videos. All processes compute the same loss from them: it costs little beside the encoders."""
    objective = OBJECTIVES[config.objective]
    vectors = objective.text_vectors(model, batch.texts), objective.video_vectors(model, batch.videos)
    return tuple(batch.workers.gather(x) for x in vectors)


def taco_early(texts: TextTokens, videos: VideoTokens) -> Scores:
    text_of_S, weights_S, tokens_SD = texts.of_interest
    parts = tokens_SD.split(max(SIMILARITIES // videos.mask_BM.numel(), 1))
    best_SV = torch.cat([token_similarity(videos.tokens_BMD, videos.mask_BM, part) for part in parts])
    empty_TV = best_SV.new_zeros(len(texts.mask_BN), len(videos.mask_BM))
    return {"token": empty_TV.index_add(0, text_of_S, weights_S[:, None] * best_SV)}


def taco_late(fused: FusionScores, weights_PN: Tensor) -> Scores:
    return {"fusion": fused.pair_P}


def toco_late(fused: FusionScores, weights_PN: Tensor) -> Scores:
    """f, and f^t summed over the tokens of interest by their weights."""
    return {
        "fusion": fused.pair_P,
        "fusion_token": (weights_PN[:, : fused.token_PN.shape[1]] * fused.token_PN).sum(dim=1),
    }


TextVectors = Callable[[Model, TextTokens], Tensor]
VideoVectors = Callable[[Model, VideoTokens], Tensor]


@dataclass(frozen=True)
class Objective:
    terms: Callable[[Model, Batch, TrainConfig], dict[str, Tensor]]
    stage: str
    """The early stage of the score that is a dot product of a text's vector and a video's."""
    text_vectors: TextVectors
    video_vectors: VideoVectors
    early: Callable[[TextTokens, VideoTokens], Scores] = lambda texts, videos: {}
    """[num_texts, num_videos] of the early stages beside that one."""
    late: Callable[[FusionScores, Tensor], Scores] | None = None
    """[P] of each late stage, from the fusion layers' scores and the token weights [P, N] of the pairs' texts."""
    token_head: bool = False


def _sentence(_: Model, texts: TextTokens) -> Tensor:
    return texts.sentence_BD


def _mean(_: Model, tokens: TextTokens | VideoTokens) -> Tensor:
    return tokens.mean_BD


def _unit_sentence(_: Model, texts: TextTokens) -> Tensor:
    return unit(texts.sentence_BD)


def _unit_mean(_: Model, videos: VideoTokens) -> Tensor:
    return unit(videos.mean_BD)


def _coded_text(model: VideoTextModel, texts: TextTokens) -> Tensor:
    return coded_texts(model.codebook, texts, Workers()).vector_BD


def _coded_video(model: VideoTextModel, videos: VideoTokens) -> Tensor:
    return coded_videos(model.codebook, videos, Workers()).vector_BD


OBJECTIVES: dict[str, Objective] = {
    "taco": Objective(taco_terms, "sentence", _sentence, _mean, taco_early, taco_late),
    "toco": Objective(toco_terms, "pooled", _mean, _mean, late=toco_late, token_head=True),
    "ssml": Objective(margin_terms, "pair", _unit_sentence, _unit_mean),
    "mil-nce": Objective(candidates_terms, "pair", _sentence, _mean),
    "ncl": Objective(contrast_terms, "pair", _unit_sentence, _unit_mean),
    "cmcm": Objective(cmcm_terms, "pair", _coded_text, _coded_video),
    "vqa": Objective(answer_terms, "pair", _unit_sentence, _unit_mean),
    "segmentation": Objective(segment_terms, "pair", _unit_sentence, _unit_mean),
}
