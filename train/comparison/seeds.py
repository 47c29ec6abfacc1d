"""The same training with several seeds, and the means of the runs' metrics. ``vlalign-train --seeds`` wraps it."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError
from ...storage.common.progress import Listener
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder, dataset_at
from ...storage.stores.opening import StoreSource
from ..evaluation.evaluate import Evaluation, EvaluationSettings, evaluate
from ..loop.training import TrainedRun, is_first_process, train
from ..recipes.departures import recipe_note
from ..runs.folder import default_run_name
from .run_metrics import RunMetrics, parse_run_metrics
from .table import Cell, Column, ResultsTable, mean_of, write_table

MAX_SEEDS = 1000


@dataclass(frozen=True)
class SeedRuns:
    """Runs that differ in their seed alone.

    Example:
        >>> from vlalign.train import train_seeds
        >>> quick = {"features": "s3d", "objective": "mil-nce", "encoder": "gated", "embedding_size": 16}
        >>> quick |= {"batch_size": 4, "num_steps": 2, "validate_every": 1}
        >>> result = train_seeds("vlalign_data/demo", seeds=[0, 1], run_name="quick", device="cpu", settings=quick)
        >>> len(result.runs), len(result.evaluations)
        (2, 2)
    """

    runs: tuple[TrainedRun, ...]
    """A run for each seed."""
    evaluations: tuple[Evaluation, ...]
    """One for each run; in a training by several processes, only the first process has them."""
    table: ResultsTable
    """A row for each run, and the mean with its deviation."""
    files: tuple[Path, ...]
    """Files of the table."""

    @property
    def is_complete(self) -> bool:
        """Return whether nothing was skipped."""
        return not any(run.num_skipped for run in self.runs) and all(e.is_complete for e in self.evaluations)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a text such as "0-4" or "0,2,5-7".

    Raises:
        SettingError: It is not of this form, or has a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if found is None:
            raise SettingError("seeds", text, "expected numbers and ranges, such as 0-4 or 0,2,5-7")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise SettingError("seeds", text, f"{part} has the higher number first; expected the lower one first")
        if last - first + len(seeds) >= MAX_SEEDS:
            raise SettingError("seeds", text, f"expected at most {MAX_SEEDS} seeds")
        seeds += range(first, last + 1)
    if len(set(seeds)) < len(seeds):
        raise SettingError("seeds", text, "expected each seed once")
    return tuple(seeds)


def train_seeds(
    dataset: Path | str,
    *,
    seeds: Sequence[int],
    recipe: str | None = None,
    protocol: str | None = None,
    init: str | None = None,
    run_name: str | None = None,
    device: str = "auto",
    stores: StoreSource | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
    trust: Collection[str] = (),
) -> SeedRuns:
    """Train and evaluate a run for each seed. Complete runs are reused, unfinished ones resume.

    The table is also written into ``comparisons/`` in the data set's folder. All trainings end before the first
    evaluation; under torchrun, only the first process evaluates.

    Args:
        dataset: The data set's folder, ``<root>/<data set>``.
        seeds: One for each run.
        recipe: As for ``train``.
        protocol: As for ``train``.
        init: As for ``train``.
        run_name: Name of the runs' folders without the seed, which is added; None: ``default_run_name``.
        device: As for ``train``.
        stores: As for ``train``.
        settings: As for ``train``, without the seed.
        on_progress: Called with the progress of each training and evaluation.
        trust: As for ``train``.

    Returns:
        The runs, their evaluations, and the table with the mean and its deviation.

    Raises:
        SettingError: A setting cannot be used.
        UserError: As for ``train`` and ``evaluate``.

    Example:
        >>> from vlalign.train import train_seeds
        >>> quick = {"features": "s3d", "objective": "mil-nce", "encoder": "gated", "embedding_size": 16}
        >>> quick |= {"batch_size": 4, "num_steps": 2, "validate_every": 1}
        >>> result = train_seeds("vlalign_data/demo", seeds=[0, 1], run_name="quick", device="cpu", settings=quick)
        >>> [run.folder.name for run in result.runs]
        ['quick-seed0', 'quick-seed1']
    """
    if not seeds:
        raise SettingError("seeds", "()", "expected one seed or more")
    if (settings or {}).get("seed") is not None:
        raise SettingError("seed", (settings or {})["seed"], "--seeds sets the seeds; pass only one of them")
    from ..distributed import meet_workers  # torch takes seconds to import

    with meet_workers(device):
        runs = [
            train(
                dataset,
                run_name=f"{run_name}-seed{seed}" if run_name else None,
                device=device,
                stores=stores,
                settings={**(settings or {}), "seed": seed},
                on_progress=on_progress,
                recipe=recipe,
                protocol=protocol,
                init=init,
                trust=trust,
            )
            for seed in seeds
        ]
    if not is_first_process():
        return SeedRuns(tuple(runs), (), ResultsTable((), ()), ())
    evaluation = EvaluationSettings(device=device)
    evaluations = tuple(
        evaluate(run.folder, stores=stores, settings=evaluation, on_progress=on_progress) for run in runs
    )
    return _compared(dataset_at(dataset), runs, evaluations, seeds, _table_name(runs[0], seeds, run_name))


def _compared(
    dataset: DatasetFolder,
    runs: Sequence[TrainedRun],
    evaluations: tuple[Evaluation, ...],
    seeds: Sequence[int],
    name: str,
) -> SeedRuns:
    table = seeds_table([parse_run_metrics(e.metrics) for e in evaluations], seeds, recipe=runs[0].config.recipe)
    check_folders(dataset.comparisons)
    return SeedRuns(tuple(runs), evaluations, table, tuple(write_table(table, dataset.comparisons, name)))


def _table_name(run: TrainedRun, seeds: Sequence[int], run_name: str | None) -> str:
    label = f"seeds{shown_seeds(seeds)}"
    return f"{run_name}-{label}" if run_name else default_run_name(run.config, run.init, seed=label)


def shown_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as a short text: "0-4" if they are consecutive, else "0_2_5"."""
    if len(seeds) > 1 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]}-{seeds[-1]}"
    return "_".join(map(str, seeds)) if len(seeds) <= 10 else f"{seeds[0]}_and_{len(seeds) - 1}_more"


def seeds_table(runs: Sequence[RunMetrics], seeds: Sequence[int], *, recipe: str = "") -> ResultsTable:
    """Return a table with a row for each run, and one for the mean with its deviation.

    Args:
        runs: The metrics of the evaluations, in the order of ``seeds``.
        seeds: Seeds of the runs.
        recipe: Recipe of the runs; a note is added if it departs from its paper.
    """
    names = list(runs[0].values)
    columns = (
        Column("run", is_text=True),
        Column("seed"),
        *(Column(n, only_in_csv=n not in runs[0].main) for n in names),
    )
    rows: list[tuple[Cell, ...]] = [
        (run.run, str(seed), *(mean_of([run.values[name]]) for name in names))
        for run, seed in zip(runs, seeds, strict=True)
    ]
    means = (mean_of([run.values[name] for run in runs]) for name in names)
    rows.append((f"mean of {len(runs)}", None, *means))
    tests = {(run.test.checksum, run.test.size) for run in runs}
    notes = [f"±: sample standard deviation over {len(runs)} seeds"] if len(runs) > 1 else []
    notes += [f"test set {checksum}: {size}" for checksum, size in sorted(tests)]
    ways = {str(run.request.get("normalize")) for run in runs if run.task == "retrieval"}
    notes += [f"scores are normalised by {way}" for way in sorted(ways - {"none", "None"})]
    notes += sorted({note for run in runs for note in run.notes})
    return ResultsTable(columns, tuple(rows), tuple(filter(None, (*notes, recipe_note(recipe)))))
