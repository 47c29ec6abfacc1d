"""Encoding and scoring in chunks, for evaluation and search alike."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from ..storage.records import Caption
from .config import TrainConfig
from .data import Clip, ClipFeatures
from .model import VideoTextModel
from .text import TokenWeights, tokenize

CHUNK = 64


@torch.inference_mode()
def score_matrix(
    model: VideoTextModel,
    tokenizer: PreTrainedTokenizerFast,
    weights: TokenWeights,
    features: ClipFeatures,
    captions: Sequence[Caption],
    clips: Sequence[Clip],
    config: TrainConfig,
) -> np.ndarray:
    """float32 [num_captions, num_clips]. Each text and clip is encoded once; padding changes nothing."""
    model.eval()
    device = model.feature_mean.device
    texts = []
    for first in range(0, len(captions), CHUNK):
        tokens = tokenize(tokenizer, captions[first : first + CHUNK], weights, config.max_text_tokens)
        texts.append(model.encode_texts(**{name: value.to(device) for name, value in tokens.items()}))
    scores = np.empty((len(captions), len(clips)), dtype=np.float32)
    for first in range(0, len(clips), CHUNK):
        rows, mask = features.batch(clips[first : first + CHUNK], config.max_video_tokens)
        videos = model.encode_videos(rows.to(device), mask.to(device))
        for number, text in enumerate(texts):
            block = model.score(text, videos, config.token_score_weight).cpu().numpy()
            scores[number * CHUNK : number * CHUNK + len(block), first : first + CHUNK] = block
    return scores
