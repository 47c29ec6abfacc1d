"""CMCM: sections 2.3 and 4.1 and appendix B.

CMCM fine-tunes CLIP on MSR-VTT; here, as for NCL, the features are fixed.
"""

from .train_config import Recipe

_CMCM: Recipe = {
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

# Spoken captions. The baselines are trained from scratch; training with the codebook starts from a baseline.
_SPOKEN: Recipe = {
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
_SMIT: Recipe = {
    **_SPOKEN,
    "features": "clip_vit_b32_map",  # the paper has maps of a ResNet-152 and a TSM ResNet
    "video_grid": "3x3x3",
    "batch_size": 2048,
    "num_steps": 10_000,  # not stated
    "max_video_tokens": 3,  # frames: clips of 3 s
    "max_text_tokens": 32,  # "up to 32 codewords depending on the utterance length"
}
_PLACES: Recipe = {
    **_SPOKEN,
    "features": "clip_vit_b32_map",  # the paper has a ResNet-50's
    "video_grid": "1x7x7",
    "batch_size": 256,
    "num_steps": 100_000,  # not stated
    "max_video_tokens": 1,
    "max_text_tokens": 64,  # captions of 10 s on average
}

RECIPES: dict[str, Recipe] = {
    "cmcm-smit": _SMIT,
    "cmcm-smit-baseline": {**_SMIT, "codebook_size": 0},
    "cmcm-smit-finetune": {**_SMIT, "learning_rate": 1e-4},  # the "warm start" from the baseline
    "cmcm-places": _PLACES,
    "cmcm-places-baseline": {**_PLACES, "codebook_size": 0},
    "cmcm-places-finetune": {**_PLACES, "learning_rate": 1e-4},
    "cmcm-small": {"objective": "cmcm", "codebook_size": 128, "margin": 1e-3},
    "cmcm-msrvtt": _CMCM,
    "cmcm-msrvtt-baseline": {**_CMCM, "codebook_size": 0},
    "cmcm-msrvtt-finetune": {**_CMCM, "learning_rate": 1e-5},  # the "warm start" from the baseline, --init
}
