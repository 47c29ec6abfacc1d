"""The inputs and the folder of a run, and the examples that it learns from."""

from dataclasses import dataclass
from pathlib import Path

from ...storage.common.errors import SettingError
from ...storage.common.problems import Problems
from ...storage.dataset.folder import DatasetFolder
from ..data.clip_features import ClipFeatures
from ..data.examples import Examples, Source
from ..data.stores import Stores
from ..distributed import Workers
from ..recipes.train_config import TrainConfig


@dataclass(frozen=True)
class RunSource:
    """The inputs and the folder of a training."""

    dataset: DatasetFolder
    config: TrainConfig
    folder: Path
    """The run's folder."""
    stores: Stores
    init: Path | None = None
    """Folder of the run whose model training starts from."""


def read_examples(source: RunSource, features: ClipFeatures, workers: Workers, problems: Problems) -> Examples:
    """Read what a run learns from.

    Raises:
        UserError: There is too little of it, or it cannot be shuffled by shards and should be.
    """
    config, objective = source.config, source.config.objective
    weighted = objective.pair_weights == "density"
    examples = objective.make_examples(
        Source(
            source.dataset,
            features,
            source.stores.recordings,
            data=config.data,
            optimization=config.optimization,
            make_batches=lambda pairs: objective.make_batches(pairs, config.data, config.optimization),
            density_neighbors=objective.density_neighbors if weighted else None,
            validation_share=config.validation.validation_share,
            workers=workers,
            problems=problems,
        )
    )
    if config.data.shuffle_shards and not examples.batches.shards:
        problem = f"{objective.name} learns from {examples.summary}, which are not shuffled by shards; expected 0"
        raise SettingError("shuffle_shards", config.data.shuffle_shards, problem)
    return examples
