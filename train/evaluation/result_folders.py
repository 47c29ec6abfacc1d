"""The place of results in a run's folder: each request has its own folder, which no other request overwrites.

Results of the default request (test split, default settings) are in the run's folder, or, for another data set, in its
subfolder ``on/<data set>``. Results of any other request are in the subfolder ``evaluations/<name>`` of that folder.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...storage.common.errors import UserError
from ...storage.common.files import read_json
from ...storage.common.writing import make_folder, move, remove_file
from ..recipes.train_config import TrainConfig
from ..runs.files import EVALUATIONS_FOLDER, METRICS_FILE, QUERIES_FILE, REPORT_FILE
from . import TASKS
from .task import Task

MAX_NAME_CHARACTERS = 200
RESULT_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.=+-]{{0,{MAX_NAME_CHARACTERS - 1}}}")
"""Names of folders in ``evaluations``."""


def default_request(
    config: TrainConfig, score_weights: Mapping[str, float], default_task: str, task: Task[Any]
) -> dict[str, Any]:
    """Return the request that a run has by default, flat, as ``fingerprint`` in ``metrics.json`` has it.

    Args:
        config: The run's settings.
        score_weights: The run's own weight of each stage.
        default_task: The default task of the run and the data set.
        task: The task whose settings are among those of the request, besides retrieval's.
    """
    tasks = dict.fromkeys((TASKS["retrieval"], task))
    settings = [asdict(each.resolve(each.settings_type(), config, "")) for each in tasks]
    request = {"task": default_task, "split": "test", "weights": dict(score_weights)}
    flat = {**request, **{name: value for of_task in settings for name, value in of_task.items()}}
    return flat if task.plugin is None else json_values(flat)


def json_values(values: Any) -> Any:
    """Convert a custom part's values to JSON: numbers and arrays of NumPy and PyTorch, tuples, paths.

    Raises:
        ValueError: A number is not finite.
    """
    return json.loads(json.dumps(values, allow_nan=False, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def changed_from(default: Mapping[str, Any], request: Mapping[str, Any]) -> str:
    """Describe briefly how a request differs from the default, for people and folder names; empty if it does not.

    {"split": "validation", "ties": "ce", ...}  ->  "validation-ties=ce"

    Args:
        default: The default request.
        request: Another one; missing values are at their default.
    """
    parts: list[str] = []
    for name, standard in default.items():
        value = request.get(name, standard)
        if value == standard:
            continue
        if name == "weights" and isinstance(value, dict):
            parts += [f"{stage}={_text(value[stage])}" for stage in value if value[stage] != standard.get(stage)]
        else:
            parts.append(_part_name(value) if name in ("task", "split") else f"{name}={_text(value)}")
    metrics = request.get("metrics", ())
    parts += [f"metric={_part_name(metric)}" for metric in metrics if isinstance(metrics, list)]
    name = "-".join(parts)
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 9]}-{_digest(name)}"


def _part_name(name: Any) -> str:
    """Return the name of a task or a metric: "my_module:MyTask" -> "my_module.MyTask"."""
    return _cleaned(str(name).replace(":", "."))


def _text(value: Any) -> str:
    """Return a setting's value as text. If a folder name cannot contain it, it is cleaned, cut and given a digest."""
    text = f"{value:.10g}" if isinstance(value, float) else str(value)
    cleaned = _cleaned(text)
    return text if cleaned == text else f"{cleaned[:40]}.{_digest(text)}"


def _cleaned(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.=+-]+", "_", text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]


def result_folder(base: Path, name: str) -> Path:
    """Return the folder for results.

    Args:
        base: Folder for the results of the default request.
        name: What ``changed_from`` returned.
    """
    return base / EVALUATIONS_FOLDER / name if name else base


def check_result_folder(run_folder: Path, folder: Path) -> None:
    """Raise ``UserError`` if a folder in a run's folder is a link, which leads elsewhere."""
    for part in (folder, *folder.parents):
        if part == run_folder:
            return
        if part.is_symlink():
            raise UserError(f"{part}: is a symbolic link; results are only written inside the run; remove it")


def move_other_results(base: Path, default: Mapping[str, Any]) -> None:
    """Move results of other settings than the default ones out of ``base``. Earlier versions wrote them there.

    The report is removed, because its links are relative to its old place. The same evaluation writes it again.
    """
    path = base / METRICS_FILE
    metrics = read_json(path) if path.is_file() else {}
    has_request = isinstance(metrics, dict) and isinstance(metrics.get("fingerprint"), dict)
    name = changed_from(default, TASKS["retrieval"].request_of(metrics)) if has_request else ""
    if not RESULT_NAME.fullmatch(name) or (folder := result_folder(base, name)).exists():
        return
    make_folder(folder)
    for file in (QUERIES_FILE, METRICS_FILE):
        if (base / file).exists():
            move(base / file, folder / file)
    remove_file(base / REPORT_FILE, missing_ok=True)
