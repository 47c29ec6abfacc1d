"""SSML. Retrieval: section 5.1; question answering: section 5.2. Also small settings for MIL-NCE.

What section 5.1 leaves open is from the published trainer of HowTo100M, whose model and data SSML uses.
"""

from .train_config import Recipe

_SSML: Recipe = {
    "objective": "ssml",
    "encoder": "gated",
    "embedding_size": 6144,
    "features": "resnet152+i3d_resnext101",
    "pair_weights": "density",
    "loss_sum": True,  # Eq. 4
    "margin": 0.1,
    "batch_size": 2048,  # 32 videos of 64 clips
    "clips_per_video": 64,
    "intra_video_rate": 0.5,
    "optimizer": "adam",
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

# HowTo100M's own model (section 6.2), "trained identically"; 20 words are those of its published trainer.
_HTM: Recipe = {"encoder": "htm", "max_text_tokens": 20}

# Section 5.2 gives only the kind of loss; the rest is as for retrieval.
_VQA: Recipe = {n: v for n, v in _SSML_CLIPS.items() if n not in ("intra_video_rate", "loss_sum")} | {
    "objective": "vqa"
}

_GATED_SMALL: Recipe = {"encoder": "gated", "embedding_size": 512, "schedule": "constant", "warmup_steps": 0}
_PAIRS_SMALL: Recipe = {
    **_GATED_SMALL,
    "num_steps": 0,
    "batch_size": 128,
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "ema_decay": 0.98,
    "validation_share": 0.1,
}

RECIPES: dict[str, Recipe] = {
    "ssml-small": {**_PAIRS_SMALL, "objective": "ssml"},
    "ssml-howto100m": _SSML,
    "ssml-howto100m-baseline": {**_SSML, "pair_weights": "none"},  # HTM-PT of section 6.2, reproduced
    "ssml-htm-howto100m": {
        **_SSML,
        **_HTM,
        "pair_weights": "none",
    },  # starred in Table 1: HTM-PT of its authors
    "ssml-msrvtt": {**_SSML_CLIPS, "protocol": "1k-A"},  # HTM-no-PT
    "ssml-msrvtt-finetune": {**_SSML_CLIPS, "protocol": "1k-A"},
    "ssml-msvd": _SSML_CLIPS,
    "ssml-msvd-finetune": _SSML_CLIPS,
    "ssml-lsmdc": _SSML_CLIPS,
    "ssml-lsmdc-finetune": _SSML_CLIPS,
    "ssml-htm-msrvtt-finetune": {**_SSML_CLIPS, **_HTM, "protocol": "1k-A-7k"},  # as HowTo100M's authors
    "ssml-htm-lsmdc-finetune": {**_SSML_CLIPS, **_HTM},
    "mil-nce-small": {**_PAIRS_SMALL, "objective": "mil-nce"},
    "vqa-msrvtt_qa": _VQA,
    "vqa-msrvtt_qa-finetune": _VQA,
    "vqa-msvd_qa": _VQA,
    "vqa-msvd_qa-finetune": _VQA,
    "vqa-small": {**_GATED_SMALL, "objective": "vqa"},
}
