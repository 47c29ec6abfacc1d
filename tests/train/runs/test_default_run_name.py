"""Names of runs: what differs from the recipe is in them."""

import re
from pathlib import Path

import pytest
from vlalign.train.recipes.recipes import make_config
from vlalign.train.runs.folder import changed_settings, default_run_name

DOCS = Path(__file__).resolve().parents[3] / "docs"


def name(recipe, dataset="toy", init=None, seed=None, **given):
    init_folder = Path("runs") / init if init else None
    config = make_config(recipe, {"dataset": dataset, "features": "s3d", **({"init": init} if init else {}), **given})
    return default_run_name(config, init_folder, seed=seed)


def test_a_recipe_as_it_is_adds_nothing():
    assert name("taco-small") == "taco-s3d-seed0"
    assert name("taco-youcook2", "youcook2", features="resnet152+s3d", seed="seeds0-4") == "taco-resnet152+s3d-seeds0-4"


def test_changed_settings_are_in_the_name_and_those_of_the_recipe_are_not():
    assert name("taco-small", num_steps=100, seed=None) == "taco-s3d-num_steps=100-seed0"
    assert name("taco-small", num_negatives=3) == "taco-s3d-seed0"
    assert name("taco-small", losses="sentence+fusion", learning_rate=1e-5) == (
        "taco-s3d-learning_rate=1e-05-losses=sentence+fusion-seed0"
    )


def test_a_recipe_that_is_not_the_usual_one_begins_the_name():
    assert name("taco-youcook2-ablation", "youcook2") == "taco-youcook2-ablation-s3d-seed0"
    assert name("taco-youcook2-finetune", "youcook2", init="whole") == "taco-s3d-from-whole-seed0"


@pytest.mark.parametrize("page", ["finetuning.md", "objectives.md"])
def test_the_run_that_cmcms_example_starts_from_is_that_of_its_baseline(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    usual = {"dataset": "msrvtt", "protocol": ""}  # vlalign-preprocess writes 1k-A where no --protocol is given
    [init] = re.findall(r"--recipe cmcm-msrvtt-finetune --init (\S+)", text)
    assert init == default_run_name(make_config("cmcm-msrvtt-baseline", usual), None)


def test_a_grid_that_the_features_do_not_have_is_no_change():
    config = make_config("cmcm-msrvtt", {"dataset": "msrvtt", "features": "s3d"})
    assert not {"video_grid", "code_layers"} & set(changed_settings(config))


@pytest.mark.parametrize("value", ["../../elsewhere", "/home/x/bert base", "a\nb"])
def test_no_value_leads_out_of_the_folder_or_has_spaces(value):
    found = name("taco-small", text_encoder=value)
    assert "/" not in found and found.isprintable() and " " not in found


def test_many_settings_become_a_hash_that_tells_them_apart():
    long = [name("taco-small", text_encoder="x" * 300 + end) for end in "ab"]
    assert long[0] != long[1] and all(len(each) < 60 and "settings-" in each for each in long)


def test_a_name_that_is_too_long_has_a_hash_of_the_run_that_it_starts_from():
    fits, one, other = (
        name("taco-youcook2-finetune", "youcook2", init=init) for init in ("i" * 235, "a" * 240, "b" * 240)
    )
    assert len(fits) == 255 and fits == f"taco-s3d-from-{'i' * 235}-seed0"
    assert one != other and all(len(each) < 40 and each.startswith("taco-s3d-from-") for each in (one, other))
