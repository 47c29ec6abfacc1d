"""Complete settings, each as its paper gives them. What a recipe leaves out has ``TrainConfig``'s default.

TACo: sections 4.2 (layers) and 4.3 (the rest). ToCo: section 4.3. Neither says what their dropout is; BERT's 0.1 is taken. The others'
sections stand beside them.
"""

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from ..storage.common.errors import UserError
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

# SSML section 5.1; what it does not say is from the published trainer of HowTo100M, whose model and data it takes over.
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

# NCL section 4 and appendices B and C. Its learning rate is CLIP's, which is trained on there; its features are fixed here, and its text
# encoder is BERT.
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

# CMCM sections 2.3 and 4.1 and appendix B, MSR-VTT; its learning rates are CLIP's and a part of it. As for NCL, features are fixed.
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

# SSML section 5.2, which says no numbers but the margin loss; the rest as for its retrieval.
_VQA: Settings = {**_SSML_CLIPS, "objective": "vqa"}

# TACo section 5.2 says "following" others, and no numbers: its own for training (4.3), on the features of Table 9's other models.
_SEGMENTATION: Settings = {
    "objective": "segmentation",
    "features": "s3d",
    "text_encoder": "google-bert/bert-base-uncased",  # its width and heads are the video encoder's; nothing is read
    "num_video_layers": 4,  # section 4.2, of pretrained models
    "max_video_tokens": 49,  # 32 s at 1.5 rows a second, and what touches the window's end
    "batch_size": 128,
    "num_steps": 30_000,
    "learning_rate": 1e-4,
    "warmup_steps": 5_000,
    "weight_decay": 1e-5,
    "validate_every": 1_000,
}

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
        "ssml-small": {
            "objective": "ssml",
            "encoder": "gated",
            "embedding_size": 512,
            "schedule": "constant",
            "warmup_steps": 0,
        },
        "ssml-howto100m": _SSML,
        "ssml-howto100m-baseline": {**_SSML, "pair_weights": "none"},  # HTM-PT of section 6.2
        "ssml-msrvtt": {**_SSML_CLIPS, "protocol": "1k-A"},  # HTM-no-PT
        "ssml-msrvtt-finetune": {**_SSML_CLIPS, "protocol": "1k-A"},
        "ssml-msvd": _SSML_CLIPS,
        "ssml-msvd-finetune": _SSML_CLIPS,
        "ssml-lsmdc": _SSML_CLIPS,
        "ssml-lsmdc-finetune": _SSML_CLIPS,
        "mil-nce-small": {
            "objective": "mil-nce",
            "encoder": "gated",
            "embedding_size": 512,
            "schedule": "constant",
            "warmup_steps": 0,
        },
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
        "vqa-small": {
            "objective": "vqa",
            "encoder": "gated",
            "embedding_size": 512,
            "schedule": "constant",
            "warmup_steps": 0,
        },
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


def usual_recipe(objective: str, dataset: str, protocol: str, init: str) -> str:
    """The name of the objective's recipe for a data set, and for its protocol if there is one; where its paper has none, of the small
    one."""
    stems = [
        name
        for name in RECIPES
        if name.startswith(f"{objective}-{dataset}") and name.endswith("-finetune") == bool(init)
    ]
    fitting = [name for name in stems if not protocol or RECIPES[name].get("protocol", protocol) == protocol]
    return [*fitting, *stems, f"{objective}-small"][0]


def make_config(name: str, given: Settings) -> TrainConfig:
    """A recipe's settings, but for those that were given. Raises ``UserError`` for a recipe that there is not, or without features."""
    if name not in RECIPES:
        raise UserError(f"--recipe {name}: expected one of {', '.join(RECIPES)}")
    settings = {**RECIPES[name], **given, "recipe": name}
    if "video_grid" not in given and given.get("features") not in (None, *FRAME_MAPS):
        settings.pop("video_grid", None)  # the recipe's features have places, these have none
    if "features" not in settings:
        raise UserError(
            f"--features: not given, and the recipe {name} names none; expected a store's name, such as s3d, or several by +"
        )
    if name.endswith("-finetune") and not settings.get("init"):
        raise UserError(f"--recipe {name}: goes on from a trained run; pass --init RUN")
    return TrainConfig(**settings)


def describe(config: TrainConfig, given: Settings) -> list[str]:
    """Every setting, a line each, and where it is from."""
    recipe = RECIPES[config.recipe]
    lines = []
    for field in fields(config):
        value = getattr(config, field.name)
        source = (
            "given" if field.name in given else f"recipe {config.recipe}" if recipe.get(field.name) == value else ""
        )
        lines.append(f"  {field.name:<22} {value!s:<30} {source}".rstrip())
    return lines
