"""Scores of more captions and clips than fit into memory.

They are computed anew, in the same tiles, each time that they are asked for. A tile is ``TEXT_CHUNK`` captions with
``CLIP_CHUNK`` clips, as in ``scoring``. Equal tiles give equal scores to the last bit, so that ties stay ties.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...storage.common.progress import progress
from ...storage.records import Caption
from ..data.clips import Clip
from ..models.tokens import TextTokens, VideoTokens
from .scorer import (
    CLIP_CHUNK,
    TEXT_CHUNK,
    TEXT_CHUNKS_IN_BANK,
    Scorer,
    best_in_rows,
    join_texts,
    join_videos,
    late_scores,
)
from .scores import Shortlist, StageScores, parts_of

CLIP_CHUNKS_IN_BANK = 64
"""Number of clip chunks whose tokens are ready for the fusion layers at once."""


class _LatePairs(NamedTuple):
    """The pairs that the fusion layers scored, in the order of their captions and clips."""

    caption_of_P: np.ndarray
    clip_of_P: np.ndarray
    in_best_of_caption_P: np.ndarray
    in_best_of_clip_P: np.ndarray
    scores: dict[str, np.ndarray]
    """{late stage: float32 [P]}"""

    def part(self, pairs: np.ndarray) -> "_LatePairs":
        """Return some of the pairs."""
        return _LatePairs(
            self.caption_of_P[pairs],
            self.clip_of_P[pairs],
            self.in_best_of_caption_P[pairs],
            self.in_best_of_clip_P[pairs],
            {stage: scores[pairs] for stage, scores in self.scores.items()},
        )


class _Tile(NamedTuple):
    """Some captions with some clips; their tokens are None if no early stage needs them."""

    text_chunk: int
    clip_chunk: int
    texts: TextTokens | None
    videos: VideoTokens | None


class TiledScores:
    """Scores of all captions with all clips, computed in tiles when they are asked for."""

    def __init__(
        self, scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip], *, rerank: int | None = None
    ) -> None:
        """Encode everything once, and score the shortlist with the fusion layers.

        Args:
            scorer: The model and its inputs.
            captions: What the rows of the scores are.
            clips: What the columns of the scores are.
            rerank: Number of best clips of each caption, and of best captions of each clip, that the fusion layers
                score. None for a model without them.
        """
        scorer.model.eval()
        objective, model = scorer.config.objective, scorer.model
        self._scorer, self._captions, self._clips = scorer, captions, clips
        self.stage_names = list(scorer.config.score_weights)
        self._needs_tokens = any(not name.startswith("fusion") for name in self.stage_names if name != objective.stage)
        texts, videos = _chunks(len(captions), TEXT_CHUNK), _chunks(len(clips), CLIP_CHUNK)
        with torch.inference_mode():
            # Tokens are not held: those of a hundred thousand clips take more memory than there is.
            self._text_vectors = [
                objective.text_vectors(model, self._encoded_texts(chunk))
                for chunk in progress(texts, total=len(texts), what="encoding captions", unit="chunks")
            ]
            self._video_vectors = [
                objective.video_vectors(model, self._encoded_videos(chunk))
                for chunk in progress(videos, total=len(videos), what="encoding clips", unit="chunks")
            ]
        self._late = None if rerank is None else self._score_late(rerank)

    def rows(self, captions: slice) -> StageScores:
        """Return the scores of captions with all clips.

        Args:
            captions: Begins at a multiple of ``TEXT_CHUNK``, as a multiple of ``PART`` is.
        """
        return self._part(captions, slice(0, len(self._clips)))

    def columns(self, clips: slice) -> StageScores:
        """Return the scores of all captions with clips.

        Args:
            clips: Begins at a multiple of ``CLIP_CHUNK``, as a multiple of ``PART`` is.
        """
        return self._part(slice(0, len(self._captions)), clips)

    def _part(self, captions: slice, clips: slice) -> StageScores:
        stages = self._early(captions, clips)
        if self._late is None:
            return StageScores(stages, None)
        caption_P, clip_P = self._late.caption_of_P, self._late.clip_of_P
        is_here = (caption_P >= captions.start) & (caption_P < captions.stop)
        is_here &= (clip_P >= clips.start) & (clip_P < clips.stop)
        late = self._late.part(is_here)
        here = late.caption_of_P - captions.start, late.clip_of_P - clips.start
        shape = captions.stop - captions.start, clips.stop - clips.start
        shortlist = Shortlist(np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool))
        shortlist.clips_of_captions[here] = late.in_best_of_caption_P
        shortlist.captions_of_clips[here] = late.in_best_of_clip_P
        for stage, scores_P in late.scores.items():
            if stage in self.stage_names:
                stages[stage] = np.zeros(shape, dtype=np.float32)
                stages[stage][here] = scores_P
        return StageScores({stage: stages[stage] for stage in self.stage_names}, shortlist)

    @torch.inference_mode()
    def _early(self, captions: slice, clips: slice) -> dict[str, np.ndarray]:
        """Return the early stages' scores."""
        objective, model = self._scorer.config.objective, self._scorer.model
        shape = captions.stop - captions.start, clips.stop - clips.start
        early = [stage for stage in self.stage_names if not stage.startswith("fusion")]
        scores = {stage: np.empty(shape, dtype=np.float32) for stage in early}
        for tile in self._tiles(captions, clips):
            text, video = self._text_vectors[tile.text_chunk], self._video_vectors[tile.clip_chunk]
            blocks = {objective.stage: text @ video.T}
            if tile.texts is not None and tile.videos is not None:
                blocks |= objective.early_scores(model, tile.texts, tile.videos)
            row, column = tile.text_chunk * TEXT_CHUNK - captions.start, tile.clip_chunk * CLIP_CHUNK - clips.start
            for stage in early:
                block = blocks[stage].float().cpu().numpy()
                scores[stage][row : row + len(block), column : column + block.shape[1]] = block
        return scores

    def _tiles(self, captions: slice, clips: slice) -> Iterator[_Tile]:
        """Yield the tiles of a part. The tokens of the fewer, captions or clips, are held; the others' are not."""
        text_chunks, clip_chunks = _chunks_of(captions, TEXT_CHUNK), _chunks_of(clips, CLIP_CHUNK)
        if captions.stop - captions.start <= clips.stop - clips.start:
            texts = [(chunk, self._texts(chunk)) for chunk in text_chunks]
            for clip_chunk in clip_chunks:
                videos = self._videos(clip_chunk)
                yield from (_Tile(chunk, clip_chunk, tokens, videos) for chunk, tokens in texts)
        else:
            videos = [(chunk, self._videos(chunk)) for chunk in clip_chunks]
            for text_chunk in text_chunks:
                texts = self._texts(text_chunk)
                yield from (_Tile(text_chunk, chunk, texts, tokens) for chunk, tokens in videos)

    @torch.inference_mode()
    def _score_late(self, rerank: int) -> _LatePairs:
        """Score the best pairs by the early stages with the fusion layers."""
        caption_P, clip_P, of_caption_P, of_clip_P = self._shortlist(rerank)
        stages = [stage for stage in self.stage_names if stage.startswith("fusion")]
        scores = {stage: np.zeros(len(caption_P), dtype=np.float32) for stage in stages}
        num_texts, num_clips = TEXT_CHUNK * TEXT_CHUNKS_IN_BANK, CLIP_CHUNK * CLIP_CHUNKS_IN_BANK
        banks = self._banks(caption_P // num_texts, clip_P // num_clips)
        for pairs in progress(banks, total=len(caption_P), what="fusion", unit="pairs", size=len):
            first_text = int(caption_P[pairs[0]]) // num_texts * TEXT_CHUNKS_IN_BANK
            first_clip = int(clip_P[pairs[0]]) // num_clips * CLIP_CHUNKS_IN_BANK
            text_chunks = range(first_text, min(first_text + TEXT_CHUNKS_IN_BANK, len(self._text_vectors)))
            clip_chunks = range(first_clip, min(first_clip + CLIP_CHUNKS_IN_BANK, len(self._video_vectors)))
            text = join_texts([self._encoded_texts(chunk) for chunk in text_chunks])
            video = join_videos([self._encoded_videos(chunk) for chunk in clip_chunks])
            texts_P, clips_P = caption_P[pairs] - first_text * TEXT_CHUNK, clip_P[pairs] - first_clip * CLIP_CHUNK
            order = np.lexsort((clips_P, texts_P))
            key = texts_P[order] * num_clips + clips_P[order]
            for block in late_scores(self._scorer, text, video, texts_P, clips_P):
                found = order[np.searchsorted(key, block.caption_of_P * num_clips + block.clip_of_P)]
                for stage, scores_P in block.scores.items():
                    if stage in scores:
                        scores[stage][pairs[found]] = scores_P
        return _LatePairs(caption_P, clip_P, of_caption_P, of_clip_P, scores)

    def _shortlist(self, rerank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the captions and clips of the pairs to fuse, and whether each is among the best of its caption, and
        of its clip."""
        weights, num_captions, num_clips = self._scorer.config.score_weights, len(self._captions), len(self._clips)
        of_captions, of_clips = [np.zeros(0, dtype=np.int64)], [np.zeros(0, dtype=np.int64)]
        for part in parts_of(num_captions, "best clips", "captions"):
            early = self._early(part, slice(0, num_clips))
            captions, clips = best_in_rows(StageScores(early, None).guidance(weights), rerank).nonzero()
            of_captions.append((part.start + captions) * num_clips + clips)
        for part in parts_of(num_clips, "best captions", "clips"):
            early = self._early(slice(0, num_captions), part)
            clips, captions = best_in_rows(StageScores(early, None).guidance(weights).T, rerank).nonzero()
            of_clips.append(captions * num_clips + part.start + clips)
        by_caption, by_clip = np.concatenate(of_captions), np.sort(np.concatenate(of_clips))
        pairs = np.union1d(by_caption, by_clip)
        return *np.divmod(pairs, num_clips), np.isin(pairs, by_caption), np.isin(pairs, by_clip)

    def _banks(self, text_bank_P: np.ndarray, clip_bank_P: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the indices of the pairs of each bank of texts and clips."""
        order = np.lexsort((clip_bank_P, text_bank_P))
        changes = (np.diff(text_bank_P[order]) != 0) | (np.diff(clip_bank_P[order]) != 0)
        yield from np.split(order, np.flatnonzero(changes) + 1)

    def _texts(self, chunk: int) -> TextTokens | None:
        """Return the tokens of captions, if early stages need them."""
        return self._encoded_texts(chunk) if self._needs_tokens else None

    def _videos(self, chunk: int) -> VideoTokens | None:
        """Return the tokens of clips, if early stages need them."""
        return self._encoded_videos(chunk) if self._needs_tokens else None

    def _encoded_texts(self, chunk: int) -> TextTokens:
        first = chunk * TEXT_CHUNK
        return self._scorer.encode_texts(self._captions[first : first + TEXT_CHUNK])

    def _encoded_videos(self, chunk: int) -> VideoTokens:
        first = chunk * CLIP_CHUNK
        return self._scorer.encode_videos(self._clips[first : first + CLIP_CHUNK])


def _chunks(count: int, size: int) -> range:
    return range(-(-count // size))


def _chunks_of(part: slice, size: int) -> range:
    """Return the chunks of a part.

    Raises:
        ValueError: The part does not begin with a chunk.
    """
    if part.start % size:
        raise ValueError(f"part {part.start}..{part.stop}: expected to begin at a multiple of {size}")
    return range(part.start // size, -(-part.stop // size))
