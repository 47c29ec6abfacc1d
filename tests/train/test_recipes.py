"""Every recipe runs from end to end: trained for two steps, small, on a data set of its kind, and evaluated."""

from pathlib import Path

import pytest
from helpers.labelled import make_questions, make_segments
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import at
from vlalign.storage.captions import read_captions_about, write_captions_about
from vlalign.storage.files import read_json
from vlalign.storage.layout import DatasetFolder
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.recipes import RECIPES

SMALL = {
    "num_steps": 2,
    "batch_size": 4,
    "num_negatives": 2,
    "validate_every": 2,
    "query_queue": 8,
    "density_neighbors": 2,
}
GIVEN = {"text_encoder": "small", "embedding_size": 8, "codebook_size": 8, "clips_per_video": 2}
"""Instead of what a recipe says, where it says something else than none."""
BEFORE = {"taco": "taco-howto100m", "toco": "toco-howto100m", "ssml": "ssml-howto100m", "vqa": "ssml-howto100m"}
BEFORE |= {"segmentation": "taco-howto100m"}
"""{objective: what its finetuning goes on from}; of cmcm, the recipe's own baseline."""


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
    about = read_captions_about(dataset.captions)
    write_captions_about(dataset.captions, about | {"protocol": recipe.get("protocol", "")})
    call = [*at(dataset), "--recipe", name, "--run-name", name, *(["--init", str(init)] if init else [])]
    assert train_main([*call, *(f"--{option.replace('_', '-')}={value}" for option, value in settings.items())]) == 0
    return dataset.runs / name


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prints_itself_and_runs(datasets, name, capsys):
    dataset, features = datasets[kind_of(name)]
    init = None
    if name.endswith("-finetune"):
        objective = RECIPES[name]["objective"]
        before = name.removesuffix("-finetune") + "-baseline" if objective == "cmcm" else BEFORE[objective]
        init = dataset.runs / before
        init = init if (init / "run.json").exists() else train(before, dataset, features)
    capsys.readouterr()
    if not (dataset.runs / name / "run.json").exists():
        folder = train(name, dataset, features, init)
        settings = capsys.readouterr().err
        for option, value in RECIPES[name].items():
            if option not in SMALL | GIVEN | {"features": "", "protocol": ""}:
                assert any(
                    line.split()[:2] == [option, str(value)] for line in settings.splitlines() if line.strip()
                ), option
    folder = dataset.runs / name
    assert evaluate_main([*at(dataset), name]) == 0
    assert read_json(folder / "metrics.json")["run"] == name and (folder / "report.html").exists()
