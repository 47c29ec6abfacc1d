"""A run's text encoder without weights.

Whoever wrote the run, the encoder is of a known kind, has the sizes of the run's weights, and runs no code.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from ...storage.common.device import on_meta_device
from ...storage.common.files import read_object
from ...storage.common.terminal import one_line, say
from ...storage.hub.loading import new_network
from ..untrusted_files import difference, refusing

MOST_CONFIG_BYTES = 1 << 20
MODEL_TYPES = (
    "albert",
    "bert",
    "camembert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "mpnet",
    "roberta",
    "xlm-roberta",
)
"""Encoders that give a vector for each token, and whose tokenizers say which characters each token covers."""
SIZES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "dim",
    "num_hidden_layers",
    "n_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "n_heads",
    "intermediate_size",
    "hidden_dim",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
    "relative_attention_num_buckets",
    "position_buckets",
    "max_relative_positions",
    "pooler_hidden_size",
    "conv_kernel_size",
    "conv_groups",
)
LAYERS = ("num_hidden_layers", "n_layers", "num_hidden_groups", "inner_group_num")
RATES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "attention_dropout",
    "pooler_dropout",
    "initializer_range",
    "layer_norm_eps",
)
SWITCHES = ("relative_attention", "position_biased_input", "share_att_key")
ACTIVATIONS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python", "relu", "silu", "tanh")
NAMES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("hidden_act", "activation", "conv_act", "pooler_hidden_act"), ACTIVATIONS
)
NAMES |= {"norm_rel_ebd": ("none", "layer_norm"), "pos_att_type": ("c2p", "p2c")}
WITHOUT_EFFECT = (
    "model_type",
    "architectures",
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "use_cache",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "problem_type",
    "position_embedding_type",
    "bos_token_id",
    "eos_token_id",
    "output_past",
)
"""Settings that change nothing in a float32 encoder of which only the tokens' vectors are used."""


def read_encoder(folder: Path, shapes: dict[str, tuple[int, ...]]) -> PreTrainedModel:
    """Return the encoder in a run's folder ``text_encoder``, with random weights.

    Args:
        folder: The folder.
        shapes: Shapes of the encoder's tensors in the run's weights, by name. Nothing is allocated before they match.

    Raises:
        UserError: They do not match, or the folder is not as a training writes it.
    """
    path = folder / "config.json"
    with refusing(path):
        about = read_object(path, MOST_CONFIG_BYTES)
        config = plain_config(about)
        if max(getattr(config, name, 0) or 0 for name in LAYERS) > len(shapes):
            raise ValueError("it has more layers than the run's weights")
        with on_meta_device():
            expected = {name: tuple(value.shape) for name, value in make_encoder(config).state_dict().items()}
        if wrong := difference(expected, shapes):
            raise ValueError(f"it does not match the run's weights, {wrong}")
        if unused := _unused(about, config):
            say(f"note: {path}: not used: {one_line(', '.join(unused))}")
        return make_encoder(config)


def make_encoder(config: PreTrainedConfig) -> PreTrainedModel:
    """Return an encoder with random weights."""
    return without_pooler(new_network(config))


def without_pooler(encoder: PreTrainedModel) -> PreTrainedModel:
    """Remove the pooling layer and return the encoder. Only the tokens' vectors are used, so it would never be
    trained."""
    encoder.pooler = None  # pyright: ignore[reportArgumentType]: torch takes None for a module that is absent
    return encoder


def plain_config(about: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the sizes and settings that a ``config.json`` has for an encoder of ``MODEL_TYPES``, and nothing else.

    Raises:
        ValueError: The encoder is of another kind, or a value is impossible.
    """
    if about.get("model_type") not in MODEL_TYPES:
        raise ValueError(f"its model_type is {about.get('model_type')!r}; expected one of {', '.join(MODEL_TYPES)}")
    kept = {
        name: value
        for name, value in about.items()
        if name in (*SIZES, *RATES, *SWITCHES, *NAMES) and value is not None
    }
    if wrong := [name for name, value in kept.items() if not _is_possible(name, value)]:
        raise ValueError(f"its {wrong[0]} is {str(kept[wrong[0]])[:80]}")
    return AutoConfig.for_model(about["model_type"], **kept)


def _is_possible(name: str, value: Any) -> bool:
    if name in SWITCHES:
        return isinstance(value, bool)
    if name in NAMES:
        values = value.split("|") if isinstance(value, str) else value
        return isinstance(values, list) and all(choice in NAMES[name] for choice in values)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (
        isinstance(value, int) and -1 <= value < 1 << 31 if name in SIZES else math.isfinite(value) and 0 <= value <= 1
    )


def _unused(about: Mapping[str, Any], config: PreTrainedConfig) -> list[str]:
    """Return the names of settings that are dropped although they would change something."""
    usual = config.to_dict()
    return [
        name
        for name, value in about.items()
        if name not in WITHOUT_EFFECT and usual.get(name) != value and value is not None
    ]
