"""The place of results in a run's folder: each question has its own, so that none replaces those of another.

The usual question (test split, default settings) has its results in the run's folder; another data set has them in
``on/<data set>`` in it. All other questions have them in ``evaluations/<name>`` beside those of the usual one.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import read_json
from ...storage.common.writing import make_folder, move, remove_file
from ..recipes.train_config import TrainConfig
from ..run_file_names import EVALUATIONS_FOLDER, METRICS_FILE, QUERIES_FILE, REPORT_FILE
from . import TASKS

RESULT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]{0,199}")
"""Names of folders in ``evaluations``."""


def usual_question(
    config: TrainConfig, score_weights: Mapping[str, float], usual_task: str, asked_task: str
) -> dict[str, Any]:
    """Return the question that a run is asked by default, as ``fingerprint`` in ``metrics.json`` has it.

    Args:
        config: The run's settings.
        score_weights: The run's own weight of each stage.
        usual_task: What the run and the data set are for.
        asked_task: The task whose settings are among those of the question, besides retrieval's.
    """
    tasks = [TASKS[name] for name in dict.fromkeys(("retrieval", asked_task))]
    settings = [asdict(task.resolve(task.settings_type(), config, "")) for task in tasks]
    question = {"task": usual_task, "split": "test", "weights": dict(score_weights)}
    return {**question, **{name: value for of_task in settings for name, value in of_task.items()}}


def changed_from(usual: Mapping[str, Any], question: Mapping[str, Any]) -> str:
    """Return what is asked otherwise than usual, as a short text for people and for a folder; empty if nothing is.

    {"split": "validation", "ties": "ce", ...}  ->  "validation-ties=ce"

    Args:
        usual: The usual question.
        question: Another one; what it lacks is as usual.
    """
    parts: list[str] = []
    for name, default in usual.items():
        value = question.get(name, default)
        if value == default:
            continue
        if name == "weights" and isinstance(value, dict):
            parts += [f"{stage}={_text(value[stage])}" for stage in value if value[stage] != default.get(stage)]
        else:
            parts.append(_text(value) if name in ("task", "split") else f"{name}={_text(value)}")
    return "-".join(parts)


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def result_folder(base: Path, name: str) -> Path:
    """Return the folder for results.

    Args:
        base: Folder for the results of the usual question.
        name: What ``changed_from`` returned.
    """
    return base / EVALUATIONS_FOLDER / name if name else base


def check_result_folder(run_folder: Path, folder: Path) -> None:
    """Raise ``UserError`` if a folder in a run's folder is a link, which leads elsewhere."""
    for part in (folder, *folder.parents):
        if part == run_folder:
            return
        if part.is_symlink():
            raise UserError(f"{part}: a link, which leads elsewhere; results are only written into the run; remove it")


def make_room(base: Path, usual: Mapping[str, Any]) -> None:
    """Move the results of another question than the usual one out of ``base``, where earlier versions wrote them.

    The report is removed: its links are relative to where it was. The same evaluation writes it again.
    """
    path = base / METRICS_FILE
    figures = read_json(path) if path.is_file() else {}
    question = figures.get("fingerprint") if isinstance(figures, dict) else None
    name = changed_from(usual, question) if isinstance(question, dict) else ""
    if not RESULT_NAME.fullmatch(name) or (folder := result_folder(base, name)).exists():
        return
    make_folder(folder)
    for file in (QUERIES_FILE, METRICS_FILE):
        if (base / file).exists():
            move(base / file, folder / file)
    remove_file(base / REPORT_FILE, missing_ok=True)
