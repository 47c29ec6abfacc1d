"""Trainings of small data sets: trainers, gradients, several processes, and the settings that tests share."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.common.problems import Problems
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.examples import Inputs
from vlalign.train.distributed import Workers, join_workers
from vlalign.train.loop.processes import meeting_environment
from vlalign.train.loop.step import backward
from vlalign.train.loop.trainer import Trainer, TrainingJob
from vlalign.train.recipes.train_config import TrainConfig, train_config
from vlalign.train.runs.run_json import open_run_stores

from helpers.fake_cuda import pretended

Gradient = tuple[dict[str, float], torch.Tensor]
"""The terms of a loss, and the gradient of all parameters."""

GATED = {"encoder": "gated", "embedding_size": 16}
NCL = {"normalized_loss": True, "query_queue": 20}
PAIR_CASES = {
    "ssml": {"objective": "ssml", **GATED, "pair_weights": "density", "density_neighbors": 2},
    "htm": {"objective": "ssml", "encoder": "htm", "embedding_size": 16},
    "intra-video": {"objective": "ssml", **GATED, "clips_per_video": 2},
    "mil-nce": {"objective": "mil-nce", **GATED},
    "ncl": {"objective": "ncl", **NCL, "temperature": 0.1, "num_video_layers": 0},
    "ncl-gated": {"objective": "ncl", **GATED, **NCL, "temperature": 0.1},
    "ncl-ssb": {"objective": "ncl", "encoder": "ssb", **NCL, "temperature": 0.07, "loss_scale": 15.0},
    "hard-triplet": {"objective": "hard-triplet", "encoder": "ssb"},
    "cmcm": {"objective": "cmcm", "codebook_size": 12},
    "words": {"objective": "words", "encoder": "words", "ema_decay": 0.9, "stage_weights": "validation"},
    "taco-both": {"objective": "taco", **NCL, "pair_weights": "density", "density_neighbors": 2},
    "cmcm-both": {"objective": "cmcm", "codebook_size": 12, **NCL, "pair_weights": "density", "density_neighbors": 2},
}
"""Settings of objectives that learn from pairs, for the data set of ``toy``."""
QUESTIONS = {"objective": "vqa", **GATED}
SEGMENTS = {"objective": "segmentation", "max_video_tokens": 40}
EIGHT_STEPS = ["--batch-size", "6", "--num-steps", "8", "--validate-every", "3"]
TRAIN = ["--objective", "taco", "--features", "s3d", *EIGHT_STEPS, "--num-negatives", "2"]
"""Options of a short run of the data set of ``toy``."""
TWO_STEPS = ["--objective", "taco", "--features", "s3d", "--batch-size", "4", "--num-negatives", "2"]
TWO_STEPS += ["--num-steps", "2", "--validate-every", "1", "--stage-weights", "set"]
"""Options of the shortest run of that data set."""
CODEBOOK = ["--recipe", "cmcm-small", "--features", "s3d", "--batch-size", "6"]
CODEBOOK += ["--num-steps", "3", "--validate-every", "3"]
"""Options of a short run of that data set with a codebook of 128 codewords."""
TASK_CASES = {"asked": QUESTIONS, "segmented": SEGMENTS}
"""{data set of ``labelled``: settings}"""
SPOKEN = {"objective": "cmcm", "encoder": "spoken", "codebook_size": 16, "code_loss_weight": 1.0, "margin": 1e-3}
"""Settings for the data set of ``spoken``."""


def without_dropout(settings: Mapping[str, Any]) -> list[str]:
    """Return options for repeatable steps with few negatives, those that change something with these settings."""
    few = {"num_negatives": 2, "dropout": 0}
    config = train_config(dataset="d", features="s3d", **settings)
    own = config.flat().keys() - config.ignored_settings().keys()
    return options({name: value for name, value in few.items() if name in own and name not in settings})


def at(dataset: DatasetFolder) -> list[str]:
    """Return the options that name a data set."""
    return ["--root", str(dataset.root), "--dataset", dataset.name]


def options(settings: Mapping[str, Any]) -> list[str]:
    """Return settings as options of vlalign-train."""
    given = []
    for name, value in settings.items():
        given += [f"--{name.replace('_', '-')}"] if value is True else [f"--{name.replace('_', '-')}", str(value)]
    return given


def losses_of(folder: Path) -> list[tuple]:
    """Return the figures of all steps of a run."""
    return [tuple(sorted(event.items())) for event in read_jsonl(folder / "events.jsonl")]


def settings_of(**settings: Any) -> dict[str, Any]:
    """Return the settings that tests train with, replaced by those that are given."""
    return {"dataset": "toy", "features": "s3d", "batch_size": 12, "num_negatives": 3, "dropout": 0.0, **settings}


def make_trainer(
    dataset: DatasetFolder, config: TrainConfig, folder: Path, workers: Workers, device: torch.device
) -> Trainer:
    """Return a trainer that opens the data set's stores."""
    stores = open_run_stores(dataset, config)
    return Trainer(TrainingJob(dataset, config, folder), stores, workers, device, Problems())


def trainer(dataset: DatasetFolder, folder: Path, /, device: str = "cpu", **settings: Any) -> Trainer:
    """Return a trainer in a single process, with ``settings_of`` these."""
    return make_trainer(dataset, train_config(**settings_of(**settings)), folder, Workers(), torch.device(device))


def gradient(of: Trainer) -> Gradient:
    """Return the loss and the gradient of a trainer's first batch, without dropout."""
    of.model.train()
    for module in of.model.modules():  # BERT's own, too
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    terms = backward(of.model, of.make_inputs(0).to(of.device), of.config, 0, of.workers)
    parts = [p.grad.flatten() for p in of.model.parameters() if p.requires_grad and p.grad is not None]
    return {name: term.item() for name, term in terms.items()}, torch.cat(parts)


def kept_state(of: Trainer) -> dict[str, torch.Tensor]:
    """Return what a step changes besides the gradient: queries and codewords."""
    return {name: value for name, value in of.model.state_dict().items() if name.startswith(("queries.", "codebook."))}


TRAIN_COMMAND = str(Path(sys.executable).with_name("vlalign-train"))


def torchrun(num_processes: int, *call: str) -> subprocess.CompletedProcess:
    """Run a call in several processes of one thread each, over loopback."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command += [f"--nproc-per-node={num_processes}", *call]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def save_gradients(cases: dict[str, tuple[str, dict[str, Any]]], out: str, kind: str) -> None:
    """In each of several processes: save the loss, the gradient and the state of each case.

    Args:
        cases: {case: (root of its data set, settings)}
        out: Folder for the results.
        kind: "cpu", or "cuda" for a pretended GPU.
    """
    with pretended(num_gpus=8) if kind == "cuda" else contextlib.nullcontext(), join_workers(kind) as joined:
        workers, device = joined
        for case, (root, settings) in cases.items():
            config = train_config(**settings)
            dataset = DatasetFolder(Path(root), config.data.dataset)
            made = make_trainer(dataset, config, Path(out) / f"run-{case}", workers, device)
            terms, found = gradient(made)
            mean = workers.mean({name: torch.tensor(term) for name, term in terms.items()})
            state = {name: value.cpu() for name, value in kept_state(made).items()}
            torch.save((mean, found.cpu(), state), f"{out}/{case}.{workers.rank}")


def _one_process(rank: int, size: int, port: int, call: Callable[..., object], *arguments: Any) -> None:
    torch.set_num_threads(1)  # a forked process has no other threads
    os.environ |= meeting_environment(rank, size, port)
    call(*arguments)


def map_in_processes(num_processes: int, call: Callable[..., object], *arguments: Any) -> None:
    """Make a call in several processes, which can meet as under torchrun.

    They are forked: importing torch in each would take longer than all else.
    """
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        multiprocessing.get_context("fork").Process(
            target=_one_process, args=(rank, num_processes, meeting.port, call, *arguments)
        )
        for rank in range(num_processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0


def check_processes(
    cases: dict[str, tuple[DatasetFolder, dict[str, Any]]],
    folder: Path,
    num_processes: int,
    *,
    atol: float = 1e-6,
    kind: str = "cpu",
) -> None:
    """Check that several processes have the loss, the gradient and the state of one on a CPU.

    Args:
        cases: {case: (data set, settings)}
        folder: For results; exists.
        num_processes: Processes that share each batch.
        atol: Absolute tolerance of the gradient.
        kind: "cpu", or "cuda": each process has a pretended GPU.
    """
    out = folder / "out"
    out.mkdir()
    full = {case: (str(d.root), settings_of(dataset=d.name, **settings)) for case, (d, settings) in cases.items()}
    map_in_processes(num_processes, save_gradients, full, str(out), kind)
    for case, (dataset, settings) in cases.items():
        single = trainer(dataset, folder / "single" / case, dataset=dataset.name, **settings)
        terms, expected = gradient(single)
        for rank in range(num_processes):
            found_terms, found, state = torch.load(out / f"{case}.{rank}", weights_only=True)

            def in_case(text: str, case: str = case) -> str:
                return f"{case}: {text}"

            assert found_terms == pytest.approx(terms, rel=1e-5), case
            torch.testing.assert_close(found, expected, atol=atol, rtol=1e-3, msg=in_case)
            torch.testing.assert_close(state, kept_state(single), atol=1e-5, rtol=1e-4, msg=in_case)


def check_stopped_run(dataset: DatasetFolder, call: list[str], name: str, stop_at: int = 5) -> None:
    """Train ``NAME-whole``, and ``NAME-stopped`` that is interrupted and goes on; check that they are the same."""
    step = Trainer.train_step

    def stopped(self: Trainer, inputs: Inputs) -> list[dict[str, float]]:
        if self.step == stop_at:
            raise KeyboardInterrupt
        return step(self, inputs)

    assert train_main([*call, "--run-name", f"{name}-whole"]) == 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopped)
        assert train_main([*call, "--run-name", f"{name}-stopped"]) == 130
    assert train_main([*call, "--run-name", f"{name}-stopped"]) == 0
    whole, stopped_run = dataset.runs / f"{name}-whole", dataset.runs / f"{name}-stopped"
    assert losses_of(stopped_run) == losses_of(whole)
    for file in ("model.safetensors", "last.safetensors"):
        assert (stopped_run / file).read_bytes() == (whole / file).read_bytes()
