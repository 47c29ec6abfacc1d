"""Training as one Python call, which vlalign-train wraps."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...storage.captions.files import choose_protocol, read_captions_about
from ...storage.captions.idf import has_token_idf
from ...storage.common.errors import SettingError
from ...storage.common.plugins import trust_modules
from ...storage.common.problems import Problems
from ...storage.common.progress import Listener, report_progress_to
from ...storage.common.terminal import say
from ...storage.common.writing import check_folders
from ...storage.dataset.folder import DatasetFolder, find_prepared
from ...storage.stores.opening import StoreSource
from ..data.stores import check_frames_are_read, choose_features, only_features
from ..objectives import objective_for
from ..recipes.own_parts import load_named
from ..recipes.recipes import BEHIND_DEFAULT, RECIPES, describe, make_config, usual_recipe
from ..recipes.train_config import TrainConfig, refuse_ignored
from ..runs.files import TENSORBOARD_FOLDER, TEXT_FOLDER, VIDEO_FOLDER
from ..runs.folder import default_run_name, find_run, old_idf_note
from ..runs.run_json import describe_inputs, is_trained, open_run_stores, read_config, read_figures, read_run


@dataclass(frozen=True)
class TrainedRun:
    """A finished training.

    Example:
        >>> from vlalign.train import train
        >>> quick = {"features": "s3d", "objective": "mil-nce", "encoder": "gated", "embedding_size": 16}
        >>> quick |= {"batch_size": 4, "num_steps": 2, "validate_every": 1}
        >>> run = train("vlalign_data/demo", run_name="quick", device="cpu", settings=quick)
        >>> run.folder.name, run.config.model.encoder, run.num_skipped
        ('quick', 'gated', 0)
    """

    folder: Path
    """The run's folder."""
    config: TrainConfig
    """The run's settings."""
    init: Path | None = None
    """Folder of the run that initialised the model."""
    was_trained_before: bool = False
    """The run was finished already, so nothing was done."""
    num_skipped: int = 0
    """Captions and videos that could not be used."""
    best: Mapping[str, float] = field(default_factory=dict)
    """The figures of the step whose model is saved: "step", the losses, the learning rate, and the validation, such as
    "validation_R@1" in percent. Empty in the other processes of a training by torchrun or Ray Train."""
    last: Mapping[str, float] = field(default_factory=dict)
    """The figures of the last step. Empty if ``best`` is."""


def train(
    dataset: Path | str,
    *,
    recipe: str | None = None,
    protocol: str | None = None,
    init: str | None = None,
    run_name: str | None = None,
    device: str = "auto",
    stores: StoreSource | None = None,
    settings: Mapping[str, Any] | None = None,
    on_progress: Listener | None = None,
    on_step: Callable[[dict[str, float]], None] | None = None,
    may_be_unused: bool = False,
    trust: Collection[str] = (),
) -> TrainedRun:
    """Train a video-text model on the features and captions of a data set, or resume a training that was stopped.

    Under torchrun or Ray Train, all processes make the same call and train one model together.

    Args:
        dataset: The data set's folder, ``<root>/<data set>``.
        recipe: Source of settings that are not given, one of ``RECIPES``; None: the data set's.
        protocol: Splits and captions of the data set, as for vlalign-preprocess; None: the recipe's or the usual ones.
        init: Run that initialises the model: its folder, or its name in this data set or in one beside it.
        run_name: Name of the run's folder; None: see ``runs.folder.default_run_name``.
        device: "auto" (all GPUs of this machine, or its CPU), "cpu", "cuda" or "cuda:N"; or several, with commas
            between them. Each device has a process, and the processes share every batch. Under torchrun, each process
            uses its own GPU.
        stores: Custom stores by features' names, or ``MODULE:NAME`` (``StoreSource``); None: the folder's stores.
        settings: Settings by name, such as ``{"features": "s3d", "num_steps": 1000}``; see ``TrainConfig``. The
            objective and the encoder may be your own, ``{"objective": "my_module:MyObjective"}`` or the class itself.
        on_progress: Called after each step.
        on_step: Called with the figures of each step: "step" (counted from 1), "loss" and its terms, "learning_rate",
            and after a validation its metrics, such as "validation_R@1". On a GPU it is called for several steps at
            once. It runs in this process, even if others train; under torchrun, in the first one. An error that it
            raises ends the training and reaches the caller; the same call resumes it after the last validation.
        may_be_unused: Accept settings that have no effect with this objective, as in some rows of papers' tables.
        trust: Modules of your own that may be imported if the run of ``init`` names them.

    Returns:
        The run's folder, its best validation, its last losses, and how much was skipped.

    Raises:
        SettingError: A setting cannot be used, or changes nothing with this objective.
        UserError: Captions, features or the run's folder cannot be used, or the loss is not finite.

    Example:
        >>> from vlalign.train import train
        >>> quick = {"features": "s3d", "objective": "mil-nce", "encoder": "gated", "embedding_size": 16}
        >>> quick |= {"batch_size": 4, "num_steps": 2, "validate_every": 1}
        >>> run = train("vlalign_data/demo", run_name="quick", device="cpu", settings=quick)
        >>> int(run.last["step"]), 0 <= run.best["validation_R@1"] <= 100
        (2, True)
    """
    if run_name is not None and (run_name in (".", "..") or "/" in run_name or "\0" in run_name):
        raise SettingError("run_name", run_name, "expected the name of a folder in the data set's runs/, not a path")
    trust_modules(trust)
    given = load_named({name: value for name, value in (settings or {}).items() if value is not None})
    folder = replace(find_prepared(dataset, having="captions", hint="vlalign-preprocess"), stores=stores)
    init_folder = find_run(folder.root, None, init) if init else None
    folder, config = _choose_config(folder, given, recipe, protocol, init or "", init_folder)
    config = _with_idf_of(folder, config)
    if not may_be_unused:
        refuse_ignored(config, given)
    run_folder = folder.runs / (run_name or default_run_name(config, init_folder))
    parts = [run_folder / name for name in (TENSORBOARD_FOLDER, TEXT_FOLDER, VIDEO_FOLDER)]
    check_folders(*parts, folder.captions, folder.pairs, folder.path / "pair_weights")
    opened = open_run_stores(folder, config)
    check_frames_are_read(opened, config.model)
    if is_trained(run_folder, config, describe_inputs(folder, opened, init_folder, config=config)):
        say(f"{run_folder}: already trained with the same settings on the same data; nothing to do")
        best, last = read_figures(run_folder)
        return TrainedRun(run_folder, config, init_folder, was_trained_before=True, best=best, last=last)
    from .processes import train_run  # imports torch
    from .trainer import TrainingJob

    is_first = is_first_process()
    if is_first:
        named = [name for name, value in (("protocol", protocol), ("init", init)) if value is not None]
        _say_settings(config, given, named)
        if init_folder is not None:
            _say_parts_of_init(config, init_folder)
        if config.recipe in BEHIND_DEFAULT:
            say(
                f"note: on small data sets recipe {config.recipe} finds fewer clips than the default one "
                "(docs/objectives.md)"
            )
        if "features" not in given and not _features_of(config.recipe):
            say(f"note: --features {config.data.features}: the only features of {folder.name}")
    problems = Problems(quiet=not is_first, file=folder.problems("train"))
    with report_progress_to(on_progress), problems:
        train_run(TrainingJob(folder, config, run_folder, init_folder, device), opened, problems, on_step)
    best, last = read_figures(run_folder) if is_first else ({}, {})
    return TrainedRun(run_folder, config, init_folder, num_skipped=problems.count, best=best, last=last)


def _choose_config(
    folder: DatasetFolder,
    given: Mapping[str, Any],
    recipe: str | None,
    protocol: str | None,
    init: str,
    init_folder: Path | None,
) -> tuple[DatasetFolder, TrainConfig]:
    """Return the folder with its protocol, and the complete settings."""
    about = read_captions_about(choose_protocol(folder, protocol or "").captions) or {}
    objective = given.get("objective") or objective_for(about.get("task", ""))
    of_init = None if init_folder is None else read_config(read_run(init_folder)).objective
    if objective is None and of_init is not None:
        objective = of_init.name
    recipe = recipe or usual_recipe(objective, folder.name, about.get("protocol", ""), init)
    folder = choose_protocol(folder, protocol or RECIPES.get(recipe or "", {}).get("protocol", ""))
    chosen = {**given, "dataset": folder.name, "protocol": folder.protocol} | ({"init": init} if init else {})
    if "features" in given:
        chosen["features"] = choose_features(folder, given["features"])
    elif not _features_of(recipe):
        chosen["features"] = only_features(folder)
    if recipe is None and objective is not None:
        chosen["objective"] = objective
    if "bag" not in given and (bag := getattr(of_init, "bag", None)) is not None:
        chosen["bag"] = bag  # the initial run's model has layers for only one kind of bag
    return folder, make_config(recipe, chosen)


def _with_idf_of(folder: DatasetFolder, config: TrainConfig) -> TrainConfig:
    """Return the settings with the kind of IDF in the data set's table; earlier versions wrote it by tag only."""
    if config.objective.idf_counts == "tag" or has_token_idf(folder.idf):
        return config
    say(old_idf_note(folder.idf))
    return TrainConfig.from_flat({**config.flat(), "idf": "tag"})


def _features_of(recipe: str | None) -> str:
    """Return the features that a recipe asks for; empty if it leaves them open."""
    return RECIPES.get(recipe or "", {}).get("features", "")


def _say_settings(config: TrainConfig, given: Mapping[str, Any], also_given: Sequence[str]) -> None:
    for line in ("settings:", *describe(config, {*given, *also_given})):
        say(line)


def _say_parts_of_init(config: TrainConfig, init_folder: Path) -> None:
    """Report which pretrained networks in the settings are replaced by the initial run's networks."""
    of_init = read_config(read_run(init_folder)).model
    for name in ("text_encoder", "video_tower"):
        theirs, ours = getattr(of_init, name), getattr(config.model, name)
        if theirs and ours and theirs != ours:
            say(f"note: {name} {ours} is not used: --init {init_folder.name} has its own, {theirs}")


def is_first_process() -> bool:
    """Return whether this is the first of the processes that train one model together, or the only one."""
    return os.environ.get("RANK", "0") == "0"
