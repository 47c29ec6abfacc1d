"""The outputs of the encoders: tokens of videos and of texts."""

from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class VideoTokens:
    """Encoded videos: M tokens of width D each, padded to the longest."""

    tokens_BMD: Tensor
    mask_BM: Tensor
    """True for a token, False for padding. Tokens come first in each row."""
    whole_BD: Tensor | None = None
    """A vector of each whole video. None if the encoder makes none."""

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
        return VideoTokens(**{name: value[rows] for name, value in present(self).items()})


@dataclass(frozen=True)
class TextTokens:
    """Encoded texts: N tokens of width D each, padded to the longest."""

    tokens_BND: Tensor
    mask_BN: Tensor
    """True for a token, False for padding. Tokens come first in each row."""
    weights_BN: Tensor
    """Normalised idf of the tokens of interest, 0 for all others."""
    types_BND: Tensor | None = None
    """The tokens' vectors before any layer saw their context (ToCo's lexical type). None if the model does not need
    them."""
    ids_BN: Tensor | None = None
    """The numbers of the words that the tokens are. None if the encoder has no vector for each word."""

    @property
    def sentence_BD(self) -> Tensor:
        """The [CLS] token of each text, y-bar of TACo section 3.3."""
        return self.tokens_BND[:, 0]

    @property
    def of_interest(self) -> tuple[Tensor, Tensor, Tensor]:
        """The tokens of interest: the rows of their texts [S], their weights [S] and the tokens [S, D]."""
        text_of_S, position_S = self.weights_BN.nonzero(as_tuple=True)
        return text_of_S, self.weights_BN[text_of_S, position_S], self.tokens_BND[text_of_S, position_S]

    @property
    def mean_BD(self) -> Tensor:
        """The average of each text's tokens, b of ToCo section 3.3."""
        return masked_mean(self.tokens_BND, self.mask_BN)

    def __getitem__(self, rows: slice) -> "TextTokens":
        return TextTokens(**{name: value[rows] for name, value in present(self).items()})


def present(tokens: VideoTokens | TextTokens) -> dict[str, Tensor]:
    """Return the tensors that an encoder made, by the names of their fields."""
    values = {of.name: getattr(tokens, of.name) for of in fields(tokens)}
    return {name: value for name, value in values.items() if value is not None}


def masked_mean(tokens_BLD: Tensor, mask_BL: Tensor) -> Tensor:
    """Return the mean over each sequence's tokens, [B, D]. ``mask_BL``: True for a token, False for padding."""
    weights_BL1 = mask_BL[:, :, None].to(tokens_BLD.dtype)
    return (tokens_BLD * weights_BL1).sum(dim=1) / weights_BL1.sum(dim=1)
