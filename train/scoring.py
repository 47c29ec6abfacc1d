"""Encoding and scoring in chunks, for validation, evaluation and search alike."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from ..storage.console import progress
from ..storage.records import Caption
from .config import TrainConfig
from .data import Clip, ClipFeatures
from .model import TextTokens, VideoTextModel, VideoTokens
from .objectives import OBJECTIVES
from .text import TokenWeights, tokenize

CHUNK = 64
CHUNK_PAIRS = 4096


@dataclass(frozen=True)
class Scorer:
    """A trained model with all that turns captions and clips into its tokens."""

    model: VideoTextModel
    tokenizer: PreTrainedTokenizerFast
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
        tokens = tokenize(self.tokenizer, captions, self.weights, self.config.max_text_tokens)
        return self.model.encode_texts(**{name: value.to(self._device) for name, value in tokens.items()})

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        rows, mask = self.features.batch(clips, self.config.max_video_tokens)
        return self.model.encode_videos(rows.to(self._device), mask.to(self._device))

    @property
    def _device(self) -> torch.device:
        return self.model.feature_mean.device


@dataclass(frozen=True)
class StageScores:
    """float32 [num_captions, num_clips] of each stage that the model was trained with."""

    stages: dict[str, np.ndarray]
    looked_at: tuple[np.ndarray, np.ndarray] | None
    """Where not all pairs were fused: which clips of each caption and which captions of each clip were (both [captions, clips]).
    The late stages' scores of the others are 0."""

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
        return _weighted_sum(early, weights if any(weights.get(stage) for stage in early) else dict.fromkeys(early, 1.0))


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
    texts = [scorer.encode_texts(captions[first : first + CHUNK]) for first in range(0, len(captions), CHUNK)]
    videos: list[VideoTokens] = []
    shape = len(captions), len(clips)
    stages = {stage: np.zeros(shape, dtype=np.float32) for stage in weights}
    for first in range(0, len(clips), CHUNK):
        encoded = scorer.encode_videos(clips[first : first + CHUNK])
        for number, text in enumerate(texts):
            for stage, block in objective.early(text, encoded).items():
                if stage in stages:
                    rows = slice(number * CHUNK, number * CHUNK + len(block))
                    stages[stage][rows, first : first + CHUNK] = block.float().cpu().numpy()
        if scorer.has_late:
            videos.append(encoded)
    if not scorer.has_late:
        return StageScores(stages, None)
    if rerank is not None and not scorer.has_early:
        raise ValueError("no stage is trained that could find candidates: score all pairs")

    looked_at = None
    if rerank is not None and rerank < (max(shape) if both_ways else shape[1]):
        early = StageScores(stages, None).guidance(weights)
        looked_at = _best(early, rerank), _best(early.T, rerank).T if both_ways else np.zeros(shape, dtype=bool)
    all_videos = _join_videos(videos)
    total = int((looked_at[0] | looked_at[1]).sum()) if looked_at else shape[0] * shape[1]
    blocks = _fused_blocks(scorer, texts, all_videos, looked_at)
    if show:
        blocks = progress(blocks, total=total, what="fusion", unit="pairs", size=lambda block: len(block[0]))
    for caption_of_P, clip_of_P, scores in blocks:
        for stage, values in scores.items():
            if stage in stages:
                stages[stage][caption_of_P, clip_of_P] = values
    return StageScores(stages, looked_at)


def _best(scores: np.ndarray, number: int) -> np.ndarray:
    """Where in each row the highest are."""
    found = np.zeros(scores.shape, dtype=bool)
    if number >= scores.shape[1]:
        found[:] = True
    else:
        np.put_along_axis(found, np.argpartition(-scores, number - 1, axis=1)[:, :number], True, axis=1)
    return found


def _join_videos(chunks: Sequence[VideoTokens]) -> VideoTokens:
    longest = max(chunk.mask_BM.shape[1] for chunk in chunks)
    pad = torch.nn.functional.pad
    tokens = [pad(chunk.tokens_BMD, (0, 0, 0, longest - chunk.mask_BM.shape[1])) for chunk in chunks]
    masks = [pad(chunk.mask_BM, (0, longest - chunk.mask_BM.shape[1])) for chunk in chunks]
    return VideoTokens(torch.cat(tokens), torch.cat(masks))


def _fused_blocks(
    scorer: Scorer, texts: Sequence[TextTokens], videos: VideoTokens, looked_at: tuple[np.ndarray, np.ndarray] | None
) -> Iterator[tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]]:
    """(captions, clips, late scores) of some thousand pairs at a time."""
    objective, model = OBJECTIVES[scorer.config.objective], scorer.model
    for number, text in enumerate(texts):
        first, num_texts = number * CHUNK, len(text.mask_BN)
        if looked_at is None:
            wanted = np.ones((num_texts, len(videos.mask_BM)), dtype=bool)
        else:
            wanted = looked_at[0][first : first + num_texts] | looked_at[1][first : first + num_texts]
        bank = model.token_bank(text, videos, scorer.config.max_text_tokens)
        texts_P, clips_P = (torch.from_numpy(numbers) for numbers in wanted.nonzero())
        for text_of_P, clip_of_P in zip(texts_P.split(CHUNK_PAIRS), clips_P.split(CHUNK_PAIRS), strict=True):
            fused = model.fusion(bank, text_of_P, clip_of_P)
            late = objective.late(fused, text.weights_BN[text_of_P.to(text.weights_BN.device)])
            yield first + text_of_P.numpy(), clip_of_P.numpy(), {stage: x.float().cpu().numpy() for stage, x in late.items()}
