"""CMCM: cross-modal discrete representation learning, with a codebook that both sides share (Liu et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import setting
from .base import Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..models.base import ObjectiveModules, PairModel
    from ..models.codebook import Coded, SharedCodebook
    from ..models.tokens import TextTokens, TokenSizes, VideoTokens
    from ..recipes.train_config import TrainConfig
    from ..settings import DataSettings
    from .batch import Batch


CODE_LAYERS = {
    "linear": "a linear layer each",
    "conv-lstm": "three convolutions over a clip's grid, and a BiLSTM of three layers over a caption's tokens",
}
CODE_VECTORS = {
    "sum": "the encoders' summary, plus the summary of the codewords",
    "codes": "the summary of the codewords alone (h)",
    "unquantized": "the encoders' summary, plus the summary of the tokens, which no codewords replace (f)",
}
SUMMARY_LAYERS = {
    "linear": "one linear layer more than the encoder has",
    "none": "none more: the encoder's own is the last one (CMCM Table 3)",
}


@dataclass(frozen=True, kw_only=True)
class CmcmObjective(Objective):
    """CMCM section 2.3: L_MMS + alpha L_CMCM, each in both directions."""

    name: ClassVar[str] = "cmcm"
    description: ClassVar[str] = "L_MMS + alpha L_CMCM with a shared codebook (CMCM, section 2.3)"
    loss_terms: ClassVar[tuple[str, ...]] = ("contrast", "codes")
    needs_tokens: ClassVar[bool] = True
    can_normalize: ClassVar[bool] = True
    ignored_settings: ClassVar[frozenset[str]] = frozenset(
        {"tokens_of_interest", "num_fusion_layers", "temperature", "stage_weights"}
    )

    margin: float = setting(0.1, "margin between a pair and its negatives (SSML's delta, CMCM's M)", ge=0)
    codebook_size: int = setting(
        1024, "number of codewords; 0: no codebook (CMCM's baseline)", ge=0
    )  # CMCM section 4.1
    code_loss_weight: float = setting(0.1, "alpha of CMCM's section 2.3", ge=0)
    code_layers: str = setting(
        "linear",
        "layers that project tokens to the space of the codewords, and summarise the codewords (CMCM section 4.1)",
        choices=CODE_LAYERS,
    )
    code_vector: str = setting("sum", "the vector of a clip or caption (CMCM Table 4)", choices=CODE_VECTORS)
    summary_layer: str = setting("linear", "the last layer of the encoders' summary", choices=SUMMARY_LAYERS)

    def check(self) -> None:
        """Check that a score is trained."""
        super().check()
        if "contrast" not in self.loss_names:
            problem = "trains no score; expected 'contrast' among them"
            raise SettingError("losses", self.losses, problem)

    def check_data(self, data: DataSettings) -> None:
        """Check that convolutions have a grid."""
        if self.codebook_size and self.code_layers == "conv-lstm" and data.grid is None:
            problem = "convolutions need a grid of a clip's maps; set video_grid, or use linear"
            raise SettingError("code_layers", self.code_layers, problem)

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores, each with the condition under which it is read."""
        conditions = super().ignored_in(config)
        if not self.codebook_size or "codes" not in self.loss_names or self.code_vector == "unquantized":
            conditions["code_loss_weight"] = (
                "losses has codes, codebook_size is above 0, and code_vector is not unquantized"
            )
        if not self.codebook_size:
            conditions |= dict.fromkeys(("code_layers", "code_vector"), "codebook_size is above 0")
        elif self.code_vector == "codes":
            conditions["summary_layer"] = "code_vector is not codes"
        return conditions

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Make the shared codebook, and the queue of queries."""
        from ..models.tokens import TokenSizes

        return self.modules_of(TokenSizes(width, width, width), num_labels)

    def modules_of(self, sizes: TokenSizes, num_labels: int) -> ObjectiveModules:
        """Make the modules for an encoder whose texts and clips have tokens of different widths."""
        from ..models.base import ObjectiveModules
        from ..models.codebook import CodebookParts, SharedCodebook

        parts = CodebookParts(
            summary_layer=self.summary_layer == "linear",
            convolutions=self.code_layers == "conv-lstm",
            summary=self.code_vector != "codes" or not self.codebook_size,
            quantized=self.code_vector != "unquantized",
        )
        codebook = SharedCodebook(sizes, self.codebook_size, parts)
        return ObjectiveModules(codebook=codebook, queries=self._make_queries(sizes.width))

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return both terms, and update the codewords."""
        from ..losses import masked_margin_softmax
        from ..models.codebook import quantize

        codebook, workers = _codebook(model), batch.workers
        text, video = quantize(codebook, batch.texts, workers), quantize(codebook, batch.videos, workers)
        text_BD, video_BD = workers.gather(text.vector_BD), workers.gather(video.vector_BD)
        weights_B = batch.all_weights()

        def contrast(similarity_BB: Tensor) -> Tensor:
            return masked_margin_softmax(similarity_BB, self.margin, weights_B=weights_B)

        terms = {"contrast": self._both_ways(contrast, text_BD @ video_BD.T, weights_B)}
        if codebook.size and "codes" in self.loss_names:
            terms["codes"] = self.code_loss_weight * self._code_loss(codebook, batch, text, video)
        if codebook.size:
            _update(codebook, batch, text, video)
        if model.queries is not None:
            model.queries.push(text_BD, video_BD)
        return terms

    def _both_ways(self, loss: Callable[[Tensor], Tensor], similarity_BB: Tensor, weights_B: Tensor | None) -> Tensor:
        """Return the mean of a loss over rows in both directions, with NCL's biases if the loss is normalised."""
        from ..losses import pair_biases

        by_text, by_video = similarity_BB, similarity_BB.T
        if self.normalized_loss:
            biases = pair_biases(similarity_BB, 1.0, weights_B=weights_B)
            by_text, by_video = by_text + biases.video_N, by_video + biases.text_M
        return (loss(by_text) + loss(by_video)) / 2

    def _code_loss(self, codebook: SharedCodebook, batch: Batch, text: Coded, video: Coded) -> Tensor:
        """Eq. 2, in both directions."""
        from ..losses import code_log_probabilities, code_matching, code_similarity

        weights_B = batch.all_weights()
        # The codewords are not trained by the gradient: they follow the tokens that they replace (appendix A).
        text_BV, video_BV = (
            batch.workers.gather(code_log_probabilities(side.tokens_BLD, side.mask_BL, codebook.codewords))
            for side in (text, video)
        )
        similarity_BB = code_similarity(text_TV=text_BV, video_CV=video_BV)
        return self._both_ways(lambda s_BB: code_matching(s_BB, weights_B=weights_B), similarity_BB, weights_B)

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return the texts' vectors in CMCM's space."""
        from ..distributed import Workers
        from ..models.codebook import quantize

        return quantize(_codebook(model), texts, Workers()).vector_BD

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the videos' vectors in CMCM's space."""
        from ..distributed import Workers
        from ..models.codebook import quantize

        return quantize(_codebook(model), videos, Workers()).vector_BD


def _codebook(model: PairModel) -> SharedCodebook:
    assert model.codebook is not None, "CMCM's model has a codebook"
    return model.codebook


def _update(codebook: SharedCodebook, batch: Batch, text: Coded, video: Coded) -> None:
    import torch

    tokens_TD = torch.cat([side.tokens_TD for side in (text, video)]).detach()
    codebook.update(tokens_TD, batch.workers, batch.generator)
