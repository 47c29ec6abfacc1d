"""One training step: a batch computed in parts has the loss and the gradient of the whole batch; the learning rate."""

import pytest
import torch
from helpers.fake_cuda import gpu
from helpers.labelled import make_questions, make_segments
from helpers.step_cases import WHOLE, made
from helpers.toy import make_toy
from helpers.training import TASK_CASES, gradient
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.loop import step
from vlalign.train.loop.step import backward, learning_rate_factor
from vlalign.train.loop.trainer import Trainer
from vlalign.train.models import fusion, layers
from vlalign.train.objectives import batch
from vlalign.train.recipes.train_config import train_config

pytestmark = pytest.mark.portable

SLOW = pytest.mark.slow
TRANSFORMERS = {"ssml": {"objective": "ssml"}, "mil-nce": {"objective": "mil-nce"}, "asked": {"objective": "vqa"}}
"""The gated encoders drop nothing."""


@pytest.fixture(scope="module")
def datasets(tmp_path_factory) -> dict[str, DatasetFolder]:
    root = tmp_path_factory.mktemp("root")
    return {"toy": make_toy(root), "asked": make_questions(root), "segmented": make_segments(root)}


@pytest.mark.parametrize(
    ("case", "size"),
    [(case, 5) for case in WHOLE]
    + [("taco", 1), ("taco", 12)]
    + [pytest.param("toco", size, marks=SLOW) for size in (1, 12)],
)
def test_micro_batches_have_the_loss_and_gradient_of_the_large_batch(datasets, tmp_path, case, size):
    whole = gradient(made(datasets, case, tmp_path / "whole", **WHOLE[case]))
    parts = gradient(made(datasets, case, tmp_path / "parts", **WHOLE[case], micro_batch_size=size))
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    # A term of the loss is the sum of some hundred products, so a value near 0 has lost digits of larger ones.
    largest = whole[1].abs().max().item()
    torch.testing.assert_close(parts[1], whole[1], atol=1e-6 * max(1.0, largest), rtol=1e-4)
    assert all(torch.isfinite(torch.tensor(value)) for value in whole[0].values())


@pytest.mark.parametrize("objective", ["taco", "toco"])
def test_groups_of_the_size_for_a_gpu_have_the_same_loss_and_gradient(datasets, tmp_path, monkeypatch, objective):
    many = gradient(made(datasets, "taco", tmp_path / "many", objective=objective))
    monkeypatch.setitem(layers.GROUP_SIZES, "cpu", layers.GROUP_SIZES["cuda"])
    few = gradient(made(datasets, "taco", tmp_path / "few", objective=objective))
    assert few[0] == pytest.approx(many[0], rel=1e-5)
    torch.testing.assert_close(few[1], many[1], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=SLOW)])
def test_with_dropout_the_gradient_is_the_slope_of_the_loss(datasets, tmp_path, device):
    """What is computed again for the gradient must drop what was dropped before."""
    settings = {"dropout": 0.3, "micro_batch_size": 5, "negatives": "all", "losses": "sentence+fusion"}  # smooth
    with gpu():
        of = made(datasets, "taco", tmp_path, device, **settings)
        of.model.train()
        inputs, weight = of.make_inputs(0).to(of.device), of.model.project.weight
        backward(of.model, inputs, of.config, 0, of.workers)
        slope, direction = weight.grad.clone(), weight.grad / weight.grad.norm()
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                weight += sign * 1e-3 * direction
                values.append(sum(term.item() for term in terms_of(of, inputs).values()))
                weight -= sign * 1e-3 * direction
        assert (values[0] - values[1]) / 2e-3 == pytest.approx((slope * direction).sum().item(), rel=0.02)


def terms_of(of: Trainer, inputs) -> dict[str, torch.Tensor]:
    with torch.enable_grad():
        return backward(of.model, inputs, of.config, 0, of.workers)


def kept(function, *arguments, use_reentrant: bool, **named):
    """In the place of ``checkpoint``: computes nothing again."""
    return function(*arguments, **named)


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=SLOW)])
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("segmented", TASK_CASES["segmented"]),
        pytest.param("taco", {}, marks=SLOW),
        *(pytest.param(case, WHOLE[case], marks=SLOW) for case in ("toco", "ncl", "cmcm", "cmcm-both", "taco-both")),
        *(pytest.param(case, settings, marks=SLOW) for case, settings in TRANSFORMERS.items()),
    ],
)
def test_on_a_gpu_the_gradient_is_that_of_what_was_dropped_before(
    datasets, tmp_path, monkeypatch, case, settings, precision
):
    """As if all were kept that is computed again."""
    settings = settings | {"dropout": 0.3, "micro_batch_size": 5, "precision": precision}
    if case == "segmented":
        settings["num_video_layers"] = 1
    found = []
    with gpu():
        for number in range(2):
            of = made(datasets, case, tmp_path / str(number), "cuda", **settings)
            of.model.train()
            inputs = of.make_inputs(0).to(of.device)
            terms = backward(of.model, inputs, of.config, 0, of.workers)
            of_all = torch.cat([p.grad.flatten() for p in of.model.parameters() if p.grad is not None])
            found.append((torch.stack([*terms.values()]).detach().cpu(), of_all.cpu()))
            for module in (step, fusion, batch):
                monkeypatch.setattr(module, "checkpoint", kept)
    torch.testing.assert_close(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-5, rtol=1e-3)


def test_learning_rate_warms_up_and_decays_to_nothing():
    config = train_config(dataset="d", features="f", num_steps=100, warmup_steps=10)
    factors = [learning_rate_factor(step, 100, config.optimization) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert max(factors) == factors[9] == factors[10] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == 0.0
