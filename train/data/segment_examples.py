"""Windows of labelled videos, as a run learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import compress

import torch

from ...storage.captions.files import read_captions
from ...storage.common.terminal import number_of
from .batches import ClipBatches
from .clip_features import pad_rows
from .clips import Clips
from .examples import Examples, InputMaker, Inputs, Source, check_clips
from .segments import label_names, labels_of_rows, read_labelled, step_labels, windows
from .usable import skip_without_rows


class SegmentExamples(Examples):
    """Windows of videos whose rows have labels."""

    def __init__(self, source: Source) -> None:
        """Read the labelled videos of all splits.

        Raises:
            UserError: There are no labels, or too few training windows.
        """
        captions = skip_without_rows(read_captions(source.dataset.captions), source.features, source.problems)
        steps = step_labels(captions, source.dataset.captions)
        self.source, self.labels = source, label_names(steps)
        self.index_of = {step: index for index, step in enumerate(steps, start=1)}
        """{step: label}"""
        self.videos = read_labelled(captions, source.features, source.problems)
        """{split: videos}"""
        self._segments = {video.video_id: video.segments for video in self.videos["train"]}
        planned = [clip for v in self.videos["train"] for clip in windows(v.video_id, v.num_frames)]
        has_rows = source.features.has_rows(planned)  # rows of a damaged video may end before the video does
        self.clips = Clips.of(compress(planned, has_rows.tolist()))
        check_clips(source, self.clips)
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
        return Inputs({}, rows, mask, labels=labels)
