"""Kernels and waits of a training step of TACo on a pretended GPU: ``python tests/benchmarks/gpu_step.py``.

The paper's batch of 128, with lengths like YouCook2's, and 12 text, 1 video and 2 fusion layers; all are narrow, since
neither count depends on the width.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertModel

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from helpers.fake_cuda import pretended
from vlalign.train.config import train_config
from vlalign.train.data.examples import Inputs
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.step import backward
from vlalign.train.workers import Workers

BATCH, MAX_TEXT, MAX_VIDEO, FEATURES, WIDTH = 128, 30, 48, 16, 32
TEXT_TOKENS, VIDEO_TOKENS = 10.4, 24.7
"""On average, of YouCook2's captions and clips."""


def make_inputs(seed: int) -> Inputs:
    """Return a batch in which every third word is of interest."""
    rng = np.random.default_rng(seed)
    texts, videos = (
        torch.from_numpy(rng.gamma(3, mean / 3, BATCH).astype(int).clip(2, most))[:, None]
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


def count(negatives: str, micro_batch_size: int) -> None:
    config = train_config(
        dataset="none", features="s3d", batch_size=BATCH, negatives=negatives, micro_batch_size=micro_batch_size
    )
    cuda = torch.device("cuda")
    with pretended() as gpu:
        model = make_model().to(cuda)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for step in range(2):  # the first one also makes the optimiser's state
            inputs = make_inputs(step).pinned().to(cuda)
            gpu.counts.clear()
            loss = sum(Workers().mean(backward(model, inputs, config, step, Workers())).values())
            optimizer.step()
    kernels, waits = gpu.counts.num_operators, gpu.counts.waits
    print(
        f"{negatives}, micro-batches of {micro_batch_size}: loss {loss:.4f}, {kernels:,} kernels, {waits.total()} waits"
    )
    for place, number in waits.most_common():
        print(f"  {number:>3}  {place}")


def main() -> None:
    for negatives, micro_batch_size in (("cascade", 0), ("cascade", 64), ("all", 0)):
        count(negatives, micro_batch_size)


if __name__ == "__main__":
    main()
