"""An objective of one's own with an input of its own: each caption's number arrives, in any process and micro-batch."""

import importlib.util
import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers.own_inputs import make_rated
from helpers.toy import make_toy
from helpers.training import gradient, make_trainer, map_in_processes, settings_of
from torch import nn
from vlalign.storage import FeatureStore, MemoryStore, read_captions
from vlalign.storage.common import plugins
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import read_json
from vlalign.train import evaluate, open_search, train
from vlalign.train.data.clips import Clip
from vlalign.train.distributed import Workers, join_workers
from vlalign.train.models.base import ObjectiveModules
from vlalign.train.models.words import WordPair
from vlalign.train.objectives import OBJECTIVES, Objective
from vlalign.train.recipes.train_config import train_config
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores
from vlalign.train.settings import CaptionColumn, FeatureRows

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "own_objective.py"


def settings(**own):
    """Return settings of a run that an objective of one's own has."""
    return {name: value for name, value in settings_of(**own).items() if name != "num_negatives"}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    spec = importlib.util.spec_from_file_location("own_objective", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_objective", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(OBJECTIVES, "rated-sigmoid", module.RatedSigmoid)
    monkeypatch.setitem(OBJECTIVES, "listening", Listening)
    monkeypatch.setattr(plugins, "_LOADED", dict(plugins._LOADED))
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


def test_a_training_caption_without_a_number_and_a_table_without_the_column_are_refused(tmp_path):
    dataset = make_rated(tmp_path / "some", unrated=(3, 20))  # 20 is of another split
    with pytest.raises(UserError, match=r"1 of 12 training captions .*'rating'.* v003;"):
        single(dataset, tmp_path / "run", objective="rated-sigmoid")
    with pytest.raises(UserError, match=r"captions.*no column 'rating'.*it has none"):
        single(make_toy(tmp_path / "none"), tmp_path / "run", objective="rated-sigmoid")


def test_clips_without_rows_are_counted_and_a_missing_store_is_named(tmp_path, capsys):
    dataset = make_rated(tmp_path, silent=("v002", "v005", "v023"))  # the last one is of another split
    single(dataset, tmp_path / "run", objective="listening")
    assert re.findall(r"(\d+) of (\d+) training clips", capsys.readouterr().err) == [("2", "12")]
    with pytest.raises(UserError, match="features/sound"):
        single(make_toy(tmp_path / "none"), tmp_path / "run", objective="listening")


@dataclass(frozen=True, kw_only=True)
class Heard(Listening):
    """Scores what ``Listening`` learns: a video's vector is that of its sound; a text's is as long as its rating."""

    name: ClassVar[str] = "heard"

    def video_vectors(self, model, videos):
        mask = videos.extra["sound_mask"][:, :, None]
        return model.own((videos.extra["sound"] * mask).sum(dim=1) / mask.sum(dim=1))

    def text_vectors(self, model, texts):
        return texts.mean_BD * texts.extra["rating"][:, None]


def test_a_run_is_saved_with_what_its_objective_learned_and_scores_with_its_inputs(tmp_path, monkeypatch):
    monkeypatch.setattr(Listening, "folder", tmp_path)
    monkeypatch.setitem(OBJECTIVES, "heard", Heard)
    dataset = make_rated(tmp_path, unrated=(13,))
    own = {"num_steps": 3, "validate_every": 2, "warmup_steps": 0, "ema_decay": 0.5, "weight_decay": 0.0}
    own |= {"parameter_groups": "own.*:lr=100;*:frozen=true"}
    trained = single(dataset, dataset.runs / "r", objective="heard", **own)
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    trained.run()
    run = open_run(dataset.runs / "r")
    assert [facts["features"] for facts in run.about["inputs"]["extra"]] == ["sound"]
    changed = {name for name, value in run.scorer.model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"own.weight"}
    captions = [caption for caption in read_captions(dataset.captions) if caption.extra]
    clips = [Clip(f"v{number:03d}", None, None) for number in range(24)]
    scores = stage_scores(run.scorer, captions, clips).stages["pair"]
    store, weight = FeatureStore(dataset.features("sound")), run.scorer.model.own.weight.detach().numpy()
    sounds = [store.get(clip.video_id).features.astype(np.float32) for clip in clips]
    sounds = [rows if len(rows) < 5 else rows[[0, 1, 3, 4]] for rows in sounds]
    heard = np.stack([weight @ rows.mean(axis=0) for rows in sounds])
    with torch.inference_mode():
        texts = np.stack([run.scorer.encode_texts([caption]).mean_BD[0].numpy() for caption in captions])
    rated = np.array([caption.extra["rating"] for caption in captions])[:, None] * texts
    np.testing.assert_allclose(scores, rated @ heard.T, rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"extra\['rating'\]"):  # a typed query has no rating
        stage_scores(run.scorer, [run.scorer.weights.tag_query("cut the onion")], clips)


class Sounding(WordPair):
    """The default model, whose clips also have a vector of their sound."""

    traits = replace(WordPair.traits, description="words and sound", extra={"sound": FeatureRows("sound")})

    @classmethod
    def from_settings(cls, settings, plan):
        model = super().from_settings(settings, plan)
        model.heard = nn.Linear(5, model.width // 2, bias=False)
        return model

    def encode_videos(self, features_BMF, mask_BM, lengths_B=None, *, extra):
        tokens, mask = super().encode_videos(features_BMF, mask_BM, lengths_B), extra["sound_mask"][:, :, None]
        return replace(tokens, whole_BD=tokens.whole + self.heard((extra["sound"] * mask).sum(dim=1) / mask.sum(dim=1)))

    def encode_texts(self, inputs, *, extra):
        return super().encode_texts(inputs)


def test_sound_beside_video_is_one_declaration_of_an_encoder(tmp_path):
    """Training, evaluation and search read it."""
    dataset = make_rated(tmp_path)
    own = {"features": "s3d", "encoder": Sounding, "num_steps": 3, "batch_size": 6, "warmup_steps": 0}
    trained = train(dataset.path, settings=own).folder
    store = FeatureStore(dataset.features("sound"))
    silent = [replace(rows, features=rows.features * 0) for rows in map(store.get, store.video_ids())]
    stores = [None, {"sound": MemoryStore(store.profile, store.weights, silent)}]
    searches = [open_search(run=trained, trust=[__name__], stores=given) for given in stores]
    heard, unheard = ({moment.video_id: moment.score for moment in search("cut the onion")} for search in searches)
    assert heard != unheard
    metrics = [evaluate(trained, trust=[__name__], stores=given).metrics for given in stores]
    assert metrics[0] != metrics[1]
