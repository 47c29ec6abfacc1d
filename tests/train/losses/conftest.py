"""What published programs computed."""

import json

import numpy as np
import pytest
import torch
from helpers.shared import shared


@pytest.fixture
def goldens():
    folder = shared("data/goldens")
    with np.load(folder / "inputs.npz") as arrays:
        return json.loads((folder / "goldens.json").read_text()), {
            name: torch.from_numpy(arrays[name]) for name in arrays
        }
