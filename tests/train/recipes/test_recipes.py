"""Every recipe runs from end to end: trained for two steps, small, on a data set of its kind, and evaluated."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from helpers.clips_of_text import save_wide_clip
from helpers.labelled import make_questions, make_segments
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import at
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from transformers import CLIPTextConfig, CLIPTextModel
from vlalign.extract.models.clip import ClipViTB32
from vlalign.storage.captions.files import read_captions, read_captions_about, write_captions_about
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.loop.parameter_groups import parameter_groups
from vlalign.train.losses import LearnedTemperature
from vlalign.train.recipes.recipes import RECIPES, describe, make_config, usual_recipe
from vlalign.train.runs.run_json import read_config, read_run

SMALL = {
    "num_steps": 2,
    "batch_size": 4,
    "num_negatives": 2,
    "validate_every": 2,
    "query_queue": 8,
    "density_neighbors": 2,
}
GIVEN = {"text_encoder": "small", "embedding_size": 8, "codebook_size": 8, "clips_per_video": 2, "glu_size": 16}
"""Instead of what a recipe says, where it says something else than none."""
OF_FEATURES = ("features", "protocol", "video_tower", "parameter_groups")
"""What is not a recipe's own with the features of these data sets."""
BEFORE = {"taco": "taco-howto100m", "toco": "toco-howto100m", "ssml": "ssml-howto100m", "vqa": "ssml-howto100m"}
BEFORE |= {"segmentation": "taco-howto100m"}
BEFORE |= dict.fromkeys(("ssml-htm-msrvtt-finetune", "ssml-htm-lsmdc-finetune"), "ssml-htm-howto100m")
BEFORE |= {
    "cmcm-smit-second-finetune": "cmcm-smit-finetune",
    "cmcm-smit-second-baseline-finetune": "cmcm-smit-baseline",
}
"""{objective, or recipe: what its finetuning goes on from}; of cmcm's others, the recipe's own baseline."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, tuple[DatasetFolder, str]]:
    """{kind: a data set and its features}"""
    root = tmp_path_factory.mktemp("recipes")
    return {
        "pairs": (make_toy(root / "pairs"), "s3d"),
        "vqa": (make_questions(root / "vqa", num_videos=20), "resnet152"),
        "segmentation": (make_segments(root / "segmentation", num_videos=8), "resnet152"),
        "maps": (make_spoken(root / "pictures", num_clips=16, features="clip_vit_b32_map"), "clip_vit_b32_map"),
    }


def kind_of(name: str) -> str:
    recipe = RECIPES[name]
    if recipe.get("video_grid"):
        return "maps"
    return recipe["objective"] if recipe.get("objective") in ("vqa", "segmentation") else "pairs"


def train(name: str, dataset: DatasetFolder, features: str, init: Path | None = None) -> Path:
    recipe = RECIPES[name]
    settings = SMALL | {option: value for option, value in GIVEN.items() if recipe.get(option)} | {"features": features}
    if recipe.get("encoder") == "mean":  # texts as wide as the features of ``toy``
        texts = (caption.caption for caption in read_captions(dataset.captions))
        settings["text_encoder"] = str(save_wide_clip(texts, dataset.root / "clip", 1024))
    config = make_config(name, {**settings, "dataset": "d", "init": "x" if init else ""})
    used = config.flat().keys() - config.ignored_settings().keys()
    settings = {option: value for option, value in settings.items() if option in used}
    about = read_captions_about(dataset.captions)
    write_captions_about(dataset.captions, about | {"protocol": recipe.get("protocol", "")})
    call = [*at(dataset), "--recipe", name, "--run-name", name, *(["--init", str(init)] if init else [])]
    assert train_main([*call, *(f"--{option.replace('_', '-')}={value}" for option, value in settings.items())]) == 0
    return dataset.runs / name


def init_of(name: str, dataset: DatasetFolder, features: str) -> Path | None:
    """Return the run that a recipe's training starts from, trained first if it is not there."""
    if not name.endswith("-finetune"):
        return None
    before = BEFORE.get(name) or BEFORE.get(RECIPES[name]["objective"]) or f"{name.removesuffix('-finetune')}-baseline"
    folder = dataset.runs / before
    return (
        folder
        if (folder / "run.json").exists()
        else train(before, dataset, features, init_of(before, dataset, features))
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prints_itself_and_runs(datasets, name, capsys):
    dataset, features = datasets[kind_of(name)]
    init = init_of(name, dataset, features)
    capsys.readouterr()
    if not (dataset.runs / name / "run.json").exists():
        folder = train(name, dataset, features, init)
        settings = capsys.readouterr().err
        unused = read_config(read_run(folder)).ignored_settings()
        for option, value in RECIPES[name].items():
            if option not in {*SMALL, *GIVEN, *OF_FEATURES, *unused}:
                assert any(
                    line.split()[:2] == [option, str(value)] for line in settings.splitlines() if line.strip()
                ), option
    folder = dataset.runs / name
    assert evaluate_main([*at(dataset), name]) == 0
    assert read_json(folder / "metrics.json")["run"] == name and (folder / "report.html").exists()


def test_a_recipes_grid_goes_with_its_features():
    assert make_config("cmcm-msrvtt", {"dataset": "msrvtt"}).data.grid == (2, 2, 2)
    given = {"dataset": "msrvtt", "features": "s3d"}
    config = make_config("cmcm-msrvtt", given)
    assert config.data.grid is None and "  video_grid" in describe(config, given)
    assert config.flat()["code_layers"] == "linear", "convolutions need a grid"
    joined = make_config("cmcm-smit", {"dataset": "smit"}).data
    assert joined.grid == (3, 3, 3) and joined.features == "resnet152_map+tsm_resnet50_map"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_whole_configuration(name):
    given = {"dataset": "d", "features": "s3d"} | ({"init": "run"} if name.endswith("-finetune") else {})
    assert make_config(name, given).recipe == name


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("taco", "youcook2", "", ""), "taco-youcook2"),
        (("taco", "youcook2", "retrieval", "run"), "taco-youcook2-finetune"),
        (("taco", "msrvtt", "1k-A", ""), "taco-msrvtt-split1"),
        (("taco", "msrvtt", "1k-A-7k", ""), "taco-msrvtt-split2"),
        (("taco", "msrvtt", "1k-A-7k", "run"), "taco-msrvtt-split2-finetune"),
        (("taco", "activitynet", "", ""), "taco-activitynet"),
        (("taco", "howto100m", "captions", ""), "taco-howto100m"),
        (("toco", "youcook2", "", ""), "toco-youcook2"),
        (("taco", "demo", "", ""), "taco-small"),
        ((None, "demo", "", ""), "default"),
        ((None, "demo", "", "runs/before"), "default"),
        (("words", "youcook2", "", ""), "default"),
        ((None, "youcook2", "", ""), "taco-youcook2"),
        ((None, "youcook2", "", "runs/before"), "taco-youcook2-finetune"),
        (("toco", "mine", "", "run"), "toco-small"),
        (("ssml", "howto100m", "captions", ""), "ssml-howto100m"),
        (("ssml", "msvd", "", "run"), "ssml-msvd-finetune"),
        (("ncl", "activitynet", "", ""), "ncl-activitynet"),
        (("cmcm", "msrvtt", "1k-A", "run"), "cmcm-msrvtt-finetune"),
        (("mil-nce", "howto100m", "", ""), "mil-nce-small"),
    ],
)
def test_the_usual_recipe_is_the_papers_for_the_data_set(asked, expected):
    assert usual_recipe(*asked) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "taco-youcook2",
            {
                "num_steps": 30_000,
                "batch_size": 128,
                "learning_rate": 1e-4,
                "warmup_steps": 5_000,
                "num_negatives": 8,
                "num_video_layers": 2,
                "num_fusion_layers": 2,
                "max_video_tokens": 48,
                "max_text_tokens": 30,
            },
        ),
        ("taco-howto100m", {"num_steps": 500_000, "batch_size": 64, "num_video_layers": 4}),
        ("taco-youcook2-finetune", {"num_steps": 20_000, "learning_rate": 2e-5, "num_video_layers": 4}),
        ("taco-activitynet", {"max_video_tokens": 256, "max_text_tokens": 256}),
        (
            "toco-youcook2",
            {
                "num_steps": 100_000,
                "batch_size": 64,
                "warmup_steps": 10_000,
                "num_negatives": 8,
                "token_loss_weight": 0.5,
                "num_video_layers": 2,
                "num_fusion_layers": 2,
                "optimizer": "adamw",
                "tokens_of_interest": "noun+verb+adj",
                "idf": "tf-idf",
                "loss_sum": True,
                "additions": "none",
            },
        ),
        ("toco-mlm-msrvtt", {"objective": "toco-mlm", "token_loss_weight": 0.5, "optimizer": "adamw"}),
        ("toco-howto100m", {"num_steps": 1_000_000, "num_negatives": 16}),
    ],
)
def test_recipes_have_the_papers_values(name, expected):
    """TACo section 4.3 and ToCo section 4.3, read again."""
    settings = make_config(name, {"dataset": "d", "init": "run" if name.endswith("-finetune") else ""}).flat()
    assert {setting: settings[setting] for setting in expected} == expected


def test_a_recipe_prints_itself_and_a_typo_is_refused(toy, capsys):
    call = [
        *at(toy),
        "--features",
        "s3d",
        "--num-steps",
        "1",
        "--batch-size",
        "4",
        "--run-name",
        "printed",
        "--objective",
        "toco",
    ]
    assert train_main(call) == 0
    said = capsys.readouterr().err
    assert "  tokens_of_interest     noun+verb+adj                  recipe toco-small" in said
    assert "  num_steps              1                              given" in said
    assert train_main([*at(toy), "--recipe", "taco-youcok2"]) == 2
    assert re.search(r"--recipe taco-youcok2: .*\bdefault, taco-small, taco-youcook2\b", capsys.readouterr().err)
    assert train_main([*at(toy), "--recipe", "taco-youcook2-finetune", "--features", "s3d"]) == 2
    assert re.search(r"--recipe taco-youcook2-finetune: .*--init\b", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        train_main([*at(toy), "--features", "s3d", "--num-step", "3"])
    assert re.search(r"--num-step\b.*--num-steps\b", capsys.readouterr().err)


def test_the_only_features_of_a_data_set_need_no_name(toy, tmp_path, capsys):
    alone = DatasetFolder(tmp_path, "toy")
    shutil.copytree(toy.path, alone.path, ignore=shutil.ignore_patterns("runs", "features"))
    call = [*at(alone), "--num-steps", "2", "--batch-size", "4", "--run-name", "run"]
    assert train_main(call) == 2
    place = re.escape(str(alone.path / "features"))
    assert re.search(rf"error: --features .*: .*{place}; .*vlalign-extract\b", capsys.readouterr().err)
    shutil.copytree(toy.features("s3d"), alone.features("s3d"))
    assert train_main(call) == 0
    assert re.search(r"^note: --features s3d: the only features of toy$", capsys.readouterr().err, re.MULTILINE)
    (alone.features("i3d_resnext101")).mkdir()
    shutil.copy(next(toy.features("s3d").glob("*.h5")), alone.features("i3d_resnext101"))
    assert train_main(call) == 2
    assert re.search(r"error: --features .*: .*\bi3d_resnext101, s3d\b", capsys.readouterr().err)
    written = (alone.runs / "run" / "run.json").stat().st_mtime_ns
    assert train_main([*call, "--features", "s3d"]) == 0
    assert capsys.readouterr().err.startswith(f"{alone.runs / 'run'}: "), "already trained with the same settings"
    assert (alone.runs / "run" / "run.json").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("name", "captions", "gpus", "batch", "epochs", "warmup"),
    [
        ("ncl-msrvtt", 180_000, 4, 128, 5, 0.1),
        ("ncl-msvd", 48_774, 4, 128, 3, 0),
        ("ncl-activitynet", 10_009, 8, 128, 10, 0.1),
        ("ncl-clip4clip-msrvtt", 180_000, 4, 128, 5, 0.1),
        ("ncl-clip4clip-msvd", 48_774, 4, 128, 5, 0.1),
        ("ncl-clip4clip-activitynet", 10_009, 8, 128, 5, 0.1),
        ("cmcm-msrvtt-baseline", 180_000, 8, 64, 5, 0.1),
    ],
)
def test_steps_are_those_of_clip4clips_loader(name, captions, gpus, batch, epochs, warmup):
    """GPUs, epochs and warm-up: CLIP4Clip's README, NCL's Appendix B and CMCM's. Loader: its data_dataloaders.py."""
    sampler = DistributedSampler(range(captions), num_replicas=gpus, rank=0)
    loader = DataLoader(torch.arange(captions), batch_size=batch // gpus, sampler=sampler, drop_last=True)
    settings = make_config(name, {"dataset": "d"}).flat()
    assert settings["num_steps"] == epochs * len(loader)
    assert settings["warmup_steps"] == int(warmup * epochs * len(loader)) and settings["batch_size"] == batch


@pytest.mark.parametrize("name", ["ncl-clip4clip-msrvtt", "ncl-msrvtt", "cmcm-msrvtt-baseline"])
def test_rates_decay_and_what_is_frozen_are_clip4clips(name):
    """Its README (--lr 1e-4 --coef_lr 1e-3 --freeze_layer_num 0), and prep_optimizer of its main_task_retrieval.py."""
    settings = make_config(name, {"dataset": "d"})
    model = nn.Module()
    model.video_tower, model.text_encoder = nn.Module(), nn.Module()
    with torch.device("meta"):
        model.video_tower.network = ClipViTB32()
        model.text_encoder.network = CLIPTextModel(CLIPTextConfig())
        model.text_encoder.projection = nn.Linear(512, 512, bias=False)
        model.project = nn.Linear(512, 512)
        model.own = LearnedTemperature(0.01)
    if settings.model.encoder == "mean":
        del model.project
    groups, _ = parameter_groups(model, settings.optimization)
    of = {id(p): group for group in groups for p in group["params"]}
    for parameter, parameters in model.named_parameters():
        is_input = "embeddings." in parameter or "pre_layrnorm" in parameter or parameter.startswith("project.")
        assert (id(parameters) not in of) == is_input, parameter
        if not is_input and not (parameter.startswith("own.") and name.startswith("cmcm")):
            rate = settings.optimization.learning_rate * of[id(parameters)].get("factor", 1.0)
            decay = of[id(parameters)].get("weight_decay", settings.optimization.weight_decay)
            assert (rate, decay) == (pytest.approx(1e-7), 0.0 if "bias" in parameter else 0.2), parameter
