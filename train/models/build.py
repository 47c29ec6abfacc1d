"""A run's model from its settings: one function for each kind of encoders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..data.text_inputs import RecordingInputs, SubwordInputs, TextInputs, WordIdInputs, WordVectorInputs
from ..settings import ModelSettings
from .base import MakeModules, PairModel, no_modules
from .gated import GatedPair
from .spoken import SpokenPair
from .transformer import VideoTextModel
from .words import WordPair


@dataclass(frozen=True)
class ModelPlan:
    """The parts and sizes of a model that its settings do not give."""

    feature_dim: int
    """Width of a row of features."""
    text_inputs: TextInputs
    has_fusion: bool = False
    has_token_head: bool = False
    reads_texts: bool = True
    still: bool = False
    """The videos are still images."""
    make_modules: MakeModules = no_modules


def make_model(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    """Return a model with new weights; a given text encoder has its own."""
    return MAKERS[settings.encoder](settings, plan)


def _transformer(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    assert isinstance(plan.text_inputs, SubwordInputs)
    return VideoTextModel(
        plan.feature_dim,
        plan.text_inputs.encoder,
        num_video_layers=settings.num_video_layers,
        num_fusion_layers=settings.num_fusion_layers if plan.has_fusion else None,
        dropout=settings.dropout,
        token_head=plan.has_token_head,
        reads_texts=plan.reads_texts,
        pooling=plan.text_inputs.pooling.method,
        make_modules=plan.make_modules,
    )


def _gated(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    assert isinstance(plan.text_inputs, WordVectorInputs)
    return GatedPair(plan.feature_dim, plan.text_inputs.width, settings.embedding_size, make_modules=plan.make_modules)


def _words(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    assert isinstance(plan.text_inputs, WordIdInputs)
    texts = plan.text_inputs
    return WordPair(
        plan.feature_dim, len(texts.words), idf=texts.idf, dropout=settings.dropout, make_modules=plan.make_modules
    )


def _spoken(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    assert isinstance(plan.text_inputs, RecordingInputs)
    return SpokenPair(plan.feature_dim, still=plan.still, make_modules=plan.make_modules)


MAKERS: dict[str, Callable[[ModelSettings, ModelPlan], PairModel]] = {
    "transformer": _transformer,
    "gated": _gated,
    "words": _words,
    "spoken": _spoken,
}
"""{encoder: what makes a model with it}, for each of ``settings.ENCODERS``."""
