"""Settings of a training: which values are refused, and what the error says."""

import importlib.util
import re
from pathlib import Path

import pytest
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.train.recipes.train_config import train_config
from vlalign.train.settings import parse_tokens_of_interest

TOP = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("noun+verb", ("NOUN", "VERB")),
        ("noun+verb+adj", ("ADJ", "NOUN", "VERB")),
        ("verb", ("VERB",)),
        ("det+adp", ("ADP", "DET")),
        ("NOUN,PROPN", ("NOUN", "PROPN")),
        ("none", ()),
    ],
)
def test_tokens_of_interest_by_name(text, tags):
    assert parse_tokens_of_interest(text) == tags
    assert train_config(dataset="d", features="s3d", tokens_of_interest=text).data.tokens_of_interest == text


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"batch_size": 1}, "batch_size 1: expected 2 or more"),
        ({"learning_rate": 0.0}, "learning_rate 0.0: expected more than 0"),
        ({"validate_every": 0}, "validate_every 0: expected 1 or more"),
        ({"dropout": 1.0}, "dropout 1.0"),
        ({"temperature": 0.0}, "temperature 0.0"),
        ({"temperature": float("nan")}, "temperature nan"),
        (
            {"features": "clip_vit_b32_map"},
            r"features clip_vit_b32_map: .*\bvideo_grid\b.*\b2x2x2\b",
        ),
        ({"features": "clip_vit_b32_map+s3d"}, r"features clip_vit_b32_map\+s3d: clip_vit_b32_map "),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x2"},
            r"video_grid 2x2: .*\b2x2x2\b",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x8x2"},
            r"video_grid 2x8x2: .*\bclip_vit_b32_map\b.* 7 x 7 ",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "12x7x7"},
            r"video_grid 12x7x7: .*\b512\b.*\bmax_text_tokens, 30$",
        ),
        (
            {"video_grid": "2x2x2"},
            r"video_grid 2x2x2: .*\bs3d\b.*\bclip_vit_b32_map\b",
        ),
        ({"num_video_layers": -1}, r"num_video_layers -1: .*\b0\b"),
        ({"num_fusion_layers": 0}, r"num_fusion_layers 0: .*\b1\b"),
        ({"objective": "taca"}, r"objective taca: .*\btaco, toco\b"),
        ({"negatives": "hard"}, r"negatives hard: .*\bcascade, random, all\b"),
        ({"precision": "fp16"}, r"precision fp16: .*\bfp32, bf16\b"),
        ({"losses": "sentence+fuson"}, r"losses sentence\+fuson: .*'fuson'.*\bsentence\+token\+fusion\b"),
        ({"losses": ""}, r"losses \(empty\): .*''"),
        ({"losses": "fusion"}, r"negatives cascade: .*\blosses\b.*\bfusion\b.*\brandom\b.*\ball\b"),
        ({"losses": "pooled", "objective": "toco"}, r"losses pooled: .*\bfusion\b.*\btoken\b"),
        ({"losses": "token", "tokens_of_interest": "none"}, r"tokens_of_interest none: .*\blosses token\b"),
        (
            {"max_video_tokens": 400, "max_text_tokens": 200},
            r"max_video_tokens 400: .*\b512\b.*\bmax_text_tokens\b.*\b200\b",
        ),
    ],
)
def test_an_invalid_setting_is_refused_by_name(setting, says):
    with pytest.raises(SettingError, match=f"^{says}"):
        train_config(**{"dataset": "d", "features": "s3d", **setting})


@pytest.mark.parametrize("text", ["", "nouns", "noun+", "noun + verb", "none+noun"])
def test_an_unknown_part_of_speech_is_one_line(text):
    with pytest.raises(UserError, match=rf"^tokens_of_interest {re.escape(text or '(empty)')}: .*'none'.*\badj, adp\b"):
        train_config(dataset="d", features="s3d", tokens_of_interest=text)


def test_the_page_lists_all_settings_as_the_code_has_them():
    """docs/training.md's table is made by docs/make_settings.py."""
    spec = importlib.util.spec_from_file_location("make_settings", TOP / "docs" / "make_settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python docs/make_settings.py"
