"""What stands on top of the encoders where the answer is one of a list: an answer to a question, a label of a row of a video."""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import TrainConfig
from ..losses import answer_margin
from .gated import GatedEmbedding, GatedPair, unit
from .transformer import VideoTextModel

if TYPE_CHECKING:
    from ..objectives import Batch


class AnswerHead(nn.Module):
    """SSML section 5.2: "two more sets of embeddings on top of the pre-trained embeddings", of the concatenation of a question and a video,
    and of an answer, all of length 1. Answers are texts like questions.

    ``blind`` is the same without the video: a baseline that is trained beside it and leaves the encoders alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked, self.answer = GatedEmbedding(2 * width, width), GatedEmbedding(width, width)
        self.blind_asked, self.blind_answer = GatedEmbedding(width, width), GatedEmbedding(width, width)

    def questions(self, text_BD: Tensor, video_BD: Tensor) -> Tensor:
        return unit(self.asked(torch.cat([unit(text_BD), unit(video_BD)], dim=-1)))

    def answers(self, text_AD: Tensor) -> Tensor:
        return unit(self.answer(unit(text_AD)))

    def blind_questions(self, text_BD: Tensor) -> Tensor:
        return unit(self.blind_asked(unit(text_BD.detach())))

    def blind_answers(self, text_AD: Tensor) -> Tensor:
        return unit(self.blind_answer(unit(text_AD.detach())))


def answer_terms(model: VideoTextModel | GatedPair, batch: "Batch", config: TrainConfig) -> dict[str, Tensor]:
    """``answer_margin`` with and without the videos. The texts are this process's questions, and after them all that can be answered."""
    head, num_questions = model.head, len(batch.videos.mask_BM)
    question_RD, answer_AD = batch.texts.sentence_BD[:num_questions], batch.texts.sentence_BD[num_questions:]
    asked_RD = head.questions(question_RD, batch.videos.mean_BD)
    return {
        "answers": answer_margin(asked_RD @ head.answers(answer_AD).T, batch.labels, config.margin),
        "blind": answer_margin(
            head.blind_questions(question_RD) @ head.blind_answers(answer_AD).T, batch.labels, config.margin
        ),
    }


def segment_terms(model: VideoTextModel, batch: "Batch", config: TrainConfig) -> dict[str, Tensor]:
    """Cross entropy of each row's label, the mean over the rows of all processes (TACo section 5.2; COIN)."""
    mask_BM = batch.videos.mask_BM
    loss = F.cross_entropy(model.head(batch.videos.tokens_BMD[mask_BM]), batch.labels[mask_BM], reduction="sum")
    number = batch.workers.sum(mask_BM.sum().to(loss.dtype))
    return {"labels": loss * batch.workers.size / number}  # of which the mean over processes is taken
