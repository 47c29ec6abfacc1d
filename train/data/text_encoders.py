"""Tokenizers and text encoders of runs with a transformer, new or from a run's folder.

A run may come from a stranger: a tokenizer may have known parts only, the encoder must be of a known kind and have the
sizes of the run's weights, and no code is run.
"""

import base64
import contextlib
import io
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    AutoConfig,
    BertConfig,
    BertModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...storage.common.device import on_meta_device
from ...storage.common.errors import UserError, reason_of
from ...storage.common.files import read_object
from ...storage.common.terminal import one_line, say
from ...storage.hub.files import ModelFiles, download_model
from ...storage.hub.loading import load_fast_tokenizer, load_network, new_network, read_config
from ...storage.hub.names import HUB_ID
from ...storage.untrusted.tensor_shapes import shape_difference
from ..distributed import Workers
from ..settings import SMALL_TEXT_ENCODER
from ..untrusted_files import refuse_damaged
from .text_towers import (
    TOWERS,
    TextPooling,
    TextTower,
    declared_pooling,
    new_tower,
    tower_of,
    tower_pooling,
    tower_settings,
)

MAX_BYTES, MAX_CONFIG_BYTES = 64 << 20, 1 << 20
MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
NORMALIZERS = (
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Strip",
    "StripAccents",
    "Replace",
    "Precompiled",
)
SPLITTERS = (
    "BertPreTokenizer",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Split",
    "Whitespace",
    "WhitespaceSplit",
)
PROCESSORS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel")
PARTS = {
    "normalizer": (NORMALIZERS, "normalizers"),
    "pre_tokenizer": (SPLITTERS, "pretokenizers"),
    "post_processor": (PROCESSORS, "processors"),
}
"""{part: (its allowed kinds, key of the parts in a sequence of them)}"""
PUNCTUATION = {"Regex": r"[!-/:-@\[-`{-~]"}
REPLACED = (
    {"String": "``"},
    {"String": "''"},
    {"String": " "},
    {"Regex": " {2,}"},
    {"Regex": r"\s{2,}|[\n\r\t]"},
    {"Regex": r"\s+"},
    PUNCTUATION,
)
"""Patterns that may be replaced, each by at most one character. A longer replacement lets a text grow with every part,
and another pattern may take hours."""
CLIP_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
SPLIT = ({"String": " "}, {"Regex": CLIP_SPLIT}, {"Regex": r"<\|startoftext\|>|<\|endoftext\|>|" + CLIP_SPLIT})
"""Patterns that texts may be split at: Gemma's and CLIP's."""
MAX_PARTS = 8
MAX_SETTINGS_CHARACTERS = 1 << 14
"""Upper limit of the characters of all settings, without vocabulary and character tables."""
MAX_LETTER_BYTES = 64
"""Upper limit of the bytes of a character's replacement in a character table; Unicode's longest takes 33."""
MAX_TOKEN_ID = 1 << 22
"""Maximum id of a token. The library allocates memory for all smaller ids and aborts if it fails."""
SPECIAL_TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
PROBE = ["A Übung: 12 “red” circles… ☃ 円", "a"]


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a run's folder ``text_encoder``.

    Raises:
        UserError: The folder is not as a training writes it.
    """
    with refuse_damaged(folder / "tokenizer_config.json"):
        special = _special_tokens(read_object(folder / "tokenizer_config.json", MAX_CONFIG_BYTES))
    with refuse_damaged(folder / "tokenizer.json"):
        return plain_tokenizer(read_object(folder / "tokenizer.json", MAX_BYTES), special)


def plain_tokenizer(about: dict[str, Any], special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer without code.

    Args:
        about: Contents of a ``tokenizer.json``.
        special: Special tokens by their use, such as ``pad_token``.

    Raises:
        ValueError: It has parts that no encoder's tokenizer has. The library raises other errors for damaged ones.
    """
    _check(about)
    vocabulary = about["model"].get("vocab") if isinstance(about.get("model"), dict) else None
    numbers = vocabulary.values() if isinstance(vocabulary, dict) else ()
    if any(type(number) is int and number > MAX_TOKEN_ID for number in numbers):
        raise ValueError(f"its vocabulary has a token number above {MAX_TOKEN_ID:,}")
    tokenizer = Tokenizer.from_str(json.dumps(about | {"truncation": None, "padding": None}))
    if unknown := [token for token in special.values() if tokenizer.token_to_id(token) is None]:
        raise ValueError(f"its special token {unknown[0]!r} is not in its vocabulary")
    if "pad_token" not in special:
        raise ValueError("it has no pad_token")
    loaded = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    loaded(PROBE, truncation=True, max_length=3, padding=True, return_offsets_mapping=True)  # raises if unusable
    return loaded


def _special_tokens(about: Mapping[str, Any]) -> dict[str, str]:
    given = {name: about[name] for name in SPECIAL_TOKENS if about.get(name) is not None}
    tokens: dict[str, str] = {}
    for name, value in given.items():
        token = value.get("content") if isinstance(value, dict) else value
        if not isinstance(token, str):
            raise ValueError(f"its {name} is not text")
        tokens[name] = token
    return tokens


def _check(about: Mapping[str, Any]) -> None:
    model = about["model"]
    if model["type"] not in MODELS:
        raise ValueError(f"its model is {model['type']!r}; expected one of {', '.join(MODELS)}")
    tables = [table for name in PARTS for table in _check_part(name, about.get(name))]
    settings = {name: value for name, value in about.items() if name not in ("model", "added_tokens")}
    settings |= {name: value for name, value in model.items() if name not in ("vocab", "merges")}
    if len(json.dumps(settings)) - sum(map(len, tables)) > MAX_SETTINGS_CHARACTERS:
        raise ValueError(f"its settings have more than {MAX_SETTINGS_CHARACTERS:,} characters")


def _check_part(name: str, part: dict[str, Any] | None) -> list[str]:
    """Check a part and return its character tables."""
    known, inside = PARTS[name]
    waiting: list[dict[str, Any]] = [part] if part is not None else []
    tables: list[str] = []
    num_parts = 0
    while waiting:
        part, num_parts = waiting.pop(), num_parts + 1
        kind = part["type"]
        if kind == "Sequence":
            waiting += part[inside]
        elif kind not in known:
            raise ValueError(f"its {name} is {kind!r}; expected one of {', '.join(known)}")
        elif kind == "Replace" and (part["pattern"] not in REPLACED or len(part["content"]) > 1):
            raise ValueError(f"its {name} replaces {part['pattern']!r}")
        elif kind == "Split" and part["pattern"] not in SPLIT:
            raise ValueError(f"its {name} splits at {str(part['pattern'])[:80]}")
        elif kind == "Precompiled":
            tables.append(part["precompiled_charsmap"])
            _check_table(tables[-1])
        if num_parts + len(waiting) > MAX_PARTS:
            raise ValueError(f"its {name} has more than {MAX_PARTS} parts")
    return tables


def _check_table(text: str) -> None:
    """Check a SentencePiece table: the length of a search tree in 4 bytes, the tree, and zero-terminated
    replacements."""
    table = base64.b64decode(text, validate=True)
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    if (longest := max(map(len, replacements.split(b"\0")))) > MAX_LETTER_BYTES:
        raise ValueError(
            f"its character table replaces a character by {longest:,} bytes; expected {MAX_LETTER_BYTES} or fewer"
        )


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
    "t5",
    "xlm-roberta",
)
"""Encoders that output a vector for each token, and whose tokenizers map tokens to characters."""
SIZES = (
    "vocab_size",
    "embedding_size",
    "hidden_size",
    "dim",
    "d_model",
    "num_hidden_layers",
    "n_layers",
    "num_layers",
    "num_hidden_groups",
    "inner_group_num",
    "num_attention_heads",
    "n_heads",
    "num_heads",
    "d_kv",
    "intermediate_size",
    "hidden_dim",
    "d_ff",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "position_buckets",
    "max_relative_positions",
    "pooler_hidden_size",
    "conv_kernel_size",
    "conv_groups",
    "projection_dim",
    "projection_size",
)
LAYERS = ("num_hidden_layers", "n_layers", "num_layers", "num_hidden_groups", "inner_group_num")
RATES = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "dropout",
    "dropout_rate",
    "attention_dropout",
    "pooler_dropout",
    "initializer_range",
    "layer_norm_eps",
    "layer_norm_epsilon",
)
SWITCHES = ("relative_attention", "position_biased_input", "share_att_key")
ACTIVATIONS = (
    "gelu",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_pytorch_tanh",
    "quick_gelu",
    "relu",
    "silu",
    "tanh",
)
NAMES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ("hidden_act", "activation", "conv_act", "pooler_hidden_act"), ACTIVATIONS
)
NAMES |= {"norm_rel_ebd": ("none", "layer_norm"), "pos_att_type": ("c2p", "p2c")}
NAMES |= {"feed_forward_proj": ("relu", "gated-gelu")}
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
    "initializer_factor",
    "is_encoder_decoder",
)
"""Settings without effect on the token vectors of a float32 encoder."""


def read_encoder(folder: Path, shapes: dict[str, tuple[int, ...]]) -> PreTrainedModel | TextTower:
    """Return the encoder in a run's folder ``text_encoder``, with random weights.

    Args:
        folder: The folder.
        shapes: Shapes of the encoder's tensors in the run's weights, by name. Nothing is allocated before they match.

    Raises:
        UserError: They do not match, or the folder is not as a training writes it.
    """
    path = folder / "config.json"
    with refuse_damaged(path):
        about = read_object(path, MAX_CONFIG_BYTES)
        config = plain_config(about)
        for name in LAYERS:
            if (num_layers := getattr(config, name, 0) or 0) > len(shapes):
                raise ValueError(f"its {name} is {num_layers}; the run's weights have {len(shapes)} such tensors")
        with on_meta_device():
            expected = {name: tuple(value.shape) for name, value in make_encoder(config).state_dict().items()}
        if wrong := shape_difference(expected, shapes):
            raise ValueError(f"it does not match the run's weights, {wrong}")
        if unused := _unused(about, config):
            say(f"note: {path}: not used: {one_line(', '.join(unused))}")
        return make_encoder(config)


def make_encoder(config: PreTrainedConfig) -> PreTrainedModel | TextTower:
    """Return an encoder with random weights."""
    if config.model_type in TOWERS.values():
        return new_tower(config)
    return token_encoder(new_network(config))


def token_encoder(network: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a network that makes the tokens' vectors: T5's encoder, or all but the pooling layer.

    The other parts are not used, so they would never be trained.
    """
    if network.config.model_type == "t5":
        return network.get_encoder()
    network.pooler = None  # pyright: ignore[reportArgumentType]: torch takes None for a module that is absent
    return network


def plain_config(about: Mapping[str, Any]) -> PreTrainedConfig:
    """Return the sizes and settings that a ``config.json`` has for an encoder of ``MODEL_TYPES``, and nothing else.

    Raises:
        ValueError: The encoder is of another kind, or a value is impossible.
    """
    if about.get("model_type") not in (*MODEL_TYPES, *TOWERS.values()):
        expected = ", ".join((*MODEL_TYPES, *TOWERS))
        raise ValueError(f"its model_type is {about.get('model_type')!r}; expected one of {expected}")
    settings = {
        name: value
        for name, value in about.items()
        if name in (*SIZES, *RATES, *SWITCHES, *NAMES) and value is not None
    }
    if wrong := [name for name, value in settings.items() if not _is_possible(name, value)]:
        raise ValueError(f"its {wrong[0]} is {str(settings[wrong[0]])[:80]}")
    return AutoConfig.for_model(about["model_type"], **settings)


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


SMALL_SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def small_tokenizer(captions: Iterable[str], max_words: int = 20_000) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer with BERT's rules, whose subwords are frequent words and letters.

    The same captions give the same subwords; the trainers of the tokenizers library break ties at random.

    Args:
        captions: Texts to take words from.
        max_words: Number of words that are subwords themselves; other words are split into letters.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for text in captions for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:max_words]
    letters = sorted({letter for word in counts for letter in word})
    subwords = dict.fromkeys([*SMALL_SPECIAL_TOKENS.values(), *words, *letters, *(f"##{letter}" for letter in letters)])
    tokenizer = Tokenizer(
        models.WordPiece({subword: number for number, subword in enumerate(subwords)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SMALL_SPECIAL_TOKENS)


def small_bert(vocabulary_size: int) -> PreTrainedModel:
    """Return a BERT of two layers, 256 wide, with random weights."""
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        pad_token_id=0,
    )
    return token_encoder(BertModel(config))


TextEncoder = tuple[PreTrainedTokenizerFast, PreTrainedModel | TextTower, TextPooling]
"""Tokenizer, text encoder, and pooling of a sentence's vector."""


def new_text_encoder(name: str, train_captions: Iterable[str], workers: Workers) -> TextEncoder:
    """Return the tokenizer, the text encoder and the pooling of a new run. None of the model's files is executed.

    The pooling is the one that the model's files declare. If they declare none, it is [CLS], as in TACo, or, for T5,
    which has no [CLS], the mean of the tokens.

    Args:
        name: "small" for one that is learned from the captions; or a BERT-like model, T5, a model
            of sentence-transformers, CLIP or SigLIP, by folder or hub name.
        train_captions: Texts for the tokenizer of "small". Only the first process reads them.
        workers: The processes that train together.

    Raises:
        UserError: The model cannot be loaded.
    """
    if name == SMALL_TEXT_ENCODER:
        tokenizer = workers.from_first(lambda: small_tokenizer(train_captions))
        return tokenizer, small_bert(len(tokenizer)), TextPooling()
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # transformers' progress bars and messages
            files = _find_files(name)
            whole = read_config(files)
            is_tower = whole.model_type in TOWERS
            config = plain_config(tower_settings(whole.to_dict()) if is_tower else whole.to_dict())
            tokenizer = _fast_tokenizer(load_fast_tokenizer(files), config)
            network, _ = load_network(files, whole if is_tower else config)
            encoder = tower_of(network, config) if is_tower else token_encoder(network)
            pooling, note = tower_pooling(config) if is_tower else declared_pooling(files, config)
        if note and workers.is_first:
            say(f"note: text encoder {name!r}: {one_line(note)}")
        return tokenizer, encoder, pooling
    except (OSError, ValueError, ImportError, RecursionError) as error:
        raise UserError(
            f"text encoder {name!r}: not loadable ({reason_of(error)}); expected 'small', a folder with "
            "config.json, tokenizer and safetensors, or a hub name, on a machine that reaches the hub"
        ) from None


def _find_files(name: str) -> ModelFiles:
    if (folder := Path(name)).is_dir():
        return ModelFiles(folder.absolute(), folder.name, "")
    if not HUB_ID.fullmatch(name):
        raise ValueError("no such folder, and not a name of the hub")
    return download_model(name, None, f"text encoder {name!r}", "--text-encoder FOLDER")


def _fast_tokenizer(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> PreTrainedTokenizerFast:
    """Return a tokenizer as ``read_tokenizer`` will read it back from the run."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("its tokenizer does not report which characters a token covers")
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name in SPECIAL_TOKENS}
    about = json.loads(tokenizer.backend_tokenizer.to_str())
    if config.model_type == "siglip_text_model":
        _write_as_siglip(about)
    return plain_tokenizer(about, special)


def _write_as_siglip(about: dict[str, Any]) -> None:
    """Make a tokenizer convert texts to lower case and, for SigLIP (not SigLIP 2), remove punctuation, as in training.

    Published tokenizers leave this to their callers. SigLIP's is of T5's kind, SigLIP 2's of Gemma's.
    """
    parts: list[dict[str, Any]] = [{"type": "Lowercase"}]
    if about["model"]["type"] == "Unigram":
        parts += [{"type": "Replace", "pattern": PUNCTUATION, "content": ""}]
    about["normalizer"] = {"type": "Sequence", "normalizers": [*parts, *filter(None, [about.get("normalizer")])]}


def saved_text_encoder(folder: Path, shapes: dict[str, tuple[int, ...]]) -> TextEncoder:
    """Return the tokenizer of a run, its encoder with random weights, and its pooling.

    Args:
        folder: The run's folder ``text_encoder``.
        shapes: Shapes of the encoder's tensors in the run's weights, by name.

    Raises:
        UserError: The files are not as a training writes them, or do not match each other.
    """
    tokenizer, encoder = read_tokenizer(folder), read_encoder(folder, shapes)
    embeddings = encoder.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding), "encoders of the allowed kinds have a table of subwords"
    if (largest := max(tokenizer.get_vocab().values())) >= embeddings.num_embeddings:
        problem = f"has token {largest:,}; the encoder has {embeddings.num_embeddings:,} tokens"
        raise UserError(f"{folder / 'tokenizer.json'}: {problem}; train the run again")
    return tokenizer, encoder, TextPooling.read(folder)
