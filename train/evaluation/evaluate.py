"""Evaluating a run on a split, and writing its metrics and a report. ``vlalign-evaluate`` wraps ``evaluate``."""

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...storage.captions.files import ABOUT_NAME, OTHER_LANGUAGES, choose_protocol, read_captions, read_captions_about
from ...storage.captions.word_times import checksum_of
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import read_json, sha256_of, write_json, write_jsonl
from ...storage.common.plugins import Plugin, errors_of_plugin, facts_of_plugin, load_plugin, trust_modules
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import say
from ...storage.common.writing import atomic_write, check_folders, remove_file
from ...storage.dataset.folder import DatasetFolder, dataset_at, find_prepared, guard_around
from ...storage.records import SPLITS
from ...storage.stores.opening import StoreSource
from ..data.stores import Stores
from ..objectives import objective_for
from ..recipes.departures import departures_of, recipe_note
from ..recipes.train_config import TrainConfig
from ..runs.files import EVALUATIONS_FOLDER, METRICS_FILE, MODEL_FILE, QUERIES_FILE, REPORT_FILE, SCORES_FILE
from ..runs.folder import choose_dataset, own_dataset, run_in, sha256_of_run_files
from ..runs.run_json import describe_inputs, find_run_stores, is_exported, read_config, read_run, score_weights
from ..untrusted_files import sha256_of_tensors
from . import TASKS
from .own_metrics import Metric, own_metric_values
from .own_tasks import is_own_task, known_tasks, load_task, trusted_task
from .result_folders import (
    changed_from,
    check_result_folder,
    default_request,
    json_values,
    move_other_results,
    result_folder,
)
from .task import EvaluationRequest, Metrics, Task, TaskResult, metric_lines

if TYPE_CHECKING:
    from ..runs.load import Run

OWN_FIELDS = (
    *("run", "trained_on", "dataset", "protocol", "task", "split", "note", "departures", "left_out", "fingerprint"),
    *("plugins", "table", "own_metrics"),
)
"""Fields of ``metrics.json`` that a custom task must not write."""
SCORE_STAGES = {
    "sentence": ("sentence",),
    "token": ("token", "fusion_token"),
    "fusion": ("fusion",),
    "bag": ("bag",),
    "word": ("word",),
}
"""{name of a weight: stages of the score that it multiplies}"""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The settings of an evaluation.

    Example:
        >>> from vlalign.train import EvaluationSettings
        >>> EvaluationSettings(split="validation", save_scores=True).split
        'validation'
    """

    task: str | type[Task[Any]] | None = None
    """A key of ``TASKS``; a task of your own, as "MODULE:NAME", an entry point in ``vlalign.tasks`` or the class; None:
    the task of the run and the data set."""
    split: str = "test"
    """Name of the split: "train", "validation" or "test"."""
    score_weights: Mapping[str, float] = field(default_factory=dict)
    """{key of ``SCORE_STAGES``: weight of these stages of the score}, instead of the run's own weights."""
    task_settings: object | None = None
    """The task's own settings, such as ``RetrievalSettings(ties="ce")``. None: its defaults."""
    metrics: Sequence[str | Metric] = ()
    """Metrics of your own, besides the task's (``own_metrics.py``): each as "MODULE:NAME", an entry point in
    ``vlalign.metrics`` or the function."""
    save_scores: bool = False
    """Save the scores as ``scores.npz`` beside the metrics: ``similarity`` float32 [captions, clips] in the order of
    the lines of ``queries.jsonl``, ``text_to_video`` (index of each caption's clip) and ``video_of_clip``."""
    device: str = "auto"
    """Name of the device; see ``find_device``."""

    def __post_init__(self) -> None:
        if isinstance(self.task, str) and self.task not in TASKS and not is_own_task(self.task):
            raise SettingError("task", self.task, f"expected one of {known_tasks()}")
        if self.split not in SPLITS:
            raise SettingError("split", self.split, f"expected one of {', '.join(SPLITS)}")
        if unknown := [name for name in self.score_weights if name not in SCORE_STAGES]:
            raise SettingError("score_weights", unknown[0], f"expected some of {', '.join(SCORE_STAGES)}")
        for name, weight in self.score_weights.items():
            if not 0 <= weight < math.inf:
                raise SettingError(f"{name}_weight", weight, "expected a finite number, 0 or more")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Example:
        >>> from vlalign.train import EvaluationSettings, evaluate
        >>> run = "vlalign_data/demo/runs/words-s3d-seed0"
        >>> evaluation = evaluate(run, settings=EvaluationSettings(device="cpu"))
        >>> evaluation.metrics_file.name, evaluation.is_complete
        ('metrics.json', True)
    """

    metrics: Metrics
    """Contents of ``metrics.json``. Each task's file describes its fields."""
    folder: Path
    """Folder of ``metrics.json``, ``queries.jsonl`` and ``report.html``."""
    summary: list[str]
    """Lines and tables for people."""

    @property
    def metrics_file(self) -> Path:
        """Return the path of ``metrics.json``."""
        return self.folder / METRICS_FILE

    @property
    def report_file(self) -> Path:
        """Return the path of the report."""
        return self.folder / REPORT_FILE

    @property
    def is_complete(self) -> bool:
        """Return whether nothing was skipped."""
        return not self.metrics.get("left_out")


def evaluate(
    run: Path | str | None = None,
    *,
    dataset: Path | str | None = None,
    on: Path | str | None = None,
    protocol: str | None = None,
    stores: StoreSource | None = None,
    settings: EvaluationSettings | None = None,
    trust: Collection[str] = (),
    on_progress: Listener | None = None,
) -> Evaluation:
    """Evaluate a run on a split of a data set, and write ``metrics.json``, ``queries.jsonl`` and ``report.html``.

    The files go into the run's folder; for another data set than the run's, into its subfolder ``on/<data set>``. If
    the split or a setting is not the default, they go into the subfolder ``evaluations/<settings>`` of that folder
    (``result_folders.py``). If the same evaluation was done before, nothing is computed.

    Args:
        run: Folder of a run, or its name in ``dataset`` or in a data set beside it. None: the last one finished there.
        dataset: Folder of the data set to evaluate on, ``<root>/<data set>``. None: the run's own.
        on: Folder of a data set for zero-shot evaluation: results go into ``on/<data set>``, with that data set's own
            protocol. Unlike ``dataset``, it does not change where the run's name is looked up.
        protocol: Protocol of that other data set: its splits and captions. None: the usual one.
        stores: Stores of one's own with the data set's features, as for ``train``.
        settings: What to evaluate, and how. None: the defaults.
        trust: Modules of your own that may be imported if the run or the captions (for their task) name them.
        on_progress: Called with the progress of long work.

    Returns:
        The metrics, the folder of the files, and a summary in words.

    Raises:
        UserError: The run or the data set cannot be found or read, or the run cannot be evaluated on it.

    Example:
        >>> from vlalign.train import EvaluationSettings, evaluate
        >>> run = "vlalign_data/demo/runs/words-s3d-seed0"
        >>> evaluation = evaluate(run, settings=EvaluationSettings(device="cpu"))
        >>> evaluation.metrics["split"], evaluation.metrics["num_captions"]
        ('test', 6)
    """
    trust_modules(trust)
    settings = settings or EvaluationSettings()
    plan = _plan(_Names(run, dataset, on, protocol, stores), settings, trust)
    fingerprint = {**_fingerprint(plan), "device": _device_title(settings.device)}
    if (metrics := _evaluated_before(plan, fingerprint)) is not None:
        then = "; that evaluation skipped something" if metrics.get("left_out") else ""
        say(f"{plan.folder}: already evaluated on the same data and device; nothing to do{then}")
        return Evaluation(metrics, plan.folder, _summary_of_file(plan, metrics))
    with report_progress_to(on_progress), Problems(file=plan.dataset.problems("evaluate")) as problems:
        metrics = _evaluate(plan, settings.device, problems, fingerprint)
    return Evaluation(metrics, plan.folder, list(_summary(plan, metrics)))


@dataclass(frozen=True)
class _Names:
    """The run and the data set as the caller names them: arguments of ``evaluate``."""

    run: Path | str | None
    dataset: Path | str | None
    on: Path | str | None
    protocol: str | None
    stores: StoreSource | None


@dataclass(frozen=True)
class _Plan:
    """An evaluation, before anything is computed."""

    run_folder: Path
    about: Mapping[str, Any]
    """Its ``run.json``."""
    config: TrainConfig
    dataset: DatasetFolder
    """The data set to evaluate on."""
    stores: Stores
    """Stores of that data set."""
    base: Path
    """Folder for the results of the default request."""
    default: Mapping[str, Any]
    """The default request for this run and this data set, flat."""
    task: Task[Any]
    request: EvaluationRequest[Any]

    @property
    def plugins(self) -> list[Plugin]:
        """The custom parts that make the results: the task and metrics."""
        return [*filter(None, [self.task.plugin]), *self.request.metrics]

    @property
    def flat_request(self) -> dict[str, Any]:
        """The request as a flat dictionary: all that affects the metrics, except model, data and device.

        Retrieval's settings are always included; for other tasks, they are at their defaults.
        """
        about = {"task": self.task.key, "split": self.request.split, "weights": self.request.score_weights}
        flat = {**self.default, **about, **asdict(self.request.settings)}
        if self.request.metrics:
            flat["metrics"] = [metric.text for metric in self.request.metrics]
        return flat if self.task.plugin is None else json_values(flat)

    @property
    def folder(self) -> Path:
        """Folder for the results."""
        return result_folder(self.base, changed_from(self.default, self.flat_request))


def _plan(names: _Names, settings: EvaluationSettings, trust: Collection[str]) -> _Plan:
    """Find the run and the data set, and choose the task."""
    run_folder = run_in(names.dataset, names.run)
    about = read_run(run_folder)
    config = read_config(about)
    found, base = _find_dataset(names, run_folder, about)
    dataset = replace(found, stores=names.stores)
    guard_around(run_folder)
    check_folders(base, dataset.captions, dataset.pairs)
    own = score_weights(about, config)
    weights = _score_weights(settings, own, run_folder.name)
    task = _choose_task(settings.task, config, dataset, trust)
    default = default_request(config, own, _default_task(config, dataset) or task.key, task)
    task_settings = _task_settings(task, settings, config, run_folder.name)
    if settings.save_scores and not task.saves_scores:
        takers = ", ".join(other.name for other in TASKS.values() if other.saves_scores)
        raise SettingError("save_scores", True, f"applies to the task {takers}; the task here is {task.key}")
    metrics = _load_metrics(settings.metrics, task)
    request = EvaluationRequest(settings.split, weights, task_settings, metrics, settings.save_scores)
    stores = find_run_stores(dataset, run_folder.name, about)
    plan = _Plan(run_folder, about, config, dataset, stores, base, default, task, request)
    check_result_folder(dataset.path if is_exported(about) else run_folder, plan.folder)
    return plan


def _fingerprint(plan: _Plan) -> dict[str, object]:
    """Return the facts that determine the metrics and the report, apart from the device."""
    inputs = describe_inputs(plan.dataset, plan.stores, config=plan.config)
    fingerprint: dict[str, object] = {
        **plan.flat_request,
        "model_sha256": sha256_of_tensors(plan.run_folder / MODEL_FILE),
        "inputs": {**inputs, "run_files": sha256_of_run_files(plan.run_folder, plan.about)},
    }
    if checksum := checksum_of(plan.dataset.word_times):
        fingerprint["word_times"] = checksum
    if plan.plugins:
        fingerprint["plugins"] = {plugin.text: plugin.sha256 for plugin in plan.plugins}
    if plan.task.plugin is not None and plan.task.page is not None:
        fingerprint["page"] = sha256_of(plan.task.page)
    return fingerprint


GPU_FILES = ("nvidiactl", "nvidia0", "nvmap", "dxg", "kfd")
"""Files of GPUs in Linux's ``/dev``: NVIDIA's, Jetson's, WSL's and AMD's."""


def _device_title(name: str) -> str:
    """Return the title of a device: devices round differently.

    A CPU has no title to look up, so torch, which takes seconds to import, is not needed without a GPU.
    """
    is_loaded = "torch" in sys.modules
    has_no_gpu = sys.platform == "linux" and not any(Path("/dev", file).exists() for file in GPU_FILES)
    if name == "cpu" or (name == "auto" and has_no_gpu and not is_loaded):
        return "cpu"
    from ...storage.common.device import device_title, find_device

    return device_title(find_device(name))


def _find_dataset(names: _Names, run_folder: Path, about: Mapping[str, Any]) -> tuple[DatasetFolder, Path]:
    """Return the data set to evaluate on, and the folder for the results.

    Nothing is written into the folder of an exported run: its results go into the data set's ``evaluations/<run>``.
    """
    own = own_dataset(run_folder, about)
    named = names.dataset if own is not None or names.dataset is not None else names.on
    given = [] if named is None else [dataset_at(named)]
    chosen = choose_dataset(given, own, run_folder.name, having="captions")
    if own is None:
        chosen = choose_protocol(chosen, names.protocol or "")
        return chosen, chosen.path / EVALUATIONS_FOLDER / "-".join(filter(None, (run_folder.name, chosen.protocol)))
    if names.on is not None and chosen is not own:
        problem = (
            f"--dataset is {chosen.name}, but run {run_folder.name} is of {own.name}; pass --on or --dataset, not both"
        )
        raise SettingError("on", dataset_at(names.on).name, problem)
    if names.on is None and chosen is own:
        if names.protocol is not None:
            problem = (
                "applies only to a data set other than the run's, which keeps the protocol of its training; omit it"
            )
            raise SettingError("protocol", names.protocol, problem)
        return own, run_folder
    if names.on is not None:
        chosen = find_prepared(names.on, having="captions", hint="vlalign-preprocess")
    chosen = choose_protocol(chosen, names.protocol or "")
    return chosen, run_folder / "on" / "-".join(filter(None, (chosen.name, chosen.protocol)))


def _score_weights(settings: EvaluationSettings, own: dict[str, float], run_name: str) -> dict[str, float]:
    """Return the weight of each stage of the run: the given one or its own.

    Raises:
        SettingError: A weight is given for a stage that the run's score does not have.
    """
    weights = dict(own)
    for name, weight in settings.score_weights.items():
        stages = [stage for stage in SCORE_STAGES[name] if stage in weights]
        weights |= dict.fromkeys(stages, weight)
        if not stages:
            problem = f"has no effect: the stages of {run_name} are {', '.join(own)}; omit it"
            raise SettingError(f"{name}_weight", weight, problem)
    if weights and not any(weights.values()):
        name, weight = next(iter(settings.score_weights.items()), ("score", 0.0))
        raise SettingError(f"{name}_weight", weight, "leaves no stage with a weight; expected one above 0")
    return weights


def _choose_task(
    named: str | type[Task[Any]] | None, config: TrainConfig, dataset: DatasetFolder, trust: Collection[str]
) -> Task[Any]:
    """Return the named task, or else the task of the run and the data set."""
    if named is None:
        default = _default_task(config, dataset)
        if default is None:
            raise UserError(
                f"{dataset.captions}: the captions are for an unknown task; expected one of {known_tasks()}"
            )
        if config.objective.task is not None:
            return load_task(default)  # the objective's own code names it
        return trusted_task(default, trust, dataset.captions / ABOUT_NAME)
    task, only = load_task(named), config.objective.task
    if only is not None and task.key != only:
        problem = f"a run of objective {config.objective.name} can be evaluated only on the task {only}"
        raise SettingError("task", task.key, problem)
    if only is None and (objective := objective_for(task.key)):
        problem = f"needs a run of objective {objective}; this run's objective is {config.objective.name}"
        raise SettingError("task", task.key, problem)
    return task


def _default_task(config: TrainConfig, dataset: DatasetFolder) -> str | None:
    """Return the default task of the run and the data set by name; None if the data set names no known task."""
    if config.objective.task is not None:
        return config.objective.task
    usual = next(iter(TASKS))
    default = (read_captions_about(dataset.captions) or {}).get("task", usual)
    if default not in TASKS and not is_own_task(default):
        return None
    return usual if objective_for(default) else default


def _load_metrics(named: Sequence[str | Metric], task: Task[Any]) -> list[Plugin]:
    """Load the custom metrics.

    Raises:
        UserError: The task takes none, or there is no such metric.
    """
    metrics = [load_plugin("metrics", each) for each in named]
    for number, metric in enumerate(metrics):
        if not task.takes_metrics:
            takers = ", ".join(other.name for other in TASKS.values() if other.takes_metrics)
            raise SettingError("metric", metric.text, f"applies to the task {takers}; the task here is {task.key}")
        if not callable(metric.value):
            raise SettingError("metric", metric.text, "expected a function of the similarities and the right videos")
        if metric.text in [other.text for other in metrics[:number]]:
            raise SettingError("metric", metric.text, "is given twice; pass it once")
    return metrics


def _task_settings(task: Task[Any], settings: EvaluationSettings, config: TrainConfig, run_name: str) -> Any:
    given = task.settings_type() if settings.task_settings is None else settings.task_settings
    if not isinstance(given, task.settings_type):
        raise _wrong_settings(given, task)
    return task.resolve(given, config, run_name)


def _wrong_settings(given: object, task: Task[Any]) -> SettingError:
    """Return an error that names the first setting that is not at its default."""
    owner = next((other for other in TASKS.values() if type(given) is other.settings_type), None)
    if owner is None:
        return SettingError("task_settings", given, f"expected {task.settings_type.__name__} for the task {task.key}")
    defaults, values = asdict(owner.settings_type()), asdict(owner.settings_type(**vars(given)))
    name = next((name for name in defaults if values[name] != defaults[name]), "task_settings")
    problem = f"applies to the task {owner.name}; the task here is {task.key}"
    return SettingError(name, values.get(name, type(given).__name__), problem)


def _evaluated_before(plan: _Plan, fingerprint: Mapping[str, object]) -> Metrics | None:
    """Return the metrics of an earlier evaluation of the same request, model, data and device."""
    folder, path = plan.folder, plan.folder / METRICS_FILE
    metrics = read_json(path) if path.exists() else {}
    has_counts = isinstance(metrics, dict) and "num_captions_of_split" in metrics  # older versions did not count
    has_request = has_counts and isinstance(metrics.get("fingerprint"), Mapping)
    is_same = has_request and plan.task.request_of(metrics) == fingerprint and (folder / REPORT_FILE).exists()
    is_same &= not plan.request.save_scores or (folder / SCORES_FILE).is_file()
    if is_same and metrics.get("task") != plan.task.key:
        raise UserError(f"{path}: is of another task than {plan.task.key}; remove it and run vlalign-evaluate again")
    return metrics if is_same else None


def _evaluate(plan: _Plan, device: str, problems: Problems, fingerprint: Mapping[str, object]) -> Metrics:
    from ..runs.load import open_run  # torch takes seconds to import
    from .report import write_report

    task, folder = plan.task, plan.folder
    run = open_run(plan.run_folder, plan.dataset, device, stores=plan.stores)
    result = _result_of_task(plan, run, problems)
    metrics = {
        "run": plan.run_folder.name,
        "trained_on": run.config.data.dataset,
        "dataset": run.dataset.name,
        "protocol": run.dataset.protocol,
        "task": task.key,
        "split": plan.request.split,
        "note": run.note,
        "departures": [str(departure) for departure in departures_of([plan.config.recipe])],
        **result.coverage.figures(task.caption_name, task.item_name),
        **result.metrics,
        "left_out": problems.count,
        "fingerprint": fingerprint,
    }
    if others := (read_captions_about(run.dataset.captions) or {}).get(OTHER_LANGUAGES):
        named = ", ".join(f"{language} {100 * share:.0f} %" for language, share in others.items())
        note = (
            f"some captions are in languages that the spaCy pipeline does not support ({named}, estimated from a "
            "sample); the parts of speech of their words are unreliable"
        )
        metrics["not_comparable"] = [*metrics["not_comparable"], note]
    if plan.plugins:
        metrics |= _about_plugins(plan, metrics)
    if folder == plan.base:
        move_other_results(folder, plan.default)
    write_jsonl(folder / QUERIES_FILE, map(dict, result.rows))
    _write_scores(folder / SCORES_FILE, result.scores)
    remove_file(folder / REPORT_FILE, missing_ok=True)  # its presence shows that an evaluation is complete
    write_json(folder / METRICS_FILE, metrics)  # before the report: figures that fail lose no numbers
    with _errors_of(task):
        page = result.page() if callable(result.page) else result.page
        write_report(run, task, metrics, page, folder)
    return metrics


def _write_scores(path: Path, scores: Mapping[str, np.ndarray] | None) -> None:
    """Write the scores, or remove an earlier evaluation's scores."""
    if scores is None:
        remove_file(path, missing_ok=True)
        return
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **scores)


def _errors_of(task: Task[Any]) -> AbstractContextManager[None]:
    """Return a context in which an error of a custom task becomes one line."""
    return nullcontext() if task.plugin is None else errors_of_plugin(task.plugin)


def _result_of_task(plan: _Plan, run: "Run", problems: Problems) -> TaskResult:
    """Evaluate the run. The result of a custom task is checked."""
    task = plan.task
    if task.plugin is None:
        return task.evaluate(run, plan.request, problems)
    with errors_of_plugin(task.plugin):
        result = task.evaluate(run, plan.request, problems)
        if not isinstance(result, TaskResult):
            raise ValueError(f"evaluate returned a {type(result).__name__}, expected a TaskResult")
        others = (*OWN_FIELDS, *result.coverage.figures(task.caption_name, task.item_name))
        if taken := [name for name in others if name in result.metrics]:
            raise ValueError(f"a metric has the name {taken[0]!r}, which every metrics.json uses; rename the metric")
        metrics = {"split_checksum": _checksum_of_split(plan), **json_values(dict(result.metrics))}
        rows = [json_values(dict(row)) for row in result.rows]
        return TaskResult(result.coverage, metrics, rows, result.page, result.scores)


def _checksum_of_split(plan: _Plan) -> str:
    from ..data.usable_captions import captions_of_split
    from .coverage import split_checksum

    return split_checksum(captions_of_split(read_captions(plan.dataset.captions), plan.request.split))


def _about_plugins(plan: _Plan, metrics: Metrics) -> dict[str, Any]:
    """Return the custom parts that made the metrics, and a custom task's table, so that it can be shown without its
    module.
    """
    task, about = plan.task, dict[str, Any]()
    if plan.request.metrics:
        about["metrics"] = [facts_of_plugin(metric) for metric in plan.request.metrics]
    if task.plugin is None:
        return {"plugins": about}
    with errors_of_plugin(task.plugin):
        table = {
            "metrics": dict(task.table_metrics(metrics)),
            "stages": {stage: dict(values) for stage, values in task.stage_metrics(metrics).items()},
            "main": list(task.main_metrics),
            "caption_name": task.caption_name,
            "item_name": task.item_name,
        }
        return {"plugins": {"task": facts_of_plugin(task.plugin), **about}, "table": json_values(table)}


def _summary(plan: _Plan, metrics: Metrics) -> Iterator[str]:
    with _errors_of(plan.task):
        yield plan.task.heading(metrics)
        yield from (f"note: {note}" for note in metrics["not_comparable"])
        yield from plan.task.summary(metrics)
    yield from metric_lines(own_metric_values(metrics))
    for plugin in plan.plugins:
        yield f"note: {plugin.text} is your own code, of module {plugin.module} (SHA-256 {plugin.sha256[:12]})"
    if metrics["note"]:
        yield f"note: {metrics['note']}"
    if note := recipe_note(plan.config.recipe):
        yield f"note: {note}"


def _summary_of_file(plan: _Plan, metrics: Metrics) -> list[str]:
    try:
        return list(_summary(plan, metrics))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # anybody may have changed the file
        path = plan.folder / METRICS_FILE
        raise UserError(
            f"{path}: not a valid file of vlalign-evaluate; remove it and run vlalign-evaluate again"
        ) from None
