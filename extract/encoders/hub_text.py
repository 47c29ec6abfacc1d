"""The text tower of a model of transformers, beside the tower that made a store's features."""

import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...storage.common.errors import UserError, reason_of
from ...storage.records import Profile, Weights
from .files import ModelFiles, quiet_transformers
from .hub import LOAD_ERRORS

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class TextRecipe:
    """How a model's authors prepare texts, as far as its files do not say so.

    Most say all of it: their vector is that of one token, or they ignore padding. SigLIP reads the vector at the last
    place, so that padding counts. Only its pages say that it was trained with padding and without capitals. Sources:
    transformers, ``ZeroShotImageClassificationPipeline``, ``SiglipTokenizer.canonicalize_text`` and
    ``Siglip2Tokenizer``, which the published SigLIP 2 of one size do not name.
    """

    is_padded: bool = False
    """Texts are padded to the tower's longest."""
    is_lower: bool = False
    has_punctuation: bool = True

    def prepared(self, text: str) -> str:
        """Return a text as the tokenizer shall get it."""
        text = text.lower() if self.is_lower else text
        return text if self.has_punctuation else re.sub(r"\s+", " ", text.translate(NO_PUNCTUATION)).strip()


AS_THE_FILES_SAY = TextRecipe()


@dataclass(frozen=True)
class HubTextTower:
    """A model with its own processor of texts."""

    model: Any
    processor: Any
    """A processor of transformers, or a tokenizer."""
    place: Path
    """Folder of the model."""
    most_tokens: int
    """Tokens that the model reads of a text."""
    recipe: TextRecipe = AS_THE_FILES_SAY

    @property
    def described(self) -> str:
        """How texts are prepared, in words; empty if the model's files say all of it."""
        parts = {
            f"padded to {self.most_tokens} tokens": self.recipe.is_padded,
            "lower case": self.recipe.is_lower,
            "no punctuation": not self.recipe.has_punctuation,
        }
        return ", ".join(words for words, applies in parts.items() if applies)

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> np.ndarray:
        """Return a vector of length 1 for each text, float32 [N, D]; what is beyond ``most_tokens`` is cut off."""
        options = {"padding": "max_length"} if self.recipe.is_padded else {}
        options |= {"truncation": True, "max_length": self.most_tokens, "return_tensors": "pt"}
        rows = []
        for text in texts:  # alone: a text's vector then depends on no other text
            tokens = self.processor(text=[self.recipe.prepared(text)], **options)
            output = self.model.get_text_features(**tokens)
            rows.append(output if isinstance(output, torch.Tensor) else output.pooler_output)
        vectors = torch.cat(rows).float().numpy()
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    def is_cut(self, text: str) -> bool:
        """Return whether the tower reads only the beginning of a text."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        return len(tokenizer(self.recipe.prepared(text))["input_ids"]) > self.most_tokens


def load_hub_text_tower(profile: Profile, used: Weights, place: Path) -> HubTextTower:
    """Load the text tower of the model that made a store.

    Args:
        profile: The store's profile.
        used: The weights that the store was made with.
        place: The folder of the model.

    Raises:
        UserError: The folder has other weights, or the model reads no texts.
    """
    from transformers import AutoModel

    quiet_transformers()
    files = ModelFiles(place, profile.weights, "")
    if (sha256 := files.sha256()) != used.sha256:
        raise UserError(
            f"weights {place}: SHA-256 {sha256[:16]}..., but the store was made with {used.name}, "
            f"{used.sha256[:16]}...; pass --weights with the folder of those"
        )
    files.check_configuration()
    try:
        processor = _processor(place)
        model = AutoModel.from_pretrained(
            place,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",  # transformers 5.23 forgets AIMv2's causal mask with sdpa and no padding
        )
        tokenizer = getattr(processor, "tokenizer", processor)
        most_tokens = min(_num_positions(model), int(tokenizer.model_max_length))
        recipe = _recipe(model, tokenizer)
        tower = HubTextTower(model.eval().requires_grad_(False), processor, place, most_tokens, recipe)
        tower.encode(["a word"])
    except LOAD_ERRORS as error:
        words = f"features {profile.name}: {profile.model} reads no texts from {place} ({reason_of(error)})"
        raise UserError(words) from None
    return tower


def _processor(place: Path) -> Any:
    from transformers import AutoProcessor, PreTrainedTokenizerFast

    try:
        return AutoProcessor.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except ImportError:  # SigLIP names a tokenizer that needs sentencepiece; the same one is in tokenizer.json
        if not (place / "tokenizer.json").is_file():
            raise
        return PreTrainedTokenizerFast.from_pretrained(place, local_files_only=True)


def _recipe(model: Any, tokenizer: Any) -> TextRecipe:
    if not model.config.model_type.startswith("siglip"):
        return AS_THE_FILES_SAY
    # SigLIP's tokenizer is of T5's kind, SigLIP 2's is Gemma's. Without sentencepiece, SigLIP's keeps punctuation.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_of_first = backend is None or type(backend.model).__name__ == "Unigram"
    return TextRecipe(is_padded=True, is_lower=True, has_punctuation=not is_of_first)


def _num_positions(model: Any) -> int:
    """Return how many tokens a text tower has places for."""
    for name, part in model.named_modules():
        # RoBERTa's kind begins to count behind the padding token's id: of 514 places it uses 512.
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding) and part.padding_idx is not None:
            return part.num_embeddings - part.padding_idx - 1
    return int(model.config.text_config.max_position_embeddings)
