"""A setting that changes nothing is refused, and one that is not refused changes something."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.labelled import make_questions, make_segments
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import GATED, NCL, SPOKEN, at, options, settings_of, trainer
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train import train
from vlalign.train.cli.train import main as train_main
from vlalign.train.comparison.suite_files import all_suites, given_for, read_suite, row_config
from vlalign.train.comparison.suites import run_suite
from vlalign.train.recipes.recipes import RECIPES, make_config
from vlalign.train.recipes.train_config import setting_types, train_config

SHORT = ["--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--validate-every", "1", "--device", "cpu"]
REFUSED = {
    "the default recipe": (
        ["--embedding-size", "8"],
        "--embedding-size 8",
        "words",
        "gated",
    ),
    "its default value": (["--embedding-size", "6144"], "--embedding-size 6144", "words", "gated"),
    "a trained bag": (
        ["--bag", "trained", "--text-encoder", "/does/not/exist"],
        "--text-encoder /does/not/exist",
        "words",
        "bag is solved",
    ),
    "no bag": (["--losses", "word", "--bag", "trained"], "--bag trained", "words", "losses has bag"),
    "another objective's": (["--num-negatives", "2"], "--num-negatives 2", "words", "taco, toco"),
    "a learned scale": (["--temperature", "1"], "--temperature 1.0", "words", "taco, toco, toco-mlm, ncl"),
    "a margin": (["--objective", "taco", "--margin", "0.2"], "--margin 0.2", "taco", "ssml, hard-triplet, cmcm, vqa"),
    "a temperature": (
        ["--objective", "ssml", "--temperature", "0.1"],
        "--temperature 0.1",
        "ssml",
        "taco, toco, toco-mlm, ncl",
    ),
    "no fusion layers": (
        ["--objective", "ncl", "--num-fusion-layers", "1"],
        "--num-fusion-layers 1",
        "ncl",
        "taco, toco",
    ),
    "no fusion loss": (
        ["--objective", "taco", "--losses", "sentence", "--num-negatives", "2"],
        "--num-negatives 2",
        "taco",
        "losses has fusion",
    ),
    "no token loss": (
        ["--objective", "taco", "--losses", "sentence+fusion", "--token-loss-weight", "1"],
        "--token-loss-weight 1.0",
        "taco",
        "losses has token",
    ),
    "all negatives": (
        ["--objective", "taco", "--negatives", "all", "--num-negatives", "2"],
        "--num-negatives 2",
        "taco",
        "negatives is cascade or random",
    ),
    "no weights": (
        ["--objective", "ncl", "--density-neighbors", "2"],
        "--density-neighbors 2",
        "ncl",
        "pair_weights is density or discard",
    ),
    "no biases": (
        ["--objective", "ncl", "--no-normalized-loss", "--query-queue", "9"],
        "--query-queue 9",
        "ncl",
        "normalized_loss",
    ),
    "a gated encoder": (
        ["--objective", "ncl", *options(GATED), "--max-text-tokens", "9"],
        "--max-text-tokens 9",
        "ncl",
        "encoder is transformer",
    ),
    "a flag": (["--objective", "toco", "--no-normalized-loss"], "--normalized-loss False", "toco", "taco, ncl, cmcm"),
    "one stage": (
        ["--objective", "ncl", "--stage-weights", "set"],
        "--stage-weights set",
        "ncl",
        "taco, toco, toco-mlm",
    ),
    "no codebook": (
        ["--objective", "cmcm", "--codebook-size", "0", "--code-loss-weight", "1"],
        "--code-loss-weight 1.0",
        "cmcm",
        "codebook_size",
    ),
    "one clip of a video": (
        ["--objective", "ssml", "--intra-video-rate", "0.1"],
        "--intra-video-rate 0.1",
        "ssml",
        "clips_per_video",
    ),
}
"""{what: (options, what the message begins with, the objective, a part of when the setting is read)}"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("unused"))


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_changes_nothing_is_refused(toy, capsys, case):
    call, named, objective, owner = REFUSED[case]
    before = list(toy.path.rglob("*"))
    assert train_main([*at(toy), *SHORT, *call]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"vlalign-train: error: {named}: ") and f"objective {objective}" in line
    assert owner in line
    assert list(toy.path.rglob("*")) == before, "nothing was written"


def test_whoever_writes_it_and_wherever(toy, tmp_path, capsys):
    file = tmp_path / "options.yaml"
    file.write_text("embedding-size: 6144\n", encoding="utf-8")
    for call in (["--config", str(file)], ["--embedding-size", "6144", "--seeds", "0-1"]):
        assert train_main([*at(toy), *SHORT, *call]) == 2
        assert "--embedding-size 6144: " in capsys.readouterr().err
    with pytest.raises(SettingError, match=r"embedding_size 6144: .*objective words"):
        train(toy.path, settings={"features": "s3d", "embedding_size": 6144})
    assert not toy.runs.exists()


def test_a_value_that_no_objective_takes_is_refused_for_the_value(toy, capsys):
    assert train_main([*at(toy), *SHORT, "--num-negatives", "0"]) == 2
    assert re.search(r"--num-negatives 0: .*\b1\b", capsys.readouterr().err)


# Recipes and tables of the papers


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_give_nothing_that_their_objective_does_not_use(name):
    given = {
        "dataset": "d",
        "features": RECIPES[name].get("features", "s3d"),
        "init": "x" if "finetune" in name else "",
    }
    config = make_config(name, given)
    shared = {setting for part, settings in ON_PURPOSE.items() if part in name.split("-") for setting in settings}
    assert not config.ignored_settings().keys() & RECIPES[name].keys() - shared


ON_PURPOSE = {
    "baseline": {"code_loss_weight", "code_layers", "density_neighbors"},
    "ssml": {"intra_video_rate", "clips_per_video", "pair_weights"},
    "vqa": {"clips_per_video", "pair_weights"},
    "segmentation": {"text_encoder"},
}
"""{part of a recipe's name: settings that it shares with others of its paper}"""


def test_every_row_of_every_table_can_still_be_run():
    for suite in all_suites():
        for dataset in suite.datasets:
            for row in suite.rows_for(dataset):
                assert row_config(suite, row, dataset, {}).objective.name


def test_a_setting_for_a_table_reaches_the_rows_that_use_it(tmp_path):
    suite, given = read_suite("taco-table3"), {"num_negatives": 2, "learning_rate": 0.1}
    [dataset] = [name for name in suite.datasets if name == "youcook2"]
    reached = {row.name: given_for(suite, row, dataset, given) for row in suite.rows_for(dataset)}
    assert reached["L1"] == {"learning_rate": 0.1} and reached["L1 + L2 + L3, cascade"] == given
    make_toy(tmp_path, name="youcook2")
    with pytest.raises(SettingError, match=r"margin 0.2: .*taco-table3"):
        run_suite(tmp_path / "youcook2", "taco-table3", settings={"features": "s3d", "margin": 0.2})
    assert not (tmp_path / "youcook2" / "runs").exists()


# Each setting with each objective: it changes the training, or it is refused

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "words": ("toy", {"objective": "words", "encoder": "words"}),
    "words, one score": ("toy", {"objective": "words", "encoder": "words", "losses": "word"}),
    "words, trained": ("toy", {"objective": "words", "encoder": "words", "bag": "trained"}),
    "ssml": ("toy", {"objective": "ssml", **GATED}),
    "ssml, discarded": (
        "toy",
        {"objective": "ssml", **GATED, "pair_weights": "discard", "density_neighbors": 2, "density_threshold": 0.4},
    ),
    "ssml, htm": ("toy", {"objective": "ssml", "encoder": "htm", "embedding_size": 16}),
    "ssml, weighted": ("toy", {"objective": "ssml", **GATED, "pair_weights": "density", "clips_per_video": 2}),
    "mil-nce": ("toy", {"objective": "mil-nce", **GATED}),
    "ncl, gated": ("toy", {"objective": "ncl", **GATED, **NCL}),
    "vqa": ("asked", {"objective": "vqa", **GATED}),
    "hard-triplet": ("toy", {"objective": "hard-triplet", **GATED}),
    "ncl, ssb": ("toy", {"objective": "ncl", "encoder": "ssb"}),
    "ncl": ("toy", {"objective": "ncl"}),
    "cmcm": ("toy", {"objective": "cmcm", "codebook_size": 12}),
    "cmcm, baseline": ("toy", {"objective": "cmcm", "codebook_size": 0}),
    "taco": ("toy", {"objective": "taco"}),
    "taco, sentences": ("toy", {"objective": "taco", "losses": "sentence"}),
    "taco, tokens": ("toy", {"objective": "taco", "losses": "token"}),
    "taco, fusion": ("toy", {"objective": "taco", "losses": "fusion", "negatives": "random"}),
    "taco, all": ("toy", {"objective": "taco", "negatives": "all"}),
    "toco": ("toy", {"objective": "toco"}),
    "toco, pairs": ("toy", {"objective": "toco", "losses": "fusion"}),
    "toco-mlm": ("toy", {"objective": "toco-mlm"}),
    "vqa, transformer": ("asked", {"objective": "vqa"}),
    "segmentation": ("segmented", {"objective": "segmentation", "max_video_tokens": 40}),
    "spoken": ("spoken", {k: v for k, v in SPOKEN.items() if k != "dataset"}),
}
"""{case: (data set, settings)}"""
FAST = ("words", "words, one score", "ssml", "mil-nce", "ncl, gated", "vqa", "hard-triplet")
CHANGED: dict[str, Any] = {
    "tokens_of_interest": "det",
    "max_video_tokens": 2,
    "max_text_tokens": 3,
    "shuffle_shards": 1,
    "clips_per_video": 2,
    "text_encoder": "/does/not/exist",
    "embedding_size": 8,
    "glu_size": 16,
    "num_video_layers": 2,
    "num_fusion_layers": 1,
    "additions": "none",
    "dropout": 0.5,
    "precision": "bf16",
    "seed": 1,
    "num_steps": 7,
    "batch_size": 6,
    "optimizer": "adam",
    "learning_rate": 0.1,
    "warmup_steps": 1,
    "schedule": "constant",
    "weight_decay": 0.5,
    "parameter_groups": "*:lr=3",
    "temperature": 0.3,
    "pair_weights": "density",
    "density_neighbors": 1,
    "density_vectors": "centered",
    "density_threshold": 0.1,
    "query_queue": 7,
    "margin": 0.7,
    "loss_scale": 3.0,
    "learned_temperature": True,
    "intra_video_rate": 0.9,
    "captions_per_clip": 2,
    "negatives": "random",
    "num_negatives": 1,
    "token_loss_weight": 3.0,
    "token_score_weight": 3.0,
    "fusion_score_weight": 3.0,
    "sentence_score_weight": 3.0,
    "idf": "tag",
    "loss_sum": True,
    "codebook_size": 5,
    "code_loss_weight": 3.0,
    "code_vector": "codes",
    "summary_layer": "none",
}
"""{setting: another value than all cases have}"""
ELSEWHERE = {
    "dataset": "says what to train on",
    "protocol": "says what to train on",
    "features": "says what to train on",
    "video_grid": "refused for features that are no maps, and needed for maps",
    "code_layers": "needs maps: tested in objectives/test_cmcm.py",
    "objective": "says what is learned",
    "recipe": "says where settings come from",
    "init": "says what training starts from",
    "encoder": "decides which settings are used",
    "video_tower": "needs a store of frames: tested in test_video_tower.py",
    "frame_augmentation": "needs a video tower: tested in test_video_tower.py",
    "bag": "decides which settings are used; tested in objectives/test_words.py",
    "losses": "decides which settings are used; refused where there is nothing to choose",
    "normalized_loss": "decides which settings are used; tested in losses/test_ncl.py",
    "micro_batch_size": "gives the same losses by design: tested in test_step.py",
    "compile": "gives the same losses by design: tested in models/test_compiling.py",
    "validate_every": "decides which step is kept",
    "ema_decay": "changes the weights that are kept: tested in test_trainer.py",
    "validation_share": "changes the data set's split, if it has none for validation",
    "stage_weights": "changes the score after the last step",
}
"""{setting that two steps do not show: what it does}"""


def test_each_setting_is_tried_or_its_effect_is_named():
    assert CHANGED.keys() | ELSEWHERE.keys() == setting_types().keys() and not CHANGED.keys() & ELSEWHERE.keys()


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, DatasetFolder]:
    root = tmp_path_factory.mktemp("matrix")
    questions, segments = make_questions(root / "a"), make_segments(root / "b")
    return {"toy": make_toy(root / "c"), "asked": questions, "segmented": segments, "spoken": make_spoken(root / "d")}


def effect(dataset: DatasetFolder, folder: Path, settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two steps of a training give: losses, weights, and the weights of the score."""
    features = {"toy": "s3d"}.get(dataset.name, "resnet152")
    if dataset.name == "spoken":
        features = next(store.name for store in (dataset.path / "features").iterdir() if store.name != "logmel")
    values = {
        **settings_of(),
        "dataset": dataset.name,
        "features": features,
        "dropout": 0.1,
        "warmup_steps": 0,
        **settings,
    }
    values = {name: value for name, value in values.items() if name != "num_negatives" or name in settings}
    made = trainer(dataset, folder, **values)
    losses = [sorted(made.train_step(made.make_inputs(step))[0].items()) for step in range(2)]
    digest = hashlib.sha256()
    for name, value in sorted(made.model.state_dict().items()):
        digest.update(name.encode() + str(value.shape).encode() + value.detach().float().cpu().numpy().tobytes())
    return losses, digest.hexdigest(), made.config.score_weights


def tried(case: str) -> Iterator[tuple[str, bool]]:
    """The settings of a case, and whether it is said to use them."""
    dataset, settings = CASES[case]
    config = train_config(dataset=dataset, features="s3d", **settings)
    for name in CHANGED:
        yield name, name in config.flat() and name not in config.ignored_settings()


@pytest.mark.parametrize("case", [c if c in FAST else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_a_setting_changes_two_steps_or_is_unused(datasets, tmp_path, case):
    torch.set_num_threads(1)
    name, settings = CASES[case]
    dataset = datasets[name]
    usual = effect(dataset, tmp_path / "usual", settings)
    assert effect(dataset, tmp_path / "again", settings) == usual, "the same settings give the same"
    wrong = []
    for setting, is_used in tried(case):
        if settings.get(setting) == CHANGED[setting]:
            continue
        try:
            found = effect(dataset, tmp_path / setting, {**settings, setting: CHANGED[setting]}) != usual
        except SettingError as error:
            if error.setting == setting and not is_used:
                continue  # refused for its value
            found = True
        except UserError:  # there is no such encoder: it was looked for
            found = True
        if found != is_used:
            wrong.append((setting, "changes" if found else "does not change", "the training"))
    assert not wrong
