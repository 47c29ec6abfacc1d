"""Complete settings, each as its paper gives them. A setting that a recipe leaves out has its default.

TACo: sections 4.2 (layers) and 4.3 (the rest). ToCo: section 4.3. Neither gives a dropout rate; BERT's 0.1 is used.
For the others, the sections are given with the numbers.
"""

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import Any

from ..storage.common.errors import SettingError
from ..storage.profiles import FRAME_MAPS
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

# SSML section 5.1. What it does not say is from the published trainer of HowTo100M, whose model and data it uses.
_SSML: Settings = {
    "objective": "ssml",
    "encoder": "gated",
    "embedding_size": 6144,
    "features": "resnet152+i3d_resnext101",
    "pair_weights": "density",
    "margin": 0.1,
    "batch_size": 2048,  # 32 videos of 64 clips
    "clips_per_video": 64,
    "intra_video_rate": 0.5,
    "learning_rate": 1e-3,  # "fixed"
    "schedule": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "num_steps": 500_000,
    "validate_every": 5_000,
}
_SSML_CLIPS = {
    **_SSML,
    "pair_weights": "none",
    "clips_per_video": 0,
    "batch_size": 256,
    "num_steps": 10_000,
    "validate_every": 500,
}

# NCL section 4 and appendices B and C. NCL fine-tunes CLIP, with CLIP's learning rate; here the features are fixed and
# the text encoder is BERT.
_NCL: Settings = {
    "objective": "ncl",
    "features": "clip_vit_b32",
    "text_encoder": "google-bert/bert-base-uncased",
    "normalized_loss": True,
    "query_queue": 16_384,
    "temperature": 0.07,
    "num_video_layers": 0,  # "the mean pooling (meanP) architecture"
    "schedule": "cosine",
    "batch_size": 128,
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "max_text_tokens": 32,
    "validate_every": 200,
}

# CMCM sections 2.3 and 4.1 and appendix B, MSR-VTT. CMCM fine-tunes CLIP; here, as for NCL, the features are fixed.
_CMCM: Settings = {
    "objective": "cmcm",
    "features": "clip_vit_b32_map",
    "video_grid": "2x2x2",
    "max_video_tokens": 12,  # frames, as CLIP4Clip
    "text_encoder": "google-bert/bert-base-uncased",
    "num_video_layers": 0,  # "Avg. Pooling + Linear"
    "margin": 1e-3,
    "codebook_size": 1024,
    "code_loss_weight": 0.1,
    "batch_size": 64,
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "num_steps": 14_000,  # 5 epochs of 180,000 captions, as CLIP4Clip
    "warmup_steps": 1_400,
    "validate_every": 500,
    "protocol": "1k-A",
}

# CMCM section 4.1 and appendix B. The baselines are trained from scratch, the codebook from them.
_SPOKEN: Settings = {
    "objective": "cmcm",
    "encoder": "spoken",
    "margin": 1e-3,
    "codebook_size": 1024,
    "code_loss_weight": 0.1,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "schedule": "constant",  # not stated
    "validate_every": 500,
}
_SMIT: Settings = {
    **_SPOKEN,
    "features": "clip_vit_b32_map",  # there maps of a ResNet-152 and of a TSM ResNet
    "video_grid": "3x3x3",
    "batch_size": 2048,
    "num_steps": 10_000,  # not stated
    "max_video_tokens": 3,  # frames: clips of 3 s
    "max_text_tokens": 32,  # "up to 32 codewords depending on the utterance length"
}
_PLACES: Settings = {
    **_SPOKEN,
    "features": "clip_vit_b32_map",  # there a ResNet-50's
    "video_grid": "1x7x7",
    "batch_size": 256,
    "num_steps": 100_000,  # not stated
    "max_video_tokens": 1,
    "max_text_tokens": 64,  # captions of 10 s on average
}

# SSML section 5.2, which gives only the margin; the rest as for its retrieval.
_VQA: Settings = {name: value for name, value in _SSML_CLIPS.items() if name != "intra_video_rate"} | {
    "objective": "vqa"
}

# TACo section 5.2 gives no numbers ("following" others). These are TACo's own for training (4.3), with the features of
# Table 9's other models.
_SEGMENTATION: Settings = {
    "objective": "segmentation",
    "features": "s3d",
    "text_encoder": "google-bert/bert-base-uncased",  # gives the video encoder its width and heads; no text is read
    "num_video_layers": 4,  # section 4.2, of pretrained models
    "max_video_tokens": 49,  # 32 s at 1.5 rows a second, and one that crosses the end
    "batch_size": 128,
    "num_steps": 30_000,
    "learning_rate": 1e-4,
    "warmup_steps": 5_000,
    "weight_decay": 1e-5,
    "validate_every": 1_000,
}

_GATED_SMALL: Settings = {"encoder": "gated", "embedding_size": 512, "schedule": "constant", "warmup_steps": 0}

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
        "taco-howto100m": {
            **_TACO,
            "protocol": "merged",
            "num_video_layers": 4,
            "num_steps": 500_000,
            "batch_size": 64,
        },
        "toco-small": {
            "objective": "toco",
            "tokens_of_interest": "noun+verb+adj",
            "num_video_layers": 0,
            "num_negatives": 3,
        },
        "toco-youcook2": _TOCO,
        "toco-youcook2-finetune": _TOCO_FINETUNED,
        "toco-msrvtt": {**_TOCO, "protocol": "1k-A-7k"},
        "toco-msrvtt-finetune": {**_TOCO_FINETUNED, "protocol": "1k-A-7k"},
        "toco-howto100m": {**_TOCO, "num_steps": 1_000_000, "num_negatives": 16},
        "ssml-small": {**_GATED_SMALL, "objective": "ssml"},
        "ssml-howto100m": _SSML,
        "ssml-howto100m-baseline": {**_SSML, "pair_weights": "none"},  # HTM-PT of section 6.2
        "ssml-msrvtt": {**_SSML_CLIPS, "protocol": "1k-A"},  # HTM-no-PT
        "ssml-msrvtt-finetune": {**_SSML_CLIPS, "protocol": "1k-A"},
        "ssml-msvd": _SSML_CLIPS,
        "ssml-msvd-finetune": _SSML_CLIPS,
        "ssml-lsmdc": _SSML_CLIPS,
        "ssml-lsmdc-finetune": _SSML_CLIPS,
        "mil-nce-small": {**_GATED_SMALL, "objective": "mil-nce"},
        "ncl-small": {
            "objective": "ncl",
            "normalized_loss": True,
            "query_queue": 2048,
            "temperature": 0.05,
            "num_video_layers": 0,
        },
        "ncl-msrvtt": {
            **_NCL,
            "protocol": "1k-A",
            "num_steps": 7_000,
            "warmup_steps": 700,
            "max_video_tokens": 12,
        },  # 5 epochs
        "ncl-msvd": {**_NCL, "num_steps": 1_140, "warmup_steps": 0, "max_video_tokens": 12},  # 3 epochs
        "ncl-activitynet": {
            **_NCL,
            "num_steps": 780,
            "warmup_steps": 78,
            "max_video_tokens": 64,
            "max_text_tokens": 64,
        },  # 10 epochs
        "cmcm-smit": _SMIT,
        "cmcm-smit-baseline": {**_SMIT, "codebook_size": 0},
        "cmcm-smit-finetune": {**_SMIT, "learning_rate": 1e-4},  # the "warm start" from the baseline
        "cmcm-places": _PLACES,
        "cmcm-places-baseline": {**_PLACES, "codebook_size": 0},
        "cmcm-places-finetune": {**_PLACES, "learning_rate": 1e-4},
        "vqa-msrvtt_qa": _VQA,
        "vqa-msrvtt_qa-finetune": _VQA,
        "vqa-msvd_qa": _VQA,
        "vqa-msvd_qa-finetune": _VQA,
        "vqa-small": {**_GATED_SMALL, "objective": "vqa"},
        "segmentation-coin": _SEGMENTATION,
        "segmentation-coin-finetune": {**_SEGMENTATION, "num_steps": 20_000, "learning_rate": 2e-5},
        "segmentation-small": {"objective": "segmentation", "max_video_tokens": 49},
        "cmcm-small": {"objective": "cmcm", "codebook_size": 128, "margin": 1e-3},
        "cmcm-msrvtt": _CMCM,
        "cmcm-msrvtt-baseline": {**_CMCM, "codebook_size": 0},
        "cmcm-msrvtt-finetune": {**_CMCM, "learning_rate": 1e-5},  # the "warm start" from the baseline, --init
    }
)
"""{name: settings}"""


def usual_recipe(objective: str, dataset: str, protocol: str, init: str) -> str | None:
    """Return the name of the objective's recipe for a data set.

    Args:
        objective: Name of the objective.
        dataset: Name of the data set.
        protocol: If not empty, a recipe for this protocol is preferred.
        init: If not empty, only recipes for fine-tuning count.

    Returns:
        The paper's recipe, or else the objective's small one, or None if it has neither.
    """
    stem = f"{objective}-{dataset}"
    of_dataset = [name for name in RECIPES if name == stem or name.startswith(f"{stem}-")]
    usable = [name for name in of_dataset if name.endswith("-finetune") == bool(init)]
    best = [name for name in usable if not protocol or RECIPES[name].get("protocol", protocol) == protocol]
    small = f"{objective}-small"
    return next(iter([*best, *usable, *([small] if small in RECIPES else [])]), None)


def make_config(name: str | None, given: Settings) -> TrainConfig:
    """Return the configuration of a recipe's settings, replaced by those that are given.

    Args:
        name: Name of a recipe; None for the settings' defaults.
        given: Settings by name; "dataset" among them.

    Raises:
        SettingError: There is no such recipe, it needs another setting, or a value cannot be used.
    """
    if name is not None and name not in RECIPES:
        raise SettingError("recipe", name, f"expected one of {', '.join(RECIPES)}")
    settings = {**(RECIPES[name] if name else {}), **given, "recipe": name or ""}
    if "video_grid" not in given and given.get("features") not in (None, *FRAME_MAPS):
        settings.pop("video_grid", None)  # the recipe's features are maps, these are not
    if not settings.get("features"):
        raise SettingError(
            "features",
            "is missing",
            "the recipe names none; expected a store's name, such as s3d, or several joined by +",
        )
    if name and name.endswith("-finetune") and not settings.get("init"):
        raise SettingError("recipe", name, "starts from a trained run; pass --init RUN")
    return TrainConfig.from_flat(settings)


def describe(config: TrainConfig, given: Container[str]) -> list[str]:
    """Return a line for every setting, with its value and where it is from. ``given``: names of settings that were
    given."""
    recipe = RECIPES.get(config.recipe, {})
    lines = []
    for name, value in config.flat().items():
        source = "given" if name in given else f"recipe {config.recipe}" if recipe.get(name) == value else ""
        lines.append(f"  {name:<22} {value!s:<30} {source}".rstrip())
    return lines
