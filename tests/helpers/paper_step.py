"""A training step of TACo as large as the paper's, on a pretended GPU."""

import numpy as np
import torch
from transformers import BertConfig, BertModel
from vlalign.train.data.examples import Inputs
from vlalign.train.distributed import Workers
from vlalign.train.loop.step import backward
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.recipes.train_config import train_config

from helpers.fake_cuda import pretended
from helpers.gpu_counts import GpuCounts

BATCH, MAX_TEXT, MAX_VIDEO, FEATURES, WIDTH = 128, 30, 48, 16, 32
TEXT_TOKENS, VIDEO_TOKENS = 10.4, 24.7
"""On average, of YouCook2's captions and clips."""


def make_inputs(seed: int, size: int = BATCH) -> Inputs:
    """Return a batch in which every third word is of interest."""
    rng = np.random.default_rng(seed)
    texts, videos = (
        torch.from_numpy(rng.gamma(3, mean / 3, size).astype(int).clip(2, most))[:, None]
        for mean, most in ((TEXT_TOKENS, MAX_TEXT), (VIDEO_TOKENS, MAX_VIDEO))
    )
    mask_BN, mask_BM = (torch.arange(int(lengths.max())) < lengths for lengths in (texts, videos))
    of_interest = (torch.arange(mask_BN.shape[1]) % 3 == 1) * mask_BN.float()
    tokens = {
        "input_ids": torch.from_numpy(rng.integers(0, 100, mask_BN.shape)),
        "attention_mask": mask_BN.long(),
        "token_weights": of_interest / of_interest.sum(dim=1, keepdim=True),
    }
    rows = torch.from_numpy(rng.standard_normal((*mask_BM.shape, FEATURES), dtype=np.float32))
    return Inputs(tokens, rows, mask_BM)


def make_model() -> VideoTextModel:
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH}
    bert = BertModel(BertConfig(vocab_size=100, **shape), add_pooling_layer=False)
    return VideoTextModel(FEATURES, bert, num_video_layers=1, num_fusion_layers=2, dropout=0.1).train()


def count(negatives: str, micro_batch_size: int) -> tuple[float, GpuCounts]:
    """Return the loss and the counts of the second step; the first one also makes the optimiser's state."""
    config = train_config(
        dataset="none", features="s3d", batch_size=BATCH, negatives=negatives, micro_batch_size=micro_batch_size
    )
    cuda, loss = torch.device("cuda"), 0.0
    with pretended() as gpu:
        model = make_model().to(cuda)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(2):
            inputs = make_inputs(step).pinned().to(cuda)
            gpu.counts.clear()
            loss = sum(Workers().mean(backward(model, inputs, config, step, Workers())).values())
            optimizer.step()
    return loss, gpu.counts
