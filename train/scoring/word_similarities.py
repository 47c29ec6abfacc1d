"""Scores of each word of a text over the time of a clip, for runs that compare words with feature vectors."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ...storage.common.terminal import say
from ...storage.records import Caption
from ..data.clips import Clip
from .scorer import CLIP_CHUNK, Scorer


class WordSimilarities(NamedTuple):
    """Scores of the words of a text over the time of a clip. Compare scores of one word with each other only."""

    start_seconds: np.ndarray
    """Start of each row [T]. Cells of a grid at the same time form one row, with their maximum score."""
    end_seconds: np.ndarray
    """Start of the next row; for the last row, its end [T]. Skipped rows of a long clip thus leave no gaps."""
    words: dict[str, np.ndarray]
    """{word in lower case: scores [T]}; a word of several tokens has their maximum."""


@torch.inference_mode()
def word_similarities(
    scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip]
) -> Iterator[WordSimilarities | None]:
    """Yield how well the words of each caption fit the clip at the same index.

    Nothing is yielded if the model has no scores of words.

    Args:
        scorer: The model.
        captions: The texts.
        clips: The clips, one for each caption.

    Yields:
        None for a caption without a word that the model knows, and for a clip without rows.
    """
    inputs, config = scorer.text_inputs, scorer.config
    words_of_tokens = getattr(inputs, "words_of_tokens", None)
    if words_of_tokens is None or not config.objective.has_word_similarity:
        return
    scorer.model.eval()
    for first in range(0, len(captions), CLIP_CHUNK):
        texts, parts = captions[first : first + CLIP_CHUNK], clips[first : first + CLIP_CHUNK]
        videos = scorer.encode_videos(parts)
        timed = scorer.features.timed_rows(parts, config.data.max_video_tokens)
        for num_tokens, (rows, _) in zip(videos.mask_BM.sum(dim=1).tolist(), timed, strict=True):
            if len(rows) and num_tokens != len(rows):
                how_many = f"{num_tokens} tokens of a clip of {len(rows)} rows"
                say(f"note: words are not shown over time: encoder {config.model.encoder} makes {how_many}")
                return
        similarity_BNM = config.objective.word_similarity(scorer.encode_texts(texts), videos)
        for caption, similarity_NM, (rows, times) in zip(
            texts, similarity_BNM.float().cpu().numpy(), timed, strict=True
        ):
            yield _of_clip(words_of_tokens(caption), similarity_NM[:, : len(rows)], times)


def _of_clip(words: Sequence[tuple[int, str]], similarity_NM: np.ndarray, times: np.ndarray) -> WordSimilarities | None:
    tokens_of: dict[str, list[int]] = {}
    for token, word in words:
        if word and token < len(similarity_NM):
            tokens_of.setdefault(word, []).append(token)
    if not tokens_of or not similarity_NM.shape[1]:
        return None
    starts, rows = np.unique(times[:, 0], return_index=True)
    return WordSimilarities(
        starts,
        np.append(starts[1:], times[-1:, 1]),
        {word: np.maximum.reduceat(similarity_NM[tokens].max(axis=0), rows) for word, tokens in tokens_of.items()},
    )
