"""Asking a run which step each second of a video shows, as COIN does (TACo section 5.2).

A linear layer labels each row of the video encoder. Where windows overlap, their scores are averaged.
"""

import math
from collections.abc import Mapping
from typing import TypedDict

import numpy as np
import torch

from ...storage.captions.files import read_captions
from ...storage.captions.table import CaptionTable
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ..data.clip_features import pad_rows
from ..data.clips import evenly
from ..data.coverage import Coverage, measure, split_checksum
from ..data.segments import LabelledVideo, label_frames, label_names, read_labelled, step_labels, windows
from ..data.usable import find_faults, of_split, skip_without_rows, why_none
from ..runs.checkpoint import Run
from ..scoring.scorer import CLIP_CHUNK, Scorer
from .segment_metrics import Stretch, segmentation_metrics, stretches_of
from .task import NoSettings, Question, TaskResult

SHOWN_VIDEOS = 8


class VideoRow(TypedDict):
    """A line of ``queries.jsonl``."""

    video_id: str
    num_frames: int
    accuracy: float
    """In percent."""
    segments: list[Stretch]
    """The segments that were found: label, first second, and the second after the last."""


@torch.inference_mode()
def frame_scores(scorer: Scorer, video: LabelledVideo) -> np.ndarray:
    """Return the score of each label in each second [T, C].

    The score of a second is the mean over the rows that touch it, in all windows. A second without rows gets the
    scores of the nearest second that has some.

    Args:
        scorer: A model with a head for labels.
        video: The video; it has rows.

    Raises:
        ValueError: The model has no such head.
    """
    model, features = scorer.model.eval(), scorer.features
    if model.head is None:
        raise ValueError(f"a model of the objective {scorer.config.objective.name} labels no rows")
    clips, counts = windows(video.video_id, video.num_frames), np.zeros(video.num_frames)
    sums = np.zeros((video.num_frames, 0))
    device = next(model.parameters()).device
    for first in range(0, len(clips), CLIP_CHUNK):
        timed = features.timed_rows(clips[first : first + CLIP_CHUNK], scorer.config.max_video_tokens)
        rows, mask = pad_rows([rows for rows, _ in timed], features.dim)
        scores_BMC = model.head(model.encode_videos(rows.to(device), mask.to(device)).tokens_BMD).float().cpu().numpy()
        if not sums.shape[1]:
            sums = np.zeros((video.num_frames, scores_BMC.shape[2]))
        for scores_MC, (_, times) in zip(scores_BMC, timed, strict=True):
            for row_C, (start, end) in zip(scores_MC, times, strict=False):  # scores of padding rows are left over
                seconds = slice(
                    min(math.floor(start), video.num_frames - 1), max(math.ceil(end), math.floor(start) + 1)
                )
                sums[seconds] += row_C
                counts[seconds] += 1
    known = np.flatnonzero(counts)
    nearest = known[np.abs(np.arange(video.num_frames)[:, None] - known).argmin(axis=1)]
    return sums[nearest] / counts[nearest, None]


def segment(run: Run, question: Question[NoSettings], problems: Problems) -> TaskResult:
    """Label each second of the videos of a split.

    Raises:
        UserError: The split has no segments, or the run knows none of the data set's steps.
    """
    captions = skip_without_rows(read_captions(run.dataset.captions), run.features, problems)
    label_of = _known_labels(run, captions, problems)
    videos = read_labelled(captions, run.features, problems)[question.split]
    if not videos:
        why = why_none(run.dataset, run.features, question.split)
        raise UserError(f"{run.dataset.captions}: no segments to label; {why}; pass another split")
    true = [label_frames(video, label_of) for video in videos]
    predicted = [
        frame_scores(run.scorer, video).argmax(axis=1)
        for video in progress(videos, total=len(videos), what="segments", unit="videos")
    ]
    segments = (segment.caption for video in videos for segment in video.segments)
    figures = {
        "num_videos": len(videos),
        "num_frames": sum(map(len, true)),
        "num_labels": len(run.labels),
        "split_checksum": split_checksum(segments),
        "segmentation": segmentation_metrics(predicted, true),
        "all_background": segmentation_metrics([np.zeros_like(labels) for labels in true], true),
    }
    shown = [
        {
            "video_id": videos[index].video_id,
            "task": videos[index].segments[0].caption.task,
            "found": predicted[index],
            "true": true[index],
        }
        for index in evenly(len(videos), SHOWN_VIDEOS)
    ]
    return TaskResult(
        coverage=_coverage(run, of_split(read_captions(run.dataset.captions), question.split), videos),
        figures=figures,
        rows=map(_row, videos, predicted, true),
        page={"videos": shown},
    )


def _known_labels(run: Run, captions: CaptionTable, problems: Problems) -> Mapping[int, int]:
    """Return {number of a step: its label} of the data set's steps that the run was trained on."""
    texts = step_labels(captions, run.dataset.captions)
    labels = {name: label for label, name in enumerate(run.labels, start=1)}
    names = zip(texts, label_names(texts), strict=True)
    label_of = {number: labels[name] for number, name in names if name in labels}
    if not label_of:
        raise UserError(
            f"{run.dataset.captions}: none of its {len(texts):,} steps is one that {run.folder.name} was trained on"
        )
    if num_unknown := len(texts) - len(label_of):
        problems.add(
            f"{num_unknown:,} of {len(texts):,} steps were not in the training set; their seconds count as wrong"
        )
    return label_of


def _coverage(run: Run, listed: CaptionTable, videos: list[LabelledVideo]) -> Coverage:
    num_frames = {video.video_id: video.num_frames for video in videos}
    usable = np.flatnonzero(find_faults(listed, run.features, None).usable)
    used = [
        index
        for index, c in zip(usable.tolist(), listed.take(usable), strict=True)
        if c.step is not None and (c.start_seconds or 0) < num_frames.get(c.video_id, 0)
    ]
    return measure(listed, listed.take(used), run.features)


def _row(video: LabelledVideo, predicted_T: np.ndarray, true_T: np.ndarray) -> VideoRow:
    return {
        "video_id": video.video_id,
        "num_frames": video.num_frames,
        "accuracy": round(100 * float((predicted_T == true_T).mean()), 2),
        "segments": stretches_of(predicted_T),
    }
