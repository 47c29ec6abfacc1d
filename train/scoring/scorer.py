"""Scores of captions and clips, computed in chunks: for validation, evaluation and search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...storage.common.progress import progress
from ...storage.records import Caption
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip
from ..data.text import TokenWeights
from ..data.text_inputs import TextInputs
from ..models.base import PairModel
from ..models.tokens import TextTokens, VideoTokens
from ..recipes.train_config import TrainConfig
from .scores import QuerySimilarities, Shortlist, StageScores

TEXT_CHUNK, CLIP_CHUNK = 512, 64
"""Number of texts and of clips that are encoded at once."""
PAIR_CHUNK = 4096
"""Number of pairs that the fusion layers see at once."""
TEXT_CHUNKS_IN_BANK = 8
"""Number of text chunks whose tokens are ready for the fusion layers at once, beside those of all clips."""
MAX_QUERY_SIMILARITIES = 1 << 28
"""Most similarities of training queries to candidates in memory at once. With more than 16,384 candidates, fewer of the
kept queries are used."""


@dataclass(frozen=True)
class Scorer:
    """A trained model with everything that turns captions and clips into its tokens."""

    model: PairModel
    text_inputs: TextInputs
    weights: TokenWeights
    features: ClipFeatures
    config: TrainConfig

    @property
    def has_late(self) -> bool:
        """Return whether the model has late stages: fusion layers, which see every pair."""
        return self.config.has_fusion

    @property
    def has_early(self) -> bool:
        """Return whether the model has early stages, which find candidates without the fusion layers."""
        return any(not stage.startswith("fusion") for stage in self.config.score_weights)

    def encode_texts(self, captions: Sequence[Caption]) -> TextTokens:
        """Return the tokens of captions, or of their recordings."""
        inputs = self.text_inputs(captions)
        return self.model.encode_texts({name: value.to(self._device) for name, value in inputs.items()})

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        """Return the tokens of clips."""
        rows, mask = self.video_inputs(clips)
        return self.model.encode_videos(rows.to(self._device), mask.to(self._device))

    def video_inputs(self, clips: Sequence[Clip]) -> tuple[Tensor, Tensor]:
        """Return the clips' feature rows [B, M, D] and mask [B, M]. The gated encoder gets one row for each clip."""
        if not self.config.encoders.gives_tokens:
            rows = torch.from_numpy(self.features.pooled(clips))[:, None]
            return rows, torch.ones(rows.shape[:2], dtype=torch.bool)
        return self.features.batch(clips, self.config.max_video_tokens)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


@torch.inference_mode()
def stage_scores(
    scorer: Scorer,
    captions: Sequence[Caption],
    clips: Sequence[Clip],
    *,
    rerank: int | None = None,
    both_ways: bool = False,
    show_progress: bool = False,
) -> StageScores:
    """Score every caption with every clip. Each is encoded once; padding changes nothing.

    Args:
        scorer: The model and its inputs.
        captions: What the rows of the scores are.
        clips: What the columns of the scores are.
        rerank: Number of best clips of each caption, by the early stages, that the fusion layers score. None: all.
        both_ways: With ``rerank``: score as many best captions of each clip, too.
        show_progress: Report progress of the fusion layers.

    Raises:
        ValueError: ``rerank`` is set, and the model has no early stage.
    """
    scorer.model.eval()
    texts = [scorer.encode_texts(captions[i : i + TEXT_CHUNK]) for i in range(0, len(captions), TEXT_CHUNK)]
    early = _score_early(scorer, texts, clips, (len(captions), len(clips)))
    if not scorer.has_late:
        return StageScores(early.stages, None, early.queries)
    if rerank is not None and not scorer.has_early:
        raise ValueError(f"rerank {rerank}: the model has no early stage that finds candidates; pass None")
    shortlist = None
    if rerank is not None and rerank < (max(len(captions), len(clips)) if both_ways else len(clips)):
        guidance = StageScores(early.stages, None).guidance(scorer.config.score_weights)
        captions_of_clips = best_in_rows(guidance.T, rerank).T if both_ways else np.zeros(guidance.shape, dtype=bool)
        shortlist = Shortlist(best_in_rows(guidance, rerank), captions_of_clips)
    blocks = _score_late(scorer, texts, early.videos, shortlist)
    if show_progress:
        total = len(captions) * len(clips) if shortlist is None else int(shortlist.pairs.sum())
        blocks = progress(blocks, total=total, what="fusion", unit="pairs", size=lambda block: len(block.caption_of_P))
    for block in blocks:
        for stage, scores_P in block.scores.items():
            if stage in early.stages:
                early.stages[stage][block.caption_of_P, block.clip_of_P] = scores_P
    return StageScores(early.stages, shortlist, early.queries)


@dataclass(frozen=True)
class _EarlyScores:
    stages: dict[str, np.ndarray]
    """{stage: float32 [num_captions, num_clips]}; late stages hold 0."""
    videos: list[VideoTokens]
    """Tokens of the clips in chunks; empty if there are no fusion layers."""
    queries: QuerySimilarities | None


def _score_early(
    scorer: Scorer, texts: Sequence[TextTokens], clips: Sequence[Clip], shape: tuple[int, int]
) -> _EarlyScores:
    objective, model = scorer.config.objective, scorer.model
    stages = {stage: np.zeros(shape, dtype=np.float32) for stage in scorer.config.score_weights}
    text_vectors = [objective.text_vectors(model, text) for text in texts]
    video_vectors: list[Tensor] = []
    videos: list[VideoTokens] = []
    for first in range(0, len(clips), CLIP_CHUNK):
        encoded = scorer.encode_videos(clips[first : first + CLIP_CHUNK])
        video_vectors.append(objective.video_vectors(model, encoded))
        for index, (text, vectors) in enumerate(zip(texts, text_vectors, strict=True)):
            rows = slice(index * TEXT_CHUNK, index * TEXT_CHUNK + len(vectors))
            blocks = {objective.stage: vectors @ video_vectors[-1].T} | objective.early_scores(model, text, encoded)
            for stage, block in blocks.items():
                if stage in stages:
                    stages[stage][rows, first : first + CLIP_CHUNK] = block.float().cpu().numpy()
        if scorer.has_late:
            videos.append(encoded)
    return _EarlyScores(stages, videos, _query_similarities(scorer, text_vectors, video_vectors))


def _query_similarities(
    scorer: Scorer, text_vectors: Sequence[Tensor], video_vectors: Sequence[Tensor]
) -> QuerySimilarities | None:
    if scorer.model.queries is None:
        return None
    kept_texts, kept_videos = scorer.model.queries.kept()

    def similarities(queries_QD: Tensor, candidates_ND: Tensor) -> np.ndarray:
        num_queries = max(MAX_QUERY_SIMILARITIES // len(candidates_ND), 1)
        return (queries_QD[:num_queries] @ candidates_ND.T).float().cpu().numpy()

    return QuerySimilarities(
        similarities(kept_texts, torch.cat(list(video_vectors))),
        similarities(kept_videos, torch.cat(list(text_vectors))),
    )


def best_in_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the ``count`` highest scores in each row."""
    is_best = np.zeros(scores.shape, dtype=bool)
    if count >= scores.shape[1]:
        is_best[:] = True
    else:
        np.put_along_axis(is_best, np.argpartition(-scores, count - 1, axis=1)[:, :count], True, axis=1)
    return is_best


def _join(chunks: Sequence[Tensor]) -> Tensor:
    """Concatenate chunks [B, L, ...], each padded to the longest L of all."""
    longest = max(chunk.shape[1] for chunk in chunks)
    joined = chunks[0].new_zeros(sum(map(len, chunks)), longest, *chunks[0].shape[2:])
    first = 0
    for chunk in chunks:
        joined[first : first + len(chunk), : chunk.shape[1]] = chunk
        first += len(chunk)
    return joined


def join_videos(chunks: Sequence[VideoTokens]) -> VideoTokens:
    """Return videos in chunks as one batch, padded to the longest."""
    wholes = [chunk.whole_BD for chunk in chunks if chunk.whole_BD is not None]
    return VideoTokens(
        _join([chunk.tokens_BMD for chunk in chunks]),
        _join([chunk.mask_BM for chunk in chunks]),
        torch.cat(wholes) if wholes else None,
    )


def join_texts(chunks: Sequence[TextTokens]) -> TextTokens:
    """Return texts in chunks as one batch, padded to the longest, with what the fusion layers need."""
    types = [chunk.types_BND for chunk in chunks if chunk.types_BND is not None]
    return TextTokens(
        _join([chunk.tokens_BND for chunk in chunks]),
        _join([chunk.mask_BN for chunk in chunks]),
        _join([chunk.weights_BN for chunk in chunks]),
        _join(types) if types else None,
    )


class LateScores(NamedTuple):
    """Scores of P pairs by the fusion layers."""

    caption_of_P: np.ndarray
    clip_of_P: np.ndarray
    scores: dict[str, np.ndarray]
    """{late stage: float32 [P]}"""


def _score_late(
    scorer: Scorer, texts: Sequence[TextTokens], videos: Sequence[VideoTokens], shortlist: Shortlist | None
) -> Iterator[LateScores]:
    """Yield the scores of up to ``PAIR_CHUNK`` pairs at a time."""
    video = join_videos(videos)
    for first in range(0, len(texts), TEXT_CHUNKS_IN_BANK):
        text = join_texts(texts[first : first + TEXT_CHUNKS_IN_BANK])
        first_text, num_texts = first * TEXT_CHUNK, len(text.mask_BN)
        if shortlist is None:
            is_scored = np.ones((num_texts, len(video.mask_BM)), dtype=bool)
        else:
            is_scored = shortlist.pairs[first_text : first_text + num_texts]
        for block in late_scores(scorer, text, video, *is_scored.nonzero()):
            yield block._replace(caption_of_P=first_text + block.caption_of_P)


def late_scores(
    scorer: Scorer, text: TextTokens, videos: VideoTokens, texts_P: np.ndarray, clips_P: np.ndarray
) -> Iterator[LateScores]:
    """Yield the scores of pairs by the fusion layers, up to ``PAIR_CHUNK`` at a time, short pairs first.

    Args:
        scorer: The model.
        text: Encoded texts.
        videos: Encoded clips.
        texts_P: Index of each pair's text.
        clips_P: Index of each pair's clip.

    Raises:
        TypeError: The model has no fusion layers.
    """
    objective, model = scorer.config.objective, scorer.model
    if model.fusion is None:
        raise TypeError(f"{type(model).__name__} has no fusion layers")
    bank = model.token_bank(text, videos, scorer.config.max_text_tokens)
    text_of, clip_of = torch.from_numpy(texts_P), torch.from_numpy(clips_P)
    order = (bank.text_lengths[text_of] + bank.video_lengths[clip_of]).argsort(stable=True)
    for text_of_P, clip_of_P in zip(text_of[order].split(PAIR_CHUNK), clip_of[order].split(PAIR_CHUNK), strict=True):
        fused = model.fusion(bank, text_of_P, clip_of_P)
        late = objective.late_scores(fused, text.weights_BN[text_of_P.to(text.weights_BN.device)])
        yield LateScores(
            text_of_P.numpy(),
            clip_of_P.numpy(),
            {stage: scores_P.float().cpu().numpy() for stage, scores_P in late.items()},
        )
