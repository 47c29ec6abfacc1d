"""What tests share. Nothing here reaches a network: weights are random, caches are empty folders."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from vlalign.extract.cli import main as extract_main
from vlalign.preprocess.datasets import demo
from vlalign.preprocess.prepare import prepare
from vlalign.storage.console import Problems
from vlalign.storage.layout import DatasetFolder

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Real data and golden values, where a checkout has them beside it."""


def shared(path: str) -> Path:
    """A file or folder of ``SHARED``; the test is skipped, and says so, where it is not there."""
    if not (SHARED / path).exists():
        pytest.skip(f"no {path} beside this checkout")
    return SHARED / path


@pytest.fixture(autouse=True)
def _no_surprises(monkeypatch, tmp_path):
    """Fixed seeds, an empty cache, no root from the environment, and no source of weights but a closed port."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    monkeypatch.setenv("VLALIGN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLALIGN_ROOT", raising=False)
    import vlalign.extract.weights as weights

    closed = {name: weights.PublishedFile(("http://127.0.0.1:9/" + name,), None) for name in weights.PUBLISHED}
    monkeypatch.setattr(weights, "PUBLISHED", closed)


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory) -> DatasetFolder:
    """A demo set of 14 videos, prepared and extracted by the real stages. Tests that change it copy it first."""
    dataset = DatasetFolder(tmp_path_factory.mktemp("root"), "demo")
    planned = demo.plan_scenes(0, {"train": 8, "validation": 3, "test": 3})
    prepare(dataset, demo.records(planned), spacy_model="en_core_web_sm", problems=Problems())
    call = ["--root", str(dataset.root), "--dataset", "demo", "--features", "resnet152,s3d", "--weights", "random"]
    assert extract_main(call) == 0
    return dataset
