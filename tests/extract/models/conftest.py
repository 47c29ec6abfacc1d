"""Networks and checkpoints that the tests of networks share."""

from pathlib import Path

import pytest
import torch
from helpers.networks import random_state
from vlalign.extract import load_extractor
from vlalign.extract.extractor import Extractor
from vlalign.extract.models.s3d import S3D


@pytest.fixture(scope="module")
def s3d_state() -> dict[str, torch.Tensor]:
    return random_state(S3D(), gain=4.0)


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a checkpoint; it is removed after the test, since these are large."""
    path = tmp_path / "weights.pth"

    def write(content) -> Path:
        torch.save(content, path)
        return path

    yield write
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def unfilled_s3d():
    return S3D()


@pytest.fixture(scope="module")
def extractor(request) -> Extractor:
    """The extractor that a test's parameter names. One is in memory at a time, since these are large."""
    return load_extractor(request.param, weights="random")
