"""Action segmentation: find which step each second of a video shows, as COIN asks (TACo section 5.2).

A linear layer labels each row of the video encoder. Where windows overlap, their scores are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

from ...storage.captions.files import read_captions
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ..data.clips import evenly
from .svg import svg_of, with_plain_texts
from .task import EvaluationRequest, Metrics, NoSettings, Task, TaskResult, counted

if TYPE_CHECKING:
    from ...storage.captions.table import CaptionTable
    from ..data.segments import LabelledVideo
    from ..runs.load import Run
    from ..scoring.scorer import Scorer
    from .coverage import Coverage

COLUMNS = ("accuracy", "steps_accuracy", "macro_accuracy", "edit", "F1@10", "F1@25", "F1@50")
SHOWN_VIDEOS = 8
GREY = (0.95, 0.95, 0.96, 1)


SegmentationMetrics = TypedDict(
    "SegmentationMetrics",
    {
        "accuracy": float,
        "steps_accuracy": float,
        "macro_accuracy": float,
        "edit": float,
        "F1@10": float,
        "F1@25": float,
        "F1@50": float,
    },
)
"""In percent.

``accuracy``: of all frames, background included, as published for COIN. ``steps_accuracy``: of the frames that show a
step (NaN if none does). ``macro_accuracy``: the mean over labels, background included, of the share of their frames
that is right. ``edit``: the mean of ``edit_score`` over videos. ``F1@k``: of segments that overlap by k percent.
"""


class Stretch(NamedTuple):
    """Consecutive frames with the same step."""

    label: int
    start: int
    end: int
    """The frame after the last one."""


class Matches(NamedTuple):
    """Counts of segments."""

    right: int
    wrong: int
    missed: int


class VideoRow(TypedDict):
    """A line of ``queries.jsonl``."""

    video_id: str
    num_frames: int
    accuracy: float
    """In percent."""
    segments: list[Stretch]
    """The segments that were found: label, first second, and the second after the last."""


class Segmentation(Task[NoSettings]):
    """Finding the step that each second of a video shows.

    ``metrics.json`` has ``segmentation`` and, for calling every second background, ``all_background`` (both
    ``SegmentationMetrics``), and the numbers of seconds and labels, ``num_frames`` and ``num_labels``.
    """

    name = "segmentation"
    description = "the step that each second of a video shows (COIN), for a run with --objective segmentation"
    caption_name = "segments"
    item_name = "videos"
    main_metrics = ("accuracy", "steps accuracy", "edit", "F1@50")

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the function that draws a video's labels."""
        return {"segments_figure": segments_figure}

    def evaluate(self, run: Run, request: EvaluationRequest[NoSettings], problems: Problems) -> TaskResult:
        """Label each second of the videos of a split.

        Raises:
            UserError: The split has no segments, or the run was trained on none of the data set's steps.
        """
        from ..data.segments import label_frames, read_labelled_videos
        from ..data.usable_captions import captions_of_split, skip_without_rows, why_split_is_unusable
        from .coverage import split_checksum

        captions = skip_without_rows(read_captions(run.dataset.captions), run.features, problems)
        label_of = _known_labels(run, captions, problems)
        videos = read_labelled_videos(captions, run.features, problems)[request.split]
        if not videos:
            why = why_split_is_unusable(run.dataset, run.features, request.split)
            raise UserError(f"{run.dataset.captions}: no segments to label; {why}; pass another split")
        true = [label_frames(video, label_of) for video in videos]
        predicted = [
            frame_scores(run.scorer, video).argmax(axis=1)
            for video in progress(videos, total=len(videos), what="segments", unit="videos")
        ]
        segments = (segment.caption for video in videos for segment in video.segments)
        metrics = {
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
            coverage=_coverage(run, captions_of_split(read_captions(run.dataset.captions), request.split), videos),
            metrics=metrics,
            rows=map(_row, videos, predicted, true),
            page={"videos": shown},
        )

    def count(self, metrics: Metrics) -> str:
        """Return how many seconds of how many videos were labelled."""
        return f"{metrics['num_frames']:,} seconds of {counted(metrics, 'videos')}"

    def heading(self, metrics: Metrics) -> str:
        """Return the heading, with the number of steps."""
        return f"{super().heading(metrics)}; {metrics['num_labels']:,} steps to choose from"

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the run's metrics, in percent."""
        return {name.replace("_", " "): metrics["segmentation"][name] for name in COLUMNS}

    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the table of metrics."""
        yield segmentation_table(metrics)
        yield (
            "accuracy: of all seconds, background included, as published; "
            "steps: of the seconds that show a step; macro: the mean over labels"
        )
        yield f"checksum of the split's clips and steps: {metrics['split_checksum']}"


def segmentation_table(metrics: Metrics) -> str:
    """Return a table of the run's metrics, and of the metrics for labelling every second as background."""
    lines = [f"{'percent':<16}" + "".join(f"{name.replace('_accuracy', ''):>10}" for name in COLUMNS)]
    for label, row in (("segmentation", metrics["segmentation"]), ("all background", metrics["all_background"])):
        lines.append(f"{label:<16}" + "".join(f"{row[name]:>10.2f}" for name in COLUMNS))
    return "\n".join(lines)


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
    import torch

    from ..data.clip_features import pad_rows
    from ..data.segments import windows
    from ..scoring.scorer import CLIP_CHUNK

    model, features = scorer.model.eval(), scorer.features
    if model.head is None:
        raise ValueError(f"a model of the objective {scorer.config.objective.name} has no head for labels")
    clips, counts = windows(video.video_id, video.num_frames), np.zeros(video.num_frames)
    sums = np.zeros((video.num_frames, 0))
    for first in range(0, len(clips), CLIP_CHUNK):
        part = clips[first : first + CLIP_CHUNK]
        timed = features.timed_rows(part, scorer.config.data.max_video_tokens)
        rows, mask = pad_rows([rows for rows, _ in timed], features.dim)
        with torch.inference_mode():
            scores_BMC = model.head(scorer.encode_rows(rows, mask, part).tokens_BMD).float().cpu().numpy()
        if not sums.shape[1]:
            sums = np.zeros((video.num_frames, scores_BMC.shape[2]))
        for scores_MC, (_, times) in zip(scores_BMC, timed, strict=True):
            for row_C, (start, end) in zip(scores_MC, times, strict=False):  # the scores of padding rows are ignored
                seconds = slice(
                    min(math.floor(start), video.num_frames - 1), max(math.ceil(end), math.floor(start) + 1)
                )
                sums[seconds] += row_C
                counts[seconds] += 1
    known = np.flatnonzero(counts)
    nearest = known[np.abs(np.arange(video.num_frames)[:, None] - known).argmin(axis=1)]
    return sums[nearest] / counts[nearest, None]


def _known_labels(run: Run, captions: CaptionTable, problems: Problems) -> Mapping[int, int]:
    """Return {number of a step: its label} of the data set's steps that the run was trained on."""
    from ..data.segments import label_names, step_labels

    texts = step_labels(captions, run.dataset.captions)
    labels = {name: label for label, name in enumerate(run.labels, start=1)}
    names = zip(texts, label_names(texts), strict=True)
    label_of = {number: labels[name] for number, name in names if name in labels}
    if not label_of:
        raise UserError(
            f"{run.dataset.captions}: run {run.folder.name} was trained on none of its {len(texts):,} "
            "steps; evaluate on a data set with the run's steps"
        )
    if num_unknown := len(texts) - len(label_of):
        problems.add(
            f"{num_unknown:,} of {len(texts):,} steps were not in the training set; their seconds count as wrong"
        )
    return label_of


def _coverage(run: Run, listed: CaptionTable, videos: list[LabelledVideo]) -> Coverage:
    from ..data.usable_captions import find_exclusions
    from .coverage import split_coverage

    num_frames = {video.video_id: video.num_frames for video in videos}
    usable = np.flatnonzero(find_exclusions(listed, run.features, None).usable)
    used = [
        index
        for index, c in zip(usable.tolist(), listed.take(usable), strict=True)
        if c.step is not None and (c.start_seconds or 0) < num_frames.get(c.video_id, 0)
    ]
    return split_coverage(listed, listed.take(used), run.features)


def _row(video: LabelledVideo, predicted_T: np.ndarray, true_T: np.ndarray) -> VideoRow:
    return {
        "video_id": video.video_id,
        "num_frames": video.num_frames,
        "accuracy": round(100 * float((predicted_T == true_T).mean()), 2),
        "segments": stretches_of(predicted_T),
    }


def stretches_of(labels_T: np.ndarray) -> list[Stretch]:
    """Return the stretches of equal labels, without the background."""
    from ..data.segments import BACKGROUND

    ends = [*(np.flatnonzero(np.diff(labels_T)) + 1).tolist(), len(labels_T)]
    starts = [0, *ends[:-1]]
    return [
        Stretch(int(labels_T[start]), start, end)
        for start, end in zip(starts, ends, strict=True)
        if labels_T[start] != BACKGROUND
    ]


def edit_score(predicted_T: np.ndarray, true_T: np.ndarray) -> float:
    """Return 100 minus the edit distance of the two orders of steps, in percent of the longer one (100 without steps).

    Source: Lea et al. 2016.
    """
    predicted, true = ([stretch.label for stretch in stretches_of(labels)] for labels in (predicted_T, true_T))
    distances = list(range(len(true) + 1))
    for row, label in enumerate(predicted, start=1):
        diagonal, distances[0] = distances[0], row
        for column, other in enumerate(true, start=1):
            replaced = diagonal + (label != other)
            diagonal = distances[column]
            distances[column] = min(replaced, distances[column] + 1, distances[column - 1] + 1)
    return 100 * (1 - distances[-1] / max(len(predicted), len(true), 1))


def match_segments(predicted_T: np.ndarray, true_T: np.ndarray, min_overlap: float) -> Matches:
    """Count the segments that are right, wrong and missed.

    A predicted segment is matched with the true segment of its label that it overlaps most. It is right if their
    intersection over union is at least ``min_overlap`` and no earlier segment was matched with the same one.

    Source: Lea et al. 2017.
    """
    predicted, true = stretches_of(predicted_T), stretches_of(true_T)
    matched: set[int] = set()
    right = 0
    for stretch in predicted:
        overlaps = [_overlap(stretch, other) for other in true]
        best = int(np.argmax(overlaps)) if overlaps else -1
        if best >= 0 and overlaps[best] >= min_overlap and best not in matched:
            right += 1
            matched.add(best)
    return Matches(right, len(predicted) - right, len(true) - right)


def _overlap(a: Stretch, b: Stretch) -> float:
    """Return intersection over union, or -1 for different labels."""
    if a.label != b.label:
        return -1.0
    return max(min(a.end, b.end) - max(a.start, b.start), 0) / (max(a.end, b.end) - min(a.start, b.start))


def segmentation_metrics(predicted: Sequence[np.ndarray], true: Sequence[np.ndarray]) -> SegmentationMetrics:
    """Return the metrics of some videos.

    Args:
        predicted: For each video, the labels [T] that were found.
        true: For each video, the labels [T] that were annotated.
    """
    from ..data.segments import BACKGROUND

    all_predicted, all_true = np.concatenate(predicted), np.concatenate(true)
    right, is_step = all_predicted == all_true, all_true != BACKGROUND
    labels, label_of_frame = np.unique(all_true, return_inverse=True)
    videos = list(zip(predicted, true, strict=True))
    shares = np.bincount(label_of_frame, right, len(labels)) / np.bincount(label_of_frame)
    return {
        "accuracy": 100 * float(right.mean()),
        "steps_accuracy": 100 * float(right[is_step].mean()) if is_step.any() else math.nan,
        "macro_accuracy": 100 * float(np.mean(shares)),
        "edit": 100 * float(np.mean([edit_score(p, t) for p, t in videos]) / 100),
        "F1@10": _f1(videos, 0.10),
        "F1@25": _f1(videos, 0.25),
        "F1@50": _f1(videos, 0.50),
    }


def _f1(videos: Sequence[tuple[np.ndarray, np.ndarray]], min_overlap: float) -> float:
    right, wrong, missed = np.sum([match_segments(p, t, min_overlap) for p, t in videos], axis=0)
    return 100 * float(2 * right / max(2 * right + wrong + missed, 1))


@with_plain_texts
def segments_figure(predicted_T: np.ndarray, true_T: np.ndarray) -> str:
    """Return an SVG of two strips over time: the true labels above, the predicted ones below.

    Each step has a colour; the background is grey.

    Args:
        predicted_T: [T], the predicted labels.
        true_T: [T], the annotated labels.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.1), layout="constrained")
    axes = figure.add_subplot()
    steps = [label for label in np.union1d(predicted_T, true_T) if label != 0]
    colors = {label: colormaps["tab20"](index % 20) for index, label in enumerate(steps)}
    for row, labels_T in enumerate((true_T, predicted_T)):
        strip = [colors.get(label, GREY) for label in labels_T]
        axes.imshow([strip], aspect="auto", interpolation="nearest", extent=(0, len(labels_T), row + 0.45, row - 0.45))
    axes.set_yticks([0, 1], ["shown", "found"])
    axes.set(xlabel="seconds", ylim=(1.5, -0.5))
    return svg_of(figure)
