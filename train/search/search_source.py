"""The data set and the model of a search or an index, as its arguments name them."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from ...storage.common.errors import SettingError, UserError
from ...storage.common.plugins import trust_modules
from ...storage.dataset.folder import DatasetFolder, dataset_at
from ...storage.stores.opening import StoreSource
from ..runs.files import RUN_FILE
from ..runs.folder import choose_dataset, own_dataset, run_in
from ..runs.run_json import read_config, read_run
from .encoder import SearchEncoder, open_store_encoder


@dataclass(frozen=True)
class SearchSource:
    """A data set, and either features whose model reads texts, or a trained run: the arguments of ``open_search``.

    Example:
        >>> from vlalign.train import SearchSource
        >>> SearchSource("vlalign_data/demo", run="words-s3d-seed0").absolute().dataset.name
        'demo'
    """

    dataset: Path | str | None = None
    """The data set's folder, ``<root>/<data set>``. None: the run's data set."""
    features: str | None = None
    """Name of a store whose model also reads texts, such as "clip_vit_b32"."""
    run: Path | str | None = None
    """Folder of a run, or its name in ``dataset`` or in a data set beside it."""
    weights: Path | str | None = None
    """With ``features``: file or folder of the weights that made the store. None: where the extraction found
    them."""
    device: str = "auto"
    """What a run computes on; see ``find_device``."""
    stores: StoreSource | None = None
    """Stores of one's own with the data set's features, as for ``train``."""
    trust: tuple[str, ...] = ()
    """Modules of your own that may be imported if the run names them."""
    normalize: str | None = None
    """"ncl" or "none": with or without NCL's biases of the windows. None: with them for a run of NCL."""

    def absolute(self) -> "SearchSource":
        """Return the source with absolute paths, for processes that run in other folders."""
        is_run_folder = self.run is not None and os.path.exists(Path(self.run) / RUN_FILE)  # False for any long text
        return replace(
            self,
            dataset=None if self.dataset is None else Path(self.dataset).absolute(),
            run=Path(self.run).absolute() if self.run is not None and is_run_folder else self.run,
            weights=None if self.weights is None else Path(self.weights).absolute(),
        )

    def open_encoder(self) -> SearchEncoder:
        """Open the encoder that makes queries and clips into vectors.

        Raises:
            UserError: Neither or both of ``features`` and ``run`` are given, or one cannot be used.
        """
        trust_modules(self.trust)
        if (self.features is None) == (self.run is None):
            raise UserError("search: expected either features whose model reads texts, or a run")
        if self.features is None:
            return self._open_run()
        if self.normalize == "ncl":
            raise SettingError("normalize", self.normalize, "applies only to a run of objective ncl; omit it")
        if self.dataset is None:
            raise UserError(f"features {self.features}: no data set given; pass its folder as dataset")
        weights = None if self.weights is None else Path(self.weights)
        return open_store_encoder(self._dataset(self.dataset), self.features, weights)

    def _dataset(self, path: Path | str) -> DatasetFolder:
        return replace(dataset_at(Path(path).absolute()), stores=self.stores)

    def _open_run(self) -> SearchEncoder:
        given = [] if self.dataset is None else [self._dataset(self.dataset)]
        found = run_in(self.dataset, self.run)
        about = read_run(found)
        config = read_config(about)
        having = "" if self.stores else "features"
        asked = choose_dataset(given, own_dataset(found, about), found.name, having)
        asked = replace(asked, stores=self.stores)
        if config.objective.task is not None:
            problem = f"was trained with objective {config.objective.name}, and cannot find videos by text"
            raise UserError(f"run {found.name}: {problem}")
        if not config.model.encoder_traits.reads_words:
            raise UserError(f"run {found.name}: was trained on spoken captions, and cannot find videos by text")

        from ..runs.load import open_run  # torch takes seconds to import
        from .run_encoder import RunEncoder

        return RunEncoder(open_run(found, asked, self.device), self.normalize)
