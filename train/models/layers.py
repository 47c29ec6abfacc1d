"""Self-attention layers, run on groups of sequences of nearly the same length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...storage.common.device import on_device

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ..data.text_towers import TextTower

MIN_FILLED = 0.85
"""A group's shortest sequence has at least this part of its longest one's length: padding costs as much as tokens
do."""


class GroupSize(NamedTuple):
    """Sizes of the groups in which sequences go through the layers. Positions include padding."""

    max_positions: int
    """Upper limit of a group's positions. A single longer sequence is a group of its own."""
    min_positions: int
    """Up to this many positions, a group may hold sequences of any lengths."""


GROUP_SIZES = {"cpu": GroupSize(16_384, 0), "cuda": GroupSize(131_072, 32_768)}
"""On a CPU, time depends on the number of positions, and small groups fit into its caches. A GPU takes as long for a
few positions as for thousands: another launch of the layers costs more than padding.
"""
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Kernels of attention, without cuDNN's, which PyTorch prefers in bfloat16 on newer GPUs: it is built again for each
shape, and nearly every group of sequences has a new shape."""
MAX_RECOMPUTED = 32_768
"""Upper limit of a group's positions if results are not stored for the gradient: the largest group then determines the
memory."""


def length_groups(lengths: Sequence[int], size: GroupSize) -> list[list[int]]:
    """Sort sequences into groups of similar length, with little padding.

    [5, 9, 5, 10]  ->  [[3, 1], [0, 2]]

    Args:
        lengths: Number of tokens of each sequence.
        size: Size of the groups; see ``GROUP_SIZES``.

    Returns:
        The indices of the sequences, longest first.
    """
    groups: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        is_shorter = lengths[index] < MIN_FILLED * longest
        if (
            not groups
            or (is_shorter and len(groups[-1]) * longest >= size.min_positions)
            or (len(groups[-1]) + 1) * longest > size.max_positions
        ):
            groups.append([])
            longest = max(lengths[index], 1)
        groups[-1].append(index)
    return groups


def by_length(
    mask_BL: Tensor, lengths_B: Tensor, run: Callable[[Tensor, int, Tensor | None], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Run a function on groups of sequences of similar length and put the results together again.

    Args:
        mask_BL: True for a token, False for padding.
        lengths_B: Number of tokens of each sequence, on the CPU.
        run: Gets the rows of a group's sequences, the length L of its longest one and their mask (None if all are
            equally long). Returns tensors [rows, L, D].

    Returns:
        Tensors [B, L, D], 0 at padding.
    """
    lengths = lengths_B.tolist()
    groups = length_groups(lengths, GROUP_SIZES[mask_BL.device.type])
    order = on_device(torch.tensor([index for group in groups for index in group]), mask_BL.device)
    parts = []
    for group, rows in zip(groups, order.split([len(group) for group in groups]), strict=True):
        length = lengths[group[0]]
        mask = None if lengths[group[-1]] == length else mask_BL[rows, :length]
        outputs = run(rows, length, mask)
        outputs = outputs if mask is None else [x * mask[:, :, None] for x in outputs]
        parts.append([F.pad(x, (0, 0, 0, mask_BL.shape[1] - length)) for x in outputs])
    back = order.argsort()
    return tuple(torch.cat(of_groups)[back] for of_groups in zip(*parts, strict=True))


def compiled_once(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile compiles once for all sizes, and traces once.

    Its floats, such as a dropout rate, are compiled as constants. Otherwise, torch.compile first traces them as
    symbols, finds that dropout does not take symbols, and traces everything again.
    """
    from torch._dynamo import config  # takes seconds to import

    compiled = torch.compile(call, dynamic=True)

    def run(*args: Any) -> Any:
        with config.patch(specialize_float=True):
            return compiled(*args)

    return run


class Compiled:
    """A function of sequences [P, L, ...] and their mask, compiled once for all numbers and lengths of sequences.

    torch.compile would compile another program for a size of 1, and for calls without a mask. So groups of one
    sequence, or of sequences of one token, run uncompiled, and all other groups get a mask.
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        """Wrap a function whose first argument is a tensor [P, L, ...] and whose second is the mask [P, L] or None."""
        self._plain, self._compiled = call, compiled_once(call)

    def __call__(self, x: Tensor, mask_PL: Tensor | None, *more: Any) -> Any:
        """Call the function."""
        if 1 in x.shape[:2]:
            return self._plain(x, mask_PL, *more)
        if mask_PL is None:
            mask_PL = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return self._compiled(x, mask_PL, *more)


class SelfAttentionLayer(nn.TransformerEncoderLayer):
    """A transformer layer like BERT's, with steps that can be shared or skipped.

    Queries, keys and values depend only on the token, not on its sequence: they can be computed once for all sequences.
    If only the first tokens' outputs are needed, the other tokens need keys and values only.
    """

    compiled: Compiled | None = None

    def compile_steps(self) -> None:
        """Compile ``forward``."""
        self.compiled = Compiled(self._output)

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries of tokens, [..., D] -> [..., D]."""
        width = x.shape[-1]
        return F.linear(x, self.self_attn.in_proj_weight[:width], self.self_attn.in_proj_bias[:width])

    def keys_and_values(self, x: Tensor) -> Tensor:
        """Return the keys and values of tokens, [..., D] -> [..., 2 D]."""
        width = x.shape[-1]
        return F.linear(x, self.self_attn.in_proj_weight[width:], self.self_attn.in_proj_bias[width:])

    def attend(self, x_PQD: Tensor, queries_PQD: Tensor, keys_and_values_PLE: Tensor, mask_PL: Tensor | None) -> Tensor:
        """Return the layer's output for the first Q of each sequence's L tokens, [P, Q, D].

        Args:
            x_PQD: The first Q tokens.
            queries_PQD: Their queries.
            keys_and_values_PLE: Keys and values of all L tokens, E = 2 D.
            mask_PL: True for a token, False for padding; None if there is no padding.
        """
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
        )  # BERT has no dropout in between

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]: not used as torch's layer
        self, x_PLD: Tensor, mask_PL: Tensor | None, num_queries: int | None = None
    ) -> Tensor:
        """Return the layer's output [P, L, D], or [P, Q, D] for the first Q = ``num_queries`` tokens."""
        return (self.compiled or self._output)(x_PLD, mask_PL, num_queries)

    def _output(self, x_PLD: Tensor, mask_PL: Tensor | None, num_queries: int | None) -> Tensor:
        asked = x_PLD if num_queries is None else x_PLD[:, :num_queries]
        return self.attend(asked, self.queries(asked), self.keys_and_values(x_PLD), mask_PL)


class MixedPrecision(nn.Module):
    """A module whose layers can compute in bfloat16 while training; parameters and losses stay float32."""

    in_bfloat16: bool = False

    @contextmanager
    def autocast(self, device: torch.device) -> Iterator[None]:
        """The context in which the layers compute.

        bfloat16 is used only in training: it makes ties of scores, which would distort ranks.
        """
        enabled = self.in_bfloat16 and self.training
        with torch.autocast(device.type, torch.bfloat16, enabled=enabled), sdpa_kernel(ATTENTION):
            yield


def new_layers(text_encoder: PreTrainedModel | TextTower, num_layers: int, dropout: float) -> nn.ModuleList:
    """Return new self-attention layers with the text encoder's width and number of heads."""
    width, heads = text_encoder.config.hidden_size, text_encoder.config.num_attention_heads
    layers = [
        SelfAttentionLayer(width, heads, 4 * width, dropout, activation="gelu", batch_first=True)
        for _ in range(num_layers)
    ]
    return nn.ModuleList(layers)
