"""A run's tokenizer: ``tokenizer.json`` and the names of special tokens.

Whoever wrote the files, only parts that encoders' tokenizers have are accepted, and no code is run.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ...storage.common.files import read_object
from ..untrusted_files import refusing

MOST_BYTES, MOST_CONFIG_BYTES = 32 << 20, 1 << 20
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
SPLITTERS = ("BertPreTokenizer", "ByteLevel", "Metaspace", "Punctuation", "Whitespace", "WhitespaceSplit", "Digits")
PROCESSORS = ("TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel")
PARTS = {
    "normalizer": (NORMALIZERS, "normalizers"),
    "pre_tokenizer": (SPLITTERS, "pretokenizers"),
    "post_processor": (PROCESSORS, "processors"),
}
"""{part: (its allowed kinds, key of the parts in a sequence of them)}"""
REPLACED = ({"String": "``"}, {"String": "''"}, {"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"})
"""Patterns that may be replaced, each by at most one character. A longer replacement lets a text grow with every part,
and another pattern may take hours."""
MOST_PARTS = 8
MOST_SETTINGS = 1 << 14
"""Upper limit of the characters of all settings, without vocabulary and character tables."""
MOST_LETTER_BYTES = 64
"""Upper limit of what a character becomes in such a table, in bytes; Unicode's longest takes 33."""
MOST_NUMBER = 1 << 22
"""Largest number of a token. The library takes memory for all smaller ones, too, and aborts if there is none."""
SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
PROBE = ["A Übung: 12 “red” circles… ☃ 円", "a"]


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Return the tokenizer in a run's folder ``text_encoder``.

    Raises:
        UserError: The folder is not as a training writes it.
    """
    with refusing(folder / "tokenizer_config.json"):
        special = _special_tokens(read_object(folder / "tokenizer_config.json", MOST_CONFIG_BYTES))
    with refusing(folder / "tokenizer.json"):
        return plain_tokenizer(read_object(folder / "tokenizer.json", MOST_BYTES), special)


def plain_tokenizer(about: dict[str, Any], special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer without code.

    Args:
        about: What a ``tokenizer.json`` says.
        special: Special tokens by their use, such as ``pad_token``.

    Raises:
        ValueError: It has parts that no encoder's tokenizer has. The library raises other errors for damaged ones.
    """
    _check(about)
    vocabulary = about["model"].get("vocab") if isinstance(about.get("model"), dict) else None
    numbers = vocabulary.values() if isinstance(vocabulary, dict) else ()
    if any(type(number) is int and number > MOST_NUMBER for number in numbers):
        raise ValueError(f"its vocabulary has a number above {MOST_NUMBER:,}")
    tokenizer = Tokenizer.from_str(json.dumps(about | {"truncation": None, "padding": None}))
    if unknown := [token for token in special.values() if tokenizer.token_to_id(token) is None]:
        raise ValueError(f"its special token {unknown[0]!r} is not in its vocabulary")
    if "pad_token" not in special:
        raise ValueError("it has no pad_token")
    loaded = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    loaded(PROBE, truncation=True, max_length=3, padding=True, return_offsets_mapping=True)  # raises if unusable
    return loaded


def _special_tokens(about: Mapping[str, Any]) -> dict[str, str]:
    given = {name: about[name] for name in SPECIAL if about.get(name) is not None}
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
    if len(json.dumps(settings)) - sum(map(len, tables)) > MOST_SETTINGS:
        raise ValueError(f"its settings have more than {MOST_SETTINGS:,} characters")


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
        elif kind == "Precompiled":
            tables.append(part["precompiled_charsmap"])
            _check_table(tables[-1])
        if num_parts + len(waiting) > MOST_PARTS:
            raise ValueError(f"its {name} has more than {MOST_PARTS} parts")
    return tables


def _check_table(text: str) -> None:
    """Check a SentencePiece table: the length of a search tree in 4 bytes, the tree, and zero-terminated
    replacements."""
    table = base64.b64decode(text, validate=True)
    replacements = table[4 + int.from_bytes(table[:4], "little") :]
    if any(len(replacement) > MOST_LETTER_BYTES for replacement in replacements.split(b"\0")):
        raise ValueError("its character table replaces single characters by long texts")
