"""Questions about videos, answered by the nearest of the answers that the training questions have."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...storage.common.problems import Problems
from .task import Figures, NoSettings, Question, Task, TaskResult, counted

if TYPE_CHECKING:
    from ..runs.checkpoint import Run

ROWS = {
    "accuracy": "accuracy",
    "question_only": "question alone",
    "most_frequent_answer": "usual answer",
    "answerable": "answerable",
}
"""Rows of the table: {field of the figures: label}."""


class Vqa(Task[NoSettings]):
    """Questions about videos, beside what can be answered without the video.

    ``metrics.json`` has, in percent of "all" questions and of those of each type: ``accuracy`` with the video,
    ``question_only`` without it, ``most_frequent_answer`` (with the ``answer``) for always giving the most frequent
    training answer, and ``answerable``, whose answer is among those to choose from. ``num_of_type`` counts the
    questions.
    """

    name = "vqa"
    description = "questions about videos (MSRVTT-QA, MSVD-QA), for a run with --objective vqa"
    caption_name = "questions"
    item_name = "videos"
    main_measures = ("accuracy", "question alone")

    def ask(self, run: "Run", question: Question[NoSettings], problems: Problems) -> TaskResult:
        """Answer the questions of a split."""
        from .ask_vqa import answer

        return answer(run, question, problems)

    def count(self, figures: Figures) -> str:
        """Return how many questions were asked about how many videos."""
        return f"{counted(figures, 'captions', 'questions')} about {counted(figures, 'videos')}"

    def heading(self, figures: Figures) -> str:
        """Return the heading, with the number of answers."""
        return f"{super().heading(figures)}; {figures['num_answers']:,} answers to choose from"

    def measures(self, figures: Figures) -> Mapping[str, float]:
        """Return the accuracies over all questions, in percent."""
        return {label: figures[name]["all"] for name, label in ROWS.items()}

    def summary(self, figures: Figures) -> Iterator[str]:
        """Yield the table of accuracies."""
        yield answers_table(figures)
        usual = figures["most_frequent_answer"]["answer"]
        yield (
            f"question alone: the same model without the video; usual answer: always {usual!r}; "
            "answerable: the right answer is among those to choose from"
        )
        yield f"checksum of the split's questions and answers: {figures['split_checksum']}"


def answers_table(figures: Figures) -> str:
    """Return a table of accuracies, with a column for each type of question."""
    types = ["all", *figures["num_of_type"]]
    lines = [f"{'percent':<16}" + "".join(f"{name:>9}" for name in types)]
    for name, label in ROWS.items():
        lines.append(f"{label:<16}" + "".join(f"{figures[name][kind]:>9.2f}" for kind in types))
    counts = [figures["num_questions"], *figures["num_of_type"].values()]
    lines.append(f"{'questions':<16}" + "".join(f"{count:>9,}" for count in counts))
    return "\n".join(lines)
