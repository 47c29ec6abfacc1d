"""An objective of one's own with an input of its own: each caption's number arrives, in any process and micro-batch."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.own_inputs import make_rated
from helpers.training import gradient, make_trainer, map_in_processes, settings_of
from torch import nn
from vlalign.storage import FeatureStore, read_captions
from vlalign.storage.common.files import read_json
from vlalign.train.distributed import Workers, join_workers
from vlalign.train.models.base import ObjectiveModules
from vlalign.train.objectives import OBJECTIVES, Objective
from vlalign.train.recipes.train_config import train_config
from vlalign.train.settings import CaptionColumn, FeatureRows

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_objective.py"
OWN = {"objective": "rated-sigmoid", "micro_batch_size": 2}


def settings(**own):
    """Return settings of a run that an objective of one's own has."""
    return {name: value for name, value in settings_of(**own).items() if name != "num_negatives"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    spec = importlib.util.spec_from_file_location("own_objective", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "own_objective", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(OBJECTIVES, "rated-sigmoid", module.RatedSigmoid)
    monkeypatch.setitem(OBJECTIVES, "listening", Listening)
    return module


@dataclass(frozen=True, kw_only=True)
class Listening(Objective):
    """Takes everything that an objective can declare, and saves what arrives."""

    name: ClassVar[str] = "listening"
    description: ClassVar[str] = "a weighted dot product of texts and sounds"
    loss_terms: ClassVar[tuple[str, ...]] = ("heard",)
    extra: ClassVar = {"rating": CaptionColumn("rating"), "sound": FeatureRows("sound", max_rows=4)}
    needs_ids: ClassVar[bool] = True
    folder: ClassVar[Path] = Path()

    def make_modules(self, width, num_labels):
        return ObjectiveModules(own=nn.Linear(5, width, bias=False))

    def compute_loss(self, model, batch):
        texts, videos, ids = batch.all_texts(), batch.all_videos(), batch.all_ids()
        arrived = {"ids": ids._asdict(), "own": batch.ids._asdict(), "rating": texts.extra["rating"].tolist()}
        arrived["sound"] = [
            rows[mask].tolist() for rows, mask in zip(videos.extra["sound"], videos.extra["sound_mask"], strict=True)
        ]
        (self.folder / f"arrived-{batch.workers.size}-{batch.workers.rank}.json").write_text(json.dumps(arrived))
        mask = videos.extra["sound_mask"][:, :, None]
        heard_BD = model.own((videos.extra["sound"] * mask).sum(dim=1) / mask.sum(dim=1))
        text_BD = texts.mean_BD
        loss_B = torch.logsumexp(text_BD @ heard_BD.T, dim=1) - (text_BD * heard_BD).sum(dim=1)
        return {"heard": (loss_B * texts.extra["rating"]).mean()}


@pytest.mark.parametrize("micro_batch_size", [0, 2, 5])
def test_two_processes_with_micro_batches_have_the_gradient_of_one(tmp_path, monkeypatch, micro_batch_size):
    """Within 1e-6, or a thousandth: sums are taken in another order. One process computes the whole batch at once."""
    monkeypatch.setattr(Listening, "folder", tmp_path)
    dataset = make_rated(tmp_path)
    whole = {
        name: gradient(single(dataset, tmp_path / f"whole-{name}", objective=name))[1]
        for name in ("rated-sigmoid", "listening")
    }
    map_in_processes(2, save_gradient, dataset, tmp_path, micro_batch_size)
    for name, expected in whole.items():
        for rank in range(2):
            found = torch.load(tmp_path / f"{name}.{rank}", weights_only=True)
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-3)


def single(dataset, folder, **own):
    return make_trainer(dataset, train_config(**settings(**own)), folder, Workers(), torch.device("cpu"))


def save_gradient(dataset, folder, micro_batch_size):
    with join_workers("cpu") as (workers, device):
        for name in ("rated-sigmoid", "listening"):
            config = train_config(**settings(objective=name, micro_batch_size=micro_batch_size))
            made = make_trainer(dataset, config, folder / f"two-{name}", workers, device)
            torch.save(gradient(made)[1], folder / f"{name}.{workers.rank}")


def test_each_value_is_that_of_its_caption_and_clip(tmp_path, monkeypatch):
    """By the ids that arrive with them, from the caption table and the store themselves."""
    monkeypatch.setattr(Listening, "folder", tmp_path)
    dataset = make_rated(tmp_path, silent=("v002", "v005"))
    map_in_processes(2, save_gradient, dataset, tmp_path, 2)
    captions, store = read_captions(dataset.captions), FeatureStore(dataset.features("sound"))
    arrived = [read_json(tmp_path / f"arrived-2-{rank}.json") for rank in range(2)]
    ids = arrived[0]["ids"]
    assert arrived[0]["ids"] == arrived[1]["ids"] and arrived[0]["rating"] == arrived[1]["rating"]
    assert ids == {kind: arrived[0]["own"][kind] + arrived[1]["own"][kind] for kind in ids}
    assert sorted(ids["videos"]) == [f"v{number:03d}" for number in range(12)] and len(set(ids["captions"])) == 12
    assert len({*arrived[0]["rating"]}) > 3
    for video_id, clip_id, number, rating, rows in zip(
        *(ids[kind] for kind in ("videos", "clips", "captions")), arrived[0]["rating"], arrived[0]["sound"], strict=True
    ):
        caption = captions[int(number)]
        assert (caption.video_id, caption.clip_id, caption.extra["rating"]) == (video_id, clip_id, rating)
        expected = store.get(video_id).features.astype(np.float32) if video_id in store else np.zeros((1, 5))
        if len(expected) == 5:
            expected = expected[[0, 1, 3, 4]]  # four, evenly chosen
        np.testing.assert_array_equal(np.array(rows, np.float32), expected)
