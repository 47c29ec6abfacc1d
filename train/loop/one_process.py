"""A training in this process, alone or with others that share its batches."""

import contextlib
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.common.files import remove_unfinished
from ...storage.common.problems import Problems
from ...storage.common.terminal import say
from ...storage.dataset.folder import DatasetFolder
from ..data.stores import Stores
from ..distributed import join_workers
from ..recipes.train_config import TrainConfig
from ..run_file_names import EVENTS_FILE, LABELS_FILE, LAST_MODEL_FILE, MODEL_FILE, RUN_FILE, STATE_FILE
from ..runs.folder import features_note, training_in
from .run_source import RunSource
from .trainer import Trainer

WRITTEN = (STATE_FILE, MODEL_FILE, LAST_MODEL_FILE, EVENTS_FILE, LABELS_FILE, RUN_FILE)
"""Files of a run that a training writes whole or not at all."""


def train_here(
    dataset: DatasetFolder,
    config: TrainConfig,
    folder: Path,
    stores: Stores,
    *,
    device: str,
    init: Path | None,
    problems: Problems,
) -> None:
    """Do what ``train_run`` does in this process alone, or with those that torchrun or ``processes`` started with it.

    ``device`` as for ``join_workers``, the rest as for ``train_run``.
    """
    with (
        join_workers(device) as (workers, own_device),
        training_in(folder) if workers.first else contextlib.nullcontext(),
    ):
        if workers.first:
            clean(folder)
        trainer = Trainer(RunSource(dataset, config, folder, stores, init), workers, own_device, problems)
        if workers.first:
            say(f"{folder}: {trainer.examples.summary}")
            if trainer.examples.labels:
                say(f"{folder}: {len(trainer.examples.labels):,} answers or labels to choose from")
            if trainer.step:
                say(f"{folder}: resumes after step {trainer.step:,}")
            if note := features_note(trainer.state.inputs["features"]):
                say(f"note: {note}")
        trainer.run()


def clean(folder: Path) -> None:
    """Remove files that a killed training left half written.

    Raises:
        UserError: A training has finished in this folder meanwhile.
    """
    if (folder / RUN_FILE).exists():
        raise UserError(f"{folder}: a training has just finished there; pass another --run-name NAME")
    if num_removed := sum(remove_unfinished(folder / name) for name in WRITTEN):
        say(f"{folder}: removed {num_removed} half-written files of a killed training")
