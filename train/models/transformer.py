"""The model: TACo's encoders and fusion layers (section 3.1), and ToCo's heads on the same (its section 3.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from ..config import MAX_TOKENS

GROUP_TOKENS = 16_384
"""So many tokens go through the layers at once, at most."""
LEAST_FILLED = 0.85
"""Sequences of a group are at least so long as its longest, times this: what is padded costs as much as what is not."""


@dataclass(frozen=True)
class VideoTokens:
    tokens_BMD: Tensor
    mask_BM: Tensor
    """True where there is a token: the first ones of each row."""

    @property
    def mean_BD(self) -> Tensor:
        """x-bar of TACo section 3.3: the average of a video's tokens."""
        return masked_mean(self.tokens_BMD, self.mask_BM)

    def __getitem__(self, rows: slice) -> "VideoTokens":
        return VideoTokens(self.tokens_BMD[rows], self.mask_BM[rows])


@dataclass(frozen=True)
class TextTokens:
    tokens_BND: Tensor
    mask_BN: Tensor
    """True where there is a token: the first ones of each row."""
    weights_BN: Tensor
    """Normalised idf of the tokens of interest, 0 elsewhere."""
    types_BND: Tensor | None = None
    """The tokens' vectors before any layer saw their context (ToCo's lexical type), where the model needs them."""

    @property
    def sentence_BD(self) -> Tensor:
        """y-bar of TACo section 3.3: the [CLS] token."""
        return self.tokens_BND[:, 0]

    @property
    def of_interest(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of the tokens of interest: the rows of their texts [S], their weights [S], and the tokens [S, D]."""
        text_of_S, place_S = self.weights_BN.nonzero(as_tuple=True)
        return text_of_S, self.weights_BN[text_of_S, place_S], self.tokens_BND[text_of_S, place_S]

    @property
    def mean_BD(self) -> Tensor:
        """b of ToCo section 3.3: the average of a text's tokens."""
        return masked_mean(self.tokens_BND, self.mask_BN)

    def __getitem__(self, rows: slice) -> "TextTokens":
        types = None if self.types_BND is None else self.types_BND[rows]
        return TextTokens(self.tokens_BND[rows], self.mask_BN[rows], self.weights_BN[rows], types)


def masked_mean(tokens_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    weights_BL1 = mask_BL[:, :, None].to(tokens_BLD.dtype)
    return (tokens_BLD * weights_BL1).sum(dim=1) / weights_BL1.sum(dim=1)


def length_groups(lengths: Sequence[int], max_tokens: int = GROUP_TOKENS) -> list[list[int]]:
    """Numbers of the sequences, longest first, in groups of nearly the same length: little of a group is padding.

    [5, 9, 5, 10]  ->  [[3, 1], [0, 2]]
    """
    groups: list[list[int]] = []
    longest = 0
    for number in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not groups or lengths[number] < LEAST_FILLED * longest or (len(groups[-1]) + 1) * longest > max_tokens:
            groups.append([])
            longest = max(lengths[number], 1)
        groups[-1].append(number)
    return groups


def by_length(mask_BL: Tensor, run: Callable[[Tensor, int, Tensor | None], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What ``run`` makes of groups of sequences, put together again as tensors [B, L, D] with zeros where there is no token.

    ``run``: numbers of the sequences, the length L of the longest, and their mask (None: all as long) -> tensors [rows, L, D].
    """
    lengths = mask_BL.sum(dim=1).tolist()
    groups = length_groups(lengths)
    parts = []
    for group in groups:
        rows, length = torch.tensor(group, device=mask_BL.device), lengths[group[0]]
        mask = None if lengths[group[-1]] == length else mask_BL[rows, :length]
        made = run(rows, length, mask)
        made = made if mask is None else [x * mask[:, :, None] for x in made]
        parts.append([F.pad(x, (0, 0, 0, mask_BL.shape[1] - length)) for x in made])
    order = torch.tensor([number for group in groups for number in group], device=mask_BL.device).argsort()
    return tuple(torch.cat(of_groups)[order] for of_groups in zip(*parts, strict=True))


class SelfAttentionLayer(nn.TransformerEncoderLayer):
    """A layer as BERT's, and what of it can be shared or left out: its queries, keys and values depend on a token alone, whatever
    sequence it is in, and where only the first tokens are asked for, the others need no more than keys and values."""

    def queries(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        width = x.shape[-1]
        return F.linear(x, self.self_attn.in_proj_weight[:width], self.self_attn.in_proj_bias[:width])

    def keys_and_values(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., 2 D]."""
        width = x.shape[-1]
        return F.linear(x, self.self_attn.in_proj_weight[width:], self.self_attn.in_proj_bias[width:])

    def attend(self, x_PQD: Tensor, queries_PQD: Tensor, keys_and_values_PLE: Tensor, mask_PL: Tensor | None) -> Tensor:
        """The layer's output for the first Q of L tokens, x. No mask: no padding."""
        heads = self.self_attn.num_heads
        q, k, v = (
            x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (queries_PQD, *keys_and_values_PLE.chunk(2, dim=-1))
        )
        mask = None if mask_PL is None else mask_PL[:, None, None]
        attended = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.self_attn.dropout if self.training else 0.0
        )
        x_PQD = self.norm1(x_PQD + self.dropout1(self.self_attn.out_proj(attended.transpose(1, 2).flatten(2))))
        return self.norm2(
            x_PQD + self.dropout2(self.linear2(self.activation(self.linear1(x_PQD))))
        )  # BERT drops nothing in between

    def forward(self, x_PLD: Tensor, mask_PL: Tensor | None, num_queries: int | None = None) -> Tensor:
        asked = x_PLD if num_queries is None else x_PLD[:, :num_queries]
        return self.attend(asked, self.queries(asked), self.keys_and_values(x_PLD), mask_PL)


def autocast(module: nn.Module, device: torch.device) -> torch.autocast:
    """bfloat16 where ``module.in_bfloat16``, and only in training: ranks must not be computed from it, it makes ties."""
    return torch.autocast(device.type, torch.bfloat16, enabled=module.in_bfloat16 and module.training)


def new_layers(text_encoder: PreTrainedModel, number: int, dropout: float) -> nn.ModuleList:
    """Self-attention layers of the text encoder's shape."""
    width, heads = text_encoder.config.hidden_size, text_encoder.config.num_attention_heads
    layers = [
        SelfAttentionLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True) for _ in range(number)
    ]
    return nn.ModuleList(layers)


@dataclass(frozen=True)
class FusionScores:
    pair_P: Tensor
    """w . z_cls of Eq. 5, or ToCo's f."""
    token_PN: Tensor | None = None
    """ToCo's f^t of the text's tokens; 0 where there is none."""


@dataclass(frozen=True)
class TokenBank:
    """All tokens of some texts and videos as the fusion layers take them, one after the other and without padding.

    A pair is a gather of two stretches of it, so that what depends on a token alone is computed once, not for each of its pairs: type
    and position are added, and the first layer's queries, keys and values known.
    """

    rows_RD: Tensor
    queries_RD: Tensor
    keys_and_values_RE: Tensor
    text_starts: Tensor
    text_lengths: Tensor
    video_starts: Tensor
    video_lengths: Tensor
    types_RD: Tensor | None = None


class Fusion(nn.Module):
    """The multi-modal fusion module of TACo section 3.1: [text tokens, video tokens] with type and position, self-attention, a score
    from what stands in the place of [CLS].

    ``token_head``: ToCo's. f is then "a two-layer perceptron" on [CLS], and f^t another on a token's output beside its type (ToCo
    section 3.3); TACo's is "w in a linear layer" (Eq. 5).
    """

    def __init__(self, text_encoder: PreTrainedModel, num_layers: int, dropout: float, *, token_head: bool) -> None:
        super().__init__()
        width = text_encoder.config.hidden_size
        self.types = nn.Embedding(2, width)
        self.positions = nn.Embedding(MAX_TOKENS, width)
        for embedding in (self.types, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # as BERT's
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.layers = new_layers(text_encoder, num_layers, dropout)
        self.score = _perceptron(width, width) if token_head else nn.Linear(width, 1)
        self.in_bfloat16 = False
        self.token_score = _perceptron(2 * width, width) if token_head else None

    def bank(self, texts: TextTokens, videos: VideoTokens, max_text_tokens: int) -> TokenBank:
        """What ``forward`` takes pairs from. A video's first token has position ``max_text_tokens``, however long the text before it is."""
        texts_RD, text_starts, text_lengths = self._rows(
            texts.tokens_BND, texts.mask_BN, token_type=0, first_position=0
        )
        videos_RD, video_starts, video_lengths = self._rows(
            videos.tokens_BMD, videos.mask_BM, token_type=1, first_position=max_text_tokens
        )
        types_RD = None if texts.types_BND is None else texts.types_BND[texts.mask_BN]
        rows_RD = torch.cat([texts_RD, videos_RD])
        with autocast(self, rows_RD.device):
            first = self.layers[0].queries(rows_RD), self.layers[0].keys_and_values(rows_RD)
        return TokenBank(
            rows_RD, *first, text_starts, text_lengths, len(texts_RD) + video_starts, video_lengths, types_RD
        )

    def _rows(
        self, tokens_BLD: Tensor, mask_BL: Tensor, *, token_type: int, first_position: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        positions_LD = self.positions.weight[first_position : first_position + tokens_BLD.shape[1]]
        rows_RD = (tokens_BLD + self.types.weight[token_type] + positions_LD)[mask_BL]
        lengths = mask_BL.sum(dim=1).cpu()
        return self.dropout(self.norm(rows_RD)), lengths.cumsum(0) - lengths, lengths

    def forward(
        self, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor, *, recompute: bool = False
    ) -> FusionScores:
        """Scores of P pairs, given by the numbers of text and video (on the CPU), in groups of like length: next to nothing is padded.

        ``recompute``: what the layers computed is not kept for the gradient but computed again, a group at a time.
        """
        text_lengths, video_lengths = bank.text_lengths[text_of_P], bank.video_lengths[video_of_P]
        text_starts, video_starts = bank.text_starts[text_of_P], bank.video_starts[video_of_P]
        groups = length_groups((text_lengths + video_lengths).tolist())
        pair_scores, token_scores = [], []
        for group in groups:
            text_length, length = text_lengths[group, None], (text_lengths + video_lengths)[group, None]
            place_L = torch.arange(int(length[0]))
            row_PL = torch.where(
                place_L < text_length,
                text_starts[group, None] + place_L,
                video_starts[group, None] + place_L - text_length,
            )
            row_PL = row_PL.where(place_L < length, 0).to(bank.rows_RD.device)
            mask_PL = None if length[-1] == length[0] else (place_L < length).to(bank.rows_RD.device)
            arguments = bank, row_PL, mask_PL, text_length.to(row_PL.device), int(text_length.max())
            pair, token = (
                checkpoint(self._group, *arguments, use_reentrant=False) if recompute else self._group(*arguments)
            )
            pair_scores.append(pair)
            if token is not None:
                token_scores.append(F.pad(token, (0, int(bank.text_lengths.max()) - token.shape[1])))
        order = torch.tensor([number for group in groups for number in group], device=bank.rows_RD.device).argsort()
        return FusionScores(torch.cat(pair_scores)[order], torch.cat(token_scores)[order] if token_scores else None)

    def _group(
        self, bank: TokenBank, row_PL: Tensor, mask_PL: Tensor | None, text_length_P1: Tensor, longest_text: int
    ) -> tuple[Tensor, Tensor | None]:
        num_asked = 1 if self.token_score is None else longest_text  # of the last layer, only what a score is made of
        first, *others = self.layers
        asked_PQ = row_PL if others else row_PL[:, :num_asked]
        with autocast(self, row_PL.device):
            gathered = (
                take(bank.rows_RD, asked_PQ),
                take(bank.queries_RD, asked_PQ),
                take(bank.keys_and_values_RE, row_PL),
            )
            x_PLD = first.attend(*gathered, mask_PL)
            for layer in others:
                x_PLD = layer(x_PLD, mask_PL, num_asked if layer is others[-1] else None)
        x_PQD = x_PLD.to(bank.rows_RD.dtype)
        pair_P = self.score(x_PQD[:, 0]).squeeze(-1)
        if self.token_score is None:
            return pair_P, None
        is_text_PQ = torch.arange(num_asked, device=row_PL.device) < text_length_P1
        types_PQD = take(
            bank.types_RD, row_PL[:, :num_asked].where(is_text_PQ, 0)
        )  # the bank begins with the texts' rows
        token_PQ = self.token_score(torch.cat([x_PQD, types_PQD], dim=-1)).squeeze(-1)
        return pair_P, token_PQ * is_text_PQ


def take(rows_RD: Tensor, number_PL: Tensor) -> Tensor:
    """[P, L, D]."""
    return rows_RD.index_select(0, number_PL.flatten()).unflatten(0, number_PL.shape)


def _perceptron(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))


class VideoTextModel(nn.Module):
    """Features -> video tokens, captions -> text tokens, as wide as the text encoder; pairs of both -> fusion scores.

    The features are standardised with the training clips' mean and deviation before the linear projection: together still one
    affine map, but one that starts out well scaled whatever extractor made the features. ``num_fusion_layers`` None: no fusion module.
    """

    def __init__(
        self,
        feature_dim: int,
        text_encoder: PreTrainedModel,
        *,
        num_video_layers: int,
        num_fusion_layers: int | None,
        dropout: float,
        token_head: bool = False,
    ) -> None:
        super().__init__()
        width = text_encoder.config.hidden_size
        self.text_encoder = text_encoder
        self.register_buffer("feature_mean", torch.zeros(feature_dim))
        self.register_buffer("feature_std", torch.ones(feature_dim))
        self.project = nn.Linear(feature_dim, width)
        self.positions = nn.Parameter(0.02 * torch.randn(MAX_TOKENS, width))
        self.dropout = nn.Dropout(dropout)
        self.video_layers = new_layers(text_encoder, num_video_layers, dropout)
        self.fusion = None
        if num_fusion_layers is not None:
            self.fusion = Fusion(text_encoder, num_fusion_layers, dropout, token_head=token_head)
        self.token_head = token_head
        self.in_bfloat16 = False
        self.width = width
        self.queries: nn.Module | None = None
        """``dual.QueryQueue``, where the run keeps queries; and CMCM's ``dual.SharedCodebook``."""
        self.codebook: nn.Module | None = None
        self.head: nn.Module | None = None
        """What labels rows or answers questions, where the run does that (``heads``)."""
        self.scale = width**-0.25
        """Dot products of two vectors scaled by it grow like sqrt(width), as in attention, and start near 1."""

    def set_precision(self, precision: str) -> None:
        """``bf16``: the layers compute in bfloat16 while training; weights, and what losses are made of, stay float32."""
        self.in_bfloat16 = precision == "bf16"
        if self.fusion is not None:
            self.fusion.in_bfloat16 = self.in_bfloat16

    def compile_layers(self) -> None:
        """The text encoder's and the other self-attention layers, for any length."""
        self.text_encoder.compile(dynamic=True)
        for layer in [*self.video_layers, *(self.fusion.layers if self.fusion else [])]:
            layer.compile(dynamic=True)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor) -> VideoTokens:
        """``mask_BM``: True where there is a feature. What stands in padded rows has no influence."""

        def run(rows: Tensor, length: int, mask: Tensor | None) -> tuple[Tensor]:
            standardised = (features_BMF[rows, :length] - self.feature_mean) / self.feature_std
            with autocast(self, features_BMF.device):
                x = self.dropout(self.project(standardised)) + self.positions[:length]
                for layer in self.video_layers:
                    x = layer(x, mask)
            return (x.to(self.feature_mean.dtype) * self.scale,)

        return VideoTokens(*by_length(mask_BM, run), mask_BM)

    def encode_texts(self, input_ids: Tensor, attention_mask: Tensor, token_weights: Tensor) -> TextTokens:
        def run(rows: Tensor, length: int, mask: Tensor | None) -> tuple[Tensor, ...]:
            ids = input_ids[rows, :length]
            with autocast(self, ids.device):
                out = self.text_encoder(input_ids=ids, attention_mask=mask, output_hidden_states=self.token_head)
            kind = self.feature_mean.dtype
            tokens = out.last_hidden_state.to(kind) * self.scale
            return (
                (tokens, out.hidden_states[0].to(kind)) if self.token_head else (tokens,)
            )  # ToCo 4.2: "outputs of the embedding layer"

        tokens_BND, *types = by_length(attention_mask.bool(), run)
        return TextTokens(tokens_BND, attention_mask.bool(), token_weights, *types)

    def token_bank(self, texts: TextTokens, videos: VideoTokens, max_text_tokens: int) -> TokenBank:
        """What the fusion layers take: the encoders' tokens as they were before they were scaled for dot products."""
        texts = replace(texts, tokens_BND=texts.tokens_BND / self.scale)
        videos = replace(videos, tokens_BMD=videos.tokens_BMD / self.scale)
        return self.fusion.bank(texts, videos, max_text_tokens)
