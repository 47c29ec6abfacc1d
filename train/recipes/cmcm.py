"""CMCM: sections 2.3 and 4.1, Table 3 and appendix B.

On MSR-VTT, the baseline tunes CLIP on frames as CLIP4Clip does; training with the codebook starts from it.
"""

from .ncl import FROZEN_INPUTS
from .train_config import Recipe

_TOWERS = f"{FROZEN_INPUTS};project.*:frozen=true;video_tower.*bias*:lr=0.001,decay=0;video_tower.*:lr=0.001"
_TOWERS += ";text_encoder.*bias*:lr=0.001,decay=0;text_encoder.*:lr=0.001"
"""As in CLIP4Clip: learning rate 1e-7 for CLIP's weights, weight decay for all but biases, and no layer after the
towers: ``project`` stays the identity."""

_CMCM: Recipe = {
    "objective": "cmcm",
    "features": "clip_vit_b32_frames",
    "video_tower": "clip_vit_b32_map",
    "video_grid": "2x2x2",
    "max_video_tokens": 12,  # frames, as CLIP4Clip
    "max_text_tokens": 32,  # as CLIP4Clip
    "text_encoder": "openai/clip-vit-base-patch32",  # its width, 512, is that of the shared space
    "num_video_layers": 0,  # "Avg. Pooling + Linear": CLIP's projection
    "additions": "none",
    "dropout": 0.0,  # CLIP has none
    "margin": 1e-3,
    "codebook_size": 1024,
    "code_loss_weight": 0.1,
    "code_layers": "conv-lstm",
    "summary_layer": "none",  # the linear layers of Table 3 are CLIP's projections
    "batch_size": 64,
    "learning_rate": 1e-4,
    "parameter_groups": f"{_TOWERS};*bias*:decay=0",
    "optimizer": "bertadam",
    "weight_decay": 0.2,
    "schedule": "bert-cosine",
    "num_steps": 14_060,  # 5 epochs of 180,000 captions, as CLIP4Clip's code counts them on 8 GPUs
    "warmup_steps": 1_406,
    "validate_every": 500,
    "protocol": "1k-A",
}

# Spoken captions. The baselines are trained from scratch; training with the codebook starts from a baseline.
_SPOKEN: Recipe = {
    "objective": "cmcm",
    "encoder": "spoken",
    "margin": 1e-3,
    "codebook_size": 1024,
    "code_loss_weight": 0.1,
    "summary_layer": "none",  # the GLU of Table 3
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "schedule": "constant",  # not stated
    "validate_every": 500,
}
_SMIT: Recipe = {
    **_SPOKEN,
    "features": "resnet152_map+tsm_resnet50_map",
    "video_grid": "3x3x3",
    "glu_size": 4096,
    "batch_size": 2048,
    "num_steps": 10_000,  # not stated
    "max_video_tokens": 3,  # frames: clips of 3 s
    "max_text_tokens": 32,  # "up to 32 codewords depending on the utterance length"
}
_PLACES: Recipe = {
    **_SPOKEN,
    "features": "resnet50_map",
    "video_grid": "1x7x7",
    "glu_size": 1024,
    "batch_size": 256,
    "num_steps": 100_000,  # not stated
    "max_video_tokens": 1,
    "max_text_tokens": 128,  # 20.48 s, as the code of its baseline; captions have 10 s on average
}

# "a second round training with a learning rate of 1e-5 and a batch size of 128", of the baseline and with the codebook.
_SECOND: Recipe = {**_SMIT, "learning_rate": 1e-5, "batch_size": 128}
_SECOND_ROUND: dict[str, Recipe] = {
    "second-finetune": _SECOND,
    "second-baseline-finetune": {**_SECOND, "codebook_size": 0},
}

RECIPES: dict[str, Recipe] = {
    "cmcm-smit": _SMIT,
    "cmcm-smit-baseline": {**_SMIT, "codebook_size": 0},
    "cmcm-smit-finetune": {**_SMIT, "learning_rate": 1e-4, "num_steps": 2_500},  # the "warm start" from the baseline
    **{f"cmcm-smit-{name}": settings for name, settings in _SECOND_ROUND.items()},
    "cmcm-places": _PLACES,
    "cmcm-places-baseline": {**_PLACES, "codebook_size": 0},
    "cmcm-places-finetune": {**_PLACES, "learning_rate": 1e-4, "num_steps": 11_000},
    "cmcm-small": {"objective": "cmcm", "codebook_size": 128, "margin": 1e-3, "validation_share": 0.1},
    "cmcm-msrvtt": _CMCM,
    "cmcm-msrvtt-baseline": {**_CMCM, "codebook_size": 0, "parameter_groups": _TOWERS},
    "cmcm-msrvtt-finetune": {  # the "warm start" from the baseline, --init; the transformers are frozen (section 4.1)
        **_CMCM,
        "learning_rate": 1e-5,
        "num_steps": 7_030,
        "warmup_steps": 703,
        "parameter_groups": "codebook.*bias*:decay=0;codebook.*:lr=1;*:frozen=true",
    },
}
