"""NCL: section 4 and appendices B and C; and CLIP4Clip, which NCL's tables include.

Both tune the two towers of CLIP on frames. Settings that NCL's appendix leaves to CLIP4Clip are from CLIP4Clip's code.
Steps are counted as in that code: each of 4 GPUs (ActivityNet: 8) has its share of the captions, and skips a last batch
that is not full.
"""

from .train_config import Recipe

FROZEN_INPUTS = "video_tower.*embeddings.*:frozen=true;video_tower.*pre_layrnorm.*:frozen=true"
FROZEN_INPUTS += ";text_encoder.*embeddings.*:frozen=true"
"""CLIP4Clip's ``--freeze_layer_num 0``: parameters before the first layer of both towers are not tuned."""

_NCL: Recipe = {
    "objective": "ncl",
    "features": "clip_vit_b32_frames",
    "video_tower": "clip_vit_b32",
    "encoder": "mean",  # "the mean pooling (meanP) architecture"
    "text_encoder": "openai/clip-vit-base-patch32",
    "normalized_loss": True,
    "query_queue": 16_384,
    "temperature": 0.01,  # CLIP's own, at first
    "learned_temperature": True,
    "optimizer": "bertadam",
    "schedule": "bert-cosine",
    "batch_size": 128,
    "learning_rate": 1e-7,
    "weight_decay": 0.2,
    "parameter_groups": f"{FROZEN_INPUTS};*bias*:decay=0",
    "max_text_tokens": 32,
    "validate_every": 200,
}

_MSRVTT: Recipe = {"protocol": "1k-A", "num_steps": 7_030, "warmup_steps": 703, "max_video_tokens": 12}
"""5 epochs of 180,000 captions."""
_LONG: Recipe = {"max_video_tokens": 64, "max_text_tokens": 64}
_CLIP4CLIP: Recipe = {name: _NCL[name] for name in _NCL if name not in ("normalized_loss", "query_queue")}

# On SSB's architecture, from Appendix C. What it leaves to the paper of SSB, we chose: departure_data/ncl.json.
_SSB: Recipe = {
    "objective": "ncl",
    "encoder": "ssb",
    "features": "r2plus1d+resnet152",  # "motion and appearance features"
    "text_encoder": "google-t5/t5-base",
    "normalized_loss": True,
    "query_queue": 16_384,
    "temperature": 0.07,
    "loss_scale": 15.0,
    "dropout": 0.1,
    "schedule": "cosine",
    "batch_size": 128,
    "learning_rate": 1e-4,
    "weight_decay": 0.0,
    "max_video_tokens": 32,
    "max_text_tokens": 32,
    "validate_every": 200,
}

RECIPES: dict[str, Recipe] = {
    "ncl-small": {
        "objective": "ncl",
        "normalized_loss": True,
        "query_queue": 2048,
        "temperature": 0.05,
        "num_video_layers": 0,
        "num_steps": 600,
        "learning_rate": 1e-3,
        "schedule": "cosine",
        "weight_decay": 1e-2,
        "ema_decay": 0.98,
        "dropout": 0.3,
        "validation_share": 0.1,
    },
    "ncl-msrvtt": {**_NCL, **_MSRVTT},
    "ncl-msvd": {**_NCL, "num_steps": 1_143, "warmup_steps": 0, "max_video_tokens": 12},  # 3 epochs of 48,774 captions
    "ncl-activitynet": {**_NCL, **_LONG, "num_steps": 780, "warmup_steps": 78},  # 10 epochs of 10,009 paragraphs
    # CLIP4Clip's own: 5 epochs, with a warm-up over the first tenth (its README).
    "ncl-clip4clip-msrvtt": {**_CLIP4CLIP, **_MSRVTT},
    "ncl-clip4clip-msvd": {**_CLIP4CLIP, "num_steps": 1_905, "warmup_steps": 190, "max_video_tokens": 12},
    "ncl-clip4clip-activitynet": {**_CLIP4CLIP, **_LONG, "num_steps": 390, "warmup_steps": 39},
    "ncl-ssb-msrvtt": {**_SSB, "protocol": "1k-A", "num_steps": 14_060, "warmup_steps": 1_406},  # 10 epochs
    "ncl-ssb-msvd": {**_SSB, "num_steps": 3_810, "warmup_steps": 381},  # 10 epochs
    "ncl-ssb-activitynet": {  # 50 epochs
        **_SSB,
        "dropout": 0.0,
        "num_steps": 3_900,
        "warmup_steps": 390,
        "max_video_tokens": 128,
        "max_text_tokens": 64,
    },
}
