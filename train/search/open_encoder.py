"""The choice of a search's encoder: the model of a store, or a run."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ...storage.common.errors import UserError
from ...storage.dataset.folder import DatasetFolder
from ..run_file_names import RUN_FILE
from ..runs.folder import choose_dataset, dataset_of, find_run, read_run
from ..runs.run_json import read_config
from .encoder import Encoder, open_zero_shot


@dataclass(frozen=True)
class EncoderSource:
    """Arguments of ``open_encoder``, by which other processes open the same encoder."""

    folder: Path | None
    features: str | None
    run: str | None
    weights: Path | None
    root: Path
    device: str
    number: int
    """Another one for each call, so that processes that live on open what was added since."""

    @classmethod
    def of(
        cls,
        folder: Path | str | None,
        *,
        features: str | None,
        run: Path | str | None,
        weights: Path | str | None,
        root: Path | str,
        device: str,
    ) -> "EncoderSource":
        """Return the source with absolute paths: other processes run in other folders."""
        if run is not None and os.path.exists(Path(run) / RUN_FILE):  # False for any text, however long
            run = Path(run).absolute()
        return cls(
            None if folder is None else Path(folder).absolute(),
            features,
            None if run is None else str(run),
            None if weights is None else Path(weights).absolute(),
            Path(root).absolute(),
            device,
            time.time_ns(),
        )

    def open(self) -> Encoder:
        """Open the encoder. Raises ``UserError`` as ``open_encoder``."""
        return open_encoder(
            self.folder,
            features=self.features,
            run=self.run,
            weights=self.weights,
            root=self.root,
            device=self.device,
        )


def open_encoder(
    folder: Path | str | None,
    *,
    features: str | None,
    run: Path | str | None,
    weights: Path | str | None = None,
    root: Path | str = "vlalign_data",
    device: str = "auto",
) -> Encoder:
    """Open what encodes windows and queries; the arguments are those of ``open_search``.

    Raises:
        UserError: Neither or both of ``features`` and ``run`` are given, or one cannot be used.
    """
    path = None if folder is None else Path(folder).absolute()
    if (features is None) == (run is None):
        raise UserError("search: expected either features whose model reads texts, or a run")
    if features is not None:
        if path is None:
            raise UserError(f"features {features}: of which data set? expected its folder")
        return open_zero_shot(
            DatasetFolder(path.parent, path.name), features, None if weights is None else Path(weights)
        )
    found = find_run(path.parent if path else Path(root), path.name if path else None, str(run))
    config = read_config(read_run(found))
    own = dataset_of(found, config)
    asked = choose_dataset(path.parent if path else own.root, path.name if path else None, own, having="features")
    if config.objective.task is not None:
        problem = f"was trained with the objective {config.objective.name}, and finds no videos by text"
        raise UserError(f"run {found.name}: {problem}")
    if not config.encoders.reads_words:
        raise UserError(f"run {found.name}: was trained on spoken captions, and finds no videos by text")

    from ..runs.checkpoint import load_run  # torch takes seconds to import
    from .run_encoder import RunEncoder

    return RunEncoder(load_run(found, asked, device))
