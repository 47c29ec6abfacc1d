"""A run's model from its settings."""

from ...storage.common.plugins import loaded_plugin
from ..settings import ModelSettings
from .base import ModelPlan, PairModel
from .gated import GatedPair
from .spoken import SpokenPair
from .transformer import VideoTextModel
from .words import WordPair

MODELS: dict[str, type[PairModel]] = {
    "transformer": VideoTextModel,
    "gated": GatedPair,
    "words": WordPair,
    "spoken": SpokenPair,
}
"""{encoder: model with it}, for each of ``settings.ENCODERS``."""


def make_model(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    """Return a model with new weights; a given text encoder has its own."""
    if settings.encoder in MODELS:
        return MODELS[settings.encoder].from_settings(settings, plan)
    plugin = loaded_plugin("encoders", settings.encoder)
    assert plugin is not None, "settings are checked"
    return plugin.value.from_settings(settings, plan)
