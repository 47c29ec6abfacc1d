"""CLIP4Clip's optimizer and schedule, beside the same in numpy, from their description."""

import math

import numpy as np
import pytest
import torch
from helpers.toy import make_toy
from helpers.training import trainer
from vlalign.train.loop.step import backward, learning_rate_factor
from vlalign.train.loop.trainer import Trainer
from vlalign.train.runs.checkpoint import save_state
from vlalign.train.settings import OptimizationSettings

SETTINGS = {"objective": "ncl", "encoder": "gated", "embedding_size": 8, "num_steps": 8, "warmup_steps": 2}
SETTINGS |= {"optimizer": "bertadam", "schedule": "bert-cosine", "weight_decay": 0.2, "learning_rate": 0.01}


def trainer_of(root, name, **settings) -> Trainer:
    dataset = make_toy(root / name)
    options = {key: value for key, value in {**SETTINGS, **settings}.items() if key != "num_negatives"}
    return trainer(dataset, root / name / "run", **options)


class Plain:
    """Adam without the correction of bias, in float64, on gradients clipped twice, as CLIP4Clip clips them."""

    def __init__(self, weights: dict[str, np.ndarray], decays: dict[str, float]) -> None:
        self.weights, self.decays = weights, decays
        self.mean, self.square = ({n: np.zeros_like(w) for n, w in weights.items()} for _ in range(2))

    def step(self, gradients: dict[str, np.ndarray], rate: float) -> float:
        """Do a step; return the norm of the whole gradient."""
        norm = math.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        for name, gradient in gradients.items():
            clipped = gradient * min(1.0, 1.0 / (norm + 1e-6))
            clipped = clipped * min(1.0, 1.0 / (math.sqrt((clipped**2).sum()) + 1e-6))
            self.mean[name] = 0.9 * self.mean[name] + 0.1 * clipped
            self.square[name] = 0.98 * self.square[name] + 0.02 * clipped**2
            update = self.mean[name] / (np.sqrt(self.square[name]) + 1e-6) + self.decays[name] * self.weights[name]
            self.weights[name] = self.weights[name] - rate * update
        return norm


def warmup_cosine(share: float, warmup: float) -> float:
    return share / warmup if share < warmup else 0.5 * (1 + math.cos(math.pi * share))


def values(tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy().copy() for name, tensor in tensors.items()}


@pytest.mark.parametrize(("scale", "is_clipped"), [(0.01, False), (100.0, True)])
def test_steps_are_those_of_a_plain_implementation(tmp_path, scale, is_clipped):
    made = trainer_of(tmp_path, "run", loss_scale=scale, parameter_groups="*bias*:decay=0;video.*:lr=0.5")
    parameters = dict(made.model.named_parameters())
    plain = Plain(values(parameters), {name: 0.0 if "bias" in name else 0.2 for name in parameters})
    half = Plain(values(parameters), plain.decays)
    for step in range(8):
        inputs = made.make_inputs(step).to(made.device)
        made.model.train()
        backward(made.model, inputs, made.config, step, made.workers)
        gradients = values({name: parameter.grad for name, parameter in parameters.items()})
        made.train_step(inputs)
        norm, rate = 0.0, 0.01 * warmup_cosine(step / 8, 2 / 8)
        for of, factor in ((plain, 1.0), (half, 0.5)):
            norm = of.step(gradients, rate * factor)
        assert (norm > 1) == is_clipped
        for name, parameter in parameters.items():
            of = half if name.startswith("video.") and "bias" not in name else plain
            np.testing.assert_allclose(parameter.detach(), of.weights[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_the_factors_are_those_of_warmup_cosine():
    for num_steps, warmup in ((7030, 703), (780, 78), (1143, 0), (10, 5)):
        settings = OptimizationSettings(schedule="bert-cosine", warmup_steps=warmup)
        ours = [learning_rate_factor(step, num_steps, settings) for step in range(num_steps)]
        theirs = [warmup_cosine(step / num_steps, warmup / num_steps) for step in range(num_steps)]
        np.testing.assert_allclose(ours, theirs, atol=1e-12)
    assert learning_rate_factor(0, 10, settings) == 0.0


def test_a_resumed_run_has_the_weights_of_a_whole_one(tmp_path):
    whole = trainer_of(tmp_path, "whole")
    for step in range(6):
        whole.train_step(whole.make_inputs(step).to(whole.device))
        if step == 2:
            whole.folder.mkdir(exist_ok=True)
            save_state(whole.folder, whole.state)
    resumed = trainer_of(tmp_path, "whole")
    assert resumed.step == 3
    for step in range(3, 6):
        resumed.train_step(resumed.make_inputs(step).to(resumed.device))
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
