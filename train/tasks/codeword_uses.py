"""The uses of a model's codewords in clips and captions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...storage.records import Caption
from ..data.clips import Clip
from ..data.recordings import Recordings
from ..data.text import Pieces
from ..models.codebook import Coded, SharedCodebook, coded_texts, coded_videos
from ..scoring import CLIP_CHUNK, TEXT_CHUNK, Scorer
from ..workers import Workers


@dataclass(frozen=True)
class Uses:
    """The codewords that replace the tokens of a split's clips and captions."""

    clips: list[np.ndarray]
    """For each clip, the codeword of each of its rows."""
    captions: list[np.ndarray]
    """For each caption, the codeword of each of its word pieces (without special pieces) or its recording's tokens."""
    words: list[list[str]]
    """For each caption, the word that each of these pieces is a part of, in lower case; empty if it is part of none."""


def codebook_of(scorer: Scorer) -> SharedCodebook:
    """Return the model's codebook.

    Raises:
        ValueError: The model has none.
    """
    if scorer.model.codebook is None:
        raise ValueError(f"a model of the objective {scorer.config.objective.name} has no codebook")
    return scorer.model.codebook


@torch.inference_mode()
def find_uses(scorer: Scorer, captions: Sequence[Caption], clips: Sequence[Clip]) -> Uses:
    """Return the codeword that is nearest to each token.

    Args:
        scorer: A model with a codebook.
        captions: Their tokens are word pieces, or parts of their recordings.
        clips: Their tokens are rows.
    """
    codebook, single_process = codebook_of(scorer), Workers()
    scorer.model.eval()
    of_clips, of_captions, words = [], [], []
    for first in range(0, len(clips), CLIP_CHUNK):
        encoded = scorer.encode_videos(clips[first : first + CLIP_CHUNK])
        of_clips += _codes(codebook, coded_videos(codebook, encoded, single_process))
    for first in range(0, len(captions), TEXT_CHUNK):
        chunk = captions[first : first + TEXT_CHUNK]
        coded = coded_texts(codebook, scorer.encode_texts(chunk), single_process)
        if isinstance(scorer.text_inputs, Recordings):
            codes_of_chunk = list(_codes(codebook, coded))
            of_captions += codes_of_chunk
            words += [[""] * len(codes) for codes in codes_of_chunk]  # nobody knows when a word is spoken
        elif isinstance(scorer.text_inputs, Pieces):
            nearest = _nearest(codebook, coded).cpu().numpy()
            for caption, codes in zip(chunk, nearest, strict=True):
                pieces = scorer.text_inputs.words_of_tokens(caption)
                of_captions.append(codes[[index for index, _ in pieces]])
                words.append([word for _, word in pieces])
    return Uses(of_clips, of_captions, words)


def _nearest(codebook: SharedCodebook, coded: Coded) -> Tensor:
    if coded.tokens_BLD is None:
        raise ValueError("the model was trained without codewords (codebook size 0)")
    return codebook.nearest(coded.tokens_BLD)


def _codes(codebook: SharedCodebook, coded: Coded) -> Iterator[np.ndarray]:
    for codes, mask in zip(_nearest(codebook, coded), coded.mask_BL, strict=True):
        yield codes[mask].cpu().numpy()
