"""Pooling of text encoders (the choice of a sentence's vector), and the text towers of CLIP and SigLIP."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput

from ...storage.common.files import read_object, write_json
from ...storage.hub.files import MODULES_FILE, ModelFiles
from ...storage.hub.loading import new_network
from ..untrusted_files import refuse_damaged

CLS, MEAN, LAST = "cls", "mean", "last"
POOLINGS = {
    CLS: "the vector of its first token",
    MEAN: "the mean of its tokens",
    LAST: "the vector of its last token",
}
"""Choices of a sentence's vector."""
POOLING_FILE = "pooling.json"
"""In a run's folder ``text_encoder``. Absent: the first token, as in TACo (section 3.3) and in all earlier runs."""
MAX_CONFIG_BYTES = 1 << 20
MAX_PADDED_TOKENS = 512


@dataclass(frozen=True)
class TextPooling:
    """The pooling that makes a sentence's vector."""

    method: str = CLS
    """One of ``POOLINGS``."""
    padded_to: int = 0
    """Number of tokens that each text is padded to; the encoder reads the padding as text. 0: padding is ignored."""

    def save(self, folder: Path) -> None:
        """Write ``POOLING_FILE``, unless the pooling is the default, the first token."""
        if self != TextPooling():
            write_json(folder / POOLING_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> "TextPooling":
        """Return the pooling of a run, from its folder ``text_encoder``. Raises ``UserError`` if the file is wrong."""
        path = folder / POOLING_FILE
        if not path.exists():
            return cls()
        with refuse_damaged(path):
            about = read_object(path, MAX_CONFIG_BYTES)
            method, padded_to = about["method"], about["padded_to"]
            if method not in POOLINGS or type(padded_to) is not int or not 0 <= padded_to <= MAX_PADDED_TOKENS:
                raise ValueError(f"its pooling is {str(about)[:80]}; expected one of {', '.join(POOLINGS)}")
            return cls(method, padded_to)


SENTENCE_TRANSFORMERS = {"cls": CLS, "mean": MEAN, "lasttoken": LAST}
"""Methods by the name that sentence-transformers gives them."""


def declared_pooling(files: ModelFiles, config: PreTrainedConfig) -> tuple[TextPooling, str]:
    """Return the pooling that a model of sentence-transformers declares, and a note about it.

    For other models it is the first token, or, for T5, which has no special first token, the mean of all tokens.

    Raises:
        ValueError: The files are damaged, or declare another kind of pooling.
    """
    kinds = files.modules()
    if not kinds:
        if config.model_type != "t5":
            return TextPooling(), ""
        note = f"it has no [CLS]: a sentence's vector is {POOLINGS[MEAN]}, unless --encoder pools them itself"
        return TextPooling(MEAN), note
    poolings = [where for where, kind in kinds.items() if kind == "Pooling"]
    unused = [where for where, kind in kinds.items() if kind not in ("Transformer", "Pooling", "Normalize")]
    without = f"; its {', '.join(unused)} is not used" if unused else ""
    without += _unused_prompt(files.folder)
    if not poolings:
        return TextPooling(), without.removeprefix("; ")
    where = poolings[0]
    if not re.fullmatch(r"\w{1,40}", where):
        raise ValueError(f"its {MODULES_FILE} names the folder {where[:80]!r}")
    method = _method(read_object(files.folder / where / "config.json", MAX_CONFIG_BYTES), where)
    return TextPooling(method), f"a sentence's vector is {POOLINGS[method]}, as in its {where}/config.json{without}"


def _unused_prompt(folder: Path) -> str:
    """Return a note about the text that sentence-transformers puts before each text; empty if it puts none there."""
    path = folder / "config_sentence_transformers.json"
    about = read_object(path, MAX_CONFIG_BYTES) if path.is_file() else {}
    prompts, name = about.get("prompts"), about.get("default_prompt_name")
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else None
    return f"; its prompt {str(prompt)[:80]!r} is not put before texts" if prompt else ""


def _method(about: Mapping[str, Any], where: str) -> str:
    if isinstance(about.get("pooling_mode"), str):
        names = [about["pooling_mode"]]
    else:
        names = [
            name.removeprefix("pooling_mode_").removesuffix("_tokens").removesuffix("_token")
            for name, value in about.items()
            if name.startswith("pooling_mode_") and value is True
        ]
    if len(names) != 1 or names[0] not in SENTENCE_TRANSFORMERS:
        expected = ", ".join(SENTENCE_TRANSFORMERS)
        raise ValueError(f"its pooling in {where}/config.json is {', '.join(names)[:80]}; expected one of {expected}")
    return SENTENCE_TRANSFORMERS[names[0]]


TOWERS = {"clip": "clip_text_model", "siglip": "siglip_text_model"}
"""{kind of model with a text tower: kind of the tower}"""
PROJECTIONS = {"clip_text_model": ("projection_dim", False), "siglip_text_model": ("projection_size", True)}
"""{kind of tower: (setting with the width of its vectors, whether its last layer has a bias)}"""


class TextTower(nn.Module):
    """The text encoder of CLIP or SigLIP. Its vectors are in the space shared by texts and images.

    The last layer is applied to all tokens; the library applies it only to the sentence's token.
    """

    def __init__(self, config: PreTrainedConfig, network: PreTrainedModel, projection: nn.Module) -> None:
        super().__init__()
        self.config, self.network, self.projection = config, network, projection

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of tokens."""
        return self.network.get_input_embeddings()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, output_hidden_states: bool = False
    ) -> BaseModelOutput:
        """Return the tokens' vectors as ``last_hidden_state`` [B, N, D]."""
        out = self.network(
            input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=output_hidden_states
        )
        return BaseModelOutput(
            last_hidden_state=self.projection(out.last_hidden_state), hidden_states=out.hidden_states
        )


def new_tower(config: PreTrainedConfig) -> TextTower:
    """Return a text tower with random weights. Raises ``ValueError`` if its vectors are not as wide as its tokens."""
    name, has_bias = PROJECTIONS[config.model_type]
    width, hidden = getattr(config, name), config.hidden_size
    if width != hidden:
        raise ValueError(f"its {name} is {width}, its hidden_size {hidden}; only equal ones are supported")
    network = new_network(config)
    if hasattr(network, "head"):
        network.head = nn.Identity()  # SigLIP's network has its own last layer
    return TextTower(config, network, nn.Linear(hidden, width, bias=has_bias))


def tower_settings(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the text tower of a model with the settings ``about``."""
    text = dict(about["text_config"]) | {"model_type": TOWERS[about["model_type"]]}
    return text | {"projection_dim": about["projection_dim"]} if about["model_type"] == "clip" else text


def tower_of(model: Any, config: PreTrainedConfig) -> TextTower:
    """Return the text tower of a whole model, with its weights.

    Args:
        model: The model.
        config: The settings of its tower.
    """
    tower = new_tower(config)
    projection = model.text_projection if config.model_type == "clip_text_model" else model.text_model.head
    tower.projection.load_state_dict(projection.state_dict())
    network = {name: value for name, value in model.text_model.state_dict().items() if not name.startswith("head.")}
    tower.network.load_state_dict(network)
    return tower


def tower_pooling(config: PreTrainedConfig) -> tuple[TextPooling, str]:
    """Return the pooling of a text tower, and a note about it.

    CLIP takes the vector of the end token, a text's last token. SigLIP takes the vector at the last position: it was
    trained with texts in lower case, padded to the maximum length (transformers, model_doc/siglip and siglip2).
    """
    if config.model_type == "clip_text_model":
        return TextPooling(LAST), "the vector of a sentence is its end token's, projected"
    longest = config.max_position_embeddings
    note = f"texts are in lower case and padded to {longest} tokens; the vector of a sentence is its last token's"
    return TextPooling(LAST, longest), note
