"""A run's model from its settings."""

from ...storage.common.errors import SettingError
from ...storage.common.plugins import errors_of_plugin, loaded_plugin
from ..settings import ModelSettings
from .base import ModelPlan, PairModel
from .gated import GatedPair, HtmPair
from .mean import MeanPair
from .spoken import SpokenPair
from .ssb import SupportSetPair
from .transformer import VideoTextModel
from .words import WordPair

MODELS: dict[str, type[PairModel]] = {
    "transformer": VideoTextModel,
    "mean": MeanPair,
    "gated": GatedPair,
    "htm": HtmPair,
    "words": WordPair,
    "spoken": SpokenPair,
    "ssb": SupportSetPair,
}
"""{encoder: model with it}, for each of ``settings.ENCODERS``."""


def make_model(settings: ModelSettings, plan: ModelPlan) -> PairModel:
    """Return a model with new weights; a given text encoder keeps its weights."""
    if settings.encoder in MODELS:
        model = MODELS[settings.encoder].from_settings(settings, plan)
    else:
        plugin = loaded_plugin("encoders", settings.encoder)
        assert plugin is not None, "settings are checked"
        with errors_of_plugin(plugin):
            model = plugin.value.from_settings(settings, plan)
    if not isinstance(model, PairModel):
        problem = f"its from_settings returned {type(model).__name__}; expected a PairModel"
        raise SettingError("encoder", settings.encoder, problem)
    if plan.has_fusion and model.fusion is None:
        problem = "has no fusion layers, which the objective needs; pass an objective without them, such as mil-nce"
        raise SettingError("encoder", settings.encoder, problem)
    model.video_tower = plan.video_tower
    return model
