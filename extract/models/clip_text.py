"""CLIP's text tower (Radford et al. 2021), with the parameter names of transformers'
``CLIPTextModelWithProjection``.

It is reimplemented here because importing transformers takes longer than the rest of a search. A test compares it with
transformers' implementation.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ACTIVATIONS = {"quick_gelu": lambda x: x * torch.sigmoid(1.702 * x), "gelu": F.gelu}
LEGACY_END_ID = 2
"""Configurations older than transformers 4.31 contain this wrong end-of-text id. The end is then the token with the
highest id.
"""


@dataclass(frozen=True, kw_only=True)
class ClipTextSizes:
    """Sizes and settings of a text tower; the defaults are ViT-B/32's."""

    vocab_size: int = 49408
    hidden_size: int = 512
    intermediate_size: int = 2048
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    max_position_embeddings: int = 77
    projection_dim: int = 512
    layer_norm_eps: float = 1e-5
    hidden_act: str = "quick_gelu"
    eos_token_id: int = LEGACY_END_ID

    def __post_init__(self) -> None:
        for name in vars(self):
            value = getattr(self, name)
            right = value in ACTIVATIONS if name == "hidden_act" else isinstance(value, int | float) and value > 0
            if not right or isinstance(value, bool):
                raise ValueError(f"text_config has {name} {str(value)[:80]!r}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.hidden_size} values are not divisible among {self.num_attention_heads} heads")


class _Attention(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        width, self.num_heads = sizes.hidden_size, sizes.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x_BND: Tensor) -> Tensor:
        heads = [
            project(x_BND).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        ]
        return self.out_proj(F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class _FeedForward(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.fc1 = nn.Linear(sizes.hidden_size, sizes.intermediate_size)
        self.fc2 = nn.Linear(sizes.intermediate_size, sizes.hidden_size)
        self.activation = ACTIVATIONS[sizes.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.activation(self.fc1(x)))


class _Layer(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(sizes), _FeedForward(sizes)
        self.layer_norm1, self.layer_norm2 = (
            nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class _Embeddings(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.position_embedding = nn.Embedding(sizes.max_position_embeddings, sizes.hidden_size)

    def forward(self, ids_BN: Tensor) -> Tensor:
        return self.token_embedding(ids_BN) + self.position_embedding.weight[: ids_BN.shape[1]]


class _Encoder(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(_Layer(sizes) for _ in range(sizes.num_hidden_layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class _TextModel(nn.Module):
    def __init__(self, sizes: ClipTextSizes) -> None:
        super().__init__()
        self.embeddings, self.encoder = _Embeddings(sizes), _Encoder(sizes)
        self.final_layer_norm = nn.LayerNorm(sizes.hidden_size, eps=sizes.layer_norm_eps)

    def forward(self, ids_BN: Tensor) -> Tensor:
        return self.final_layer_norm(self.encoder(self.embeddings(ids_BN)))


class ClipText(nn.Module):
    """The text encoder of a published CLIP.

    ``forward``: token ids [B, N] -> ``text_embeds`` [B, P], not L2-normalised, read at each text's end token. Tokens
    after it have no effect, since attention is causal.
    """

    def __init__(self, sizes: ClipTextSizes) -> None:
        """Make a tower with random weights."""
        super().__init__()
        self.sizes = sizes
        self.text_model = _TextModel(sizes)
        self.text_projection = nn.Linear(sizes.hidden_size, sizes.projection_dim, bias=False)

    def forward(self, ids_BN: Tensor) -> Tensor:
        """See the class."""
        x = self.text_model(ids_BN)
        if self.sizes.eos_token_id == LEGACY_END_ID:
            ends_B = ids_BN.argmax(dim=1)
        else:
            ends_B = (ids_BN == self.sizes.eos_token_id).int().argmax(dim=1)
        return self.text_projection(x[torch.arange(len(x), device=x.device), ends_B])
