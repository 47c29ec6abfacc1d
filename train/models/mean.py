"""CLIP4Clip's similarity without parameters ("meanP"): NCL's architecture (section 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ...storage.common.errors import SettingError
from ..data.text_inputs import SubwordInputs
from ..settings import ENCODERS, EncoderTraits, ModelSettings
from .base import MakeModules, ModelPlan, PairModel, no_modules
from .layers import Compiled
from .tokens import TextTokens, VideoTokens, lengths_of
from .transformer import subword_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from typing_extensions import Self

    from ..data.text_towers import TextTower


class MeanPair(PairModel):
    """A clip is the mean of its feature vectors, each of length 1; a text is the text encoder's pooled vector.

    No layer is added ("We do not add any trainable model components", NCL section 4), therefore features and texts must
    be in the same space, as for the two towers of CLIP. The text encoder is trained, and the video tower if there is
    one.
    """

    compiled_texts: Compiled | None = None

    traits: ClassVar[EncoderTraits] = ENCODERS["mean"]

    def __init__(
        self,
        text_encoder: PreTrainedModel | TextTower,
        *,
        pooling: str = "cls",
        reads_texts: bool = True,
        make_modules: MakeModules = no_modules,
    ) -> None:
        """Make a model with a given text encoder.

        Args:
            text_encoder: A text tower, or a BERT-like model.
            pooling: Which vector represents a text, as in ``tokens.pooled_texts``.
            reads_texts: Train the text encoder.
            make_modules: Makes the objective's modules.
        """
        super().__init__(text_encoder.config.hidden_size)
        self.text_encoder, self.pooling = text_encoder, pooling
        self.add(make_modules)
        if not reads_texts:
            self.text_encoder.requires_grad_(False)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> Self:
        """Return a model.

        Raises:
            SettingError: The text encoder's vectors are not as wide as the features.
        """
        assert isinstance(plan.text_inputs, SubwordInputs)
        encoder = plan.text_inputs.encoder
        if (width := encoder.config.hidden_size) != plan.feature_dim:
            problem = (
                f"its vectors have {width:,} values, the features {plan.feature_dim:,}; encoder mean adds no layer, "
                "so it expects the text tower of the model that made the features, such as "
                "openai/clip-vit-base-patch32 for clip_vit_b32"
            )
            raise SettingError("text_encoder", settings.text_encoder, problem)
        return cls(
            encoder,
            pooling=plan.text_inputs.pooling.method,
            reads_texts=plan.reads_texts,
            make_modules=plan.make_modules,
        )

    def compile_layers(self) -> None:
        """Compile the text encoder with torch.compile, for any length."""
        self.compiled_texts = Compiled(self._last_hidden_state)

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Return the clips' feature vectors, each scaled to length 1. Values at padding have no influence."""
        rows_BMD = torch.where(mask_BM[:, :, None], features_BMF.float(), 0)
        return VideoTokens(normalize(rows_BMD, dim=-1), mask_BM, lengths_B=lengths_of(mask_BM, lengths_B))

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Encode captions from ``input_ids``, ``attention_mask`` and ``token_weights``, each [B, N]."""

        def encode(ids_PL: Tensor, mask_PL: Tensor | None) -> tuple[Tensor, ...]:
            with self.autocast(ids_PL.device):
                return ((self.compiled_texts or self._last_hidden_state)(ids_PL, mask_PL).float(),)

        return subword_tokens(inputs, encode, self.pooling)

    def _last_hidden_state(self, ids_PL: Tensor, mask_PL: Tensor | None) -> Tensor:
        return self.text_encoder(input_ids=ids_PL, attention_mask=mask_PL).last_hidden_state
