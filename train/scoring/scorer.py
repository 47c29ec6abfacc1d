"""Scores of captions and clips: for validation, evaluation and search.

All are computed in the same tiles of ``TEXT_CHUNK`` captions with ``CLIP_CHUNK`` clips, so that equal pairs have equal
scores to the last bit, and ties stay ties. ``stage_scores`` holds the scores of all pairs in memory. ``TiledScores``,
for more pairs than fit, computes a part of them each time that it is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...storage.common.progress import progress
from ...storage.records import Caption
from ..data.clip_features import ClipFeatures
from ..data.clips import Clip
from ..data.extra_inputs import ExtraInputs
from ..data.text_inputs import TextInputs, TokenWeights
from ..models.base import PairModel
from ..models.tokens import ClipRows, Extra, TextTokens, VideoTokens
from ..recipes.train_config import TrainConfig
from .query_biases import DotProducts
from .scores import QuerySimilarities, Shortlist, StageScores, Vectors, parts_of

TEXT_CHUNK, CLIP_CHUNK = 512, 64
"""Number of texts and of clips that are encoded at once."""
PAIR_CHUNK = 4096
"""Number of pairs that the fusion layers see at once."""
TEXT_CHUNKS_IN_BANK, CLIP_CHUNKS_IN_BANK = 8, 64
"""Number of chunks whose tokens are prepared for the fusion layers at once; for scores in memory, all clips at once."""


Item = TypeVar("Item")
Tokens = TypeVar("Tokens")


@dataclass(frozen=True)
class Scorer:
    """A trained model with everything that turns captions and clips into its tokens."""

    model: PairModel
    text_inputs: TextInputs
    weights: TokenWeights
    features: ClipFeatures
    config: TrainConfig
    extra: ExtraInputs = field(default_factory=ExtraInputs)

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
        on_device = {name: value.to(self._device) for name, value in inputs.items()}
        return self.model.tokens_of_texts(on_device, self._extra(self.extra.of_captions(captions)))

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        """Return the tokens of clips."""
        rows, mask = self.video_inputs(clips)
        return self.encode_rows(rows, mask, clips)

    def encode_rows(self, rows: Tensor, mask: Tensor, clips: Sequence[Clip]) -> VideoTokens:
        """Return the tokens of clips from their rows [B, M, D] and mask [B, M]."""
        extra = self._extra(self.extra.of_clips(clips))
        return self.model.tokens_of_videos(ClipRows(rows.to(self._device), mask.to(self._device), None), extra)

    def video_inputs(self, clips: Sequence[Clip]) -> tuple[Tensor, Tensor]:
        """Return the clips' feature rows [B, M, D] and mask [B, M]. Some encoders get one row for each clip."""
        if self.config.model.encoder_traits.pools_rows:
            rows = torch.from_numpy(self.features.pooled(clips))[:, None]
            return rows, torch.ones(rows.shape[:2], dtype=torch.bool)
        return self.features.batch(clips, self.config.data.max_video_tokens)

    def _extra(self, extra: dict[str, Tensor]) -> dict[str, Tensor]:
        moved = {name: value.to(self._device) for name, value in extra.items()}
        return {name: value.float() if value.is_floating_point() else value for name, value in moved.items()}

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


@torch.inference_mode()
def text_vectors(scorer: Scorer, captions: Sequence[Caption]) -> np.ndarray:
    """Return the vector of each text, float32 [N, D], in the stage of the score that is a dot product."""
    return _vectors(scorer, captions, TEXT_CHUNK, scorer.encode_texts, scorer.config.objective.text_vectors)


@torch.inference_mode()
def clip_vectors(scorer: Scorer, clips: Sequence[Clip]) -> np.ndarray:
    """Return the vector of each clip, float32 [N, D], in the stage of the score that is a dot product."""
    return _vectors(scorer, clips, CLIP_CHUNK, scorer.encode_videos, scorer.config.objective.video_vectors)


def _vectors(
    scorer: Scorer,
    items: Sequence[Item],
    size: int,
    encode: Callable[[Sequence[Item]], Tokens],
    pool: Callable[[PairModel, Tokens], Tensor],
) -> np.ndarray:
    scorer.model.eval()
    parts = [items[first : first + size] for first in range(0, len(items), size)]
    chunks = [pool(scorer.model, encode(part)).float().cpu().numpy() for part in parts]
    return np.concatenate(chunks) if chunks else np.zeros((0, scorer.model.width), dtype=np.float32)


class LateScores(NamedTuple):
    """Scores of P pairs by the fusion layers."""

    caption_of_P: np.ndarray
    clip_of_P: np.ndarray
    scores: dict[str, np.ndarray]
    """{late stage: float32 [P]}"""


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
        captions: The rows of the scores.
        clips: The columns of the scores.
        rerank: Number of best clips of each caption, by the early stages, that the fusion layers score. None: all.
        both_ways: With ``rerank``: also score as many best captions of each clip.
        show_progress: Report progress of the fusion layers.

    Raises:
        ValueError: ``rerank`` is set, and the model has no early stage.
    """
    tiles = _Tiles(scorer, captions, clips, hold_tokens=scorer.has_late)
    early = tiles.early(slice(0, len(captions)), slice(0, len(clips)))
    queries = tiles.query_similarities()
    if not scorer.has_late:
        return StageScores(early, None, queries, tiles.vectors())
    if rerank is not None and not scorer.has_early:
        raise ValueError(f"rerank {rerank}: the model has no early stage that finds candidates; pass None")
    shortlist = None
    if rerank is not None and rerank < (max(len(captions), len(clips)) if both_ways else len(clips)):
        guidance = StageScores(early, None).guidance(scorer.config.score_weights)
        captions_of_clips = best_in_rows(guidance.T, rerank).T if both_ways else np.zeros(guidance.shape, dtype=bool)
        shortlist = Shortlist(best_in_rows(guidance, rerank), captions_of_clips)
    shape = len(captions), len(clips)
    stages = {
        stage: early[stage] if stage in early else np.zeros(shape, dtype=np.float32) for stage in tiles.stage_names
    }
    blocks = _late_in_memory(tiles, shape, shortlist)
    if show_progress:
        total = len(captions) * len(clips) if shortlist is None else int(shortlist.pairs.sum())
        blocks = progress(blocks, total=total, what="fusion", unit="pairs", size=lambda block: len(block.caption_of_P))
    for block in blocks:
        for stage, scores_P in block.scores.items():
            if stage in stages:
                stages[stage][block.caption_of_P, block.clip_of_P] = scores_P
    return StageScores(stages, shortlist, queries, tiles.vectors())


def _late_in_memory(tiles: _Tiles, shape: tuple[int, int], shortlist: Shortlist | None) -> Iterator[LateScores]:
    """Yield the late scores of the shortlist, or of all pairs."""
    for first in range(0, len(tiles.texts), TEXT_CHUNKS_IN_BANK):
        chunks = range(first, min(first + TEXT_CHUNKS_IN_BANK, len(tiles.texts)))
        captions = slice(first * TEXT_CHUNK, min(chunks.stop * TEXT_CHUNK, shape[0]))
        is_scored = np.ones((captions.stop - captions.start, shape[1]), dtype=bool)
        if shortlist is not None:
            is_scored = shortlist.pairs[captions]
        caption_P, clip_P = is_scored.nonzero()
        yield from tiles.late(chunks, range(len(tiles.videos)), captions.start + caption_P, clip_P)


class _LatePairs(NamedTuple):
    """The pairs that the fusion layers scored, in the order of their captions and clips."""

    caption_of_P: np.ndarray
    clip_of_P: np.ndarray
    in_best_of_caption_P: np.ndarray
    in_best_of_clip_P: np.ndarray
    scores: dict[str, np.ndarray]
    """{late stage: float32 [P]}"""


class TiledScores:
    """Scores of all captions with all clips; each part is computed when it is requested."""

    def __init__(
        self, scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip], *, rerank: int | None = None
    ) -> None:
        """Encode everything once, and score the shortlist with the fusion layers.

        Args:
            scorer: The model and its inputs.
            captions: The rows of the scores.
            clips: The columns of the scores.
            rerank: Number of best clips of each caption, and of best captions of each clip, that the fusion layers
                score. None for a model without them.
        """
        self._num_captions, self._num_clips = len(captions), len(clips)
        # Tokens are not held: the tokens of a hundred thousand clips do not fit into memory.
        self._tiles = _Tiles(scorer, captions, clips, hold_tokens=False)
        self._tiles.texts.encode("encoding captions")
        self._tiles.videos.encode("encoding clips")
        self._late = None if rerank is None else self._score_late(scorer, rerank)

    @property
    def queries(self) -> QuerySimilarities | None:
        """Similarities of the training queries in the model's queue; None if it has no queue."""
        return self._tiles.query_similarities()

    @property
    def vectors(self) -> Vectors:
        """Vectors of all captions and clips."""
        return self._tiles.vectors()

    @property
    def stage_names(self) -> list[str]:
        """The stages that the model was trained with."""
        return self._tiles.stage_names

    def rows(self, captions: slice) -> StageScores:
        """Return the scores of captions with all clips.

        Args:
            captions: Must begin at a multiple of ``TEXT_CHUNK``; multiples of ``scores.PART_SIZE`` do.
        """
        return self._part(captions, slice(0, self._num_clips))

    def columns(self, clips: slice) -> StageScores:
        """Return the scores of all captions with clips.

        Args:
            clips: Must begin at a multiple of ``CLIP_CHUNK``; multiples of ``scores.PART_SIZE`` do.
        """
        return self._part(slice(0, self._num_captions), clips)

    def _part(self, captions: slice, clips: slice) -> StageScores:
        stages = self._tiles.early(captions, clips)
        if self._late is None:
            return StageScores(stages, None)
        caption_P, clip_P = self._late.caption_of_P, self._late.clip_of_P
        is_here = (caption_P >= captions.start) & (caption_P < captions.stop)
        is_here &= (clip_P >= clips.start) & (clip_P < clips.stop)
        here = caption_P[is_here] - captions.start, clip_P[is_here] - clips.start
        shape = captions.stop - captions.start, clips.stop - clips.start
        shortlist = Shortlist(np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool))
        shortlist.clips_of_captions[here] = self._late.in_best_of_caption_P[is_here]
        shortlist.captions_of_clips[here] = self._late.in_best_of_clip_P[is_here]
        for stage, scores_P in self._late.scores.items():
            stages[stage] = np.zeros(shape, dtype=np.float32)
            stages[stage][here] = scores_P[is_here]
        return StageScores({stage: stages[stage] for stage in self.stage_names}, shortlist)

    def _score_late(self, scorer: Scorer, rerank: int) -> _LatePairs:
        """Score the best pairs by the early stages with the fusion layers."""
        by_caption, by_clip = self._shortlist(scorer, rerank)
        pairs = np.union1d(by_caption, by_clip)
        late = [stage for stage in self.stage_names if stage.startswith("fusion")]
        scores = {stage: np.zeros(len(pairs), dtype=np.float32) for stage in late}
        blocks = self._late_blocks(*np.divmod(pairs, self._num_clips))
        for block in progress(
            blocks, total=len(pairs), what="fusion", unit="pairs", size=lambda block: len(block.caption_of_P)
        ):
            index_P = np.searchsorted(pairs, block.caption_of_P * self._num_clips + block.clip_of_P)
            for stage in scores:
                scores[stage][index_P] = block.scores[stage]
        caption_P, clip_P = np.divmod(pairs, self._num_clips)
        return _LatePairs(caption_P, clip_P, np.isin(pairs, by_caption), np.isin(pairs, by_clip), scores)

    def _shortlist(self, scorer: Scorer, rerank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best pairs of each caption, and of each clip, as caption * num_clips + clip."""
        weights, num_clips = scorer.config.score_weights, self._num_clips
        of_captions, of_clips = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        every_caption, every_clip = slice(0, self._num_captions), slice(0, num_clips)
        for part in parts_of(self._num_captions, "best clips", "captions"):
            guidance = StageScores(self._tiles.early(part, every_clip), None).guidance(weights)
            captions, clips = best_in_rows(guidance, rerank).nonzero()
            of_captions.append((part.start + captions) * num_clips + clips)
        for part in parts_of(num_clips, "best captions", "clips"):
            guidance = StageScores(self._tiles.early(every_caption, part), None).guidance(weights)
            clips, captions = best_in_rows(guidance.T, rerank).nonzero()
            of_clips.append(captions * num_clips + part.start + clips)
        return np.concatenate(of_captions), np.concatenate(of_clips)

    def _late_blocks(self, caption_P: np.ndarray, clip_P: np.ndarray) -> Iterator[LateScores]:
        """Yield the late scores of pairs, one bank of texts and clips after the other."""
        text_bank_P = caption_P // (TEXT_CHUNK * TEXT_CHUNKS_IN_BANK)
        clip_bank_P = clip_P // (CLIP_CHUNK * CLIP_CHUNKS_IN_BANK)
        order = np.lexsort((clip_bank_P, text_bank_P))
        changes = (np.diff(text_bank_P[order]) != 0) | (np.diff(clip_bank_P[order]) != 0)
        for of_bank in np.split(order, np.flatnonzero(changes) + 1):
            text_chunk = int(text_bank_P[of_bank[0]]) * TEXT_CHUNKS_IN_BANK
            clip_chunk = int(clip_bank_P[of_bank[0]]) * CLIP_CHUNKS_IN_BANK
            yield from self._tiles.late(
                range(text_chunk, min(text_chunk + TEXT_CHUNKS_IN_BANK, len(self._tiles.texts))),
                range(clip_chunk, min(clip_chunk + CLIP_CHUNKS_IN_BANK, len(self._tiles.videos))),
                caption_P[of_bank],
                clip_P[of_bank],
            )


class _Chunks(Generic[Item, Tokens]):
    """Captions or clips in chunks, encoded when needed. Their vectors are held, and their tokens if requested."""

    def __init__(
        self,
        items: Sequence[Item],
        size: int,
        encode: Callable[[Sequence[Item]], Tokens],
        pool: Callable[[Tokens], Tensor],
        *,
        hold_tokens: bool,
    ) -> None:
        """Encode nothing yet.

        Args:
            items: Captions or clips.
            size: Number of items in a chunk.
            encode: Returns their tokens.
            pool: Returns a vector of each item from the tokens.
            hold_tokens: Encode each chunk once, and hold its tokens; otherwise encode it again each time.
        """
        self.size = size
        self._items, self._encode, self._pool, self._hold_tokens = items, encode, pool, hold_tokens
        self._tokens: dict[int, Tokens] = {}
        self._vectors: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return -(-len(self._items) // self.size)

    def encode(self, what: str) -> None:
        """Encode all chunks, and report progress."""
        for chunk in progress(range(len(self)), total=len(self), what=what, unit="chunks"):
            self.vectors(chunk)

    @torch.inference_mode()
    def tokens(self, chunk: int) -> Tokens:
        """Return the tokens of a chunk."""
        if chunk in self._tokens:
            return self._tokens[chunk]
        tokens = self._encode(self._items[chunk * self.size : (chunk + 1) * self.size])
        if chunk not in self._vectors:
            self._vectors[chunk] = self._pool(tokens)
        if self._hold_tokens:
            self._tokens[chunk] = tokens
        return tokens

    def vectors(self, chunk: int) -> Tensor:
        """Return the vectors [B, D] of a chunk."""
        if chunk not in self._vectors:
            self.tokens(chunk)
        return self._vectors[chunk]

    def all_vectors(self) -> Tensor:
        """Return the vectors [N, D] of all captions or clips."""
        return torch.cat([self.vectors(chunk) for chunk in range(len(self))])

    def of_part(self, part: slice) -> range:
        """Return the chunks of a part.

        Raises:
            ValueError: The part does not begin with a chunk.
        """
        if part.start % self.size:
            raise ValueError(f"part {part.start}..{part.stop}: expected to begin at a multiple of {self.size}")
        return range(part.start // self.size, -(-part.stop // self.size))


class _Tiles:
    """Captions and clips in chunks, and the scores of chunks of both."""

    def __init__(
        self, scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip], *, hold_tokens: bool
    ) -> None:
        scorer.model.eval()
        objective, model = scorer.config.objective, scorer.model
        self._scorer = scorer
        self.texts = _Chunks(
            captions, TEXT_CHUNK, scorer.encode_texts, partial(objective.text_vectors, model), hold_tokens=hold_tokens
        )
        self.videos = _Chunks(
            clips, CLIP_CHUNK, scorer.encode_videos, partial(objective.video_vectors, model), hold_tokens=hold_tokens
        )
        self.stage_names = list(scorer.config.score_weights)
        self._early = [stage for stage in self.stage_names if not stage.startswith("fusion")]
        self._needs_tokens = any(stage != objective.vector_score for stage in self._early)

    @torch.inference_mode()
    def early(self, captions: slice, clips: slice) -> dict[str, np.ndarray]:
        """Return the early stages' scores: {stage: float32 [captions, clips]}."""
        objective, model = self._scorer.config.objective, self._scorer.model
        shape = captions.stop - captions.start, clips.stop - clips.start
        scores = {stage: np.empty(shape, dtype=np.float32) for stage in self._early}
        for text_chunk, clip_chunk, texts, videos in self._tokens_of_tiles(captions, clips):
            blocks = {objective.vector_score: self.texts.vectors(text_chunk) @ self.videos.vectors(clip_chunk).T}
            if texts is not None and videos is not None:
                blocks |= objective.early_scores(model, texts, videos)
            row, column = text_chunk * TEXT_CHUNK - captions.start, clip_chunk * CLIP_CHUNK - clips.start
            for stage, of_stage in scores.items():
                block = blocks[stage].float().cpu().numpy()
                of_stage[row : row + len(block), column : column + block.shape[1]] = block
        return scores

    def _tokens_of_tiles(
        self, captions: slice, clips: slice
    ) -> Iterator[tuple[int, int, TextTokens | None, VideoTokens | None]]:
        """Yield the chunks of each tile, with tokens if early stages need them.

        Tokens are held meanwhile for captions or for clips, whichever are fewer.
        """
        text_chunks, clip_chunks = self.texts.of_part(captions), self.videos.of_part(clips)
        if captions.stop - captions.start <= clips.stop - clips.start:
            texts = [(chunk, self.texts.tokens(chunk) if self._needs_tokens else None) for chunk in text_chunks]
            for clip_chunk in clip_chunks:
                videos = self.videos.tokens(clip_chunk) if self._needs_tokens else None
                yield from ((chunk, clip_chunk, tokens, videos) for chunk, tokens in texts)
        else:
            videos = [(chunk, self.videos.tokens(chunk) if self._needs_tokens else None) for chunk in clip_chunks]
            for text_chunk in text_chunks:
                texts = self.texts.tokens(text_chunk) if self._needs_tokens else None
                yield from ((text_chunk, chunk, texts, tokens) for chunk, tokens in videos)

    @torch.inference_mode()
    def late(
        self, text_chunks: range, clip_chunks: range, caption_P: np.ndarray, clip_P: np.ndarray
    ) -> Iterator[LateScores]:
        """Yield the scores of pairs by the fusion layers, up to ``PAIR_CHUNK`` at a time, short pairs first.

        Args:
            text_chunks: Chunks that have the captions.
            clip_chunks: Chunks that have the clips.
            caption_P: Index of each pair's caption among all.
            clip_P: Index of each pair's clip among all.

        Raises:
            TypeError: The model has no fusion layers.
        """
        objective, model = self._scorer.config.objective, self._scorer.model
        if model.fusion is None:
            raise TypeError(f"{type(model).__name__} has no fusion layers")
        text = join_texts([self.texts.tokens(chunk) for chunk in text_chunks])
        videos = join_videos([self.videos.tokens(chunk) for chunk in clip_chunks])
        bank = model.token_bank(text, videos, self._scorer.config.data.max_text_tokens)
        first_text, first_clip = text_chunks.start * TEXT_CHUNK, clip_chunks.start * CLIP_CHUNK
        text_of, clip_of = torch.from_numpy(caption_P - first_text), torch.from_numpy(clip_P - first_clip)
        order = (bank.text_lengths[text_of] + bank.video_lengths[clip_of]).argsort(stable=True)
        for text_P, video_P in zip(text_of[order].split(PAIR_CHUNK), clip_of[order].split(PAIR_CHUNK), strict=True):
            fused = model.fusion(bank, text_P, video_P)
            late = objective.late_scores(fused, text.weights_BN[text_P.to(text.weights_BN.device)])
            scores = {stage: scores_P.float().cpu().numpy() for stage, scores_P in late.items()}
            yield LateScores(first_text + text_P.numpy(), first_clip + video_P.numpy(), scores)

    def vectors(self) -> Vectors:
        """Return the vectors of all captions and clips."""
        return Vectors(*(of.all_vectors().float().cpu().numpy() for of in (self.texts, self.videos)))

    def query_similarities(self) -> QuerySimilarities | None:
        """Return the similarities of the training queries in the model's queue; None if it has no queue."""
        if self._scorer.model.queries is None:
            return None
        texts, videos = self._scorer.model.queries.filled()
        return QuerySimilarities(
            DotProducts(texts, self.videos.all_vectors()), DotProducts(videos, self.texts.all_vectors())
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


def _join_extra(chunks: Sequence[VideoTokens] | Sequence[TextTokens]) -> Extra:
    """Return the custom inputs that all chunks have."""
    names = [name for name in chunks[0].extra if all(name in chunk.extra for chunk in chunks)]
    parts = {name: [chunk.extra[name] for chunk in chunks] for name in names}
    return Extra({name: torch.cat(of) if of[0].ndim == 1 else _join(of) for name, of in parts.items()})


def join_videos(chunks: Sequence[VideoTokens]) -> VideoTokens:
    """Return videos in chunks as one batch, padded to the longest."""
    wholes = [chunk.whole_BD for chunk in chunks if chunk.whole_BD is not None]
    return VideoTokens(
        _join([chunk.tokens_BMD for chunk in chunks]),
        _join([chunk.mask_BM for chunk in chunks]),
        torch.cat(wholes) if wholes else None,
        extra=_join_extra(chunks),
    )


def join_texts(chunks: Sequence[TextTokens]) -> TextTokens:
    """Return texts in chunks as one batch, padded to the longest, with the inputs of the fusion layers."""
    types = [chunk.types_BND for chunk in chunks if chunk.types_BND is not None]
    wholes = [chunk.whole_BD for chunk in chunks if chunk.whole_BD is not None]
    return TextTokens(
        _join([chunk.tokens_BND for chunk in chunks]),
        _join([chunk.mask_BN for chunk in chunks]),
        _join([chunk.weights_BN for chunk in chunks]),
        _join(types) if types else None,
        whole_BD=torch.cat(wholes) if wholes else None,
        extra=_join_extra(chunks),
    )
