"""A run's tokenizer: ``tokenizer.json`` and the names of special tokens, of the parts that encoders' tokenizers have, and no code."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from ..outside import read_object, refusing

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
"""{part: (its kinds, what the parts of a sequence of them are called)}"""
REPLACED = ({"String": "``"}, {"String": "''"}, {"Regex": " {2,}"}, {"Regex": r"\s{2,}|[\n\r\t]"})
"""Each by one letter. A text that is replaced by a longer one grows with every part; a pattern may take hours."""
MOST_PARTS = 8
MOST_SETTINGS = 1 << 14
"""Letters of all that is neither a word nor a table of letters."""
MOST_LETTER_BYTES = 64
"""That a letter becomes in such a table; Unicode's longest takes 33."""
SPECIAL = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
PROBE = ["A Übung: 12 “red” circles… ☃ 円", "a"]


def read_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Of a run's folder ``text_encoder``. Raises ``UserError`` where it is not as a training writes it."""
    with refusing(folder / "tokenizer_config.json"):
        special = _special_tokens(read_object(folder / "tokenizer_config.json", MOST_CONFIG_BYTES))
    with refusing(folder / "tokenizer.json"):
        return plain_tokenizer(read_object(folder / "tokenizer.json", MOST_BYTES), special)


def plain_tokenizer(about: dict[str, Any], special: Mapping[str, str]) -> PreTrainedTokenizerFast:
    """``about``: what a ``tokenizer.json`` says; ``special``: tokens by what they are for, such as ``pad_token``. Raises ``ValueError``
    for parts that no encoder's tokenizer has, and whatever the library makes of others."""
    _check(about)
    tokenizer = Tokenizer.from_str(json.dumps(about | {"truncation": None, "padding": None}))
    if unknown := [token for token in special.values() if tokenizer.token_to_id(token) is None]:
        raise ValueError(f"its special token {unknown[0]!r} is none of its tokens")
    if "pad_token" not in special:
        raise ValueError("it has no pad_token")
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    made(
        PROBE, truncation=True, max_length=3, padding=True, return_offsets_mapping=True
    )  # what cannot be used shows here
    return made


def _special_tokens(about: Mapping[str, Any]) -> dict[str, str]:
    given = {name: about[name] for name in SPECIAL if about.get(name) is not None}
    tokens = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
    if wrong := [name for name, token in tokens.items() if not isinstance(token, str)]:
        raise ValueError(f"its {wrong[0]} is no text")
    return tokens


def _check(about: Mapping[str, Any]) -> None:
    model = about["model"]
    if model["type"] not in MODELS:
        raise ValueError(f"its model {model['type']!r} is none of {', '.join(MODELS)}")
    tables = [table for name in PARTS for table in _check_part(name, about.get(name))]
    settings = {name: value for name, value in about.items() if name not in ("model", "added_tokens")}
    settings |= {name: value for name, value in model.items() if name not in ("vocab", "merges")}
    if len(json.dumps(settings)) - sum(map(len, tables)) > MOST_SETTINGS:
        raise ValueError(f"its settings have more than {MOST_SETTINGS:,} letters")


def _check_part(name: str, part: dict[str, Any] | None) -> list[str]:
    """Returns its tables of letters."""
    known, inside = PARTS[name]
    waiting, tables, number = [part] if part is not None else [], [], 0
    while waiting:
        part, number = waiting.pop(), number + 1
        kind = part["type"]
        if kind == "Sequence":
            waiting += part[inside]
        elif kind not in known:
            raise ValueError(f"its {name} {kind!r} is none of {', '.join(known)}")
        elif kind == "Replace" and (part["pattern"] not in REPLACED or len(part["content"]) > 1):
            raise ValueError(f"its {name} replaces {part['pattern']!r}")
        elif kind == "Precompiled":
            tables.append(part["precompiled_charsmap"])
            _check_table(tables[-1])
        if number + len(waiting) > MOST_PARTS:
            raise ValueError(f"its {name} has more than {MOST_PARTS} parts")
    return tables


def _check_table(text: str) -> None:
    """SentencePiece's: the length of a search tree in 4 bytes, the tree, and what letters become, each with a zero behind it."""
    table = base64.b64decode(text, validate=True)
    letters = table[4 + int.from_bytes(table[:4], "little") :]
    if any(len(letter) > MOST_LETTER_BYTES for letter in letters.split(b"\0")):
        raise ValueError("its table of letters makes long texts of single ones")
