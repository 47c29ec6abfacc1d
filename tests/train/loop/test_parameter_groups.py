"""Groups of parameters: which they have, their rates, decays and schedules, what is frozen, and mistakes in them."""

from dataclasses import asdict

import pytest
import torch
from helpers.toy import make_toy
from helpers.training import trainer
from torch import nn
from vlalign.storage.common.errors import SettingError
from vlalign.train.loop.parameter_groups import parameter_groups
from vlalign.train.loop.step import learning_rate_factor
from vlalign.train.settings import OptimizationSettings, ParameterGroup, parse_parameter_groups

RATES = "video.embed.*:lr=0.5,decay=0.3,schedule=constant;text.*.bias:frozen=true;*.bias:decay=0"
SHORT = {"objective": "ncl", "encoder": "gated", "embedding_size": 8, "num_steps": 6, "warmup_steps": 2}


def test_a_text_is_read_as_groups():
    assert parse_parameter_groups("") == parse_parameter_groups(" ; ") == ()
    assert [asdict(group) for group in parse_parameter_groups(RATES)] == [
        {"pattern": "video.embed.*", "lr": 0.5, "decay": 0.3, "frozen": False, "schedule": "constant"},
        {"pattern": "text.*.bias", "lr": 1.0, "decay": None, "frozen": True, "schedule": None},
        {"pattern": "*.bias", "lr": 1.0, "decay": 0.0, "frozen": False, "schedule": None},
    ]
    assert parse_parameter_groups("own.*: frozen = false , lr = 1e1")[0] == ParameterGroup(pattern="own.*", lr=10.0)


WRONG = {
    "no key": "own.*",
    "an empty key": "own.*:",
    "no pattern": ":lr=2",
    "an unknown key": "own.*:rate=2",
    "a key twice": "own.*:lr=2,lr=3",
    "no rate": "own.*:lr=0",
    "an infinite rate": "own.*:lr=inf",
    "a negative decay": "own.*:decay=-1",
    "a word for a number": "own.*:decay=none",
    "an unknown schedule": "own.*:schedule=step",
    "neither true nor false": "own.*:frozen=1",
    "a rate of what is frozen": "own.*:frozen=true,lr=2",
    "more groups than parameters": "x:lr=2;" * 100_000,
}


@pytest.mark.parametrize("case", WRONG)
def test_a_text_of_another_form_is_refused(case):
    with pytest.raises(SettingError) as error:
        OptimizationSettings(parameter_groups=WRONG[case])
    assert error.value.setting == "parameter_groups" and error.value.value == WRONG[case]


class Two(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(2, 1)


@pytest.mark.parametrize("text", ["third.*:lr=2", "first.*:lr=2;first.bias:decay=0", "*:frozen=true", "FIRST.*:lr=2"])
def test_groups_without_parameters_or_with_all_of_them_frozen_are_refused(text):
    with pytest.raises(SettingError) as error:
        parameter_groups(Two(), OptimizationSettings(parameter_groups=text))
    assert error.value.setting == "parameter_groups"


def test_without_groups_the_optimizer_has_one_of_all_parameters():
    model = Two()
    [group], lines = parameter_groups(model, OptimizationSettings())
    assert group.keys() == {"params"} and lines == []
    assert all(ours is theirs for ours, theirs in zip(group["params"], model.parameters(), strict=True))


def test_a_trainer_steps_each_parameter_as_an_optimizer_of_its_own_would(tmp_path, capsys):
    made = trainer_of(tmp_path, "run", parameter_groups=RATES)
    said = capsys.readouterr().err
    assert said.count("parameter groups: ") == 1 and "'text.*.bias': 4 parameters" not in said
    names = dict(made.model.named_parameters())
    how = {name: group_of(name) for name in names}
    assert {name for name in names if not names[name].requires_grad} == {n for n, g in how.items() if g == "frozen"}
    copies = {name: nn.Parameter(value.detach().clone()) for name, value in names.items() if how[name] != "frozen"}
    rate, decay = made.config.optimization.learning_rate, made.config.optimization.weight_decay
    optimizers = {
        name: torch.optim.AdamW([copy], weight_decay=how[name].get("decay", decay)) for name, copy in copies.items()
    }
    start = {name: value.detach().clone() for name, value in names.items()}
    for step in range(4):
        made.train_step(made.make_inputs(step).to(made.device))
        for name, copy in copies.items():
            left = (6 - step) / (6 - 2) if how[name].get("schedule") != "constant" else 1.0
            warmed = (step + 1) / 2 if step < 2 else left
            optimizers[name].param_groups[0]["lr"] = rate * how[name].get("lr", 1.0) * warmed
            copy.grad = names[name].grad.clone()
            optimizers[name].step()
    for name, value in names.items():
        torch.testing.assert_close(value.detach(), copies[name].detach() if name in copies else start[name])


@pytest.mark.parametrize("optimizer", ["adamw", "adam"])
def test_weight_decay_is_a_part_of_the_gradient_or_decoupled_from_it(tmp_path, optimizer):
    made = trainer_of(tmp_path, "run", optimizer=optimizer, weight_decay=0.3, schedule="constant", warmup_steps=0)
    parameter = next(made.model.parameters())
    rate, weights = made.config.optimization.learning_rate, parameter.detach().double().clone()
    mean, square = torch.zeros_like(weights), torch.zeros_like(weights)
    for step in range(1, 4):
        made.train_step(made.make_inputs(step - 1).to(made.device))
        gradient = parameter.grad.double()
        if optimizer == "adam":
            gradient = gradient + 0.3 * weights
        else:
            weights = weights - rate * 0.3 * weights
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
        corrected = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        weights = weights - rate * corrected[0] / (corrected[1].sqrt() + 1e-8)
        torch.testing.assert_close(parameter.detach().double(), weights, rtol=1e-5, atol=1e-6)


def group_of(name: str) -> dict | str:
    """Return what ``RATES`` says of a parameter."""
    if name.startswith("video.embed."):
        return {"lr": 0.5, "decay": 0.3, "schedule": "constant"}
    if name.endswith(".bias"):
        return "frozen" if name.startswith("text.") else {"decay": 0.0}
    return {}


def trainer_of(root, name, **settings):
    dataset = make_toy(root / name)
    options = {key: value for key, value in {**SHORT, **settings}.items() if key != "num_negatives"}
    return trainer(dataset, root / name / "run", **options)


def test_the_factor_of_a_schedule_of_its_own():
    settings = OptimizationSettings(schedule="linear", warmup_steps=0)
    factors = {s: learning_rate_factor(5, 10, settings, s) for s in (None, "linear", "cosine", "constant")}
    assert factors == {None: 0.5, "linear": 0.5, "cosine": pytest.approx(0.5), "constant": 1.0}
