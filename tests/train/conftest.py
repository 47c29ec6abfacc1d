"""Fixtures that the tests of training share."""

import shutil
from pathlib import Path

import pytest
from helpers.spoken import make_spoken
from helpers.toy import make_toy
from helpers.training import TRAIN, TWO_STEPS, at
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.train import main as train_main


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def spoken(tmp_path_factory) -> DatasetFolder:
    return make_spoken(tmp_path_factory.mktemp("spoken"))


@pytest.fixture(scope="module")
def whole(toy) -> Path:
    """A run that nothing stopped."""
    assert train_main([*at(toy), *TRAIN, "--run-name", "whole"]) == 0
    return toy.runs / "whole"


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A run of two steps, in its data set. Tests that change it take ``run``, its copy."""
    toy = make_toy(tmp_path_factory.mktemp("trained"))
    assert train_main([*at(toy), *TWO_STEPS, "--run-name", "run"]) == 0
    return toy.runs / "run"


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a run, in a copy of its data set."""
    shutil.copytree(trained.parents[1], tmp_path / "toy")
    return tmp_path / "toy" / "runs" / "run"
