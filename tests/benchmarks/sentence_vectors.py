"""Sentence vectors by the text encoder that a folder holds, with the pooling that it declares."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from vlalign.train.data.text_encoders import new_text_encoder
from vlalign.train.distributed import Workers

AT_ONCE = 128


@lru_cache(1)
def _encoder(folder: str):
    return new_text_encoder(folder, [], Workers())


@torch.inference_mode()
def sentence_vectors(folder: str, texts: Sequence[str]) -> np.ndarray:
    """float64 [N, H]; the mean of the tokens, or the first one."""
    tokenizer, encoder, pooling = _encoder(folder)
    found = []
    for first in range(0, len(texts), AT_ONCE):
        inputs = tokenizer(list(texts[first : first + AT_ONCE]), padding=True, truncation=True, return_tensors="pt")
        states = encoder(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
        mask = inputs["attention_mask"][:, :, None]
        pooled = states[:, 0] if pooling.method == "cls" else (states * mask).sum(dim=1) / mask.sum(dim=1)
        found.append(pooled.double().numpy())
    return np.concatenate(found)
