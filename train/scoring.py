"""Encoding and scoring in chunks, for validation, evaluation and search alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..storage.common.progress import progress
from ..storage.records import Caption
from .config import TrainConfig
from .data.pairs import Clip, ClipFeatures
from .data.text import TokenWeights
from .data.text_inputs import TextInputs
from .models.transformer import TextTokens, VideoTokens
from .objectives import OBJECTIVES, Model
from .tasks.normalization import Queries

TEXTS, CLIPS = 512, 64
"""So many are encoded and compared at once."""
PAIRS = 4096
QUERY_SIMILARITIES = 1 << 28
"""Of training queries with candidates, in memory at once: with more candidates than 16,384 fewer of the kept queries are used."""
BANK_CHUNKS = 8
"""Of texts, which the fusion layers have at hand at once, beside all videos."""


@dataclass(frozen=True)
class Scorer:
    """A trained model with all that turns captions and clips into its tokens."""

    model: Model
    text_inputs: TextInputs
    weights: TokenWeights
    features: ClipFeatures
    config: TrainConfig

    @property
    def has_late(self) -> bool:
        return self.config.has_fusion

    @property
    def has_early(self) -> bool:
        """Whether a stage is trained that finds candidates without the fusion layers."""
        return any(not stage.startswith("fusion") for stage in self.config.score_weights)

    def encode_texts(self, captions: Sequence[Caption]) -> TextTokens:
        return self.model.encode_texts(
            **{name: value.to(self._device) for name, value in self.text_inputs(captions).items()}
        )

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        return self.model.encode_videos(*(x.to(self._device) for x in self.video_inputs(clips)))

    def video_inputs(self, clips: Sequence[Clip]) -> tuple[Tensor, Tensor]:
        """Rows [B, M, D] of clips, or one row of each, and the mask [B, M]."""
        if self.config.encoder == "gated":
            rows = torch.from_numpy(self.features.pooled(clips))[:, None]
            return rows, torch.ones(rows.shape[:2], dtype=torch.bool)
        return self.features.batch(clips, self.config.max_video_tokens)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


@dataclass(frozen=True)
class StageScores:
    """float32 [num_captions, num_clips] of each stage that the model was trained with."""

    stages: dict[str, np.ndarray]
    looked_at: tuple[np.ndarray, np.ndarray] | None
    """Where not all pairs were fused: which clips of each caption and which captions of each clip were (both [captions, clips]).
    The late stages' scores of the others are 0."""
    queries: Queries | None = None
    """Similarities of the training queries that the model keeps, where it keeps some."""

    def fused(self, weights: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """The weighted sum of the stages, for ranking clips by caption and for ranking captions by clip.

        What the fusion layers did not look at comes behind what they did, in the order of the early stages.
        """
        total = _weighted_sum(self.stages, weights)
        if self.looked_at is None or not any(weights.get(stage) for stage in self.stages if stage.startswith("fusion")):
            return total, total
        early = self.guidance(weights)
        by_caption = _behind(total, early, self.looked_at[0])
        return by_caption, _behind(total.T, early.T, self.looked_at[1].T).T

    def guidance(self, weights: dict[str, float]) -> np.ndarray:
        """The early stages alone, by their weights; where all of those are 0, as in ToCo, their plain sum."""
        early = {stage: scores for stage, scores in self.stages.items() if not stage.startswith("fusion")}
        return _weighted_sum(
            early, weights if any(weights.get(stage) for stage in early) else dict.fromkeys(early, 1.0)
        )


def _weighted_sum(stages: dict[str, np.ndarray], weights: dict[str, float]) -> np.ndarray:
    total = np.zeros_like(next(iter(stages.values())))
    for stage, scores in stages.items():
        total += np.float32(weights.get(stage, 0.0)) * scores
    return total


def _behind(scores: np.ndarray, early: np.ndarray, looked_at: np.ndarray) -> np.ndarray:
    """In each row, what was not looked at keeps its early order, below everything that was."""
    lowest = np.where(looked_at, scores, np.inf).min(axis=1, keepdims=True)
    highest = np.where(looked_at, -np.inf, early).max(axis=1, keepdims=True, initial=-np.inf)
    return np.where(looked_at, scores, early - highest + lowest - 1).astype(np.float32)


@torch.inference_mode()
def stage_scores(
    scorer: Scorer,
    captions: Sequence[Caption],
    clips: Sequence[Clip],
    *,
    rerank: int | None = None,
    both_ways: bool = False,
    show: bool = False,
) -> StageScores:
    """``rerank``: the fusion layers look at so many best clips of each caption by the early stages (``both_ways``: and captions of each
    clip); None: at all pairs. ``show``: with progress. Each text and clip is encoded once; padding changes nothing."""
    scorer.model.eval()
    objective = OBJECTIVES[scorer.config.objective]
    weights = scorer.config.score_weights
    texts = [scorer.encode_texts(captions[first : first + TEXTS]) for first in range(0, len(captions), TEXTS)]
    videos: list[VideoTokens] = []
    shape = len(captions), len(clips)
    stages = {stage: np.zeros(shape, dtype=np.float32) for stage in weights}
    text_vectors, video_vectors = [objective.text_vectors(scorer.model, text) for text in texts], []
    for first in range(0, len(clips), CLIPS):
        encoded = scorer.encode_videos(clips[first : first + CLIPS])
        video_vectors.append(objective.video_vectors(scorer.model, encoded))
        for number, (text, vectors) in enumerate(zip(texts, text_vectors, strict=True)):
            for stage, block in (
                {objective.stage: vectors @ video_vectors[-1].T} | objective.early(text, encoded)
            ).items():
                if stage in stages:
                    rows = slice(number * TEXTS, number * TEXTS + len(block))
                    stages[stage][rows, first : first + CLIPS] = block.float().cpu().numpy()
        if scorer.has_late:
            videos.append(encoded)
    queries = _similar_queries(scorer, text_vectors, video_vectors) if scorer.model.queries is not None else None
    if not scorer.has_late:
        return StageScores(stages, None, queries)
    if rerank is not None and not scorer.has_early:
        raise ValueError("no stage is trained that could find candidates: score all pairs")

    looked_at = None
    if rerank is not None and rerank < (max(shape) if both_ways else shape[1]):
        early = StageScores(stages, None).guidance(weights)
        looked_at = _best(early, rerank), _best(early.T, rerank).T if both_ways else np.zeros(shape, dtype=bool)
    all_videos = VideoTokens(_join([chunk.tokens_BMD for chunk in videos]), _join([chunk.mask_BM for chunk in videos]))
    total = int((looked_at[0] | looked_at[1]).sum()) if looked_at else shape[0] * shape[1]
    blocks = _fused_blocks(scorer, texts, all_videos, looked_at)
    if show:
        blocks = progress(blocks, total=total, what="fusion", unit="pairs", size=lambda block: len(block[0]))
    for caption_of_P, clip_of_P, scores in blocks:
        for stage, values in scores.items():
            if stage in stages:
                stages[stage][caption_of_P, clip_of_P] = values
    return StageScores(stages, looked_at, queries)


def _similar_queries(scorer: Scorer, texts: Sequence[Tensor], videos: Sequence[Tensor]) -> Queries:
    kept_texts, kept_videos = scorer.model.queries.kept()
    found = []
    for kept, candidates in ((kept_texts, torch.cat(videos)), (kept_videos, torch.cat(texts))):
        found.append((kept[: max(QUERY_SIMILARITIES // len(candidates), 1)] @ candidates.T).float().cpu().numpy())
    return Queries(*found)


def _best(scores: np.ndarray, number: int) -> np.ndarray:
    """Where in each row the highest are."""
    found = np.zeros(scores.shape, dtype=bool)
    if number >= scores.shape[1]:
        found[:] = True
    else:
        np.put_along_axis(found, np.argpartition(-scores, number - 1, axis=1)[:, :number], True, axis=1)
    return found


def _join(chunks: Sequence[Tensor]) -> Tensor:
    """Rows of chunks [B, L, ...], each padded to its own longest, padded to the longest of all."""
    longest = max(chunk.shape[1] for chunk in chunks)
    joined = chunks[0].new_zeros(sum(map(len, chunks)), longest, *chunks[0].shape[2:])
    first = 0
    for chunk in chunks:
        joined[first : first + len(chunk), : chunk.shape[1]] = chunk
        first += len(chunk)
    return joined


def _join_texts(chunks: Sequence[TextTokens]) -> TextTokens:
    types = [chunk.types_BND for chunk in chunks if chunk.types_BND is not None]
    parts = ([getattr(chunk, name) for chunk in chunks] for name in ("tokens_BND", "mask_BN", "weights_BN"))
    return TextTokens(*map(_join, parts), _join(types) if types else None)


def _fused_blocks(
    scorer: Scorer, texts: Sequence[TextTokens], videos: VideoTokens, looked_at: tuple[np.ndarray, np.ndarray] | None
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """(captions, clips, late scores) of some thousand pairs at a time, short ones first."""
    objective, model = OBJECTIVES[scorer.config.objective], scorer.model
    for first in range(0, len(texts), BANK_CHUNKS):
        text = _join_texts(texts[first : first + BANK_CHUNKS])
        begin, num_texts = first * TEXTS, len(text.mask_BN)
        if looked_at is None:
            wanted = np.ones((num_texts, len(videos.mask_BM)), dtype=bool)
        else:
            wanted = looked_at[0][begin : begin + num_texts] | looked_at[1][begin : begin + num_texts]
        bank = model.token_bank(text, videos, scorer.config.max_text_tokens)
        texts_P, clips_P = (torch.from_numpy(numbers) for numbers in wanted.nonzero())
        order = (bank.text_lengths[texts_P] + bank.video_lengths[clips_P]).argsort(stable=True)
        for text_of_P, clip_of_P in zip(texts_P[order].split(PAIRS), clips_P[order].split(PAIRS), strict=True):
            fused = model.fusion(bank, text_of_P, clip_of_P)
            late = objective.late(fused, text.weights_BN[text_of_P.to(text.weights_BN.device)])
            yield (
                begin + text_of_P.numpy(),
                clip_of_P.numpy(),
                {stage: x.float().cpu().numpy() for stage, x in late.items()},
            )
