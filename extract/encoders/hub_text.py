"""The text tower of a model of transformers whose other tower made a store's features."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...storage.common.errors import UserError, reason_of
from ...storage.hub.files import ModelFiles
from ...storage.hub.loading import load_network, load_text_processor, quiet_transformers, read_config
from ...storage.records import Profile, Weights
from .hub import LOAD_ERRORS
from .text_preparation import AS_THE_FILES_SAY, NoTextRule, TextRecipe, text_recipe, tokenizer_of

APART = 1e-3
"""Maximum difference of equal vectors of length 1: a larger difference comes from other inputs, not from rounding."""


@dataclass(frozen=True)
class HubTextTower:
    """A model with its own text processor."""

    model: Any
    processor: Any
    """A processor of transformers, or a tokenizer."""
    weights_path: Path
    """Folder of the model."""
    max_tokens: int
    """Maximum number of tokens that the model reads of a text."""
    recipe: TextRecipe = AS_THE_FILES_SAY

    @property
    def preparation(self) -> str:
        """Description of the preparation of texts."""
        return self.recipe.describe(self.max_tokens)

    @property
    def uses_default_preparation(self) -> bool:
        """True if the model's own files define the whole preparation."""
        return self.recipe == AS_THE_FILES_SAY

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> np.ndarray:
        """Return a vector of length 1 for each text, float32 [N, D]; texts are cut at ``max_tokens``."""
        options = {"padding": "max_length"} if self.recipe.is_padded else {}
        # One by one: a text's vector then does not depend on other texts.
        vectors = torch.cat([self._vectors([text], **options) for text in texts]).float().numpy()
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    def _vectors(self, texts: list[str], **options: Any) -> torch.Tensor:
        options |= {"truncation": True, "max_length": self.max_tokens, "return_tensors": "pt"}
        tokens = self.processor(text=[self.recipe.prepared(text) for text in texts], **options)
        output = self.model.get_text_features(**tokens)
        return output if isinstance(output, torch.Tensor) else output.pooler_output

    @torch.inference_mode()
    def check_padding(self) -> None:
        """Raise ``NoTextRule`` if a text's vector depends on padding and no rule states the padded length."""
        if self.recipe.is_padded or tokenizer_of(self.processor).pad_token is None:
            return
        together = self._vectors(["a", "a few words that are more"], padding=True)[:1]
        alone = self._vectors(["a"])
        if (nn.functional.normalize(alone, dim=-1) - nn.functional.normalize(together, dim=-1)).abs().max() > APART:
            raise NoTextRule("its text vectors depend on padding, and its padded length is not known")

    def is_cut(self, text: str) -> bool:
        """Return whether the tower reads only the beginning of a text."""
        return len(tokenizer_of(self.processor)(self.recipe.prepared(text))["input_ids"]) > self.max_tokens


def load_hub_text_tower(profile: Profile, used: Weights, place: Path) -> HubTextTower:
    """Load the text tower of a store's model.

    Args:
        profile: The store's profile.
        used: The weights that made the store.
        place: Folder of the model.

    Raises:
        NoTextRule: No rule states how texts are prepared for this model.
        UserError: The folder has other weights, or the model reads no texts.
    """
    quiet_transformers()
    files = ModelFiles(place, profile.weights, "")
    if (sha256 := files.sha256()) != used.sha256:
        raise UserError(
            f"weights {place}: SHA-256 {sha256[:16]}..., but the store was made with {used.name}, "
            f"{used.sha256[:16]}...; pass --weights with the folder of that model"
        )
    try:
        processor = load_text_processor(files)
        tokenizer = tokenizer_of(processor)
        config = read_config(files)
        recipe = text_recipe(config, tokenizer)
        # transformers 5.23 forgets AIMv2's causal mask with sdpa and no padding.
        model, _ = load_network(files, config, dtype=torch.float32, attn_implementation="eager")
        max_tokens = min(_num_positions(model), int(tokenizer.model_max_length))
        tower = HubTextTower(model.eval().requires_grad_(False), processor, place, max_tokens, recipe)
        tower.check_padding()
        tower.encode(["a word"])
    except NoTextRule as error:
        raise NoTextRule(f"features {profile.name}: {profile.model}: {error}") from None
    except LOAD_ERRORS as error:
        words = f"features {profile.name}: {profile.model} cannot encode texts with {place} ({reason_of(error)})"
        raise UserError(words) from None
    return tower


def _num_positions(model: Any) -> int:
    """Return the maximum number of tokens in a text tower's input."""
    for name, part in model.named_modules():
        # Models like RoBERTa count positions from the padding token's id plus 1, so they use 512 of 514.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return part.num_embeddings - part.padding_idx - 1
    return int(model.config.text_config.max_position_embeddings)
