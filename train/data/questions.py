"""Questions about videos with their answers, as a run learns from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar

import torch

from ...storage.common.errors import UserError
from ...storage.common.terminal import say
from .examples import InputMaker, Inputs, PairExamples, Source
from .pair_cache import read_pairs
from .pairs import Pairs, make_pairs

NUM_ANSWERS = 1500
"""The most frequent answers of the training questions can be given, as in HQGA and ClipBERT; SSML: "the set of
predetermined answers"."""


class QuestionExamples(PairExamples):
    """Questions about videos. ``labels`` are the answers that the run can give."""

    name: ClassVar[str] = "questions"

    def read(self, source: Source) -> dict[str, Pairs]:
        """Return {split: pairs of a video and a question}, and keep the most frequent answers.

        Raises:
            UserError: No training caption is a question with an answer.
        """
        pairs = read_pairs(source.dataset, source.features, source.problems)
        captions = pairs["train"].captions
        answers = {index: c.answer for index, c in enumerate(captions) if c.answer}
        self.labels = [answer for answer, _ in Counter(answers.values()).most_common(NUM_ANSWERS)]
        self._index_of = {answer: index for index, answer in enumerate(self.labels)}
        kept = [index for index, answer in answers.items() if answer in self._index_of]
        if not kept:
            raise UserError(
                f"{source.dataset.captions}: no training caption is a question with an answer; expected those of "
                "msvd_qa or msrvtt_qa"
            )
        if len(kept) < len(answers):
            rare = f"{len(answers) - len(kept):,} of {len(answers):,} training questions"
            say(f"{rare} are left out: their answers are not among the {NUM_ANSWERS:,} most frequent ones")
        return pairs | {"train": make_pairs(captions.take(kept))}

    def train_texts(self) -> Iterator[str]:
        """Yield all training questions and all answers."""
        return chain(super().train_texts(), self.labels)

    def inputs(self, maker: InputMaker, step: int, share: slice) -> Inputs:
        """Return a process's share of a step's questions, followed by all answers."""
        clips, captions = self.batches.at(step)
        train = self.pairs["train"]
        rows, mask = maker.video_inputs([train.clips[clip] for clip in clips[share]])
        questions = list(train.captions.take([caption for (caption,) in captions[share]]))
        texts = maker.text_inputs([*questions, *map(maker.weights.tag_query, self.labels)])
        labels = [self._index_of[question.answer or ""] for question in questions]
        return Inputs(texts, rows, mask, labels=torch.tensor(labels))
