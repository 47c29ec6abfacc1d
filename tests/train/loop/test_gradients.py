"""Gradients are summed over processes while the backward pass goes on, and are those that are summed after it."""

import contextlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from helpers.toy import make_toy
from helpers.training import gradient, make_trainer, map_in_processes, settings_of
from torch import Tensor, nn
from vlalign.storage.common.files import read_json, write_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.distributed import join_workers
from vlalign.train.loop import gradients, step
from vlalign.train.loop.gradients import summed_gradients
from vlalign.train.loop.trainer import Trainer
from vlalign.train.recipes.train_config import train_config


def gradient_summed_afterwards(of: Trainer) -> Tensor:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step, "summed_gradients", lambda *_: contextlib.nullcontext())
        gradient(of)
    found = [parameter.grad for parameter in of.model.parameters() if parameter.grad is not None]
    for of_one in found:
        dist.all_reduce(of_one)
    return torch.cat([of_one.flatten() for of_one in found])


def compare(dataset: DatasetFolder, cases: dict[str, dict], out: Path) -> None:
    with join_workers("cpu") as (workers, device):
        same = {}
        for case, settings in cases.items():
            config = train_config(**settings_of(dataset=dataset.name, **settings))
            two = [make_trainer(dataset, config, out / f"{case}-{number}", workers, device) for number in range(2)]
            same[case] = torch.equal(gradient(two[0])[1], gradient_summed_afterwards(two[1]))
        write_json(out / f"{workers.rank}.json", same)


@pytest.mark.slow
def test_the_gradient_is_bit_for_bit_the_one_that_is_summed_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 2**20)  # several parts, of a small model, too
    cases = {
        f"{objective}-{size}": {"objective": objective, "micro_batch_size": size}
        for objective in ("taco", "toco", "cmcm", "ncl", "ssml")
        for size in (0, 2)
    }
    map_in_processes(2, compare, make_toy(tmp_path), cases, tmp_path)
    assert read_json(tmp_path / "0.json") == read_json(tmp_path / "1.json") == dict.fromkeys(cases, True)


class Layers(nn.Module):
    """Three layers, of which the second process uses two."""

    def __init__(self, num_used: int) -> None:
        super().__init__()
        self.layers, self.num_used = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3)), num_used
        for number, layer in enumerate(self.layers):
            nn.init.constant_(layer.weight, number + 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[: self.num_used]:
            x = layer(x)
        return x.sum()


def sum_of_layers(out: Path, num_used: tuple[int, int]) -> None:
    with join_workers("cpu") as (workers, _):
        model = Layers(num_used[workers.rank])
        with summed_gradients(model, workers):
            model(torch.ones(2)).backward()
            begun = [parameter.grad is None for parameter in model.parameters()]
        torch.save((begun, [parameter.grad for parameter in model.parameters()]), out / f"{workers.rank}")


@pytest.mark.parametrize("num_used", [(3, 3), (3, 2), (2, 2)])
def test_sums_begin_during_the_backward_pass_and_a_missing_gradient_is_zero(tmp_path, monkeypatch, num_used):
    """Unless it is missing everywhere: then it stays so, as in a single process."""
    monkeypatch.setattr(gradients, "BUCKET_BYTES", 16)  # of one layer
    map_in_processes(2, sum_of_layers, tmp_path, num_used)
    of_process = []
    for used in num_used:
        model = Layers(used)
        model(torch.ones(2)).backward()
        of_process.append([p.grad for p in model.parameters()])
    for rank in range(2):
        begun, found = torch.load(tmp_path / f"{rank}")
        for ours, *theirs in zip(found, *of_process, strict=True):
            there = [gradient for gradient in theirs if gradient is not None]
            torch.testing.assert_close(ours, sum(there) if there else None)
        # In order: where the last layer has no gradient, nothing begins before the end.
        assert begun == ([True] * 3 if num_used[rank] == 3 else [False, False, True])
