"""A run is asked what its task asks, and what it answered is written down."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..storage.common.problems import Problems
from ..storage.files import write_json, write_jsonl
from ..storage.layout import DatasetFolder
from .checkpoint import Run, load_run
from .runs import METRICS_FILE, QUERIES_FILE
from .tasks.question import Answers, Question
from .tasks.report import write_report
from .tasks.retrieval import retrieve
from .tasks.segmentation import segment
from .tasks.steps import localize
from .tasks.vqa import answer

ASK: dict[str, Callable[[Run, Question, Problems], Answers]] = {
    "retrieval": retrieve,
    "steps": localize,
    "vqa": answer,
    "segmentation": segment,
}
"""{task: who answers}"""


def evaluate_run(
    run_folder: Path,
    on: DatasetFolder,
    folder: Path,
    question: Question,
    problems: Problems,
    fingerprint: dict[str, Any],
) -> dict[str, Any]:
    """Asks a run about a split of ``on``; writes ``metrics.json`` (returned), ``queries.jsonl`` and ``report.html`` into ``folder``."""
    run = load_run(run_folder, on, question.device)
    found = ASK[question.task](run, question, problems)
    result = {
        "run": run_folder.name,
        "trained_on": run.config.dataset,
        "dataset": run.dataset.name,
        "protocol": run.dataset.protocol,
        "task": question.task,
        "split": question.split,
        "note": run.note,
        **found.result,
        "left_out": problems.count,
        "fingerprint": fingerprint,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / QUERIES_FILE, found.rows)
    write_report(run, result, found.shown, folder)
    write_json(folder / METRICS_FILE, result)  # last: its presence says that both are there
    return result
