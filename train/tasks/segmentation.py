"""Action segmentation: which step each second of a video shows, as COIN asks (TACo section 5.2).

A linear layer on the video encoder's tokens labels each row; windows slide over a video, and where they overlap their scores are averaged.
No paper says how long they are: 32 s, every 8 s, are VideoCLIP's (Xu et al. 2021).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...storage.captions import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.records import Caption
from ..checkpoint import Run
from ..data.coverage import measure
from ..data.pairs import Clip, ClipFeatures, evenly, of_split, pad_rows, why_none, without_features
from ..scoring import CLIPS, Scorer
from .question import Answers, Question, split_checksum

BACKGROUND = 0
WINDOW_SECONDS, EVERY_SECONDS = 32, 8
OVERLAPS = (10, 25, 50)
SHOWN_VIDEOS = 8


@dataclass(frozen=True)
class LabelledVideo:
    """A frame is a second: a video has floor(duration) of them, at least one."""

    video_id: str
    num_frames: int
    segments: list[Caption]


def step_labels(captions: Iterable[Caption], where: Path) -> dict[int, str]:
    """{number: text} of all steps that captions of any split name. Raises ``UserError`` where none does."""
    labels = {c.step: c.caption for c in captions if c.step is not None and c.start_seconds is not None}
    if not labels:
        raise UserError(f"{where}: no caption is a step of a segment; segmentation expects captions as of coin")
    return dict(sorted(labels.items()))


def label_names(labels: Mapping[int, str]) -> list[str]:
    """What a run keeps of its labels: with their numbers, for several steps have the same words."""
    return [f"{number}: {text}" for number, text in labels.items()]


def read_labelled(
    captions: Iterable[Caption], features: ClipFeatures, problems: Problems
) -> dict[str, list[LabelledVideo]]:
    """{split: videos}. Those without features are reported and left out."""
    found: dict[str, list[LabelledVideo]] = {"train": [], "validation": [], "test": []}
    listed = sorted(
        (c for c in captions if c.step is not None and c.start_seconds is not None), key=lambda c: c.video_id
    )
    without = without_features("segments", (c.video_id for c in listed), features, problems)
    for video_id, its in groupby(listed, key=lambda c: c.video_id):
        segments = list(its)
        if video_id not in without:
            num_frames = max(math.floor(features.duration_seconds(video_id)), 1)
            found[segments[0].split].append(LabelledVideo(video_id, num_frames, segments))
    return found


def label_frames(video: LabelledVideo, place_of: Mapping[int, int]) -> np.ndarray:
    """[T]: the place of each second's step, or ``BACKGROUND``. A segment covers floor(start) up to, not with, ceil(end); of overlapping
    ones the later in the list counts. A step that ``place_of`` does not know has the place -1, which nobody can guess."""
    labels_T = np.full(video.num_frames, BACKGROUND)
    for segment in video.segments:
        labels_T[math.floor(segment.start_seconds) : math.ceil(segment.end_seconds)] = place_of.get(segment.step, -1)
    return labels_T


def labels_of_rows(times_M2: np.ndarray, segments: Sequence[Caption], place_of: Mapping[int, int]) -> np.ndarray:
    """[M]: the place of the step that is shown in the middle of each row."""
    middles_M, labels_M = times_M2.mean(axis=1), np.full(len(times_M2), BACKGROUND)
    for segment in segments:
        labels_M[(middles_M >= segment.start_seconds) & (middles_M < segment.end_seconds)] = place_of[segment.step]
    return labels_M


def windows(video_id: str, num_frames: int) -> list[Clip]:
    """The last one begins as soon as what is left fits it; a short video is one."""
    starts = range(0, max(num_frames - WINDOW_SECONDS, 0) + EVERY_SECONDS, EVERY_SECONDS)
    return [
        Clip(video_id, float(start), float(min(start + WINDOW_SECONDS, num_frames)))
        for start in starts
        if start < num_frames
    ]


@torch.inference_mode()
def frame_scores(scorer: Scorer, video: LabelledVideo) -> np.ndarray:
    """[T, C]: of each second the mean over the rows that touch it, in whatever window; a second without rows has the nearest one's."""
    model, features = scorer.model.eval(), scorer.features
    clips, sums, counts = windows(video.video_id, video.num_frames), None, np.zeros(video.num_frames)
    device = next(model.parameters()).device
    for first in range(0, len(clips), CLIPS):
        found = features.timed_rows(clips[first : first + CLIPS], scorer.config.max_video_tokens)
        rows, mask = pad_rows([rows for rows, _ in found], features.dim)
        scores_BMC = model.head(model.encode_videos(rows.to(device), mask.to(device)).tokens_BMD).float().cpu().numpy()
        for scores_MC, (_, times) in zip(scores_BMC, found, strict=True):
            sums = np.zeros((video.num_frames, scores_MC.shape[1])) if sums is None else sums
            for row_C, (start, end) in zip(scores_MC, times, strict=False):  # zip stops before what is padding
                touched = slice(
                    min(math.floor(start), video.num_frames - 1), max(math.ceil(end), math.floor(start) + 1)
                )
                sums[touched] += row_C
                counts[touched] += 1
    known = np.flatnonzero(counts)
    nearest = known[np.abs(np.arange(video.num_frames)[:, None] - known).argmin(axis=1)]
    return sums[nearest] / counts[nearest, None]


def runs_of(labels_T: np.ndarray) -> list[tuple[int, int, int]]:
    """(label, first frame, frame after the last) of each stretch of equal labels but the background."""
    ends = [*np.flatnonzero(np.diff(labels_T)) + 1, len(labels_T)]
    starts = [0, *ends[:-1]]
    return [
        (int(labels_T[start]), int(start), int(end))
        for start, end in zip(starts, ends, strict=True)
        if labels_T[start] != BACKGROUND
    ]


def edit_score(found_T: np.ndarray, true_T: np.ndarray) -> float:
    """100 less the edit distance of the two orders of steps, in percent of the longer one (Lea et al. 2016); 100 where neither has one."""
    found, true = ([label for label, _, _ in runs_of(labels)] for labels in (found_T, true_T))
    distances = list(range(len(true) + 1))
    for row, label in enumerate(found, start=1):
        before, distances[0] = distances[0], row
        for column, other in enumerate(true, start=1):
            replaced = before + (label != other)
            before = distances[column]
            distances[column] = min(replaced, distances[column] + 1, distances[column - 1] + 1)
    return 100 * (1 - distances[-1] / max(len(found), len(true), 1))


def matches(found_T: np.ndarray, true_T: np.ndarray, overlap: float) -> tuple[int, int, int]:
    """Segments that are right, wrong and missed (Lea et al. 2017): a segment takes the true one of its label that it overlaps most, and is
    right where intersection over union is ``overlap`` or more and no earlier segment took that one."""
    found, true = runs_of(found_T), runs_of(true_T)
    taken, right = set(), 0
    for label, start, end in found:
        shares = [
            max(min(end, e) - max(start, s), 0) / (max(end, e) - min(start, s)) if other == label else -1.0
            for other, s, e in true
        ]
        best = int(np.argmax(shares)) if shares else -1
        if best >= 0 and shares[best] >= overlap and best not in taken:
            right += 1
            taken.add(best)
    return right, len(found) - right, len(true) - right


def segmentation_metrics(found: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> dict[str, float]:
    """In percent: ``accuracy`` of all frames, background included, as published for COIN; ``steps_accuracy`` of the frames that show a
    step; ``macro_accuracy``, the mean over labels, background one of them, of the part of their frames that is right; ``edit``, the mean
    over videos; ``F1@10``, ``F1@25`` and ``F1@50`` of segments."""
    all_found, all_true = np.concatenate(found), np.concatenate(true)
    right, is_step = all_found == all_true, all_true != BACKGROUND
    labels, of_label = np.unique(all_true, return_inverse=True)
    metrics = {
        "accuracy": right.mean(),
        "steps_accuracy": right[is_step].mean() if is_step.any() else math.nan,
        "macro_accuracy": np.mean(np.bincount(of_label, right, len(labels)) / np.bincount(of_label)),
        "edit": np.mean([edit_score(f, t) for f, t in zip(found, true, strict=True)]) / 100,
    }
    for percent in OVERLAPS:
        rights, wrongs, missed = np.sum(
            [matches(f, t, percent / 100) for f, t in zip(found, true, strict=True)], axis=0
        )
        metrics[f"F1@{percent}"] = 2 * rights / max(2 * rights + wrongs + missed, 1)
    return {name: 100 * float(value) for name, value in metrics.items()}


def segment(run: Run, question: Question, problems: Problems) -> Answers:
    """Labels each second of the videos of a split."""
    captions = read_captions(run.dataset.captions)
    texts = step_labels(captions, run.dataset.captions)
    places = {name: place for place, name in enumerate(run.labels, start=1)}
    place_of = {number: places[name] for number, name in zip(texts, label_names(texts), strict=True) if name in places}
    if not place_of:
        raise UserError(
            f"{run.dataset.captions}: none of its {len(texts):,} steps is one of those that {run.folder.name} was trained on"
        )
    if unknown := len(texts) - len(place_of):
        problems.add(
            f"{unknown:,} of {len(texts):,} steps were not among those of the training; their seconds count as wrong"
        )
    videos = read_labelled(captions, run.features, problems)[question.split]
    if not videos:
        why = why_none(run.dataset, run.features, question.split)
        raise UserError(f"{run.dataset.captions}: no segments to label; {why}; pass another --split")
    true = [label_frames(video, place_of) for video in videos]
    found = [
        frame_scores(run.scorer, video).argmax(axis=1)
        for video in progress(videos, total=len(videos), what="segments", unit="videos")
    ]
    listed, num_frames = of_split(captions, question.split), {v.video_id: v.num_frames for v in videos}
    used = [
        n for n, c in enumerate(listed) if c.step is not None and (c.start_seconds or 0) < num_frames.get(c.video_id, 0)
    ]
    result = measure(listed, listed.take(used), run.features).result(caption="segments", item="videos") | {
        "num_videos": len(videos),
        "num_frames": sum(map(len, true)),
        "num_labels": len(run.labels),
        "split_checksum": split_checksum(segment for video in videos for segment in video.segments),
        "segmentation": segmentation_metrics(found, true),
        "all_background": segmentation_metrics([np.zeros_like(labels) for labels in true], true),
    }
    chosen = evenly(len(videos), SHOWN_VIDEOS)
    shown = [
        {"video_id": videos[n].video_id, "task": videos[n].segments[0].task, "found": found[n], "true": true[n]}
        for n in chosen
    ]
    return Answers(result, map(_line, videos, found, true), {"videos": shown, "labels": run.labels})


def _line(video: LabelledVideo, found_T: np.ndarray, true_T: np.ndarray) -> dict[str, Any]:
    accuracy = round(100 * float((found_T == true_T).mean()), 2)
    return {
        "video_id": video.video_id,
        "num_frames": video.num_frames,
        "accuracy": accuracy,
        "segments": runs_of(found_T),
    }
