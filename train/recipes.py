"""Complete settings, each as its paper gives them. What a recipe leaves out has ``TrainConfig``'s default.

TACo: sections 4.2 (layers) and 4.3 (the rest). ToCo: section 4.3. Neither says what their dropout is; BERT's 0.1 is taken.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ..storage.console import UserError
from .config import TrainConfig

Settings = Mapping[str, Any]

_TACO: Settings = {
    "objective": "taco",
    "features": "resnet152+s3d",  # R-152+S3D-HM
    "text_encoder": "google-bert/bert-base-uncased",
    "batch_size": 128,
    "num_steps": 30_000,
    "learning_rate": 1e-4,
    "warmup_steps": 5_000,
    "weight_decay": 1e-5,
    "num_negatives": 8,
    "num_video_layers": 2,  # "to compare with previous work on specific dataset"
    "num_fusion_layers": 2,
    "max_video_tokens": 48,
    "max_text_tokens": 30,
    "validate_every": 1_000,
}
_TACO_FINETUNED = {**_TACO, "num_video_layers": 4, "num_steps": 20_000, "learning_rate": 2e-5}
_PARAGRAPHS = {"max_video_tokens": 256, "max_text_tokens": 256}

_TOCO: Settings = {
    "objective": "toco",
    "features": "s3d",  # S-100 of Table 1, the best there
    "text_encoder": "google-bert/bert-base-uncased",
    "batch_size": 64,
    "num_steps": 100_000,
    "learning_rate": 1e-4,
    "warmup_steps": 10_000,
    "weight_decay": 1e-5,
    "num_negatives": 8,
    "tokens_of_interest": "noun+verb+adj",  # section 3.3
    "token_loss_weight": 0.5,  # section 5.1
    "token_score_weight": 0.5,
    "num_video_layers": 0,  # section 3.2: "we first embed them separately to the same dimension", then the multi-modal encoder
    "num_fusion_layers": 2,  # not stated; TACo's
    "max_video_tokens": 48,  # section 4.2
    "max_text_tokens": 30,
    "validate_every": 1_000,
}
_TOCO_FINETUNED = {**_TOCO, "learning_rate": 2e-5}

RECIPES: Mapping[str, Settings] = MappingProxyType(
    {
        "taco-small": {"num_negatives": 3},  # minutes on a laptop
        "taco-youcook2": _TACO,
        "taco-youcook2-finetune": _TACO_FINETUNED,
        "taco-youcook2-ablation": {**_TACO, "num_video_layers": 1},  # Tables 2 to 4 and 11 to 12
        "taco-msrvtt-split1": {**_TACO, "protocol": "1k-A"},
        "taco-msrvtt-split1-finetune": {**_TACO_FINETUNED, "protocol": "1k-A"},
        "taco-msrvtt-split2": {**_TACO, "protocol": "1k-A-7k"},
        "taco-msrvtt-split2-finetune": {**_TACO_FINETUNED, "protocol": "1k-A-7k"},
        "taco-activitynet": {**_TACO, **_PARAGRAPHS},
        "taco-activitynet-finetune": {**_TACO_FINETUNED, **_PARAGRAPHS},
        "taco-howto100m": {**_TACO, "protocol": "merged", "num_video_layers": 4, "num_steps": 500_000, "batch_size": 64},
        "toco-small": {"objective": "toco", "tokens_of_interest": "noun+verb+adj", "num_video_layers": 0, "num_negatives": 3},
        "toco-youcook2": _TOCO,
        "toco-youcook2-finetune": _TOCO_FINETUNED,
        "toco-msrvtt": {**_TOCO, "protocol": "1k-A-7k"},
        "toco-msrvtt-finetune": {**_TOCO_FINETUNED, "protocol": "1k-A-7k"},
        "toco-howto100m": {**_TOCO, "num_steps": 1_000_000, "num_negatives": 16},
    }
)
"""{name: settings}"""


def usual_recipe(objective: str, dataset: str, protocol: str, init: str) -> str:
    """The name of the objective's recipe for a data set, and for its protocol if there is one; where its paper has none, of the small
    one."""
    stems = [name for name in RECIPES if name.startswith(f"{objective}-{dataset}") and name.endswith("-finetune") == bool(init)]
    fitting = [name for name in stems if not protocol or RECIPES[name].get("protocol", protocol) == protocol]
    return [*fitting, *stems, f"{objective}-small"][0]


def make_config(name: str, given: Settings) -> TrainConfig:
    """A recipe's settings, but for those that were given. Raises ``UserError`` for a recipe that there is not, or without features."""
    if name not in RECIPES:
        raise UserError(f"--recipe {name}: expected one of {', '.join(RECIPES)}")
    settings = {**RECIPES[name], **given, "recipe": name}
    if "features" not in settings:
        raise UserError(f"--features: not given, and the recipe {name} names none; expected a store's name, such as s3d, or several by +")
    if name.endswith("-finetune") and not settings.get("init"):
        raise UserError(f"--recipe {name}: goes on from a trained run; pass --init RUN")
    return TrainConfig(**settings)


def describe(config: TrainConfig, given: Settings) -> list[str]:
    """Every setting, a line each, and where it is from."""
    recipe = RECIPES[config.recipe]
    lines = []
    for field in fields(config):
        source = "given" if field.name in given else f"recipe {config.recipe}" if field.name in recipe else ""
        lines.append(f"  {field.name:<22} {getattr(config, field.name)!s:<30} {source}".rstrip())
    return lines
