"""What an extension costs: one file and one row each for a data set, an extractor, an objective and a task.

The four toys below come from files of their own and run from the command line, from videos to a report.
"""

import importlib
import json
from dataclasses import replace

import pytest
from helpers.videos import scene
from vlalign.extract.cli import main as extract
from vlalign.extract.models import MODELS
from vlalign.extract.render import render_video
from vlalign.preprocess.cli import main as preprocess
from vlalign.preprocess.datasets import DATASETS
from vlalign.storage import FeatureStore
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli_evaluate import main as evaluate
from vlalign.train.cli_train import main as train
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.tasks import TASKS

READER = '''
"""Toy data set: one JSON list of [file, sentence, split]."""

import json

from vlalign.preprocess.datasets.sources import Dataset
from vlalign.storage.records import Caption, VideoRecord


def read(annotations, protocol):
    (path,) = annotations.find("toy.json")
    for file, sentence, split in json.loads(path.read_text(encoding="utf-8")):
        yield Caption(video_id=file.removesuffix(".mp4"), caption=sentence, split=split)


DATASET = Dataset(read, {"toy.json": "https://example.org/toy"})
'''
ENCODER = '''
"""Toy encoder: the mean colour of a frame, through a linear layer."""

import torch
from torch import nn


class MeanColor(nn.Module):
    left_out = ()
    classifier = None
    batch_sizes = {"cpu": 8, "cuda": 8}
    random_gain = 1.0

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 8)

    def fold(self):
        return self

    def forward(self, x):
        return self.linear(x.mean(dim=(2, 3)).float())
'''
OBJECTIVE = '''
"""Toy objective: the squared distance of a clip and its caption, on the unit sphere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vlalign.train.objectives.base import Objective
from vlalign.train.settings import setting


@dataclass(frozen=True, kw_only=True)
class Distance(Objective):
    name: ClassVar[str] = "distance"
    meaning: ClassVar[str] = "the squared distance of pairs"
    terms: ClassVar[tuple[str, ...]] = ("distance",)

    distance_scale: float = setting(1.0, "multiplies the distance", above=0)

    def loss_terms(self, model, batch):
        text_BD, video_BD = batch.all_vectors(self, model)
        return {"distance": self.distance_scale * (text_BD - video_BD).square().sum(dim=1).mean()}
'''
TASK = '''
"""Toy task: the mean similarity of pairs."""

from vlalign.storage.captions import read_captions
from vlalign.train.data.coverage import measure
from vlalign.train.data.pairs import make_pairs, of_split
from vlalign.train.tasks.base import NoSettings, Task, TaskResult, counted


class Similarity(Task[NoSettings]):
    name = "similarity"
    description = "mean similarity of a caption and its clip"

    def ask(self, run, question, problems):
        from vlalign.train.scoring import stage_scores

        pairs = make_pairs(of_split(read_captions(run.dataset.captions), question.split))
        scores = stage_scores(run.scorer, pairs.captions, pairs.clips)
        fused = scores.fused(question.score_weights)[0]
        own = [float(fused[row, clip]) for row, clip in enumerate(pairs.clip_of_caption)]
        rows = ({"caption": c.caption, "score": s} for c, s in zip(pairs.captions, own))
        figures = {"mean_similarity": sum(own) / len(own)}
        return TaskResult(measure(pairs.captions, pairs.captions, run.features), figures, rows, figures)

    def count(self, figures):
        return counted(figures, "captions")

    def summary(self, figures):
        yield f"mean similarity: {figures['mean_similarity']:.3f}"
'''
PAGE = "<section><p>mean similarity {{ mean_similarity }}</p></section>"


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """The four files, and the row of each."""
    folder = tmp_path / "extensions"
    folder.mkdir()
    files = {"toy_reader": READER, "toy_encoder": ENCODER, "toy_objective": OBJECTIVE, "toy_task": TASK}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "similarity.html.jinja").write_text(PAGE)
    monkeypatch.syspath_prepend(folder)
    reader, encoder, objective, task = map(importlib.import_module, files)
    monkeypatch.setitem(DATASETS, "toy", reader.DATASET)
    monkeypatch.setitem(MODELS, "mean_color", encoder.MeanColor)
    profile = replace(PROFILES["resnet152"], name="mean_color", model="mean colour", weights="none", dimension=8)
    monkeypatch.setitem(PROFILES, "mean_color", profile)
    monkeypatch.setitem(OBJECTIVES, "distance", objective.Distance)
    monkeypatch.setitem(TASKS, "similarity", task.Similarity())


def test_four_extensions_run_from_videos_to_a_report(toys, tmp_path, capsys):
    root, videos = tmp_path / "root", tmp_path / "videos"
    videos.mkdir()
    colors = [("red", "train"), ("green", "train"), ("blue", "train"), ("yellow", "validation"), ("white", "test")]
    for name, _ in colors:
        render_video(scene(1.2, color=name), videos / f"{name}.mp4")
    annotations = root / "toy" / "annotations"
    annotations.mkdir(parents=True)
    rows = [[f"{name}.mp4", f"a {name} shape moves", split] for name, split in colors]
    (annotations / "toy.json").write_text(json.dumps(rows))
    call = ["--root", str(root), "--dataset", "toy"]

    assert extract([*call, "--videos", str(videos), "--features", "mean_color", "--weights", "random"]) == 0
    assert FeatureStore(root / "toy" / "features" / "mean_color").get("red").features.shape[1] == 8
    assert preprocess(call) == 0

    settings = ["--objective", "distance", "--distance-scale", "2", "--num-steps", "4", "--batch-size", "3"]
    assert train([*call, "--features", "mean_color", *settings, "--run-name", "r"]) == 0
    run = root / "toy" / "runs" / "r"
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert len(events) == 4 and events[0]["distance"] == events[0]["loss"] > 0
    assert json.loads((run / "run.json").read_text())["config"]["distance_scale"] == 2

    capsys.readouterr()
    assert evaluate([*call, "r", "--task", "similarity"]) == 0
    figures = json.loads((run / "metrics.json").read_text())
    assert f"mean similarity: {figures['mean_similarity']:.3f}" in capsys.readouterr().out
    assert f"<p>mean similarity {figures['mean_similarity']}</p>" in (run / "report.html").read_text()
