"""Step localisation: find when each step of its task is done in a video, as CrossTask asks.

Each second of a video is scored for each step of the video's task (such as "Make Tea"), and the steps are placed in the
task's order by a dynamic programme.

Source: CrossTask; TACo section 5.2; ToCo sections 4.1 and 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ...storage.captions.files import read_captions, read_captions_about
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.records import Caption
from ..data.clips import Clip, evenly
from .svg import svg_of, with_plain_texts
from .task import EvaluationRequest, Metrics, NoSettings, Task, TaskResult, counted

if TYPE_CHECKING:
    from ...storage.captions.table import CaptionTable
    from ..runs.load import Run
    from ..scoring.scorer import Scorer
    from .coverage import Coverage

COLUMNS = {"recall": "recall", "recall_spans": "with spans", "chance": "chance", "ceiling": "in order"}
"""Columns of the table: {field of the metrics: heading}."""
MAX_SECONDS = 4096
"""Videos of a task are collected until they have this many seconds, and encoded together."""
SHOWN_VIDEOS = 6
CHANCE_SEED = 0
"""Seed of the random scores that give the recall by chance."""
BACKGROUND = 0
RIGHT, WRONG = "#12805c", "#d4380d"


@dataclass(frozen=True)
class PlacedSteps:
    """The cheapest way to place the steps."""

    step_T: np.ndarray
    """[T], for each frame the number of its step, from 1, or ``BACKGROUND``."""
    cost: float


@dataclass(frozen=True)
class StepVideo:
    """A video of a task, with one frame for each second."""

    task: str
    video_id: str
    shown_TK: np.ndarray
    """bool [T, K], whether step k is shown in frame t. A segment covers the frames floor(start) <= t < ceil(end)."""


@dataclass(frozen=True)
class StepTask:
    """A task that videos show, such as "Make Tea"."""

    title: str
    steps: list[Caption]
    videos: list[StepVideo]


@dataclass(frozen=True)
class LocalizedVideo:
    """A video with its steps placed."""

    task: str
    video_id: str
    scores_TK: np.ndarray
    """[T, K], score of each second for each step."""
    shown_TK: np.ndarray
    """bool [T, K], whether step k is shown in frame t."""
    placed: dict[str, PlacedSteps]
    """{name in ``PLACEMENTS``: the steps' places}"""


class VideoRow(TypedDict):
    """A line of ``queries.jsonl``."""

    task: str
    video_id: str
    seconds: list[int]
    """Second at which each step was placed."""
    right: list[bool | None]
    """True if that is right; None if the step is not shown."""


class StepRecall(TypedDict):
    """Recall in percent, as in CrossTask: the share of the shown steps that were found."""

    recall: float
    """Recall if each step is placed at one second."""
    recall_spans: float
    """Recall if a step may span several seconds; it is scored by the share of them that is right."""
    chance: float
    """Recall of scores drawn at random."""
    ceiling: float
    """Recall of the annotations; below 100 if steps were not done in the task's order."""
    num_videos: int


class StepTaskMetrics(StepRecall):
    """The recall of one task."""

    num_shown: int
    """Number of steps that its videos show."""


class StepsMetrics(StepRecall):
    """Means over the tasks, and the metrics of each task."""

    num_infeasible: int
    """Number of videos that were skipped because they have fewer seconds than steps."""
    tasks: dict[str, StepTaskMetrics]


class Steps(Task[NoSettings]):
    """Finding the time at which a video shows each step of its task.

    ``metrics.json`` has ``steps`` (``StepsMetrics``) and the ``weights`` of the stages of the score.
    """

    name = "steps"
    description = "the time of each step of a task in a video (CrossTask)"
    caption_name = "steps"
    item_name = "videos"
    main_metrics = ("recall", "recall with spans")

    def page_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return the function that draws a video's steps."""
        return {"step_figure": step_figure}

    def evaluate(self, run: Run, request: EvaluationRequest[NoSettings], problems: Problems) -> TaskResult:
        """Place the steps of each video of a split, by the run's score of each second for each step.

        Raises:
            UserError: The data set has no steps, or the run has no text encoder.
        """
        from ..data.usable_captions import captions_of_split, skip_without_rows, why_split_is_unusable
        from .coverage import split_checksum

        if not run.config.model.encoder_traits.reads_words:
            raise UserError(
                f"run {run.folder.name}: was trained on spoken captions, and cannot place steps; pass another run"
            )
        captions = skip_without_rows(read_captions(run.dataset.captions), run.features, problems)
        tasks = read_tasks(run, captions, request.split, problems)
        num_videos = sum(len(task.videos) for task in tasks)
        if not num_videos:
            why = why_split_is_unusable(run.dataset, run.features, request.split)
            raise UserError(f"{run.dataset.captions}: no steps to place; {why}; pass another split")
        scored = (
            (task, video, scores_TK)
            for task in tasks
            for video, scores_TK in step_scores(run.scorer, task, request.score_weights)
        )
        steps, videos = localize_steps(progress(scored, total=num_videos, what="steps", unit="videos"), problems)
        segments = [c for c in captions if c.split == request.split and c.video_id in run.features]
        metrics = {
            "split_checksum": split_checksum(segments),
            "weights": request.score_weights,
            "steps": steps,
        }
        titles = {task.title: [step.caption for step in task.steps] for task in tasks}
        shown = [videos[index] for index in evenly(len(videos), SHOWN_VIDEOS)]
        return TaskResult(
            coverage=_coverage(run, captions_of_split(read_captions(run.dataset.captions), request.split), videos),
            metrics=metrics,
            rows=map(_row, videos),
            page={"videos": shown, "steps": titles},
        )

    def count(self, metrics: Metrics) -> str:
        """Return how many tasks and videos were evaluated."""
        return f"steps of {len(metrics['steps']['tasks'])} tasks in {counted(metrics, 'videos')}"

    def table_metrics(self, metrics: Metrics) -> Mapping[str, float]:
        """Return the mean recalls over tasks, in percent."""
        return {"recall": metrics["steps"]["recall"], "recall with spans": metrics["steps"]["recall_spans"]}

    def summary(self, metrics: Metrics) -> Iterator[str]:
        """Yield the table of recalls, and how many videos were skipped."""
        steps = metrics["steps"]
        yield steps_table(steps)
        yield (
            "with spans: a step may span several seconds, and is scored by the share of them that is right; "
            "in order: the best that the task's order allows"
        )
        if steps["num_infeasible"]:
            yield f"{steps['num_infeasible']:,} videos are skipped: they have fewer seconds than their task has steps"
        yield f"checksum of the split's clips and steps: {metrics['split_checksum']}"


def steps_table(steps: Mapping[str, Any]) -> str:
    """Return a table of recalls: a row for each task, and one for their mean.

    Args:
        steps: ``StepsMetrics``
    """
    lines = [f"{'recall, percent':<32}" + "".join(f"{label:>12}" for label in COLUMNS.values()) + f"{'videos':>9}"]
    for title, row in [*steps["tasks"].items(), ("mean over tasks", steps)]:
        cells = "".join(f"{row[name]:>12.1f}" for name in COLUMNS)
        lines.append(f"{title[:31]:<32}{cells}{row['num_videos']:>9,}")
    return "\n".join(lines)


def read_tasks(run: Run, captions: Sequence[Caption], split: str, problems: Problems) -> list[StepTask]:
    """Return the tasks of a data set, each with its videos of ``split``.

    The steps of a task are stored beside the captions, because some steps are shown in no video. Videos without
    features are reported and skipped.

    Raises:
        UserError: The captions have no steps.
    """
    from ..data.usable_captions import report_videos_without_features

    steps_of = (read_captions_about(run.dataset.captions) or {}).get("steps")
    if not steps_of:
        raise UserError(
            f"{run.dataset.captions}: no caption names the step of a task; the task steps needs captions "
            "such as those of crosstask"
        )
    tagged = {(c.task, c.step): c for c in captions}
    listed = [c for c in captions if c.split == split and c.task in steps_of]
    listed.sort(key=_video_of)
    missing = report_videos_without_features("steps", (c.video_id for c in listed), run.features, problems)
    videos: dict[str, list[StepVideo]] = {title: [] for title in steps_of}
    for (title, video_id), segments in groupby((c for c in listed if c.video_id not in missing), key=_video_of):
        num_frames = max(math.floor(run.features.duration_seconds(video_id)), 1)
        videos[title].append(_step_video(title, video_id, segments, num_frames, len(steps_of[title])))
    tag = run.scorer.weights.tag_query
    return [
        StepTask(title, [tagged.get((title, step)) or tag(text) for step, text in enumerate(texts, 1)], videos[title])
        for title, texts in steps_of.items()
    ]


def _video_of(caption: Caption) -> tuple[str, str]:
    return caption.task or "", caption.video_id


def _step_video(title: str, video_id: str, segments: Iterable[Caption], num_frames: int, num_steps: int) -> StepVideo:
    shown_TK = np.zeros((num_frames, num_steps), dtype=bool)
    for segment in segments:
        if segment.start_seconds is None or segment.end_seconds is None or segment.step is None:
            raise UserError(
                f"video {video_id}: a segment of {title!r} lacks its times or its step; run vlalign-preprocess again"
            )
        shown_TK[math.floor(segment.start_seconds) : math.ceil(segment.end_seconds), segment.step - 1] = True
    return StepVideo(title, video_id, shown_TK)


def step_scores(scorer: Scorer, task: StepTask, weights: Mapping[str, float]) -> Iterator[tuple[StepVideo, np.ndarray]]:
    """Yield each video of a task with the scores [T, K] of its seconds for the steps.

    A second is scored like any clip in retrieval, with the fusion layers if the run has some. A second without feature
    rows gets the scores of the nearest second that has some.

    Args:
        scorer: The run's model.
        task: The task and its videos.
        weights: {stage of the score: weight}
    """
    from ..scoring.scorer import stage_scores

    batch: list[StepVideo] = []
    for count, video in enumerate(task.videos, start=1):
        batch.append(video)
        if sum(len(v.shown_TK) for v in batch) < MAX_SECONDS and count < len(task.videos):
            continue
        clips = [Clip(v.video_id, float(second), second + 1.0) for v in batch for second in range(len(v.shown_TK))]
        scores_TK = stage_scores(scorer, task.steps, clips).fused(weights).by_caption.T
        ends = np.cumsum([len(v.shown_TK) for v in batch])[:-1]
        has_rows = np.split(scorer.features.has_rows(clips), ends)
        for of_video, scores, seconds in zip(batch, np.split(scores_TK, ends), has_rows, strict=True):
            yield of_video, scores[nearest_true(seconds)]
        batch = []


def nearest_true(mask: np.ndarray) -> np.ndarray:
    """Return the index of the nearest True for each value of a mask.

    [False, True, True, False, False] -> [1, 1, 2, 2, 2]
    """
    known = np.flatnonzero(mask)
    return known[np.abs(np.arange(len(mask))[:, None] - known).argmin(axis=1)]


def costs_of(scores_TK: np.ndarray) -> np.ndarray:
    """Return CrossTask's cost [T, K] of showing a step: how unlikely it is among the task's steps, given the frame."""
    import torch

    return -torch.from_numpy(scores_TK).double().log_softmax(dim=1).numpy()


PLACEMENTS: dict[str, Callable[[np.ndarray, np.ndarray, np.random.Generator], PlacedSteps]] = {
    "recall": lambda scores_TK, shown_TK, rng: order_steps(costs_of(scores_TK)),
    "recall_spans": lambda scores_TK, shown_TK, rng: order_steps(costs_of(scores_TK), exactly_one=False),
    "chance": lambda scores_TK, shown_TK, rng: order_steps(costs_of(rng.standard_normal(scores_TK.shape))),
    "ceiling": lambda scores_TK, shown_TK, rng: order_steps(-shown_TK.astype(float)),
}
"""Ways to place steps, from scores and annotations: {metric: function}. See ``StepRecall``."""


def localize_steps(
    scored: Iterable[tuple[StepTask, StepVideo, np.ndarray]], problems: Problems
) -> tuple[StepsMetrics, list[LocalizedVideo]]:
    """Place the steps of videos, and count the steps that were found.

    Args:
        scored: Videos with their tasks and scores [T, K].
        problems: Receives videos with fewer seconds than steps, which are skipped.

    Returns:
        The metrics, and the videos with their steps placed.
    """
    rng = np.random.default_rng(CHANCE_SEED)
    counts_of: dict[str, dict[str, Any]] = {}
    videos, num_infeasible = [], 0
    for task, video, scores_TK in scored:
        num_frames, num_steps = scores_TK.shape
        if num_frames < num_steps:
            num_infeasible += 1
            problems.add(
                f"video {video.video_id}: {num_frames} s, fewer than the {num_steps} steps of {task.title!r}; skipped"
            )
            continue
        placed = {name: place(scores_TK, video.shown_TK, rng) for name, place in PLACEMENTS.items()}
        videos.append(LocalizedVideo(task.title, video.video_id, scores_TK, video.shown_TK, placed))
        counts = counts_of.setdefault(task.title, dict.fromkeys(PLACEMENTS, 0.0) | {"num_videos": 0, "num_shown": 0})
        for name, ordered in placed.items():
            counts[name] += found_steps(ordered.step_T, video.shown_TK)
        counts["num_videos"] += 1
        counts["num_shown"] += int(video.shown_TK.any(axis=0).sum())
    tasks = {title: _task_metrics(counts) for title, counts in counts_of.items() if counts["num_shown"]}
    means = {name: float(np.mean([row[name] for row in tasks.values()])) if tasks else math.nan for name in PLACEMENTS}
    metrics: StepsMetrics = {
        "recall": means["recall"],
        "recall_spans": means["recall_spans"],
        "chance": means["chance"],
        "ceiling": means["ceiling"],
        "num_videos": len(videos),
        "num_infeasible": num_infeasible,
        "tasks": tasks,
    }
    return metrics, videos


def _task_metrics(counts: Mapping[str, Any]) -> StepTaskMetrics:
    def percent(name: str) -> float:
        return 100 * counts[name] / counts["num_shown"]

    return {
        "recall": percent("recall"),
        "recall_spans": percent("recall_spans"),
        "chance": percent("chance"),
        "ceiling": percent("ceiling"),
        "num_videos": counts["num_videos"],
        "num_shown": counts["num_shown"],
    }


def _coverage(run: Run, listed: CaptionTable, videos: Sequence[LocalizedVideo]) -> Coverage:
    from ..data.usable_captions import find_exclusions
    from .coverage import split_coverage

    num_frames = {(video.task, video.video_id): len(video.shown_TK) for video in videos}

    def is_used(segment: Caption) -> bool:
        return (segment.start_seconds or 0.0) < num_frames.get(_video_of(segment), 0)

    exclusions = find_exclusions(listed, run.features, None)
    usable = np.flatnonzero(exclusions.usable)
    segments = listed.take(usable)
    used = [index for index, segment in zip(usable.tolist(), segments, strict=True) if is_used(segment)]
    short = {c.video_id: "video shorter than its task has steps" for c in segments if _video_of(c) not in num_frames}
    return split_coverage(listed, listed.take(used), run.features, unused_videos=short)


def _row(video: LocalizedVideo) -> VideoRow:
    step_T = video.placed["recall"].step_T
    seconds = [int(np.flatnonzero(step_T == step)[0]) for step in range(1, video.shown_TK.shape[1] + 1)]
    right = [
        bool(video.shown_TK[second, k]) if video.shown_TK[:, k].any() else None for k, second in enumerate(seconds)
    ]
    return {"task": video.task, "video_id": video.video_id, "seconds": seconds, "right": right}


def order_steps(cost_TK: np.ndarray, *, exactly_one: bool = True) -> PlacedSteps:
    """Place K steps in T frames, all of them and in order.

    Frames before, between and after the steps are background, at cost 0, where that is cheaper. Equal costs are
    resolved as in CrossTask's published ``dp.pyx``: of equally cheap ways into a state, staying comes first, then the
    state before it; of two equally cheap ends, the last step is taken.

    Args:
        cost_TK: [T, K], the cost of showing step k in frame t.
        exactly_one: Each step has one frame, as in CrossTask's evaluation. False: one or more.

    Raises:
        ValueError: There is no step, or there are fewer frames than steps.
    """
    num_frames, num_steps = cost_TK.shape
    if num_frames < num_steps or not num_steps:
        raise ValueError(f"{num_frames} frames for {num_steps} steps; expected at least one step and a frame for each")
    num_states = 2 * num_steps + 1  # background, step 1, background, step 2, ..., background
    frame_costs = np.zeros((num_frames, num_states))
    frame_costs[:, 1::2] = cost_TK
    staying = np.zeros(num_states)
    staying[1::2] = np.inf if exactly_one else 0.0
    costs = np.full(num_states, np.inf)
    costs[0] = 0.0
    came_from = np.empty((num_frames, num_states), dtype=np.int8)
    ways = np.full((3, num_states), np.inf)  # from the same state, from the one before, from a step to the next step
    for frame in range(num_frames):
        np.add(costs, staying, out=ways[0])
        ways[1, 1:] = costs[:-1]
        ways[2, 3::2] = costs[1:-2:2]
        came_from[frame] = ways.argmin(axis=0)
        costs = ways.min(axis=0) + frame_costs[frame]
    state = num_states - 1 if costs[-1] < costs[-2] else num_states - 2
    total = float(costs[state])
    step_T = np.zeros(num_frames, dtype=int)
    for frame in reversed(range(num_frames)):
        step_T[frame] = (state + 1) // 2 if state % 2 else BACKGROUND
        state -= int(came_from[frame, state])
    return PlacedSteps(step_T, total)


def found_steps(step_T: np.ndarray, shown_TK: np.ndarray) -> float:
    """Return how many of a video's steps were found.

    A step counts as the share of its frames in which it is shown: 0 or 1 if it has one frame.

    Args:
        step_T: [T], step of each frame, from 1; 0 for background.
        shown_TK: bool [T, K], whether step k is shown in frame t.
    """
    placed_TK = step_T[:, None] == np.arange(1, shown_TK.shape[1] + 1)
    return float(((placed_TK & shown_TK).sum(axis=0) / np.maximum(placed_TK.sum(axis=0), 1)).sum())


@with_plain_texts
def step_figure(video: LocalizedVideo, steps: Sequence[str]) -> str:
    """Return an SVG of a video's scores, of where each step is shown, and of where it was placed.

    Args:
        video: The video with its steps placed.
        steps: Texts of the task's steps.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.6 + 0.28 * len(steps)), layout="constrained")
    axes = figure.add_subplot()
    num_frames, extent = len(video.scores_TK), (0, len(video.scores_TK), len(steps) - 0.5, -0.5)
    axes.imshow(video.scores_TK.T, aspect="auto", cmap="Greys", interpolation="nearest", extent=extent)
    for step in range(len(steps)):
        edges = np.flatnonzero(np.diff(video.shown_TK[:, step].astype(int), prepend=0, append=0)).reshape(-1, 2)
        spans = [(start, end - start) for start, end in edges.tolist()]
        axes.broken_barh(spans, (step - 0.42, 0.84), facecolor="none", edgecolor=RIGHT, lw=1.6)
        second = np.flatnonzero(video.placed["recall"].step_T == step + 1).item()
        right = bool(video.shown_TK[second, step])
        axes.plot(second + 0.5, step, "o" if right else "x", color=RIGHT if right else WRONG, markersize=6)
    axes.set_yticks(range(len(steps)), steps, fontsize=8)
    axes.set(xlabel="seconds", xlim=(0, num_frames), ylim=(len(steps) - 0.5, -0.5))
    return svg_of(figure)
