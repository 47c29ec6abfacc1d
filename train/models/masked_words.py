"""A masked language model on top of the fusion layers (ToCo section 5.3), as BERT's (Devlin et al. 2019, section 3.1).

Shape letters: B captions, N of their subwords, K masked ones, T subwords of the longest caption that the run reads,
D width, V subwords of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...storage.common.device import on_device
from ...storage.common.errors import SettingError
from .tokens import TextTokens, lengths_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..data.text_towers import TextTower

MASKED_SHARE = 0.15
"""Share of a caption's subwords that is predicted, at least one."""
SHOWN_AS_MASK, SHOWN_AS_ANOTHER = 0.8, 0.1
"""Shares of the masked subwords that are replaced by [MASK], and by a random subword; the rest is not replaced."""


@dataclass(frozen=True)
class MaskedPlaces:
    """The subwords that are predicted, captions in order."""

    text_of_K: Tensor
    """Index of the caption of each subword."""
    position_K: Tensor
    """Position of each subword in its caption."""
    ids_K: Tensor
    """True id of each subword."""


@dataclass(frozen=True)
class MaskedTexts:
    """Encoded captions with some subwords masked."""

    texts: TextTokens
    places: MaskedPlaces


def mask_words(
    texts: Mapping[str, Tensor], draws: MaskDraws, *, mask_id: int, num_ids: int
) -> tuple[dict[str, Tensor], MaskedPlaces]:
    """Mask some subwords of captions. If their lengths are known, the host does not wait for the device.

    Args:
        texts: ``input_ids`` [B, N], ``attention_mask`` [B, N] and, if known, ``lengths_B``, as for ``encode_texts``. A
            caption's first and last subwords are special ones, such as [CLS] and [SEP], and never masked.
        draws: The captions' random numbers.
        mask_id: Id of [MASK].
        num_ids: Size of the vocabulary, V.

    Returns:
        The texts with masked ``input_ids``, and the subwords to predict.
    """
    ids_BN = texts["input_ids"]
    lengths_B1 = lengths_of(texts["attention_mask"].bool(), texts.get("lengths_B"))[:, None]
    num_positions = ids_BN.shape[1]
    position_N = torch.arange(num_positions)
    can_BN = (position_N > 0) & (position_N < lengths_B1 - 1)
    count_B1 = (MASKED_SHARE * (lengths_B1 - 2)).round().clamp(min=1)
    rank_BN = draws.which_BT[:, :num_positions].masked_fill(~can_BN, 2.0).argsort(dim=1).argsort(dim=1)
    text_of_K, position_K = (can_BN & (rank_BN < count_B1)).nonzero(as_tuple=True)
    kind_K = draws.kind_BT[text_of_K, position_K]
    shown_K = torch.where(
        kind_K < SHOWN_AS_MASK, mask_id, (draws.other_BT[text_of_K, position_K] * num_ids).long().clamp(max=num_ids - 1)
    )
    is_shown_K = kind_K >= SHOWN_AS_MASK + SHOWN_AS_ANOTHER
    text_of_K, position_K, shown_K, is_shown_K = on_device(
        torch.stack([text_of_K, position_K, shown_K, is_shown_K.long()]), ids_BN.device
    )
    ids_K = ids_BN[text_of_K, position_K]
    masked_BN = ids_BN.index_put((text_of_K, position_K), torch.where(is_shown_K.bool(), ids_K, shown_K))
    return {**texts, "input_ids": masked_BN}, MaskedPlaces(text_of_K, position_K, ids_K)


@dataclass(frozen=True)
class MaskDraws:
    """Random numbers from 0 to 1 that decide the masking, independent of the number of processes and of padding."""

    which_BT: Tensor
    """The subwords with the lowest numbers are predicted."""
    kind_BT: Tensor
    """Decides whether a predicted subword is replaced by [MASK], by another subword, or not."""
    other_BT: Tensor
    """Decides which other subword replaces it."""

    @classmethod
    def draw(cls, generator: torch.Generator, num_texts: int, rows: slice, max_tokens: int) -> MaskDraws:
        """Draw random numbers for a batch of ``num_texts`` captions, and return the ones of ``rows``."""
        return cls(*(torch.rand(num_texts, max_tokens, generator=generator)[rows] for _ in range(3)))


class MaskedWordHead(nn.Module):
    """BERT's head: a layer with GELU and normalisation, then dot products with the text encoder's subword vectors."""

    def __init__(self, width: int, *, mask_id: int, num_ids: int) -> None:
        """Make a head with new weights.

        Args:
            width: Width of the fusion layers' output and of the subword vectors, D.
            mask_id: Id of [MASK].
            num_ids: Size of the vocabulary, V.
        """
        super().__init__()
        self.mask_id, self.num_ids = mask_id, num_ids
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(num_ids))

    @classmethod
    def for_encoder(
        cls, encoder: PreTrainedModel | TextTower, tokenizer: PreTrainedTokenizerFast, name: str
    ) -> MaskedWordHead:
        """Return a head for a text encoder.

        Args:
            encoder: Has the subword vectors.
            tokenizer: Has the id of [MASK].
            name: The setting ``text_encoder``.

        Raises:
            SettingError: The tokenizer has no [MASK], or the encoder's subword vectors and output differ in width.
        """
        from ..data.text_towers import TextTower  # transformers takes seconds to import

        mask_id = tokenizer.mask_token_id
        vectors = None if isinstance(encoder, TextTower) else _subword_vectors(encoder)
        if not isinstance(mask_id, int) or vectors is None or vectors.shape[1] != encoder.config.hidden_size:
            problem = "was not trained with masked subwords; expected 'small', or a model like BERT"
            raise SettingError("text_encoder", name, problem)
        return cls(encoder.config.hidden_size, mask_id=mask_id, num_ids=len(vectors))

    def forward(self, outputs_KD: Tensor, encoder: PreTrainedModel | TextTower) -> Tensor:
        """Return the logits of the vocabulary [K, V] from the fusion layers' outputs at masked subwords."""
        vectors_VD = _subword_vectors(encoder)
        assert vectors_VD is not None, "checked when the head was made"
        return self.transform(outputs_KD) @ vectors_VD.T + self.bias


def _subword_vectors(encoder: PreTrainedModel | TextTower) -> Tensor | None:
    layer = encoder.get_input_embeddings()
    return layer.weight if isinstance(layer, nn.Embedding) else None
