"""A trained model, to disk and back."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from transformers import PreTrainedTokenizerFast

from ..storage.captions import read_idf
from ..storage.console import UserError
from ..storage.files import written_whole
from ..storage.layout import DatasetFolder
from .config import TrainConfig
from .data import ClipFeatures
from .model import VideoTextModel
from .runs import MODEL_FILE, TEXT_FOLDER, dataset_of, features_note, open_stores, read_config, read_run
from .text import TokenWeights, saved_text_encoder


@dataclass(frozen=True)
class Run:
    folder: Path
    dataset: DatasetFolder
    config: TrainConfig
    about: dict[str, Any]
    """``run.json``."""
    features: ClipFeatures
    model: VideoTextModel
    tokenizer: PreTrainedTokenizerFast
    weights: TokenWeights

    @property
    def note(self) -> str | None:
        return features_note(self.about["inputs"])


def save_model(folder: Path, model: VideoTextModel) -> None:
    with written_whole(folder / MODEL_FILE) as partial:
        partial.write_bytes(save({name: value.contiguous() for name, value in model.state_dict().items()}))


def load_run(folder: Path) -> Run:
    """Raises ``UserError`` where the run is not whole, or the stores it was trained on have changed their make."""
    about = read_run(folder)
    config = read_config(about)
    dataset = dataset_of(folder, config)
    features = ClipFeatures(open_stores(dataset, config.features))
    for store, trained_on in zip(features.stores, about["inputs"]["features"], strict=True):
        if (store.profile.hash, store.weights.sha256) != (trained_on["profile_hash"], trained_on["weights_sha256"]):
            raise UserError(
                f"{store.folder}: has profile {store.profile.hash} with weights {store.weights.name}; the run {folder.name} was trained "
                f"on {trained_on['profile_hash']} with {trained_on['weights']}; train a new run on this store"
            )
    tokenizer, text_encoder = saved_text_encoder(folder / TEXT_FOLDER)
    model = make_model(config, features.dim, text_encoder)
    try:
        model.load_state_dict(load_file(folder / MODEL_FILE))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise UserError(f"{folder / MODEL_FILE}: not the run's model ({str(error).splitlines()[0]}); train the run again") from None
    weights = TokenWeights(read_idf(dataset.idf), config.pos_tags)
    return Run(folder, dataset, config, about, features, model.eval(), tokenizer, weights)


def make_model(config: TrainConfig, feature_dim: int, text_encoder: torch.nn.Module) -> VideoTextModel:
    return VideoTextModel(
        feature_dim, text_encoder, max_video_tokens=config.max_video_tokens, num_layers=config.num_video_layers, dropout=config.dropout
    )
