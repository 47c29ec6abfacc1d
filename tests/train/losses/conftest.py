"""What published programs computed."""

import pytest
import torch
from helpers.golden import reference_numbers


@pytest.fixture
def goldens():
    expected, inputs = reference_numbers()
    return expected, {name: torch.from_numpy(values) for name, values in inputs.items()}
