"""Questions about videos, each answered with one of a list of answers (SSML section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...storage.common.errors import SettingError
from ...storage.common.settings import setting
from .base import PAIR_LOSS_SETTINGS, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from ..data.examples import Examples, ExampleSource
    from ..models.base import ObjectiveModules, PairModel
    from ..models.gated import AnswerHead
    from .batch import Batch


@dataclass(frozen=True, kw_only=True)
class VqaObjective(Objective):
    """SSML section 5.2: the right answer must outscore all others, given the video and, as a baseline, without it."""

    name: ClassVar[str] = "vqa"
    description: ClassVar[str] = "answers to questions about videos (SSML, section 5.2)"
    loss_terms: ClassVar[tuple[str, ...]] = ("answers", "blind")
    needs_words: ClassVar[bool] = True
    learns_from_pairs: ClassVar[bool] = False
    task: ClassVar[str | None] = "vqa"
    ignored_settings: ClassVar[frozenset[str]] = PAIR_LOSS_SETTINGS

    margin: float = setting(0.1, "margin between a pair and its negatives (SSML's delta, CMCM's M)", ge=0)

    def check(self) -> None:
        """Check that both terms are trained."""
        super().check()
        if self.losses != "all":
            raise SettingError("losses", self.losses, f"{self.name} needs all of its terms; expected all")

    def make_examples(self, source: ExampleSource) -> Examples:
        """Read questions with their answers."""
        from ..data.examples import QuestionExamples

        return QuestionExamples(source)

    def make_modules(self, width: int, num_labels: int) -> ObjectiveModules:
        """Make the head that embeds questions and answers."""
        from ..models.base import ObjectiveModules
        from ..models.gated import AnswerHead

        return ObjectiveModules(head=AnswerHead(width), queries=self._make_queries(width))

    def compute_loss(self, model: PairModel, batch: Batch) -> dict[str, Tensor]:
        """Return the margin loss with and without the videos.

        The batch's texts are this process's questions, followed by all answers.
        """
        from ..losses import answer_margin

        assert batch.labels is not None, "questions come with answers"
        head, num_questions = answer_head(model), len(batch.videos.mask_BM)
        question_RD, answer_AD = batch.texts.sentence_BD[:num_questions], batch.texts.sentence_BD[num_questions:]
        asked_RD = head.questions(question_RD, batch.videos.mean_BD)
        blind_RA = head.blind_questions(question_RD) @ head.blind_answers(answer_AD).T
        return {
            "answers": answer_margin(asked_RD @ head.answers(answer_AD).T, batch.labels, self.margin),
            "blind": answer_margin(blind_RA, batch.labels, self.margin),
        }


def answer_head(model: PairModel) -> AnswerHead:
    """Return the head of a model that was made for this objective."""
    from ..models.gated import AnswerHead

    assert isinstance(model.head, AnswerHead), "the model has no head for answers"
    return model.head
