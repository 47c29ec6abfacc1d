"""What a run learns from and is judged by while it trains: pairs of clips and captions, questions with answers, or labelled videos."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..storage.captions import CaptionTable, read_captions
from ..storage.common.errors import UserError
from ..storage.common.problems import Problems
from ..storage.common.terminal import say
from ..storage.layout import DatasetFolder
from .config import TrainConfig
from .data.batches import Batches, make_batches
from .data.pair_weights import pair_weights
from .data.pairs import ClipFeatures, Clips, Pairs, evenly, make_pairs, pad_rows, read_pairs, why_none
from .data.segments import (
    Segment,
    label_frames,
    label_names,
    labels_of_rows,
    read_labelled,
    step_labels,
    windows,
)
from .metrics import retrieval_metrics
from .runs import open_recordings
from .scoring import Scorer, stage_scores
from .tasks.ask_segmentation import frame_scores
from .tasks.ask_vqa import answer_scores
from .workers import Workers

VALIDATION_PAIRS = 20_000
"""So many pairs the fusion layers look at in a validation, at most."""
VALIDATION_RERANK = 20
VALIDATION_QUESTIONS, VALIDATION_VIDEOS = 2000, 50
NUM_ANSWERS = 1500
"""The most frequent ones of the training questions can be given, as with HQGA and ClipBERT; SSML: "the set of predetermined answers"."""


@dataclass(frozen=True)
class Inputs:
    """A batch as the encoders take it."""

    texts: dict[str, Tensor]
    """Empty where nothing is read."""
    rows: Tensor
    mask: Tensor
    weights: Tensor | None = None
    """How much each pair counts."""
    video_of: Tensor | None = None
    """Numbers of the clips' videos."""
    labels: Tensor | None = None
    """Numbers of the questions' answers [B], or of the rows' labels [B, M]."""

    def to(self, device: torch.device) -> "Inputs":
        def there(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        texts = {name: there(value) for name, value in self.texts.items()}
        return Inputs(texts, *map(there, (self.rows, self.mask, self.weights, self.video_of, self.labels)))


class PairExamples:
    """Clips with their captions; judged by the mean rank of each validation caption's clip."""

    judged_by = "validation_mean_rank"

    def __init__(
        self, dataset: DatasetFolder, config: TrainConfig, features: ClipFeatures, workers: Workers, problems: Problems
    ) -> None:
        self.config, self.features = config, features
        self.labels: list[str] = []
        """What can be answered, where that is one of a list."""
        self.pairs = self._read(dataset, problems)
        train = self.pairs["train"]
        if len(train.clips) < 2:
            why = why_none(dataset, features, "train", open_recordings(dataset, config))
            raise UserError(
                f"{dataset.captions}: {len(train.clips)} training clips, and contrast needs at least 2; {why}"
            )
        self.batches = self._batches(train)
        self.pair_weights = pair_weights(dataset, config, features, train, workers)

    def _read(self, dataset: DatasetFolder, problems: Problems) -> dict[str, Pairs]:
        return read_pairs(dataset, self.features, problems, open_recordings(dataset, self.config))

    def _batches(self, train: Pairs) -> Batches:
        return make_batches(train, self.config)

    def train_texts(self) -> list[str]:
        return [c.caption for c in self.pairs["train"].captions]

    def inputs(self, scorer: Scorer, step: int, share: slice) -> Inputs:
        """A process's share of a step's batch: it depends on the seed and the step alone."""
        clips, captions = (numbers[share] for numbers in self.batches.at(step))
        train = self.pairs["train"]
        rows, mask = scorer.video_inputs([train.clips[n] for n in clips])
        texts = scorer.text_inputs(list(train.captions.take([n for of_clip in captions for n in of_clip])))
        weights = (
            None
            if self.pair_weights is None
            else torch.from_numpy(self.pair_weights[[of_clip[0] for of_clip in captions]])
        )
        each = self.config.clips_per_video  # of a video, one after the other
        video_of = torch.arange(self.batches.size)[share] // each if each > 1 else None
        return Inputs(texts, rows, mask, weights, video_of)

    def validate(self, scorer: Scorer) -> dict[str, float]:
        """Text to video, fused: one caption of each validation clip, or of some where that is more than the fusion layers should look at.
        Empty where there is none."""
        valid = self.pairs["validation"]
        rerank = VALIDATION_RERANK if scorer.has_early else None
        most = VALIDATION_PAIRS // VALIDATION_RERANK if rerank else int(VALIDATION_PAIRS**0.5)
        captions_of = valid.captions_of_clips()
        pairs = make_pairs(valid.captions.take([captions_of[clip][0] for clip in evenly(len(valid.clips), most)]))
        if not pairs.clips:
            return {}
        scores = stage_scores(scorer, pairs.captions, pairs.clips, rerank=rerank)
        found = retrieval_metrics(scores.fused(self.config.score_weights)[0], pairs.clip_of_caption)["text_to_video"]
        return {"validation_mean_rank": found["mean_rank"], "validation_R@1": found["R@1"]}


class QuestionExamples(PairExamples):
    """Questions about videos, with answers; judged by how many of the validation questions are answered wrongly, in percent."""

    judged_by = "validation_error"

    def _read(self, dataset: DatasetFolder, problems: Problems) -> dict[str, Pairs]:
        pairs = read_pairs(dataset, self.features, problems)
        captions = pairs["train"].captions
        answers = {number: c.answer for number, c in enumerate(captions) if c.answer}
        self.labels = [answer for answer, _ in Counter(answers.values()).most_common(NUM_ANSWERS)]
        known = frozenset(self.labels)
        kept = [number for number, answer in answers.items() if answer in known]
        if not kept:
            raise UserError(
                f"{dataset.captions}: no training caption is a question with an answer; --objective vqa expects those of msvd_qa"
            )
        if len(kept) < len(answers):
            rare = f"{len(answers) - len(kept):,} of {len(answers):,} training questions"
            say(f"{rare} are left out: their answers are not among the {NUM_ANSWERS:,} most frequent ones")
        self._number_of = {answer: number for number, answer in enumerate(self.labels)}
        return pairs | {"train": make_pairs(captions.take(kept))}

    def train_texts(self) -> list[str]:
        return super().train_texts() + self.labels

    def inputs(self, scorer: Scorer, step: int, share: slice) -> Inputs:
        clips, captions = (numbers[share] for numbers in self.batches.at(step))
        train = self.pairs["train"]
        rows, mask = scorer.video_inputs([train.clips[n] for n in clips])
        questions = list(train.captions.take([n for (n,) in captions]))
        texts = scorer.text_inputs([*questions, *map(scorer.weights.tag_query, self.labels)])
        return Inputs(texts, rows, mask, labels=torch.tensor([self._number_of[q.answer] for q in questions]))

    def validate(self, scorer: Scorer) -> dict[str, float]:
        valid = self.pairs["validation"]
        pairs = make_pairs(valid.captions.take(evenly(len(valid.captions), VALIDATION_QUESTIONS)))
        if not pairs.captions:
            return {}
        best = answer_scores(scorer, pairs, self.labels).asked.argmax(axis=1)
        right = np.mean([self.labels[place] == c.answer for place, c in zip(best, pairs.captions, strict=True)])
        return {"validation_error": 100 * (1 - float(right))}


class _WindowBatches(Batches):
    def _one_caption_each(self, clips: list[int], rng: object) -> list[list[int]]:
        return [[] for _ in clips]


class SegmentExamples(PairExamples):
    """Windows of videos whose rows have labels; judged by how many of the validation videos' seconds get a wrong one, in percent."""

    judged_by = "validation_error"

    def _read(self, dataset: DatasetFolder, problems: Problems) -> dict[str, Pairs]:
        captions = read_captions(dataset.captions)
        labels = step_labels(captions, dataset.captions)
        self.labels = label_names(labels)
        self._place_of = {number: place for place, number in enumerate(labels, start=1)}
        self._videos = read_labelled(captions, self.features, problems)
        self._segments: dict[str, list[Segment]] = {
            v.video_id: v.segments for of_split in self._videos.values() for v in of_split
        }
        return {
            split: Pairs(
                Clips.of(clip for v in videos for clip in windows(v.video_id, v.num_frames)),
                CaptionTable([]),
                np.zeros(0, dtype=int),
            )
            for split, videos in self._videos.items()
        }

    def _batches(self, train: Pairs) -> Batches:
        return _WindowBatches(train, self.config.batch_size, self.config.seed)

    def train_texts(self) -> list[str]:
        return self.labels

    def inputs(self, scorer: Scorer, step: int, share: slice) -> Inputs:
        clips = [self.pairs["train"].clips[n] for n in self.batches.at(step)[0][share]]
        found = self.features.timed_rows(clips, self.config.max_video_tokens)
        rows, mask = pad_rows([rows for rows, _ in found], self.features.dim)
        labels = torch.zeros(mask.shape, dtype=torch.int64)
        for number, (clip, (_, times)) in enumerate(zip(clips, found, strict=True)):
            labels[number, : len(times)] = torch.from_numpy(
                labels_of_rows(times, self._segments[clip.video_id], self._place_of)
            )
        return Inputs({}, rows, mask, labels=labels)

    def validate(self, scorer: Scorer) -> dict[str, float]:
        videos = self._videos["validation"]
        wrong = total = 0
        for number in evenly(len(videos), VALIDATION_VIDEOS):
            found_T = frame_scores(scorer, videos[number]).argmax(axis=1)
            wrong += int((found_T != label_frames(videos[number], self._place_of)).sum())
            total += len(found_T)
        return {"validation_error": 100 * wrong / total} if total else {}


EXAMPLES = {"vqa": QuestionExamples, "segmentation": SegmentExamples}
"""{objective: what it learns from}, where that is not pairs."""


def make_examples(
    dataset: DatasetFolder, config: TrainConfig, features: ClipFeatures, workers: Workers, problems: Problems
) -> PairExamples:
    return EXAMPLES.get(config.objective, PairExamples)(dataset, config, features, workers, problems)
