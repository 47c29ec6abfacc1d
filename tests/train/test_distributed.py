"""What processes gather from each other is what one process has: several columns a pair, and shares of any size."""

import pytest
import torch
from helpers.toy import make_toy
from helpers.training import at, map_in_processes
from vlalign.storage.common.files import read_jsonl
from vlalign.train.cli.train import main as train_main
from vlalign.train.distributed import Workers, join_workers

SHAPES = {"one column": (), "several columns": (3,), "tokens": (4, 5)}
SPLITS = {"even": [4, 4], "the last one is smaller": [4, 1], "the first one is smaller": [2, 5], "one has none": [0, 3]}


def rows(split: list[int], shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (sum(split), *shape)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def loss_of(gathered: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return a loss in which each row meets each other row."""
    return (gathered * weights).sum() ** 2 + gathered.reshape(len(gathered), -1).cumsum(dim=0).square().sum()


def _gather_all(folder: str) -> None:
    with join_workers("cpu") as (workers, _):
        found = {}
        for split_name, split in SPLITS.items():
            for shape_name, shape in SHAPES.items():
                whole, weights = rows(split, shape)
                first = sum(split[: workers.rank])
                x = whole[first : first + split[workers.rank]].clone().requires_grad_()
                gathered = workers.gather(x)
                (loss_of(gathered, weights) / workers.size).backward()
                found[f"{split_name}/{shape_name}"] = (gathered.detach(), x.grad)
        torch.save(found, f"{folder}/{workers.rank}")


def test_what_is_gathered_is_what_one_process_has(tmp_path):
    map_in_processes(2, _gather_all, str(tmp_path))
    of_ranks = [torch.load(tmp_path / str(rank), weights_only=True) for rank in (0, 1)]
    for split_name, split in SPLITS.items():
        for shape_name, shape in SHAPES.items():
            case = f"{split_name}/{shape_name}"
            whole, weights = rows(split, shape)
            alone = whole.clone().requires_grad_()
            loss_of(Workers().gather(alone), weights).backward()
            for gathered, _ in (found[case] for found in of_ranks):
                assert torch.equal(gathered, whole), case
            found = torch.cat([found[case][1] for found in of_ranks])
            torch.testing.assert_close(found, alone.grad, msg=case)


GATED = ["--encoder", "gated", "--features", "s3d", "--num-steps", "4", "--validate-every", "4"]  # without dropout
LAST = {  # the toy set has 12 training clips
    "the second batch would have 4 of 8": ["--objective", "mil-nce", "--batch-size", "8"],
    "all 12 are one batch": ["--objective", "ncl", "--batch-size", "64"],
}


@pytest.mark.parametrize("case", LAST)
def test_runs_of_two_processes_have_the_losses_of_one_over_the_end_of_epochs(tmp_path, case):
    dataset = make_toy(tmp_path)
    losses = []
    for number, device in enumerate(("cpu", "cpu,cpu")):
        call = [*at(dataset), *GATED, *LAST[case], "--device", device, "--run-name", f"r{number}"]
        assert train_main(call) == 0
        losses.append([event["loss"] for event in read_jsonl(dataset.runs / f"r{number}" / "events.jsonl")])
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], rel=1e-4)
