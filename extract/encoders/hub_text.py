"""The text tower of a model of transformers, beside the tower that made a store's features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...storage.common.errors import UserError, reason_of
from ...storage.records import Profile, Weights
from .files import ModelFiles, quiet_transformers
from .hub import LOAD_ERRORS


@dataclass(frozen=True)
class HubTextTower:
    """A model with its own processor of texts."""

    model: Any
    processor: Any
    place: Path
    """Folder of the model."""
    most_tokens: int
    """Tokens that the model reads of a text."""

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> np.ndarray:
        """Return a vector of length 1 for each text, float32 [N, D]; what is beyond ``most_tokens`` is cut off."""
        rows = []
        for text in texts:  # alone: a text's vector then depends on no other text
            tokens = self.processor(text=[text], truncation=True, max_length=self.most_tokens, return_tensors="pt")
            output = self.model.get_text_features(**tokens)
            rows.append(output if isinstance(output, torch.Tensor) else output.pooler_output)
        vectors = torch.cat(rows).float().numpy()
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    def is_cut(self, text: str) -> bool:
        """Return whether the tower reads only the beginning of a text."""
        return len(self.processor.tokenizer(text)["input_ids"]) > self.most_tokens


def load_hub_text_tower(profile: Profile, used: Weights, place: Path) -> HubTextTower:
    """Load the text tower of the model that made a store.

    Args:
        profile: The store's profile.
        used: The weights that the store was made with.
        place: The folder of the model.

    Raises:
        UserError: The folder has other weights, or the model reads no texts.
    """
    from transformers import AutoModel, AutoProcessor

    quiet_transformers()
    files = ModelFiles(place, profile.weights, "")
    if (sha256 := files.sha256()) != used.sha256:
        raise UserError(
            f"weights {place}: SHA-256 {sha256[:16]}..., but the store was made with {used.name}, "
            f"{used.sha256[:16]}...; pass --weights with the folder of those"
        )
    files.check_configuration()
    only_here = {"local_files_only": True, "trust_remote_code": False}
    try:
        processor = AutoProcessor.from_pretrained(place, **only_here)
        model = AutoModel.from_pretrained(place, use_safetensors=True, dtype=torch.float32, **only_here)
        most_tokens = int(model.config.text_config.max_position_embeddings)
        tower = HubTextTower(model.eval().requires_grad_(False), processor, place, most_tokens)
        tower.encode(["a word"])
    except LOAD_ERRORS as error:
        words = f"features {profile.name}: {profile.model} reads no texts from {place} ({reason_of(error)})"
        raise UserError(words) from None
    return tower
