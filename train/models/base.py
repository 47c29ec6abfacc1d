"""The base of all models: two encoders, and modules that an objective adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from ...storage.common.errors import UserError
from ..data.text_inputs import TextInputs
from ..settings import EncoderTraits, ModelSettings
from .codebook import SharedCodebook
from .fusion import Fusion, TokenBank
from .layers import MixedPrecision
from .masked_words import MaskedWordHead
from .tokens import ClipRows, Extra, TextTokens, TokenSizes, VideoTokens

if TYPE_CHECKING:
    from typing_extensions import Self

    from .video_tower import VideoTower


class QueryQueue(nn.Module):
    """The last training queries of each kind, saved with the model (NCL section 3.4).

    At test time they are used instead of the other test queries, on which a query's result must not depend.
    """

    texts: Tensor
    videos: Tensor
    pushed: Tensor

    def __init__(self, length: int, width: int) -> None:
        """Make an empty queue of ``length`` vectors [width] of each kind."""
        super().__init__()
        self.register_buffer("texts", torch.zeros(length, width))
        self.register_buffer("videos", torch.zeros(length, width))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, text_BD: Tensor, video_BD: Tensor) -> None:
        """Replace the oldest vectors by a batch's."""
        num_pushed = min(len(text_BD), len(self.texts))
        slots = (self.pushed + torch.arange(num_pushed, device=self.texts.device)) % len(self.texts)
        self.texts[slots] = text_BD[-num_pushed:].to(self.texts)
        self.videos[slots] = video_BD[-num_pushed:].to(self.videos)
        self.pushed += num_pushed

    def filled(self) -> tuple[Tensor, Tensor]:
        """Return the texts and videos in the queue, each [K, D], the newest last.

        K is less than ``length`` until the queue is full.
        """
        pushed = int(self.pushed)
        if pushed <= len(self.texts):
            return self.texts[:pushed], self.videos[:pushed]
        return self.texts.roll(-pushed, dims=0), self.videos.roll(-pushed, dims=0)


@dataclass(frozen=True)
class ObjectiveModules:
    """Modules that an objective adds to a model; those that it does not need are None.

    Example:
        >>> from torch import nn
        >>> from vlalign.train import ObjectiveModules
        >>> modules = ObjectiveModules(own=nn.Linear(256, 1))
        >>> modules.head is None
        True
    """

    codebook: SharedCodebook | None = None
    """CMCM's codebook, which clips and captions share."""
    head: nn.Module | None = None
    """The head that answers questions or labels rows."""
    queries: QueryQueue | None = None
    """The last training queries, for normalising test scores."""
    own: nn.Module | None = None
    """Any other module that the objective trains; its loss can use it as ``model.own``."""


MakeModules = Callable[[TokenSizes], ObjectiveModules]
"""Makes the modules for a model of these sizes. It is called after the encoders exist: their random weights are drawn
first.
"""


def no_modules(sizes: TokenSizes) -> ObjectiveModules:
    """Return no modules: the encoders alone."""
    return ObjectiveModules()


@dataclass(frozen=True)
class ModelPlan:
    """The parts and sizes of a model that its settings do not give.

    Example:
        >>> from vlalign.train import ModelPlan
        >>> plan = ModelPlan(feature_dim=1024, text_inputs=lambda captions: {})
        >>> plan.feature_dim, plan.has_fusion
        (1024, False)
    """

    feature_dim: int
    """Width of a row of features."""
    text_inputs: TextInputs
    """Turns captions into the tensors that ``PairModel.encode_texts`` takes."""
    has_fusion: bool = False
    """The objective needs fusion layers."""
    has_token_head: bool = False
    """The fusion layers also score tokens (ToCo)."""
    masks_words: bool = False
    """The objective predicts masked subwords."""
    reads_texts: bool = True
    """False: the objective reads no texts."""
    still: bool = False
    """The videos are still images."""
    is_solved: bool = False
    """A part of the model is solved, not trained (``loop.solving``)."""
    make_modules: MakeModules = no_modules
    """Makes the objective's modules; ``PairModel.add`` calls it."""
    video_tower: VideoTower | None = None
    """Computes the rows of features from frames; its width is ``feature_dim``."""


class PairModel(MixedPrecision):
    """A model of videos and texts: the encoders that ``--encoder`` names.

    A subclass's constructor makes its encoders and ends with ``self.add(make_modules)``.

    Example:
        >>> import torch
        >>> from vlalign.train import EncoderTraits, PairModel, VideoTokens
        >>> class LinearPair(PairModel):
        ...     traits = EncoderTraits(description="a linear layer of each row")
        ...
        ...     def __init__(self, feature_dim):
        ...         super().__init__(8)
        ...         self.video = torch.nn.Linear(feature_dim, 8)
        ...
        ...     def encode_videos(self, features_BMF, mask_BM, lengths_B=None):
        ...         return VideoTokens(self.video(features_BMF.float()), mask_BM)
        >>> model = LinearPair(1024)
        >>> model.encode_videos(torch.zeros(2, 3, 1024), torch.ones(2, 3, dtype=torch.bool)).mean_BD.shape
        torch.Size([2, 8])
    """

    traits: ClassVar[EncoderTraits]
    """The properties of the encoders. Custom inputs that they declare are passed as the keyword argument ``extra`` to
    ``encode_videos`` and ``encode_texts``."""
    feature_mean: Tensor
    """Mean of the training clips' features [F]. Present only if ``standardises``."""
    feature_std: Tensor
    """Standard deviation of the training clips' features [F]. Present only if ``standardises``."""

    def __init__(self, width: int, *, standardised_dim: int | None = None) -> None:
        """Make a model without encoders.

        Args:
            width: Width of all tokens.
            standardised_dim: Width of the features that the model standardises; None if it takes them as they are.
        """
        super().__init__()
        self.width = width
        self.sizes = TokenSizes(width, width, width)
        self.standardises = standardised_dim is not None
        if standardised_dim is not None:
            self.register_buffer("feature_mean", torch.zeros(standardised_dim))
            self.register_buffer("feature_std", torch.ones(standardised_dim))
        self.fusion: Fusion | None = None
        self.codebook: SharedCodebook | None = None
        self.head: nn.Module | None = None
        self.queries: QueryQueue | None = None
        self.own: nn.Module | None = None
        self.masked_words: MaskedWordHead | None = None
        self.video_tower: VideoTower | None = None

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> Self:
        """Return a model with new weights; a given text encoder keeps its weights.

        Args:
            settings: Settings of the model.
            plan: Parts and sizes that the settings do not give.
        """
        raise NotImplementedError

    def add(self, make_modules: MakeModules) -> None:
        """Make the objective's modules and add them to this model, after everything else.

        Args:
            make_modules: Makes the modules for the sizes of this model.

        Raises:
            UserError: ``make_modules`` returns something other than ``ObjectiveModules``.
        """
        modules = make_modules(self.sizes)
        if not isinstance(modules, ObjectiveModules):
            raise UserError(f"make_modules returned {type(modules).__name__}; expected ObjectiveModules")
        self.codebook, self.head, self.queries = modules.codebook, modules.head, modules.queries
        self.own = modules.own

    def standardised(self, features: Tensor) -> Tensor:
        """Return features [..., F] less their mean and divided by their standard deviation.

        Args:
            features: Rows of features [..., F].
        """
        return (features.to(self.feature_mean.dtype) - self.feature_mean) / self.feature_std

    def set_precision(self, precision: str) -> None:
        """Set the precision of the layers while training, "fp32" or "bf16". Weights and losses stay float32.

        Args:
            precision: "fp32" or "bf16".
        """
        self.in_bfloat16 = precision == "bf16"
        for part in (self.fusion, self.video_tower):
            if part is not None:
                part.in_bfloat16 = self.in_bfloat16

    def compile_layers(self) -> None:
        """Compile the layers with torch.compile, for sequences of any length."""
        raise NotImplementedError

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Encode clips.

        Args:
            features_BMF: Rows of features, anything at padding; float16 as in stores, or float32.
            mask_BM: True for a row, False for padding.
            lengths_B: Number of rows of each clip, on the CPU; None: known only from the mask.
        """
        raise NotImplementedError

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions, in the form that the model's text inputs produce (``data.text_inputs``).

        ``inputs`` may also have the texts' lengths, and the number of tokens of interest of each, on the CPU
        (``TextTokens.lengths_B`` and ``num_of_interest_B``).

        Args:
            inputs: Tensors by name, each with B first.
        """
        raise NotImplementedError

    def tokens_of_videos(self, clips: ClipRows, extra: Mapping[str, Tensor]) -> VideoTokens:
        """As ``encode_videos``, with custom inputs: {name: tensor [B, ...]}.

        Rows may also be frames, from which the video tower first computes features. If the tower also gives one vector
        of each whole clip, this vector is encoded like a clip with a single row.

        Args:
            clips: Rows of features, or of frames.
            extra: Custom inputs: {name: tensor [B, ...]}.
        """
        own: dict[str, Any] = {"extra": Extra(extra)} if self.traits.extra else {}
        rows_BMF, mask_BM, lengths_B, whole_BF = self.rows_of_frames(clips)
        videos = self.encode_videos(rows_BMF, mask_BM, lengths_B, **own)
        if whole_BF is not None and self.traits.gives_tokens:
            one_B = torch.ones(len(whole_BF), dtype=torch.int64)
            alone = self.encode_videos(whole_BF[:, None], mask_BM[:, :1], one_B, **own)
            videos = replace(videos, whole_BD=alone.tokens_BMD[:, 0])
        return replace(videos, extra=Extra({**extra, **videos.extra})) if extra else videos

    def rows_of_frames(self, clips: ClipRows) -> ClipRows:
        """Return rows of features. The video tower computes them from frames, which are uint8.

        A custom encoder with the trait ``reads_frames`` overrides this to compute them itself.

        Args:
            clips: Rows of features, or of frames.
        """
        if self.video_tower is None or clips.rows_BMF.dtype != torch.uint8:
            return clips
        return self.video_tower.rows(clips.rows_BMF, clips.mask_BM, clips.lengths_B)

    def tokens_of_texts(self, inputs: dict[str, Tensor], extra: Mapping[str, Tensor]) -> TextTokens:
        """As ``encode_texts``, with custom inputs: {name: tensor [B, ...]}.

        Args:
            inputs: As for ``encode_texts``.
            extra: Custom inputs: {name: tensor [B, ...]}.
        """
        own: dict[str, Any] = {"extra": Extra(extra)} if self.traits.extra else {}
        texts = self.encode_texts(inputs, **own)
        return replace(texts, extra=Extra({**extra, **texts.extra})) if extra else texts

    def token_bank(self, texts: TextTokens, videos: VideoTokens, max_text_tokens: int) -> TokenBank:
        """Return the tokens that the fusion layers take pairs from; a video's first token has position
        ``max_text_tokens``.

        Args:
            texts: Texts of the pairs.
            videos: Videos of the pairs.
            max_text_tokens: Position of a video's first token.

        Raises:
            TypeError: The model has no fusion layers.
        """
        raise TypeError(f"{type(self).__name__} has no fusion layers")

    def word_logits(self, outputs_KD: Tensor) -> Tensor:
        """Return the logits of the vocabulary [K, V] from the fusion layers' outputs at masked subwords.

        Args:
            outputs_KD: Outputs at K masked subwords [K, D].

        Raises:
            TypeError: The model has no head for masked subwords.
        """
        raise TypeError(f"{type(self).__name__} has no head for masked subwords")

    @property
    def reads_frames(self) -> bool:
        """True if rows of features are computed from frames, by a video tower or by the model itself."""
        return self.video_tower is not None or self.traits.reads_frames

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return next(self.parameters()).device
