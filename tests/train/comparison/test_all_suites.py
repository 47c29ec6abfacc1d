"""Every row of every paper's table that is ours is trained for two steps on made-up data, and evaluated."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.clips_of_text import save_clip_with_processor, save_wide_clip
from helpers.labelled import make_questions, make_segments, make_steps
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from vlalign.storage import Profile, Weights, write_shard
from vlalign.storage.captions.files import read_captions, read_captions_about, write_captions_about
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import BUILT_IN, LOGMEL, PROFILES
from vlalign.storage.stores.opening import open_store
from vlalign.train.comparison.suite_files import Suite, all_suites, given_for, row_config
from vlalign.train.comparison.suites import run_suite
from vlalign.train.recipes.recipes import RECIPES
from vlalign.train.recipes.train_config import TrainConfig

SMALL = {
    "text_encoder": "small",
    "embedding_size": 8,
    "glu_size": 16,
    "codebook_size": 8,
    "clips_per_video": 2,
    "num_steps": 2,
    "batch_size": 4,
    "num_negatives": 2,
    "validate_every": 2,
    "query_queue": 8,
    "density_neighbors": 2,
}
CASES = [(suite, dataset) for suite in all_suites() for dataset in suite.datasets]


def make_like(root: Path, name: str, config: TrainConfig) -> DatasetFolder:
    """Make a small data set of the kind that a configuration trains on."""
    if config.data.video_grid:
        made = make_spoken(root / "made", num_clips=16, features="clip_vit_b32_map")
    elif config.objective.name == "vqa":
        made = make_questions(root / "made", num_videos=20)
    elif config.objective.name == "segmentation":
        made = make_segments(root / "made", num_videos=8)
    elif name == "crosstask":
        made = make_steps(root / "made", features="s3d")
    else:
        made = make_toy(root / "made")
    made.path.rename(root / name)
    return DatasetFolder(root, name)


def add_features(dataset: DatasetFolder, features: str) -> None:
    """Add stores of a data set that lack, with as many rows as the one that is there."""
    [there] = [path.name for path in (dataset.path / "features").iterdir() if path.name != LOGMEL][:1]
    for name in features.split("+"):
        if dataset.features(name).exists():
            continue
        rng, profile = np.random.default_rng(0), BUILT_IN.get(name) or replace(PROFILES["resnet50_map"], name=name)
        store = open_store(dataset.features(there))
        videos = [
            replace(video, features=rows_of(rng, len(video.features), profile))
            for video in map(store.get, store.video_ids())
        ]
        weights = Weights(name="none", sha256="") if profile.is_frames else Weights(name="made", sha256="0" * 64)
        dtype = "uint8" if profile.is_frames else "float16"
        write_shard(dataset.features(name), profile, weights, videos, made_with={}, dtype=dtype)


def rows_of(rng: np.random.Generator, num_rows: int, profile: Profile) -> np.ndarray:
    if profile.is_frames:
        return rng.integers(0, 256, (num_rows, profile.dimension), dtype=np.uint8)
    return rng.normal(size=(num_rows, profile.dimension))


def add_protocol(dataset: DatasetFolder, protocol: str) -> None:
    """Add the same captions under another protocol."""
    if protocol in ("", read_captions_about(dataset.captions)["protocol"]):
        return
    other = replace(dataset, protocol=protocol)
    other.captions.mkdir()
    for path in filter(Path.is_file, [*dataset.captions.iterdir()]):
        shutil.copy(path, other.captions)
    for path, copied in ((dataset.idf, other.idf), (dataset.word_vectors, other.word_vectors)):
        shutil.copy(path, copied)
    write_captions_about(other.captions, read_captions_about(dataset.captions) | {"protocol": protocol})


def make_data(root: Path, suite: Suite, dataset: str) -> DatasetFolder:
    """Make all data sets that a suite needs for its rows of one data set."""
    configs = [row_config(suite, row, dataset, {}) for row in suite.rows_for(dataset)]
    for config in configs:
        name = config.data.dataset
        if not (root / name).exists():
            made = make_like(root, name, config)
            about = read_captions_about(made.captions)
            write_captions_about(made.captions, about | {"protocol": config.data.protocol})
    if not (root / dataset).exists():
        make_like(root, dataset, configs[0])
    for config in configs:
        for name in {config.data.dataset, dataset}:
            add_features(DatasetFolder(root, name), config.data.features)
        add_protocol(DatasetFolder(root, config.data.dataset), config.data.protocol)
    return DatasetFolder(root, dataset)


@pytest.mark.slow
@pytest.mark.parametrize(("suite", "dataset"), CASES, ids=[f"{suite.name}-{dataset}" for suite, dataset in CASES])
def test_every_row_is_trained_and_evaluated(suite, dataset, tmp_path):
    folder = make_data(tmp_path, suite, dataset)
    of_rows = {name for row in suite.rows for name in row.settings}
    given = {}
    for row in suite.rows_for(dataset):
        recipe = RECIPES[row.recipe.get(dataset, suite.datasets[dataset].recipe)]
        replaced = {name: value for name, value in SMALL.items() if name not in of_rows and recipe.get(name) != 0}
        if recipe.get("encoder") == "mean":  # texts as wide as the features
            texts = (caption.caption for caption in read_captions(folder.captions))
            replaced["text_encoder"] = str(save_wide_clip(texts, tmp_path / "clip", 512))
        if tower := recipe.get("video_tower"):
            replaced["video_tower"] = f"{tower}={save_clip_with_processor(tmp_path / 'tower')}"
        given |= given_for(suite, row, dataset, replaced)
    result = run_suite(folder.path, suite.name, device="cpu", settings=given)
    assert result.num_failed == 0, folder.problems("suite").read_text()
    assert len(result.rows) == len(suite.printed_rows(dataset))
    for row in result.rows:
        assert row.row.other_method == all(value is None for value in row.ours)
