"""Heads on top of the encoders that answer questions or label rows."""

import torch
from torch import Tensor, nn

from .gated import GatedEmbedding, unit


class AnswerHead(nn.Module):
    """SSML section 5.2: "two more sets of embeddings on top of the pre-trained embeddings".

    One embeds a question and a video together, the other an answer. All embeddings have length 1. Answers are texts
    like questions. ``blind_questions`` and ``blind_answers`` do the same without the video: a baseline that is
    trained alongside and leaves the encoders alone.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.asked, self.answer = GatedEmbedding(2 * width, width), GatedEmbedding(width, width)
        self.blind_asked, self.blind_answer = GatedEmbedding(width, width), GatedEmbedding(width, width)

    def questions(self, text_BD: Tensor, video_BD: Tensor) -> Tensor:
        """Embed questions about videos, [B, D]."""
        return unit(self.asked(torch.cat([unit(text_BD), unit(video_BD)], dim=-1)))

    def answers(self, text_AD: Tensor) -> Tensor:
        """Embed answers, [A, D]."""
        return unit(self.answer(unit(text_AD)))

    def blind_questions(self, text_BD: Tensor) -> Tensor:
        """Embed questions without their videos, [B, D]."""
        return unit(self.blind_asked(unit(text_BD.detach())))

    def blind_answers(self, text_AD: Tensor) -> Tensor:
        """Embed answers for ``blind_questions``, [A, D]."""
        return unit(self.blind_answer(unit(text_AD.detach())))
