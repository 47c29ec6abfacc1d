"""The objectives that a model can be trained with: {name: function of model, texts, videos and configuration -> terms}.

The loss is the sum of the terms; each is logged under its name.
"""

from collections.abc import Callable

from torch import Tensor

from .config import TrainConfig
from .losses import sentence_nce, token_nce
from .model import TextTokens, VideoTokens

Objective = Callable[[TextTokens, VideoTokens, TrainConfig], dict[str, Tensor]]


def taco(texts: TextTokens, videos: VideoTokens, config: TrainConfig) -> dict[str, Tensor]:
    """TACo's early stage: L1 + lambda_t L2 (Eq. 3, 4, 6), without the fusion layers' L3."""
    return {
        "sentence": sentence_nce(videos.mean_BD, texts.sentence_BD, config.temperature),
        "token": config.token_loss_weight
        * token_nce(videos.tokens_BMD, videos.mask_BM, texts.tokens_BND, texts.weights_BN, config.temperature),
    }


OBJECTIVES: dict[str, Objective] = {"taco": taco}
