"""Small models and batches of random pairs, and the score of one pair computed on its own."""

import torch
from torch import nn
from transformers import BertConfig, BertModel
from vlalign.train.distributed import Workers
from vlalign.train.models.masked_words import MaskedWordHead
from vlalign.train.models.tokens import TextTokens, VideoTokens
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.objectives.batch import Batch

MAX_TEXT = 8
BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def make_model(objective: str, num_fusion_layers: int = 2, dropout: float = 0.0, **more) -> VideoTextModel:
    config = BertConfig(**BERT, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    bert = BertModel(config, add_pooling_layer=False)
    token_head, width = OBJECTIVES[objective].has_token_head, BERT["hidden_size"]
    masks_words = OBJECTIVES[objective].masks_words
    shape = {
        "num_video_layers": 1,
        "num_fusion_layers": num_fusion_layers,
        "dropout": dropout,
        "token_head": token_head,
        "masked_words": MaskedWordHead(width, mask_id=39, num_ids=BERT["vocab_size"]) if masks_words else None,
    }
    model = VideoTextModel(6, bert, **shape, **more).double()
    for layer in [*model.video_layers, *model.fusion.layers]:  # new ones are zero where a mistake would not be seen
        nn.init.normal_(layer.self_attn.in_proj_bias, std=0.3)
    return model


def make_batch(num_pairs: int) -> dict[str, torch.Tensor]:
    text_lengths = torch.randint(3, MAX_TEXT + 1, (num_pairs,))
    video_lengths = torch.randint(1, 7, (num_pairs,))
    attention_mask = (torch.arange(int(text_lengths.max())) < text_lengths[:, None]).long()
    weights = (
        torch.rand(attention_mask.shape, dtype=torch.float64)
        * (torch.rand(attention_mask.shape) < 0.5)
        * attention_mask
    )
    weights[:, 0] = 0
    return {
        "input_ids": torch.randint(1, 40, attention_mask.shape) * attention_mask,
        "attention_mask": attention_mask,
        "token_weights": weights / weights.sum(1, keepdim=True).clamp(min=1e-9),
        "rows": torch.randn(num_pairs, int(video_lengths.max()), 6, dtype=torch.float64),
        "mask": torch.arange(int(video_lengths.max())) < video_lengths[:, None],
    }


def encode(model: VideoTextModel, batch: dict[str, torch.Tensor]) -> tuple[TextTokens, VideoTokens]:
    texts = model.encode_texts(batch)
    return texts, model.encode_videos(batch["rows"], batch["mask"])


def batch_of(texts: TextTokens, videos: VideoTokens, *, recompute: int | None = None, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(texts, videos, Workers(), generator, recompute, max_text_tokens=MAX_TEXT)


def plain_fusion(model: VideoTextModel, texts: TextTokens, videos: VideoTokens, i: int, j: int) -> torch.Tensor:
    """All outputs z [n + m, D] of the fusion layers for one text and one video: nothing is shared, gathered or left
    out."""
    fusion = model.fusion
    text = texts.tokens_BND[i, texts.mask_BN[i]] / model.scale
    video = videos.tokens_BMD[j, videos.mask_BM[j]] / model.scale
    text = text + fusion.types.weight[0] + fusion.positions.weight[: len(text)]
    video = video + fusion.types.weight[1] + fusion.positions.weight[MAX_TEXT : MAX_TEXT + len(video)]
    x = torch.cat([text, video])
    x = (x if fusion.norm is None else fusion.norm(x))[None]
    for layer in fusion.layers:
        x = nn.TransformerEncoderLayer.forward(layer, x)
    return x[0]


def plain_scores(
    model: VideoTextModel, texts: TextTokens, videos: VideoTokens, i: int, j: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The pair's score, and of each of the text's tokens ToCo's."""
    z = plain_fusion(model, texts, videos, i, j)
    if isinstance(model.fusion.score, nn.Linear):
        return z[0] @ model.fusion.score.weight[0] + model.fusion.score.bias[0], []
    if model.fusion.token_score is None:
        return model.fusion.score(z[0])[0], []
    types = texts.types_BND[i, texts.mask_BN[i]]
    return model.fusion.score(z[0])[0], [
        model.fusion.token_score(torch.cat([z[p], types[p]]))[0] for p in range(len(types))
    ]
