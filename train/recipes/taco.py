"""TACo. Retrieval: sections 4.2 (layers) and 4.3 (the rest); step segmentation: section 5.2.

The paper gives no dropout rate; BERT's 0.1 is used.
"""

from .train_config import Recipe

_TACO: Recipe = {
    "objective": "taco",
    "idf": "token",  # appendix A, Eq. 7
    "loss_sum": True,  # Eq. 3 to 5
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
    "additions": "none",  # section 3.1
    "max_video_tokens": 48,
    "max_text_tokens": 30,
    "validate_every": 1_000,
}
_TACO_FINETUNED = {**_TACO, "num_video_layers": 4, "num_steps": 20_000, "learning_rate": 2e-5}
_PARAGRAPHS = {"max_video_tokens": 256, "max_text_tokens": 256}

# Section 5.2 gives no numbers. These are those of section 4.3, with the features of the other models in Table 9.
_SEGMENTATION: Recipe = {
    "objective": "segmentation",
    "features": "s3d",
    "text_encoder": "google-bert/bert-base-uncased",  # gives the video encoder its width and heads; no text is read
    "num_video_layers": 4,  # section 4.2, of pretrained models
    "additions": "none",
    "max_video_tokens": 49,  # 32 s at 1.5 rows a second, and one that crosses the end
    "batch_size": 128,
    "num_steps": 30_000,
    "learning_rate": 1e-4,
    "warmup_steps": 5_000,
    "weight_decay": 1e-5,
    "validate_every": 1_000,
}

RECIPES: dict[str, Recipe] = {
    "taco-small": {  # minutes on a laptop: a single fusion layer computes the output at [CLS] only
        "num_negatives": 3,
        "num_fusion_layers": 1,
        "validation_share": 0.1,
        "stage_weights": "validation",
    },
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
    "segmentation-coin": _SEGMENTATION,
    "segmentation-coin-finetune": {**_SEGMENTATION, "num_steps": 20_000, "learning_rate": 2e-5},
    "segmentation-small": {"objective": "segmentation", "max_video_tokens": 49},
}
