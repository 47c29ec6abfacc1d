"""ToCo: section 4.3. The paper gives no dropout rate; BERT's 0.1 is used."""

from .train_config import Recipe

_TOCO: Recipe = {
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
    "idf": "tf-idf",
    "additions": "none",  # section 3.2
    "loss_sum": True,  # Eq. 1 and 2
    "token_loss_weight": 0.5,  # section 5.1
    "token_score_weight": 0.5,
    "num_video_layers": 2,  # Table 2, #L: "2-2" with S3D features; the suites' rows with I3D features have its "1-2"
    "num_fusion_layers": 2,
    "max_video_tokens": 48,  # section 4.2
    "max_text_tokens": 30,
    "validate_every": 1_000,
}
_TOCO_FINETUNED = {**_TOCO, "learning_rate": 2e-5}
# Section 5.3: "we replace ToCo loss with the masked language prediction loss"; lambda as in section 5.1.
_OF_TOKENS = ("tokens_of_interest", "idf", "token_score_weight")
_MASKED = {**{name: value for name, value in _TOCO.items() if name not in _OF_TOKENS}, "objective": "toco-mlm"}

_SMALL: Recipe = {
    "num_negatives": 3,
    "num_fusion_layers": 1,
    "validation_share": 0.1,
    "stage_weights": "validation",
}

RECIPES: dict[str, Recipe] = {
    "toco-small": {
        "objective": "toco",
        "tokens_of_interest": "noun+verb+adj",
        **_SMALL,
    },
    "toco-mlm-small": {"objective": "toco-mlm", **_SMALL},
    "toco-youcook2": _TOCO,
    "toco-youcook2-finetune": _TOCO_FINETUNED,
    "toco-msrvtt": {**_TOCO, "protocol": "1k-A-7k"},
    "toco-msrvtt-finetune": {**_TOCO_FINETUNED, "protocol": "1k-A-7k"},
    "toco-mlm-youcook2": _MASKED,
    "toco-mlm-msrvtt": {**_MASKED, "protocol": "1k-A-7k"},
    "toco-howto100m": {**_TOCO, "num_steps": 1_000_000, "num_negatives": 16},
}
