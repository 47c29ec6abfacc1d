"""All runs that were evaluated on a data set, read from their files. Unreadable runs are reported and skipped."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...storage.common.errors import SettingError, UserError
from ...storage.common.plugins import UntrustedModule
from ...storage.common.problems import Problems
from ...storage.common.terminal import number_of
from ...storage.dataset.folder import DatasetFolder
from ..evaluation import TASKS
from ..evaluation.result_folders import changed_from, default_request
from ..recipes.train_config import TrainConfig
from ..runs.files import EVALUATIONS_FOLDER, RUN_FILE, STATE_FILE
from ..runs.run_json import read_config, read_run, score_weights
from .run_metrics import RunMetrics, read_run_metrics


@dataclass(frozen=True)
class RunRecord:
    """A finished run, and its metrics on one data set."""

    folder: Path
    """The run's folder."""
    config: TrainConfig
    inputs: Mapping[str, Any]
    """Data that it was trained on, as ``run.json`` has it."""
    results: Path
    """Folder of the evaluation: the run's, or ``on/<data set>`` in it."""
    metrics: RunMetrics | None
    """Its metrics on the test split with default settings; None if it was not evaluated with them."""
    other_results: Mapping[str, RunMetrics] = field(default_factory=dict)
    """{changes of the default request: metrics}, such as {"validation-ties=ce": ...}"""

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.folder.name


def read_records(dataset: DatasetFolder, problems: Problems) -> list[RunRecord]:
    """Return the runs of a data set, and the runs of others that were evaluated on it (zero-shot).

    Args:
        dataset: The data set.
        problems: Gets a line for each run that cannot be read.
    """
    records: list[RunRecord] = []
    untrusted: dict[str, list[str]] = {}
    for folder in run_folders(dataset.runs):
        records += _read(folder, [folder], dataset, problems, untrusted)
    for other in sorted(dataset.root.glob("*")):
        if other.name == dataset.name or not other.is_dir():
            continue
        for folder in run_folders(other / "runs"):
            results = [on for on in _subfolders(folder / "on") if is_about(on, dataset.name)]
            records += _read(folder, results, dataset, problems, untrusted)
    if untrusted:
        runs = [name for names in untrusted.values() for name in names]
        options = " ".join(f"--trust {module}" for module in untrusted)
        what = f"{number_of(len(runs), 'runs')} with modules of your own: {', '.join(runs)}"
        problems.add(f"{what}; skipped; to import these modules, pass {options}")
    return records


def run_folders(runs: Path) -> list[Path]:
    """Return the folders of finished runs, sorted. Links are no runs: they lead elsewhere."""
    return [folder for folder in _subfolders(runs) if (folder / RUN_FILE).is_file()]


def unfinished_runs(runs: Path) -> list[Path]:
    """Return the folders of trainings that have not ended."""
    folders = (folder for folder in _subfolders(runs) if not (folder / RUN_FILE).exists())
    return [folder for folder in folders if (folder / STATE_FILE).exists()]


def is_about(folder: Path, dataset: str) -> bool:
    """Return whether a folder in ``on/`` is named after a data set, or after it and a protocol."""
    return re.fullmatch(rf"{re.escape(dataset)}(-.*)?", folder.name) is not None


def _subfolders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.is_symlink())


def _read(
    folder: Path,
    result_folders: list[Path],
    dataset: DatasetFolder,
    problems: Problems,
    untrusted: dict[str, list[str]],
) -> Iterator[RunRecord]:
    """Yield a run's results.

    Args:
        folder: The run's folder.
        result_folders: Where its results on the data set are.
        dataset: The data set.
        problems: Gets a line if they cannot be read.
        untrusted: Gets the run if it needs a module that is not trusted: {module: runs}.
    """
    if not result_folders:
        return
    try:
        about = read_run(folder)
        config = read_config(about)
        weights = score_weights(about, config)
        for results in result_folders:
            found = read_run_metrics(results)
            if found is not None and found.test.dataset != dataset.name:
                if results == folder:
                    problems.add(f"{folder}: was evaluated on {found.test.dataset!r}, not {dataset.name}; skipped")
                continue
            results_by_changes = _read_results(results, found, config, weights, dataset, problems)
            metrics = results_by_changes.pop("", None)
            if metrics is not None:  # weights that validation chose are a result, which differs between seeds
                metrics = replace(metrics, request={**metrics.request, "weights": None})
            yield RunRecord(folder, config, about["inputs"], results, metrics, results_by_changes)
    except UntrustedModule as error:
        untrusted.setdefault(error.module, []).append(folder.name)
    except (UserError, OSError) as error:
        problems.add(f"{error}; skipped")


def _read_results(
    results: Path,
    found: RunMetrics | None,
    config: TrainConfig,
    weights: Mapping[str, float],
    dataset: DatasetFolder,
    problems: Problems,
) -> dict[str, RunMetrics]:
    """Return {changes of the default request: metrics} of a run; the changes are "" for the default request.

    Args:
        results: Folder of the results.
        found: The metrics in its ``metrics.json``: earlier versions wrote the results of every request there.
        config: The run's settings.
        weights: The run's own weight of each stage.
        dataset: What the run was evaluated on.
        problems: Gets a line for results that cannot be read.
    """
    by_changes: dict[str, RunMetrics] = {}
    for folder in _subfolders(results / EVALUATIONS_FOLDER):
        try:
            other = read_run_metrics(folder)
        except (UserError, OSError) as error:
            problems.add(f"{error}; skipped")
            continue
        if other is not None and other.test.dataset == dataset.name:
            default_task = other.task if found is None else found.task
            by_changes[_changes(other, config, weights, default_task) or folder.name] = other
    if found is not None:
        by_changes[_changes(found, config, weights, found.task)] = found
    return by_changes


def _changes(metrics: RunMetrics, config: TrainConfig, weights: Mapping[str, float], default_task: str) -> str:
    """Return the differences of a request from the default; empty for a custom task, whose settings are unknown."""
    if metrics.is_own:
        return ""
    return changed_from(default_request(config, weights, default_task, TASKS[metrics.task]), metrics.request)


def choose_record(records: list[RunRecord], name: str) -> RunRecord:
    """Return the evaluated run with this name or folder.

    Raises:
        SettingError: There is none, or there are several.
    """
    evaluated = [record for record in records if record.metrics is not None]
    found = [record for record in evaluated if record.name == name or str(record.folder) == name.rstrip("/")]
    if len(found) == 1:
        return found[0]
    if found:
        folders = ", ".join(str(record.folder) for record in found)
        raise SettingError("compare", name, f"{len(found)} runs have this name; expected one of the folders {folders}")
    if any(record.name == name for record in records):
        problem = "was not evaluated on the test split with default settings; run vlalign-evaluate first"
        raise SettingError("compare", name, problem)
    names = ", ".join(record.name for record in evaluated) or "none"
    raise SettingError("compare", name, f"expected one of the evaluated runs that could be read: {names}")
