"""Settings of a training: which values are refused, and what the error says."""

import importlib.util
from pathlib import Path

import pytest
from vlalign.storage.common.errors import UserError
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
            "features clip_vit_b32_map: a map of each frame; set video_grid to TIMExHEIGHTxWIDTH",
        ),
        ({"features": "clip_vit_b32_map+s3d"}, "clip_vit_b32_map is a map of each frame, which cannot be joined"),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x2"},
            "video_grid 2x2: expected TIMExHEIGHTxWIDTH, such as 2x2x2",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "2x8x2"},
            "video_grid 2x8x2: a map of clip_vit_b32_map has 7 x 7 cells",
        ),
        (
            {"features": "clip_vit_b32_map", "video_grid": "12x7x7"},
            "video_grid 12x7x7: expected 512 tokens or fewer together with max_text_tokens, 30",
        ),
        (
            {"video_grid": "2x2x2"},
            "video_grid 2x2x2: features s3d are no maps",
        ),
        ({"num_video_layers": -1}, "num_video_layers -1: expected 0 or more"),
        ({"num_fusion_layers": 0}, "num_fusion_layers 0: expected 1 or more"),
        ({"objective": "taca"}, "objective taca: expected one of taco, toco"),
        ({"negatives": "hard"}, "negatives hard: expected one of cascade, random, all"),
        ({"precision": "fp16"}, "precision fp16: expected one of fp32, bf16"),
        (
            {"losses": "sentence+fuson"},
            "losses sentence.fuson: 'fuson' is no term of taco's; expected all, or sentence.token.fusion",
        ),
        ({"losses": ""}, "losses : '' is no term"),
        ({"losses": "fusion"}, "negatives cascade: no early loss finds the hard ones with losses fusion"),
        ({"losses": "pooled", "objective": "toco"}, "trains no score of ToCo's"),
        ({"losses": "token", "tokens_of_interest": "none"}, "nothing to train"),
        (
            {"max_video_tokens": 400, "max_text_tokens": 200},
            "expected 512 or fewer together with max_text_tokens, which is 200",
        ),
    ],
)
def test_an_invalid_setting_is_refused_by_name(setting, says):
    with pytest.raises(UserError, match=says):
        train_config(**{"dataset": "d", "features": "s3d", **setting})


@pytest.mark.parametrize("text", ["", "nouns", "noun+", "noun + verb", "none+noun"])
def test_an_unknown_part_of_speech_is_one_line(text):
    with pytest.raises(UserError, match="is no part of speech; expected 'none', or some of adj, adp"):
        train_config(dataset="d", features="s3d", tokens_of_interest=text)


def test_the_page_lists_all_settings_as_the_code_has_them():
    """docs/training.md's table is made by docs/make_settings.py."""
    spec = importlib.util.spec_from_file_location("make_settings", TOP / "docs" / "make_settings.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python docs/make_settings.py"
