"""The training examples of a run (pairs, questions or labelled windows), and input batches made of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, compress, islice
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.files import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.common.terminal import number_of, say
from ...storage.dataset.folder import DatasetFolder
from ...storage.records import Caption
from ...storage.stores.store import Store
from ..distributed import Workers
from ..settings import DataSettings, OptimizationSettings
from .batches import Batches, ClipBatches
from .clip_features import ClipFeatures, pad_rows
from .clips import Clip, Clips, evenly
from .extra_inputs import BatchIds, ExtraInputs
from .order import group_by_shard
from .pair_weights import Density, density_weights, discard_improbable
from .pairs import FoundPairs, Pairs, PairSource, by_parts_of_videos, make_pairs, read_pairs
from .segments import label_names, labels_of_rows, read_labelled_videos, step_labels, windows
from .text_inputs import TokenWeights, report_cut_recordings
from .usable_captions import skip_without_rows, why_split_is_unusable

MAX_VALIDATION_VIDEOS = 1000
"""Upper limit of the training videos that are held out for validation."""
MAX_COUNTED_TEXTS = 1_000_000
"""Upper limit of the captions that a vocabulary is learned from: words that only other captions have are rare."""
TEXTS_AT_ONCE = 4096
"""Training texts between two reports of progress. Reporting each text would take as long as counting its words."""


@dataclass(frozen=True)
class Inputs:
    """A batch as the encoders take it."""

    texts: dict[str, Tensor]
    """Empty if the model reads no texts."""
    rows: Tensor
    """Features [B, M, F]."""
    mask: Tensor
    """True for a row, False for padding, [B, M]."""
    weights: Tensor | None = None
    """The weight of each pair [B]."""
    video_of: Tensor | None = None
    """Index of each clip's video [B]."""
    labels: Tensor | None = None
    """Indices of the questions' answers [B], or of the rows' labels [B, M]."""
    lengths: Tensor | None = None
    """Number of feature vectors of each clip [B], on the CPU; None if only the mask has it."""
    text_extra: dict[str, Tensor] = field(default_factory=dict)
    """Custom inputs of the texts."""
    video_extra: dict[str, Tensor] = field(default_factory=dict)
    """Custom inputs of the clips. On a device they are float32 or bool."""
    ids: BatchIds | None = None
    """The clips and captions, if the objective needs to know."""

    def pinned(self) -> Inputs:
        """Return the same batch in memory from which a GPU copies asynchronously."""
        return self._each(Tensor.pin_memory)

    def to(self, device: torch.device) -> Inputs:
        """Return a copy of a CPU batch on a device. The lengths of its texts and clips stay on the CPU."""
        moved = self._each(lambda x: x.to(device, non_blocking=True))
        texts = dict(moved.texts)
        for name in {"attention_mask", "mask_BT"} & set(self.texts):
            texts["lengths_B"] = self.texts[name].sum(dim=1)
        if "token_weights" in self.texts:
            texts["num_of_interest_B"] = self.texts["token_weights"].count_nonzero(dim=1)
        moved = replace(moved, texts=texts, lengths=self.mask.sum(dim=1))
        if not self.video_extra:
            return moved
        rows = {name: x.float() if x.is_floating_point() else x for name, x in moved.video_extra.items()}
        return replace(moved, video_extra=rows)

    def _each(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        def of(x: Tensor | None) -> Tensor | None:
            return None if x is None else function(x)

        return replace(
            self,
            texts={name: function(value) for name, value in self.texts.items()},
            rows=function(self.rows),
            mask=function(self.mask),
            weights=of(self.weights),
            video_of=of(self.video_of),
            labels=of(self.labels),
            lengths=of(self.lengths),
            text_extra={name: function(value) for name, value in self.text_extra.items()},
            video_extra={name: function(value) for name, value in self.video_extra.items()},
        )


class InputMaker(Protocol):
    """Turns clips and captions into the encoders' inputs, for example ``scoring.Scorer``."""

    @property
    def weights(self) -> TokenWeights:
        """The weights of words."""
        ...

    def text_inputs(self, captions: Sequence[Caption], /) -> dict[str, Tensor]:
        """Return the inputs of the text encoder."""
        ...

    def video_inputs(self, clips: Sequence[Clip], /) -> tuple[Tensor, Tensor]:
        """Return rows [B, M, F] and their mask [B, M]."""
        ...


@dataclass(frozen=True)
class ExampleSource:
    """Everything that examples are read from."""

    dataset: DatasetFolder
    features: ClipFeatures
    recordings: Store | None
    """Log-mel rows of spoken captions, if the run's captions are recordings."""
    data: DataSettings
    optimization: OptimizationSettings
    make_batches: Callable[[Pairs], Batches]
    """Decides which clips and captions each batch has."""
    validation_share: float = 0.0
    """Share of the training videos to validate on if there is no validation split."""
    extra: ExtraInputs = field(default_factory=ExtraInputs)
    """Makes the custom inputs."""
    needs_ids: bool = False
    """Batches include the ids of their clips and captions."""
    density: Density | None = None
    """Computation and use of the pairs' probability (SSML); None for equal weights."""
    workers: Workers = field(default_factory=Workers)
    problems: Problems = field(default_factory=Problems)
    """Receives skipped inputs."""


class Examples:
    """The training examples of a run."""

    source: ExampleSource
    """The origin of the examples."""
    labels: list[str]
    """The possible answers or labels, if they are a fixed list; else empty."""
    clips: Clips
    """All training clips."""
    batches: ClipBatches
    """Decides which clips and captions each batch has."""
    summary: str
    """The number of examples, in words."""

    def train_texts(self) -> Iterator[str]:
        """Yield texts that are trained on, for a vocabulary that is learned from them."""
        raise NotImplementedError

    def prefetch(self, step: int, share: slice) -> None:
        """Ask for the rows of a process's share of a step's batch, which ``inputs`` will need."""
        clips = [self.clips[clip] for clip in self.batches.clips_at(step)[share]]
        of_machine = self.source.workers.on_machine
        for videos in self.batches.videos_to_prefetch(step)[of_machine.rank :: of_machine.size]:
            video_ids = [self.clips.video_ids[video] for video in videos]
            clips += [Clip(video_id, None, None) for video_id in video_ids]
        self.source.features.prefetch(clips)  # in one call, so that shards elsewhere are fetched at the same time
        self.source.extra.prefetch(clips)

    def inputs(self, maker: InputMaker, step: int, share: slice) -> Inputs:
        """Return a process's share of a step's batch. It depends on the seed and the step alone."""
        raise NotImplementedError


def check_clips(source: ExampleSource, clips: Clips) -> None:
    """Raise ``UserError`` for fewer than 2 training clips."""
    if len(clips) < 2:
        why = why_split_is_unusable(source.dataset, source.features, "train", source.recordings)
        raise UserError(
            f"{source.dataset.captions}: too few training clips: {len(clips)}, expected at least 2 to contrast; {why}"
        )


def split_off_validation(pairs: dict[str, Pairs], source: ExampleSource, name: str) -> dict[str, Pairs]:
    """Return the pairs. If there is no validation split, a share of the training videos becomes one.

    The chosen videos depend on the seed alone.

    Args:
        pairs: {split: pairs}
        source: Has the share and the seed.
        name: The kind of examples, such as "questions", to tell the cache file from the data set's others.
    """
    train, seed = pairs["train"], source.optimization.seed
    num_videos = len(train.clips.video_ids)
    num_held_out = min(max(round(source.validation_share * num_videos), 1), MAX_VALIDATION_VIDEOS)
    if not source.validation_share or len(pairs["validation"].clips):
        return pairs
    if num_videos - num_held_out < 2:
        if source.workers.is_first:
            say(
                f"note: {source.dataset.captions}: no validation split: {num_held_out:,} of {num_videos:,} training "
                "videos would leave fewer than 2 for training; the run has no validation"
            )
        return pairs
    if source.workers.is_first:
        say(
            f"{source.dataset.captions}: no validation split: {num_held_out:,} of {num_videos:,} training videos are "
            "used as the validation split"
        )

    def make() -> Iterator[FoundPairs]:
        held_out = set(random.Random(f"{seed} validation").sample(sorted(train.clips.video_ids), num_held_out))
        yield FoundPairs({"test": pairs["test"]})
        for part in by_parts_of_videos(train.captions):
            video_ids, video = part.videos()
            is_held_out = np.array([video_id in held_out for video_id in video_ids], dtype=bool)[video]
            splits = {
                "train": part.take(np.flatnonzero(~is_held_out)),
                "validation": part.take(np.flatnonzero(is_held_out)),
            }
            yield FoundPairs({split: make_pairs(captions) for split, captions in splits.items()})

    pair_source = PairSource(source.dataset, source.features, source.recordings)
    file_name = f"{name}-held{num_held_out}-seed{seed}"
    return dict(pair_source.cached(file_name, train.captions.whole, make, held=num_held_out, seed=seed).pairs)


class PairExamples(Examples):
    """Clips with their captions."""

    name: ClassVar[str] = "pairs"
    """The kind of examples, in the names of files."""

    def __init__(self, source: ExampleSource) -> None:
        """Read the pairs of all splits.

        Raises:
            UserError: There are too few training clips, or pairs cannot be weighted.
        """
        self.source, self.labels = source, []
        found = self.read(source)
        self.pairs = split_off_validation(found, source, self.name)
        """{split: pairs}"""
        check_clips(source, self.pairs["train"].clips)
        self.pair_weights = self._weigh(are_some=self.pairs is not found)
        """float32 [num_captions], or None if all pairs weigh the same."""
        train = self.pairs["train"]
        source.extra.check_captions(train.captions)
        if source.workers.is_first:
            source.extra.report_clips(train.clips)
            if source.recordings is not None:
                report_cut_recordings(train.captions, source.recordings, source.data.max_text_tokens)
        self.clips = train.clips
        self.summary = f"{number_of(len(train.captions), 'captions')} of {number_of(len(train.clips), 'clips')}"
        self.batches = source.make_batches(train)
        if source.data.shuffle_shards:
            shard_of_video = source.features.shard_of(train.clips.video_ids)
            self.batches.shuffle_by_shard(group_by_shard(shard_of_video), source.data.shuffle_shards)

    def _weigh(self, *, are_some: bool) -> np.ndarray | None:
        """Return the weights of the training pairs, or discard the improbable ones and return None."""
        source, density, train = self.source, self.source.density, self.pairs["train"]
        if density is None:
            return None
        weights = density_weights(source.dataset, source.features, train, density, source.workers, are_some=are_some)
        if density.threshold is None:
            return weights
        pair_source = PairSource(source.dataset, source.features, source.recordings)
        self.pairs = discard_improbable(self.pairs, weights, density, pair_source)
        if source.workers.is_first:
            num_pairs, num_kept = len(train.captions), len(self.pairs["train"].captions)
            say(
                f"{num_pairs - num_kept:,} of {num_pairs:,} training pairs have a probability below "
                f"{density.threshold:g} and are discarded"
            )
        return None

    def read(self, source: ExampleSource) -> dict[str, Pairs]:
        """Return {split: pairs}."""
        return read_pairs(source.dataset, source.features, source.problems, source.recordings)

    def train_texts(self) -> Iterator[str]:
        """Yield all training captions, or a million of them, evenly spread, and show progress."""
        captions = self.pairs["train"].captions
        if len(captions) > MAX_COUNTED_TEXTS:
            captions = captions.take(evenly(len(captions), MAX_COUNTED_TEXTS))
        texts = captions.texts()
        parts = iter(lambda: list(islice(texts, TEXTS_AT_ONCE)), [])
        for part in progress(parts, total=len(captions), what="counting words", unit="captions", size=len):
            yield from part

    def inputs(self, maker: InputMaker, step: int, share: slice) -> Inputs:
        """Return a process's share of a step's batch. It depends on the seed and the step alone."""
        clips, captions = self.batches.at(step)
        clips, captions = clips[share], captions[share]
        train = self.pairs["train"]
        drawn_clips = [train.clips[clip] for clip in clips]
        drawn_captions = train.captions.take([c for of_clip in captions for c in of_clip])
        rows, mask = maker.video_inputs(drawn_clips)
        records = list(drawn_captions)
        texts = maker.text_inputs(records)
        weights = None
        if self.pair_weights is not None:
            weights = torch.from_numpy(self.pair_weights[[of_clip[0] for of_clip in captions]])
        num_each = self.source.data.clips_per_video  # one after the other
        video_of = torch.arange(self.batches.size)[share] // num_each if num_each > 1 else None
        return Inputs(
            texts,
            rows,
            mask,
            weights,
            video_of,
            text_extra=self.source.extra.of_captions(records),
            video_extra=self.source.extra.of_clips(drawn_clips),
            ids=BatchIds.of(drawn_clips, drawn_captions) if self.source.needs_ids else None,
        )


NUM_ANSWERS = 1500
"""Number of possible answers: the most frequent ones of the training questions, as in HQGA and ClipBERT; SSML: "the
set of predetermined answers"."""


class QuestionExamples(PairExamples):
    """Questions about videos. ``labels`` are the answers that the run can give."""

    name: ClassVar[str] = "questions"

    def read(self, source: ExampleSource) -> dict[str, Pairs]:
        """Return {split: pairs of a video and a question}, and set the most frequent answers as ``labels``.

        Raises:
            UserError: No training caption is a question with an answer.
        """
        pairs = read_pairs(source.dataset, source.features, source.problems)
        captions = pairs["train"].captions
        answers = {index: c.answer for index, c in enumerate(captions) if c.answer}
        self.labels = [answer for answer, _ in Counter(answers.values()).most_common(NUM_ANSWERS)]
        self._index_of = {answer: index for index, answer in enumerate(self.labels)}
        frequent = [index for index, answer in answers.items() if answer in self._index_of]
        if not frequent:
            raise UserError(
                f"{source.dataset.captions}: no training caption is a question with an answer; expected captions "
                "such as those of msvd_qa or msrvtt_qa"
            )
        if len(frequent) < len(answers):
            rare = f"{len(answers) - len(frequent):,} of {len(answers):,} training questions"
            say(f"{rare} are skipped: their answers are not among the {NUM_ANSWERS:,} most frequent")
        return pairs | {"train": make_pairs(captions.take(frequent))}

    def train_texts(self) -> Iterator[str]:
        """Yield all training questions and all answers."""
        return chain(super().train_texts(), self.labels)

    def inputs(self, maker: InputMaker, step: int, share: slice) -> Inputs:
        """Return a process's share of a step's questions, followed by all answers."""
        clips, captions = self.batches.at(step)
        train = self.pairs["train"]
        drawn_clips = [train.clips[clip] for clip in clips[share]]
        rows, mask = maker.video_inputs(drawn_clips)
        questions = train.captions.take([caption for (caption,) in captions[share]])
        records = list(questions)
        asked = [*records, *map(maker.weights.tag_query, self.labels)]
        labels = [self._index_of[question.answer or ""] for question in records]
        return Inputs(
            maker.text_inputs(asked),
            rows,
            mask,
            labels=torch.tensor(labels),
            text_extra=self.source.extra.of_captions(asked),
            video_extra=self.source.extra.of_clips(drawn_clips),
            ids=BatchIds.of(drawn_clips, questions) if self.source.needs_ids else None,
        )


class SegmentExamples(Examples):
    """Windows of videos with labelled feature vectors."""

    def __init__(self, source: ExampleSource) -> None:
        """Read the labelled videos of all splits.

        Raises:
            UserError: There are no labels, or too few training windows.
        """
        captions = skip_without_rows(read_captions(source.dataset.captions), source.features, source.problems)
        steps = step_labels(captions, source.dataset.captions)
        self.source, self.labels = source, label_names(steps)
        self.index_of = {step: index for index, step in enumerate(steps, start=1)}
        """{step: label}"""
        self.videos = read_labelled_videos(captions, source.features, source.problems)
        """{split: videos}"""
        self._segments = {video.video_id: video.segments for video in self.videos["train"]}
        planned = [clip for v in self.videos["train"] for clip in windows(v.video_id, v.num_frames)]
        has_rows = source.features.has_rows(planned)  # the rows of a damaged video may end before the video
        self.clips = Clips.of(compress(planned, has_rows.tolist()))
        check_clips(source, self.clips)
        if source.workers.is_first:
            source.extra.report_clips(self.clips)
        self.summary = f"{number_of(len(self.clips), 'windows')} of {number_of(len(self.videos['train']), 'videos')}"
        self.batches = ClipBatches(len(self.clips), source.optimization.batch_size, source.optimization.seed)

    def train_texts(self) -> Iterator[str]:
        """Yield the labels."""
        return iter(self.labels)

    def inputs(self, maker: InputMaker, step: int, share: slice) -> Inputs:
        """Return a process's share of a step's windows, and the labels of their rows."""
        drawn, _ = self.batches.at(step)
        clips = [self.clips[index] for index in drawn[share]]
        timed = self.source.features.timed_rows(clips, self.source.data.max_video_tokens)
        rows, mask = pad_rows([rows for rows, _ in timed], self.source.features.dim)
        labels = torch.zeros(mask.shape, dtype=torch.int64)
        for index, (clip, (_, times)) in enumerate(zip(clips, timed, strict=True)):
            of_rows = labels_of_rows(times, self._segments[clip.video_id], self.index_of)
            labels[index, : len(times)] = torch.from_numpy(of_rows)
        video_ids, clip_ids = [clip.video_id for clip in clips], [clip.clip_id for clip in clips]
        return Inputs(
            {},
            rows,
            mask,
            labels=labels,
            video_extra=self.source.extra.of_clips(clips),
            ids=BatchIds(video_ids, clip_ids, []) if self.source.needs_ids else None,
        )
