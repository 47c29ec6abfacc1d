"""Asking a run about a split, and writing its figures and a report. ``vlalign-evaluate`` wraps ``evaluate``."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...storage.captions.files import OTHER_LANGUAGES, choose_protocol, read_captions_about
from ...storage.common.errors import SettingError, UserError
from ...storage.common.files import read_json, write_json, write_jsonl
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import say
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder, find_dataset, guard_around
from ...storage.records import SPLITS
from ..data.stores import Stores
from ..objectives import objective_for
from ..recipes.departures import departures_of, recipe_note
from ..recipes.train_config import TrainConfig
from ..run_file_names import METRICS_FILE, MODEL_FILE, QUERIES_FILE, REPORT_FILE
from ..runs.folder import asked_dataset, dataset_of, describe_inputs, find_run, open_run_stores, read_run
from ..runs.run_json import read_config, score_weights
from ..untrusted_files import sha256_of_tensors
from . import TASKS
from .result_folders import changed_from, check_result_folder, make_room, result_folder, usual_question
from .task import Figures, Question, Task

SCORES = {
    "sentence": ("sentence",),
    "token": ("token", "fusion_token"),
    "fusion": ("fusion",),
    "bag": ("bag",),
    "word": ("word",),
}
"""Parts of the score whose weight can be set: {name: stages}."""


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """The settings of an evaluation."""

    task: str | None = None
    """A key of ``TASKS``. None: what the run and the data set are for."""
    split: str = "test"
    """Name of the split: "train", "validation" or "test"."""
    score_weights: Mapping[str, float] = field(default_factory=dict)
    """Weights of "sentence", "token" and "fusion" in the fused score, in place of the run's."""
    task_settings: object | None = None
    """The task's own settings, such as ``RetrievalSettings(ties="ce")``. None: its defaults."""
    device: str = "auto"
    """Name of the device; see ``find_device``."""

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise SettingError("task", self.task, f"expected one of {', '.join(TASKS)}")
        if self.split not in SPLITS:
            raise SettingError("split", self.split, f"expected one of {', '.join(SPLITS)}")
        if unknown := [name for name in self.score_weights if name not in SCORES]:
            raise SettingError("score_weights", unknown[0], f"expected some of {', '.join(SCORES)}")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation."""

    figures: Figures
    """Contents of ``metrics.json``. ``tasks/`` describes the fields of each task."""
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
        """Return whether nothing was left out."""
        return not self.figures.get("left_out")


def evaluate(
    run: Path | str | None = None,
    *,
    root: Path | str = "vlalign_data",
    dataset: str | None = None,
    on: str | None = None,
    protocol: str | None = None,
    settings: EvaluationSettings | None = None,
    on_progress: Listener | None = None,
) -> Evaluation:
    """Ask a run about a split of a data set, and write ``metrics.json``, ``queries.jsonl`` and ``report.html``.

    The files go into the run's folder, or into ``on/<data set>`` within it for another data set than the run's; there
    into ``evaluations/<settings>`` if the split or a setting is not the default (``results.py``). If the same was
    evaluated before, nothing is computed.

    Args:
        run: Folder of a run, or its name. None: the last one finished.
        root: Folder of all data sets, where names are looked up.
        dataset: The data set to ask about, and where the run's name is looked up first. None: the run's own.
        on: The same as ``dataset``, but always another data set than the run's (zero-shot).
        protocol: Splits and captions of that other data set. None: the usual ones.
        settings: What to ask. None: the defaults.
        on_progress: Called with the progress of long work.

    Raises:
        UserError: The run or the data set cannot be found or read, or the run cannot be asked this.
    """
    settings = settings or EvaluationSettings()
    request = _request(Path(root), None if run is None else str(run), dataset, on, protocol, settings)
    fingerprint = _fingerprint(request, settings.device)
    if (figures := _evaluated_before(request.folder, fingerprint)) is not None:
        then = "; something was left out then" if figures.get("left_out") else ""
        say(f"{request.folder}: evaluated before on the same data and device; nothing to do{then}")
        return Evaluation(figures, request.folder, _summary_of_file(request, figures))
    with report_progress_to(on_progress), Problems(file=request.asked.problems("evaluate")) as problems:
        figures = _ask(request, settings.device, problems, fingerprint)
    return Evaluation(figures, request.folder, list(_summary(request, figures)))


@dataclass(frozen=True)
class _Request:
    run_folder: Path
    config: TrainConfig
    asked: DatasetFolder
    """The data set to ask about."""
    stores: Stores
    """Stores of the data set that is evaluated."""
    base: Path
    """Folder for the results of the usual question."""
    usual: Mapping[str, Any]
    """The question that this run is asked about this data set by default."""
    task: Task[Any]
    question: Question[Any]

    @property
    def asked_for(self) -> dict[str, Any]:
        """The question: all that decides the figures besides model and data.

        Retrieval's settings are in it for every task, at their defaults for others.
        """
        about = {"task": self.task.name, "split": self.question.split, "weights": self.question.score_weights}
        return {**self.usual, **about, **asdict(self.question.settings)}

    @property
    def folder(self) -> Path:
        """Folder for the results."""
        return result_folder(self.base, changed_from(self.usual, self.asked_for))


def _request(
    root: Path, run: str | None, dataset: str | None, on: str | None, protocol: str | None, settings: EvaluationSettings
) -> _Request:
    """Find the run and the data set, and choose the task."""
    run_folder = find_run(root, dataset, run)
    about = read_run(run_folder)
    config = read_config(about)
    asked, base = _asked_about(run_folder, config, root, dataset, on, protocol)
    guard_around(run_folder)
    check_folders(run_folder, asked.captions, asked.pairs)
    own = score_weights(about, config)
    weights = _score_weights(settings, own, run_folder.name)
    task = _choose_task(settings.task, config, asked)
    usual = usual_question(config, own, _usual_task(config, asked, task).name, task.name)
    question = Question(settings.split, weights, _task_settings(task, settings, config, run_folder.name))
    request = _Request(run_folder, config, asked, open_run_stores(asked, config), base, usual, task, question)
    check_result_folder(run_folder, request.folder)
    return request


def _fingerprint(request: _Request, device: str) -> dict[str, object]:
    """Return what decides the figures; devices round differently."""
    from ...storage.common.device import find_device, title_of  # torch takes seconds to import

    return {
        **request.asked_for,
        "model_sha256": sha256_of_tensors(request.run_folder / MODEL_FILE),
        "inputs": describe_inputs(request.asked, request.stores),
        "device": title_of(find_device(device)),
    }


def _asked_about(
    run_folder: Path, config: TrainConfig, root: Path, dataset: str | None, on: str | None, protocol: str | None
) -> tuple[DatasetFolder, Path]:
    """Return the data set to ask about, and the folder for the results."""
    own = dataset_of(run_folder, config)
    asked = asked_dataset(root, dataset, own, having="captions")
    if on is not None and asked is not own:
        problem = f"the run is of {own.name}, and dataset is {dataset}; pass only the data set to ask about"
        raise SettingError("on", on, problem)
    if on is None and asked is own:
        if protocol is not None:
            problem = "applies to another data set than the run's; the run keeps the protocol of its training"
            raise SettingError("protocol", protocol, problem)
        return own, run_folder
    other = asked if on is None else find_dataset(own.root, on, having="captions", hint="vlalign-preprocess")
    asked = choose_protocol(other, protocol or "")
    return asked, run_folder / "on" / "-".join(filter(None, (asked.name, asked.protocol)))


def _score_weights(settings: EvaluationSettings, own: dict[str, float], run_name: str) -> dict[str, float]:
    """Return the weight of each stage of the run: the given one or its own.

    Raises:
        SettingError: A weight is given for a stage that the run's score does not have.
    """
    weights = dict(own)
    for name, weight in settings.score_weights.items():
        stages = [stage for stage in SCORES[name] if stage in weights]
        weights |= dict.fromkeys(stages, weight)
        if not stages:
            problem = f"changes nothing: the stages of {run_name} are {', '.join(own)}; leave it out"
            raise SettingError(f"{name}_weight", weight, problem)
    return weights


def task_of_objective(config: TrainConfig) -> Task[Any] | None:
    """Return the only task that a run can be asked, if its objective decides that."""
    return None if config.objective.task is None else TASKS[config.objective.task]


def _choose_task(name: str | None, config: TrainConfig, asked: DatasetFolder) -> Task[Any]:
    """Return the task that is named, or else what the run and the data set are for."""
    only = task_of_objective(config)
    if name is None:
        usual = (read_captions_about(asked.captions) or {}).get("task", next(iter(TASKS)))
        if only is None and (not isinstance(usual, str) or usual not in TASKS):
            raise UserError(f"{asked.captions}: are for the task {usual!r}; expected one of {', '.join(TASKS)}")
        return only or (next(iter(TASKS.values())) if objective_for(usual) else TASKS[usual])
    task = TASKS[name]
    if only is not None and task is not only:
        problem = (
            f"the run was trained with the objective {config.objective.name}, and can be asked for {only.name} only"
        )
        raise SettingError("task", name, problem)
    if only is None and (objective := objective_for(name)):
        problem = f"needs a run that was trained with the objective {objective}; this one has {config.objective.name}"
        raise SettingError("task", name, problem)
    return task


def _usual_task(config: TrainConfig, asked: DatasetFolder, chosen: Task[Any]) -> Task[Any]:
    """Return the task that is chosen if none is named; for a data set without one, the chosen task itself."""
    try:
        return _choose_task(None, config, asked)
    except UserError:
        return chosen


def _task_settings(task: Task[Any], settings: EvaluationSettings, config: TrainConfig, run_name: str) -> Any:
    given = task.settings_type() if settings.task_settings is None else settings.task_settings
    if not isinstance(given, task.settings_type):
        raise _wrong_settings(given, task)
    return task.resolve(given, config, run_name)


def _wrong_settings(given: object, task: Task[Any]) -> SettingError:
    """Return an error that names the first setting that is not at its default."""
    owner = next((other for other in TASKS.values() if type(given) is other.settings_type), None)
    if owner is None:
        return SettingError("task_settings", given, f"expected {task.settings_type.__name__} for the task {task.name}")
    usual, values = asdict(owner.settings_type()), asdict(owner.settings_type(**vars(given)))
    name = next((name for name in usual if values[name] != usual[name]), "task_settings")
    problem = f"applies to the task {owner.name}; the task here is {task.name}"
    return SettingError(name, values.get(name, type(given).__name__), problem)


def _evaluated_before(folder: Path, fingerprint: Mapping[str, object]) -> Figures | None:
    """Return the figures of an earlier evaluation of the same question, model and data."""
    path = folder / METRICS_FILE
    figures = read_json(path) if path.exists() else {}
    has_counts = isinstance(figures, dict) and "num_captions_of_split" in figures  # older versions did not count
    is_same = has_counts and figures.get("fingerprint") == fingerprint and (folder / REPORT_FILE).exists()
    return figures if is_same else None


def _ask(request: _Request, device: str, problems: Problems, fingerprint: Mapping[str, object]) -> Figures:
    from ..runs.checkpoint import load_run  # torch takes seconds to import
    from .report import write_report

    task, folder = request.task, request.folder
    run = load_run(request.run_folder, request.asked, device, stores=request.stores)
    result = task.ask(run, request.question, problems)
    figures = {
        "run": request.run_folder.name,
        "trained_on": run.config.dataset,
        "dataset": run.dataset.name,
        "protocol": run.dataset.protocol,
        "task": task.name,
        "split": request.question.split,
        "note": run.note,
        "departures": [str(departure) for departure in departures_of([request.config.recipe])],
        **result.coverage.figures(task.caption_name, task.item_name),
        **result.figures,
        "left_out": problems.count,
        "fingerprint": fingerprint,
    }
    if others := (read_captions_about(run.dataset.captions) or {}).get(OTHER_LANGUAGES):
        named = ", ".join(f"{language} {100 * share:.0f} %" for language, share in others.items())
        note = f"some captions are in languages that their tagger does not speak ({named}, as a sample tells)"
        figures["not_comparable"] = [*figures["not_comparable"], f"{note}; their words count as any part of speech"]
    if folder == request.base:
        make_room(folder, request.usual)
    write_jsonl(folder / QUERIES_FILE, map(dict, result.rows))
    write_report(run, task, figures, result.page, folder)
    write_json(folder / METRICS_FILE, figures)  # last: it shows that the other two are complete
    return figures


def _summary(request: _Request, figures: Figures) -> Iterator[str]:
    task = TASKS[figures["task"]]
    yield task.heading(figures)
    yield from (f"note: {note}" for note in figures["not_comparable"])
    yield from task.summary(figures)
    if figures["note"]:
        yield f"note: {figures['note']}"
    if note := recipe_note(request.config.recipe):
        yield f"note: {note}"


def _summary_of_file(request: _Request, figures: Figures) -> list[str]:
    try:
        return list(_summary(request, figures))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # anybody may have changed the file
        path = request.folder / METRICS_FILE
        raise UserError(f"{path}: not as an evaluation writes it; remove it and run the evaluation again") from None
