"""Rules for preparing texts for models of transformers, as their authors or transformers' own pipeline do."""

import re
import string
from dataclasses import dataclass
from typing import Any

from ...storage.common.errors import UserError

NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
BY_PIPELINE = (
    "align",
    "altclip",
    "blip",
    "chinese_clip",
    "clip",
    "clipseg",
    "metaclip_2",
    "siglip",
    "siglip2",
    "tipsv2",
    "videoprism",
)
"""Types of models whose texts transformers' zero-shot pipeline prepares (``MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION``).
BLIP-2 is excluded: its pipeline does not use ``AutoModel``'s class, whose image and text vectors cannot be compared."""
BY_PROCESSOR = ("aimv2", "groupvit", "owlv2", "owlvit", "vision-text-dual-encoder", "xclip")
"""Types that the pipeline lacks but whose own processor is sufficient: it returns a mask, so padding has no effect."""


class NoTextRule(UserError):
    """No source states how texts are prepared for a model; its text vectors would be guesses."""


@dataclass(frozen=True)
class TextRecipe:
    """The steps of a model's text preparation that its files do not define.

    Most models' files define all steps: the vector is read at one token, or padding is ignored. SigLIP reads the vector
    at the last position, so padding matters. Only its web pages state that it was trained with padding and in lower
    case. Sources: transformers, ``ZeroShotImageClassificationPipeline``, ``SiglipTokenizer.canonicalize_text`` and
    ``Siglip2Tokenizer``, a class that published SigLIP 2 models of one image size do not name.
    """

    is_padded: bool = False
    """Texts are padded to the tower's maximum length."""
    is_lower: bool = False
    has_punctuation: bool = True

    def prepared(self, text: str) -> str:
        """Return a text prepared for the tokenizer."""
        text = text.lower() if self.is_lower else text
        return text if self.has_punctuation else re.sub(r"\s+", " ", text.translate(NO_PUNCTUATION)).strip()

    def describe(self, max_tokens: int) -> str:
        """Return how texts are prepared, in words.

        Args:
            max_tokens: Maximum number of tokens that the tower reads.
        """
        parts = {
            f"padded to {max_tokens} tokens": self.is_padded,
            "lower case": self.is_lower,
            "no punctuation": not self.has_punctuation,
        }
        return ", ".join(words for words, applies in parts.items() if applies) or "as the model's files say"


AS_THE_FILES_SAY = TextRecipe()


def text_recipe(config: Any, tokenizer: Any) -> TextRecipe:
    """Return how texts are prepared for a model.

    Args:
        config: The model's ``PreTrainedConfig``.
        tokenizer: Its tokenizer.

    Raises:
        NoTextRule: There is no rule for models of this type.
    """
    kind = config.model_type
    if kind not in (*BY_PIPELINE, *BY_PROCESSOR):
        raise NoTextRule(
            f"the preparation of texts is not known for models of type {kind!r}; search by captions or examples, or "
            "extract with another encoder, such as siglip2"
        )
    if not kind.startswith("siglip"):
        return AS_THE_FILES_SAY
    # SigLIP uses a T5 tokenizer, SigLIP 2 a Gemma tokenizer. Without sentencepiece, SigLIP's keeps punctuation.
    backend = getattr(tokenizer, "backend_tokenizer", None)
    is_of_first = backend is None or type(backend.model).__name__ == "Unigram"
    return TextRecipe(is_padded=True, is_lower=True, has_punctuation=not is_of_first)


def tokenizer_of(processor: Any) -> Any:
    """Return a processor's tokenizer; a tokenizer is returned as it is."""
    return getattr(processor, "tokenizer", processor)
