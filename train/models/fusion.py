"""TACo's and ToCo's fusion layers, which see a text and a video together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...storage.common.device import on_device
from ..settings import MAX_TOKENS
from .layers import GROUP_SIZES, MAX_RECOMPUTED, MixedPrecision, SelfAttentionLayer, length_groups, new_layers
from .tokens import TextTokens, VideoTokens, lengths_of, nonzero

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.text_towers import TextTower


@dataclass(frozen=True)
class FusionScores:
    """The fusion layers' scores of P pairs of a text and a video."""

    pair_P: Tensor
    """w . z_cls of TACo Eq. 5, or ToCo's f."""
    token_PN: Tensor | None = None
    """ToCo's f^t of the text's tokens, 0 at padding. None without a token head."""


@dataclass(frozen=True)
class TokenBank:
    """The R tokens of some texts and videos, concatenated without padding, as input of the fusion layers.

    A pair is gathered from two ranges of rows. Values that depend on one token only (its type and position, and the
    first layer's queries, keys and values) are computed once, not for each of its pairs.
    """

    rows_RD: Tensor
    queries_RD: Tensor
    keys_and_values_RE: Tensor
    text_starts: Tensor
    """Index of each text's first row. This and the next three are on the CPU."""
    text_lengths: Tensor
    video_starts: Tensor
    video_lengths: Tensor
    types_RD: Tensor | None = None


class _Group(NamedTuple):
    """Pairs of similar length, the longest first."""

    row_PL: Tensor
    """The bank's row of each token."""
    mask_PL: Tensor | None
    """True for a token, False for padding; None without padding."""
    text_length_P1: Tensor
    longest_text: int


class Fusion(MixedPrecision):
    """The multi-modal fusion module of TACo section 3.1.

    Text tokens and video tokens, with type and position added, go through self-attention together. A pair's score is
    computed from the output at [CLS].
    """

    def __init__(
        self,
        text_encoder: PreTrainedModel | TextTower,
        num_layers: int,
        dropout: float,
        *,
        token_head: bool,
        normalised: bool = True,
        perceptron: bool = False,
    ) -> None:
        """Make a module with new layers.

        Args:
            text_encoder: Gives the width and the number of heads.
            num_layers: Number of self-attention layers, 1 or more.
            dropout: Dropout rate of all layers.
            token_head: Use ToCo's heads: f is "a two-layer perceptron" on [CLS], and f^t another one on a token's
                output beside its type (ToCo section 3.3). Without it, TACo's "w in a linear layer" (Eq. 5).
            normalised: Apply LayerNorm and dropout to the sum of token, type and position, as in BERT. TACo's section
                3.1 has neither.
            perceptron: Use ToCo's f without its f^t.
        """
        super().__init__()
        width = text_encoder.config.hidden_size
        self.types = nn.Embedding(2, width)
        self.positions = nn.Embedding(MAX_TOKENS, width)
        for embedding in (self.types, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # as BERT's
        self.norm = nn.LayerNorm(width) if normalised else None
        self.dropout = nn.Dropout(dropout)
        self.layers = new_layers(text_encoder, num_layers, dropout)
        self.score = _perceptron(width, width) if token_head or perceptron else nn.Linear(width, 1)
        self.token_score = _perceptron(2 * width, width) if token_head else None

    def bank(self, texts: TextTokens, videos: VideoTokens, max_text_tokens: int) -> TokenBank:
        """Return the tokens that ``forward`` takes pairs from.

        Args:
            texts: Encoded texts, not scaled for dot products.
            videos: Encoded videos, not scaled for dot products.
            max_text_tokens: Position of a video's first token, however long the text before it is.
        """
        text_lengths = lengths_of(texts.mask_BN, texts.lengths_B)
        video_lengths = lengths_of(videos.mask_BM, videos.lengths_B)
        of_texts, of_videos = nonzero(texts.mask_BN, text_lengths), nonzero(videos.mask_BM, video_lengths)
        texts_RD = self._rows(texts.tokens_BND, of_texts, token_type=0, first_position=0)
        videos_RD = self._rows(videos.tokens_BMD, of_videos, token_type=1, first_position=max_text_tokens)
        types_RD = None if texts.types_BND is None else texts.types_BND[of_texts]
        rows_RD = torch.cat([texts_RD, videos_RD])
        with self.autocast(rows_RD.device):
            first = _layers(self)[0]
            queries_RD, keys_and_values_RE = first.queries(rows_RD), first.keys_and_values(rows_RD)
        return TokenBank(
            rows_RD,
            queries_RD,
            keys_and_values_RE,
            text_lengths.cumsum(0) - text_lengths,
            text_lengths,
            len(texts_RD) + video_lengths.cumsum(0) - video_lengths,
            video_lengths,
            types_RD,
        )

    def _rows(
        self, tokens_BLD: Tensor, index_R: tuple[Tensor, Tensor], *, token_type: int, first_position: int
    ) -> Tensor:
        positions_LD = self.positions.weight[first_position : first_position + tokens_BLD.shape[1]]
        rows_RD = (tokens_BLD + self.types.weight[token_type] + positions_LD)[index_R]
        return rows_RD if self.norm is None else self.dropout(self.norm(rows_RD))

    def forward(
        self, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor, *, recompute: bool = False
    ) -> FusionScores:
        """Score P pairs, in groups of similar length with little padding.

        Args:
            bank: Tokens of the texts and videos.
            text_of_P: Index of each pair's text, on the CPU.
            video_of_P: Index of each pair's video, on the CPU.
            recompute: Do not store the layers' results for the gradient; recompute them, a group at a time.
        """
        groups, back = self._groups(bank, text_of_P, video_of_P, recompute)
        pair_scores, token_scores = [], []
        for group in groups:
            pair, token = (
                checkpoint(self._scores, bank, *group, use_reentrant=False) if recompute else self._scores(bank, *group)
            )
            pair_scores.append(pair)
            if token is not None:
                token_scores.append(F.pad(token, (0, int(bank.text_lengths.max()) - token.shape[1])))
        return FusionScores(torch.cat(pair_scores)[back], torch.cat(token_scores)[back] if token_scores else None)

    def text_outputs(
        self, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor, *, recompute: bool = False
    ) -> Tensor:
        """Return the last layer's outputs at the texts' tokens, [P, N, D], anything at padding.

        Arguments are ``forward``'s.
        """
        groups, back = self._groups(bank, text_of_P, video_of_P, recompute)
        outputs = []
        for group in groups:
            arguments = bank, group.row_PL, group.mask_PL, group.longest_text
            x_PQD = (
                checkpoint(self._outputs, *arguments, use_reentrant=False) if recompute else self._outputs(*arguments)
            )
            outputs.append(F.pad(x_PQD, (0, 0, 0, int(bank.text_lengths.max()) - x_PQD.shape[1])))
        return torch.cat(outputs)[back]

    def _groups(
        self, bank: TokenBank, text_of_P: Tensor, video_of_P: Tensor, recompute: bool
    ) -> tuple[list[_Group], Tensor]:
        """Return groups of pairs of similar length, and each pair's index in the concatenated groups."""
        device = bank.rows_RD.device
        text_lengths, lengths = (
            bank.text_lengths[text_of_P],
            bank.text_lengths[text_of_P] + bank.video_lengths[video_of_P],
        )
        size = GROUP_SIZES[device.type]
        if recompute or not torch.is_grad_enabled():
            size = size._replace(max_positions=min(size.max_positions, MAX_RECOMPUTED))
        groups = length_groups(lengths.tolist(), size)
        order_P = torch.tensor([index for group in groups for index in group])
        # A video's rows begin behind the text's: position + shift is the row of a video's token.
        shifts = bank.video_starts[video_of_P] - text_lengths
        pairs = torch.stack([bank.text_starts[text_of_P], shifts, text_lengths, lengths])
        *pairs, order_of_P = on_device(torch.cat([pairs[:, order_P], order_P[None]]), device)
        sizes = [len(group) for group in groups]
        positions = torch.arange(int(lengths.max()), device=device)
        made: list[_Group] = []
        for group, *of_group in zip(groups, *(x.split(sizes) for x in pairs), strict=True):
            text_start, shift, text_length, length = (x[:, None] for x in of_group)
            longest, shortest = int(lengths[group[0]]), int(lengths[group[-1]])
            position_L, mask_PL = positions[:longest], None
            row_PL = position_L + torch.where(position_L < text_length, text_start, shift)
            if shortest < longest:
                mask_PL = position_L < length
                row_PL = row_PL.where(mask_PL, 0)
            made.append(_Group(row_PL, mask_PL, text_length, int(text_lengths[group].max())))
        return made, order_of_P.argsort()

    def _outputs(self, bank: TokenBank, row_PL: Tensor, mask_PL: Tensor | None, num_outputs: int) -> Tensor:
        """Return the last layer's first ``num_outputs`` outputs [P, Q, D], in full precision."""
        first, *others = _layers(self)
        output_PQ = row_PL if others else row_PL[:, :num_outputs]
        with self.autocast(row_PL.device):
            gathered = (
                take(bank.rows_RD, output_PQ),
                take(bank.queries_RD, output_PQ),
                take(bank.keys_and_values_RE, row_PL),
            )
            x_PLD = first.attend(*gathered, mask_PL)
            for layer in others:
                x_PLD = layer(x_PLD, mask_PL, num_outputs if layer is others[-1] else None)
        return x_PLD.to(bank.rows_RD.dtype)

    def _scores(
        self, bank: TokenBank, row_PL: Tensor, mask_PL: Tensor | None, text_length_P1: Tensor, longest_text: int
    ) -> tuple[Tensor, Tensor | None]:
        num_outputs = 1 if self.token_score is None else longest_text  # the last layer computes only what scores need
        x_PQD = self._outputs(bank, row_PL, mask_PL, num_outputs)
        pair_P = self.score(x_PQD[:, 0]).squeeze(-1)
        if self.token_score is None:
            return pair_P, None
        is_text_PQ = torch.arange(num_outputs, device=row_PL.device) < text_length_P1
        assert bank.types_RD is not None, "a token head needs the tokens' types"
        types_PQD = take(
            bank.types_RD, row_PL[:, :num_outputs].where(is_text_PQ, 0)
        )  # the bank begins with the texts' rows
        token_PQ = self.token_score(torch.cat([x_PQD, types_PQD], dim=-1)).squeeze(-1)
        return pair_P, token_PQ * is_text_PQ


def take(rows_RD: Tensor, index_PL: Tensor) -> Tensor:
    """Return the rows with these indices, [P, L, D]."""
    return rows_RD.index_select(0, index_PL.flatten()).unflatten(0, index_PL.shape)


def _layers(fusion: Fusion) -> list[SelfAttentionLayer]:
    return [layer for layer in fusion.layers if isinstance(layer, SelfAttentionLayer)]


def _perceptron(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, 1))
