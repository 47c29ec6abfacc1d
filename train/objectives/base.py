"""The interface of an objective: its settings, its loss, its scores, and all that a run needs because of it.

An objective is a frozen dataclass. Its fields are settings and become options of vlalign-train; its class variables
declare what it needs and supports; its methods compute. Nothing here imports torch when it is imported, so that a
command line starts quickly: methods import what they compute with.

Shape letters of the methods that compute a loss are explained in ``batch``. In methods that score, T are texts, V
videos, and P pairs of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import Settings, setting
from ..settings import ExtraInput

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.batches import Batches
    from ..data.examples import Examples, ExampleSource
    from ..data.pairs import Pairs
    from ..models.base import ObjectiveModules, PairModel, QueryQueue
    from ..models.fusion import FusionScores
    from ..models.tokens import TextTokens, TokenSizes, VideoTokens
    from ..recipes.train_config import TrainConfig
    from ..settings import DataSettings, OptimizationSettings
    from .batch import Batch

PAIR_WEIGHTS = {
    "none": "equal weights",
    "density": "by the probability that a clip and its caption match (SSML, Eq. 2)",
    "discard": "pairs whose probability is below --density-threshold are discarded; the others have equal weights "
    "(SSML, section 3.4)",
}
"""{method of weighting pairs: description}"""
DENSITY_VECTORS = {
    "raw": "as they are (SSML, Eq. 1)",
    "centered": "minus their mean: matching pairs stand out better if all vectors point in one direction",
}
"""{vectors of clips and captions that SSML's Eq. 1 compares: description}"""
MAX_SIMILARITIES = 1 << 25
"""Maximum number of products of a text's token and a video's token in memory at once when scoring."""


PAIR_LOSS_SETTINGS = frozenset(
    {
        "tokens_of_interest",
        "num_fusion_layers",
        "temperature",
        "pair_weights",
        "density_neighbors",
        "density_vectors",
        "density_threshold",
        "normalized_loss",
        "query_queue",
        "stage_weights",
    }
)
"""Settings that only losses over pairs of a text and a clip read."""


@dataclass(frozen=True, kw_only=True)
class Objective(Settings):
    """An objective that a model can be trained with, and the score that goes with it.

    A loss is the sum of its terms, each logged under its name. A score is the weighted sum of its stages: early
    ones, which need a text's and a video's tokens only once, and late ones, for which the fusion layers see every
    pair. This class learns from pairs of clips and captions and scores a pair by the dot product of two vectors; a
    subclass defines these vectors and the loss.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch
        >>> from vlalign.train import Batch, Objective, TextTokens, VideoTokens
        >>> from vlalign.train.distributed import Workers
        >>> from vlalign.train.losses import symmetric_nce
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Contrast(Objective):
        ...     name, description, loss_terms = "contrast", "InfoNCE in both directions", ("nce",)
        ...
        ...     def compute_loss(self, model, batch):
        ...         text_BD, video_BD = batch.all_vectors(self, model)
        ...         return {"nce": symmetric_nce(text_BD @ video_BD.T / self.temperature)}
        >>> mask = torch.ones(2, 3, dtype=torch.bool)
        >>> texts = TextTokens(torch.randn(2, 3, 4), mask, torch.zeros(2, 3))
        >>> videos = VideoTokens(torch.randn(2, 3, 4), mask)
        >>> batch = Batch(texts, videos, Workers(), torch.Generator())
        >>> loss = Contrast(temperature=0.1).compute_loss(None, batch)
        >>> loss["nce"].item() > 0
        True
    """

    name: ClassVar[str]
    """As in ``--objective``."""
    description: ClassVar[str]
    """A description, with its source."""
    loss_terms: ClassVar[tuple[str, ...]]
    """Names of the loss's terms."""
    needs_tokens: ClassVar[bool] = False
    """It needs more of a clip and a caption than one vector each."""
    needs_words: ClassVar[bool] = False
    """It needs to know a caption's words, so captions cannot be recordings."""
    needs_word_vectors: ClassVar[bool] = False
    """It needs the vectors and weights of words that only the encoder "words" learns."""
    needs_row_times: ClassVar[bool] = False
    """It needs to know when each row of a clip is shown, so rows cannot be averaged in a grid."""
    reads_texts: ClassVar[bool] = True
    """It trains the text encoder."""
    learns_from_pairs: ClassVar[bool] = True
    """It contrasts pairs of clips and captions, which can be weighted."""
    has_word_similarity: ClassVar[bool] = False
    """Its score compares each word with each row of a clip (``word_similarity``)."""
    can_normalize: ClassVar[bool] = False
    """Its loss has retrieval probabilities, which NCL's biases can normalise."""
    has_token_head: ClassVar[bool] = False
    """Its fusion layers score tokens, too (ToCo)."""
    masks_words: ClassVar[bool] = False
    """It predicts masked subwords of a batch's captions (``Batch.masked``)."""
    vector_score: ClassVar[str] = "pair"
    """The early stage of the score that is a dot product of a text's vector and a video's."""
    ignored_settings: ClassVar[frozenset[str]] = frozenset()
    """Settings of other components (``COMPONENTS``), and of all objectives, that it never reads."""
    extra: ClassVar[Mapping[str, ExtraInput]] = {}
    """{name: custom input}, a ``settings.CaptionColumn`` or ``FeatureRows``. The loss and the scores find these in
    ``texts.extra`` and ``videos.extra``."""
    needs_ids: ClassVar[bool] = False
    """Its loss needs to know the videos, clips and captions of a batch (``Batch.ids``)."""
    task: ClassVar[str | None] = None
    """The only task that a run can be evaluated on. None: every task that needs scores of texts and videos."""

    losses: str = setting("all", "terms of the loss, joined by +, or all")
    temperature: float = setting(
        1.0, "temperature: similarities are divided by it (TACo's tau, NCL's gamma)", gt=0
    )  # TACo section 4.3
    pair_weights: str = setting("none", "how the pairs are weighted", choices=PAIR_WEIGHTS)
    density_neighbors: int = setting(4, "K of SSML's Eq. 3", ge=1)  # SSML section 6.1
    density_vectors: str = setting(
        "raw", "vectors of clips and captions whose cosine similarities SSML's Eq. 1 takes", choices=DENSITY_VECTORS
    )
    density_threshold: float = setting(
        0.5, "lowest probability of the pairs that are kept; with --pair-weights discard", ge=0, le=1
    )
    normalized_loss: bool = setting(False, "add NCL's biases to the similarities (its Eq. 12)")
    query_queue: int = setting(
        16_384, "training queries that the run stores for vlalign-evaluate --normalize; with --normalized-loss", ge=1
    )  # NCL, appendix B

    def check(self) -> None:
        """Check the settings of all objectives.

        Raises:
            SettingError: ``losses`` names an unknown term, or the objective does not support a setting.
        """
        if self.losses != "all" and (
            unknown := [name for name in self.losses.split("+") if name not in self.loss_terms]
        ):
            problem = (
                f"{unknown[0]!r} is not a term of objective {self.name}; expected all, or {'+'.join(self.loss_terms)}"
            )
            raise SettingError("losses", self.losses, problem)
        if self.normalized_loss and not self.can_normalize:
            problem = f"objective {self.name} does not support it; omit it"
            raise SettingError("normalized_loss", self.normalized_loss, problem)
        if self.pair_weights != "none" and not self.learns_from_pairs:
            problem = f"objective {self.name} does not learn from pairs of clips and captions; expected none"
            raise SettingError("pair_weights", self.pair_weights, problem)

    def check_data(self, data: DataSettings) -> None:
        """Refuse settings that do not fit the data's settings.

        Args:
            data: Settings of the data.

        Raises:
            SettingError: They do not fit.
        """

    def ignored_in(self, config: TrainConfig) -> dict[str, str]:
        """Return the settings that this configuration ignores: {setting: the condition under which it is read}.

        Args:
            config: The whole configuration.
        """
        conditions: dict[str, str] = {}
        if self.pair_weights == "none":
            conditions |= dict.fromkeys(("density_neighbors", "density_vectors"), "pair_weights is density or discard")
        if self.pair_weights != "discard":
            conditions["density_threshold"] = "pair_weights is discard"
        if not self.normalized_loss:
            conditions["query_queue"] = "normalized_loss is on"
        if config.model.encoder_traits.learns_word_vectors and not self.is_solved:
            conditions["text_encoder"] = "losses has bag, and bag is solved"
        if len(self.score_weights) < 2:
            conditions["stage_weights"] = "the score has several stages"
        return conditions

    @property
    def loss_names(self) -> tuple[str, ...]:
        """The terms that the loss has, in their order."""
        return (
            self.loss_terms
            if self.losses == "all"
            else tuple(t for t in self.loss_terms if t in self.losses.split("+"))
        )

    @property
    def has_fusion(self) -> bool:
        """True if the model needs fusion layers."""
        return False

    @property
    def is_solved(self) -> bool:
        """True if a part of the model is solved before training (``loop.solving``)."""
        return False

    @property
    def idf_counts(self) -> str:
        """Which captions the IDF of a token of interest counts, one of ``fusion.IDF_COUNTS``."""
        return "tag"

    @property
    def normalization(self) -> str:
        """How scores are normalised by default before they are ranked; a key of ``retrieval.NORMALIZATIONS``."""
        return "none"

    @property
    def score_weights(self) -> dict[str, float]:
        """{stage: weight} of the stages that are trained; their weighted sum is the score (TACo section 3.4).

        An early stage of weight 0 still selects the pairs that the fusion layers score.
        """
        return {self.vector_score: 1.0}

    @property
    def learns_temperature(self) -> bool:
        """True if the temperature is a parameter of the model."""
        return False

    def temperature_of(self, model: PairModel) -> float:
        """Return the temperature that turns a model's similarities into probabilities.

        Args:
            model: The model.
        """
        return self.temperature

    def make_examples(self, source: ExampleSource) -> Examples:
        """Read the training examples: by default, pairs of clips and captions.

        Args:
            source: The data set, its captions and features.
        """
        from ..data.examples import PairExamples

        return PairExamples(source)

    def make_batches(self, pairs: Pairs, data: DataSettings, optimization: OptimizationSettings) -> Batches:
        """Return the batch sampler: it decides which clips and captions each batch has.

        Args:
            pairs: Clips and captions of the training split.
            data: Settings of the data.
            optimization: Settings of the optimization, such as the batch size and the seed.
        """
        from ..data.batches import Batches, VideoBatches

        size, seed = optimization.batch_size, optimization.seed
        if data.clips_per_video > 1:
            return VideoBatches(pairs, size, seed, data.clips_per_video)
        return Batches(pairs, size, seed)

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Make the modules that this objective adds to a model, with new weights.

        Args:
            width: Width of the model's tokens.
            num_labels: Number of answers or steps that the run distinguishes; 0 if the objective has none.
        """
        from ..models.base import ObjectiveModules

        return ObjectiveModules(queries=self._make_queries(width))

    def modules_of(self, sizes: TokenSizes, num_labels: int) -> ObjectiveModules:
        """Make the same modules for an encoder whose texts and clips have tokens of different widths.

        Args:
            sizes: Widths of the encoder's tokens.
            num_labels: As for ``make_modules``.
        """
        return self.make_modules(sizes.width, num_labels)

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of a batch's loss, scalars by name. Their sum is the loss.

        Args:
            model: The model.
            batch: This process's share of the batch.
        """
        raise NotImplementedError

    def text_vectors(self, model: PairModel, texts: TextTokens) -> Tensor:
        """Return the texts' vectors [T, D] of the early score ``vector_score``.

        Args:
            model: The model.
            texts: T encoded texts.
        """
        from ..models.gated import l2_normalize

        return l2_normalize(texts.sentence_BD)

    def video_vectors(self, model: PairModel, videos: VideoTokens) -> Tensor:
        """Return the videos' vectors [V, D] of the early score ``vector_score``.

        Args:
            model: The model.
            videos: V encoded videos.
        """
        from ..models.gated import l2_normalize

        return l2_normalize(videos.mean_BD)

    def early_scores(self, model: PairModel, texts: TextTokens, videos: VideoTokens) -> dict[str, Tensor]:
        """Return {stage: scores [T, V]} of the early stages other than ``vector_score``.

        Args:
            model: The model.
            texts: T encoded texts.
            videos: V encoded videos.
        """
        return {}

    def word_similarity(self, texts: TextTokens, videos: VideoTokens) -> Tensor:
        """Return how well each token of a text fits each token of the video at the same index [B, N, M].

        Only objectives with ``has_word_similarity`` implement it.

        Args:
            texts: B encoded texts.
            videos: B encoded videos.
        """
        raise NotImplementedError

    def late_scores(self, fused: FusionScores, token_weights_PN: Tensor) -> dict[str, Tensor]:
        """Return {stage: scores [P]} of the late stages.

        Args:
            fused: The fusion layers' scores of P pairs.
            token_weights_PN: Weights of the tokens of the pairs' texts.
        """
        return {}

    def _make_queries(self, width: int) -> QueryQueue | None:
        from ..models.base import QueryQueue

        return QueryQueue(self.query_queue, width) if self.normalized_loss else None
