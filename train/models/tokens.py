"""The outputs of the encoders: tokens of videos and of texts.

Numbers of tokens are also stored on the CPU, where they are known before the tokens are computed: otherwise the host
would have to wait for a GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeVar

from torch import Tensor

from ...storage.common.device import on_device
from ...storage.common.errors import UserError

ON_CPU = {"lengths_B", "num_of_interest_B"}
"""Fields that are on the CPU, wherever the tokens are."""

EXTRA = "extra."
"""Prefix of the names of custom inputs in ``present``."""


class Extra(dict[str, Tensor]):
    """{name: custom input}, each with B first."""

    def __missing__(self, name: str) -> Tensor:
        raise UserError(
            f"extra[{name!r}]: not in this batch; expected an input that is declared in extra and, for a column of "
            "captions, a number for each caption of the batch (the text of a query has none)"
        )


class ClipRows(NamedTuple):
    """Rows of features of B clips, as ``PairModel.encode_videos`` takes them, and a vector of each whole clip.

    Example:
        >>> import torch
        >>> from vlalign.train import ClipRows
        >>> clips = ClipRows(torch.zeros(2, 3, 1024), torch.ones(2, 3, dtype=torch.bool), torch.tensor([3, 3]))
        >>> clips.rows_BMF.shape
        torch.Size([2, 3, 1024])
    """

    rows_BMF: Tensor
    """Rows of features [B, M, F], or of frames, uint8."""
    mask_BM: Tensor
    """True for a row, False for padding [B, M]."""
    lengths_B: Tensor | None
    """Number of rows of each clip [B], on the CPU. None: known only from the mask."""
    whole_BF: Tensor | None = None
    """The mean of each clip's frame vectors, if the video tower gives a vector of each frame in addition to its map."""


@dataclass(frozen=True)
class TokenSizes:
    """The sizes of the encoders' outputs, for the modules that an objective adds."""

    width: int
    """Width of the vectors of clips and texts."""
    text: int
    """Width of a text's tokens."""
    video: int
    """Width of a clip's tokens."""
    grid: tuple[int, int, int] | None = None
    """Time, height and width of the grid that a clip's tokens form."""


@dataclass(frozen=True)
class VideoTokens:
    """Encoded videos: M tokens of width D each, padded to the longest.

    Example:
        >>> import torch
        >>> from vlalign.train import VideoTokens
        >>> tokens = torch.tensor([[[1.0, 0.0], [3.0, 2.0], [9.0, 9.0]]])  # the third is padding
        >>> VideoTokens(tokens, torch.tensor([[True, True, False]])).mean_BD.tolist()
        [[2.0, 1.0]]
    """

    tokens_BMD: Tensor
    """The tokens [B, M, D], anything at padding."""
    mask_BM: Tensor
    """True for a token, False for padding. Tokens come first in each row."""
    whole_BD: Tensor | None = None
    """A vector of each whole video. None if neither the encoder nor the video tower makes one."""
    lengths_B: Tensor | None = None
    """Number of tokens of each video, on the CPU. None: known only from the mask."""
    extra: Mapping[str, Tensor] = field(default_factory=Extra)
    """Custom inputs (``settings.FeatureRows``), and tensors that an encoder adds."""

    @property
    def whole(self) -> Tensor:
        """The vectors of whole videos [B, D]."""
        assert self.whole_BD is not None, "an objective asks for what its encoder makes"
        return self.whole_BD

    @property
    def mean_BD(self) -> Tensor:
        """The average of each video's tokens, x-bar of TACo section 3.3."""
        return masked_mean(self.tokens_BMD, self.mask_BM)

    def __getitem__(self, rows: slice) -> "VideoTokens":
        return tokens_of(VideoTokens, {name: value[rows] for name, value in present(self).items()})


@dataclass(frozen=True)
class TextTokens:
    """Encoded texts: N tokens of width D each, padded to the longest.

    Example:
        >>> import torch
        >>> from vlalign.train import TextTokens
        >>> mask = torch.tensor([[True, True, False]])
        >>> texts = TextTokens(torch.ones(1, 3, 4), mask, weights_BN=torch.tensor([[0.0, 1.0, 0.0]]))
        >>> texts.sentence_BD.tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """

    tokens_BND: Tensor
    """The tokens [B, N, D], anything at padding."""
    mask_BN: Tensor
    """True for a token, False for padding. Tokens come first in each row."""
    weights_BN: Tensor
    """Normalised idf of the tokens of interest, 0 for all others."""
    types_BND: Tensor | None = None
    """The tokens' vectors before any layer saw their context (ToCo's lexical type). None if the model does not need
    them."""
    ids_BN: Tensor | None = None
    """The word id of each token. None if the encoder has no vector for each word."""
    lengths_B: Tensor | None = None
    """Number of tokens of each text, on the CPU. None: known only from the mask."""
    num_of_interest_B: Tensor | None = None
    """Number of tokens of interest of each text, on the CPU. None: known only from the weights."""
    whole_BD: Tensor | None = None
    """A vector of each whole text. None if that is its first token."""
    extra: Mapping[str, Tensor] = field(default_factory=Extra)
    """Custom inputs (``settings.CaptionColumn``), and tensors that an encoder adds."""

    @property
    def sentence_BD(self) -> Tensor:
        """The vector of each text: its [CLS] token, y-bar of TACo section 3.3, or the text encoder's pooled vector."""
        return self.tokens_BND[:, 0] if self.whole_BD is None else self.whole_BD

    @property
    def of_interest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of interest: the indices of their texts [S], their weights [S] and the tokens [S, D]."""
        text_of_S, position_S = nonzero(self.weights_BN, self.num_of_interest_B)
        return text_of_S, self.weights_BN[text_of_S, position_S], self.tokens_BND[text_of_S, position_S]

    @property
    def mean_BD(self) -> Tensor:
        """The average of each text's tokens, b of ToCo section 3.3."""
        return masked_mean(self.tokens_BND, self.mask_BN)

    def __getitem__(self, rows: slice) -> "TextTokens":
        return tokens_of(TextTokens, {name: value[rows] for name, value in present(self).items()})


Tokens = TypeVar("Tokens", VideoTokens, TextTokens)


def present(tokens: VideoTokens | TextTokens) -> dict[str, Tensor]:
    """Return {field: tensor} of an encoder's output, without tensors that stay on the CPU.

    Custom inputs are included as ``extra.NAME``.
    """
    names = [field.name for field in fields(tokens) if field.name not in {*ON_CPU, "extra"}]
    values = {name: value for name in names if (value := getattr(tokens, name)) is not None}
    return values | {f"{EXTRA}{name}": tokens.extra[name] for name in sorted(tokens.extra)}


def tokens_of(kind: type[Tokens], tensors: Mapping[str, Tensor]) -> Tokens:
    """Return tokens made of tensors that ``present`` returned."""
    extra = Extra({name.removeprefix(EXTRA): value for name, value in tensors.items() if name.startswith(EXTRA)})
    return kind(**{name: value for name, value in tensors.items() if not name.startswith(EXTRA)}, extra=extra)


def lengths_of(mask_BL: Tensor, lengths_B: Tensor | None) -> Tensor:
    """Return the number of tokens of each sequence [B], on the CPU.

    Args:
        mask_BL: True for a token, False for padding.
        lengths_B: The result, if it is known on the CPU. None: the host waits for the mask's device.
    """
    return mask_BL.sum(dim=1).cpu() if lengths_B is None else lengths_B


def nonzero(x_BL: Tensor, numbers_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the rows and the columns of the values that are not 0, in their order.

    Args:
        x_BL: The values.
        numbers_B: How many each row has, if it is known on the CPU. None: the host waits for the values' device.
    """
    if numbers_B is None:
        row_S, column_S = x_BL.nonzero(as_tuple=True)
    else:
        row_S, column_S = x_BL.nonzero_static(size=int(numbers_B.sum())).unbind(1)
    return row_S, column_S


def pooled_texts(tokens_BND: Tensor, mask_BN: Tensor, lengths_B: Tensor, method: str) -> Tensor | None:
    """Return the vector of each text [B, D].

    Args:
        tokens_BND: The tokens.
        mask_BN: True for a token, False for padding.
        lengths_B: Number of tokens of each text, on the CPU.
        method: "cls" for the first token (returns None: it needs no vector of its own), "mean" or "last".
    """
    if method == "mean":
        return masked_mean(tokens_BND, mask_BN)
    if method == "last":
        last_B = on_device(lengths_B, tokens_BND.device).long() - 1
        return tokens_BND.gather(1, last_B[:, None, None].expand(-1, 1, tokens_BND.shape[2])).squeeze(1)
    return None


def masked_mean(tokens_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Return the mean over each sequence's tokens, [B, D]. ``mask_BL``: True for a token, False for padding."""
    weights_BL1 = mask_BL[:, :, None].to(tokens_BLD.dtype)
    return (tokens_BLD * weights_BL1).sum(dim=1) / weights_BL1.sum(dim=1)
