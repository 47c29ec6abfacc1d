"""Tokenizers in a run from elsewhere: parts that could run for ever or fill the memory are refused."""

import base64
import re
import struct

import pytest
from helpers.runs import change, refused, search


def replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def table(*letters: bytes) -> dict:
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(struct.pack("<I", 4) + bytes(4) + b"\0".join(letters)).decode(),
    }


WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
DOUBLING = {"type": "Sequence", "normalizers": [replaced({"String": "a"}, "aa")] * 7}
TOKENIZERS = {
    "a text that doubles": ({"normalizer": DOUBLING}, r"\bnormalizer\b.*\{'String': 'a'\}"),
    "a slow pattern": (
        {"normalizer": replaced({"Regex": "(a+)+$"}, "")},
        r"\bnormalizer\b.*\{'Regex': '\(a\+\)\+\$'\}",
    ),
    "a pattern that splits": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}},
        r"\bpre_tokenizer\b.*\{'Regex': '\(a\+\)\+\$'\}",
    ),
    "a letter that is a novel": (
        {"normalizer": table(b"x", b"a" * 5000)},
        r"\b5,000\b",
    ),
    "many parts": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 500}},
        r"\bnormalizer\b.*\b8\b",
    ),
    "a template of many tokens": (
        {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]" * 9000, 2]}},
        r"\b16,384\b",
    ),
    "another model": ({"model": {"type": "Mine"}}, r"'Mine'.*\bWordPiece\b"),
    "no model": ({"model": None}, ""),
    "parts that are none": ({"normalizer": [1]}, ""),
    "too many tokens": (
        {
            "model": {
                "type": "WordLevel",
                "vocab": {"[PAD]": 0, "[UNK]": 99_999, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
                "unk_token": "[UNK]",
            }
        },
        r"\b99,999\b",
    ),
    "no unknown token": (
        {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}, "unk_token": "[UNK]"} | WORD_PIECE, "added_tokens": []},
        r"'\[UNK\]'",
    ),
}
"""{what: (changed parts, the values that the line names)}"""


@pytest.mark.parametrize("what", TOKENIZERS)
def test_a_tokenizer_with_unsupported_parts_is_refused(run, what, capsys):
    values, complaint = TOKENIZERS[what]
    change(run / "text_encoder" / "tokenizer.json", **values)
    path = run / "text_encoder" / "tokenizer.json"
    assert re.search(rf"{re.escape(str(path))}: .*{complaint}", line := refused(run, capsys)), line


def test_padding_settings_of_a_tokenizer_are_ignored(run):
    padding = {
        "strategy": {"Fixed": 10**9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    change(run / "text_encoder" / "tokenizer.json", padding=padding)
    assert search(run) == 0
