"""Step localisation: when in a video each step of its task is done, as CrossTask asks (TACo section 5.2, ToCo section 4.3).

Each second of a video is compared with each step of its task; the official dynamic programme finds the best places in the order of the
task; a step counts as found where its second lies in a segment that was annotated for it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from ...storage.captions import read_captions, read_captions_about
from ...storage.common.errors import UserError
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ...storage.records import Caption
from ..checkpoint import Run
from ..data.coverage import measure
from ..data.pairs import Clip, evenly, of_split, why_none, without_features
from ..scoring import Scorer, stage_scores
from .question import Answers, Question, split_checksum

BACKGROUND = 0
SECONDS = 4096
"""Of some videos of a task, which are encoded together."""
SHOWN_VIDEOS = 6
SEED = 0
"""Of the scores at random that chance is reckoned with."""


@dataclass(frozen=True)
class Ordered:
    """The cheapest way through a video."""

    step_T: np.ndarray
    """Of each frame: the number of its step, from 1, or ``BACKGROUND``."""
    cost: float


def order_steps(cost_TK: np.ndarray, *, exactly_one: bool = True) -> Ordered:
    """Places K steps in T frames: every one of them, in order, with background (cost 0) before, between and after where that is cheaper.

    ``cost_TK``: what it costs that a frame shows a step. ``exactly_one``: each step has one frame, as in CrossTask's evaluation; else one
    or more. The programme, with what it does about equal costs, is CrossTask's published ``dp.pyx``: of equally cheap ways into a state
    staying comes first, then that from the state before; of two equally cheap ends the last step is taken.

    Raises ``ValueError`` where there are fewer frames than steps.
    """
    num_frames, num_steps = cost_TK.shape
    if num_frames < num_steps or not num_steps:
        raise ValueError(f"{num_frames} frames for {num_steps} steps; expected at least one step, and a frame for each")
    num_states = 2 * num_steps + 1  # background, step 1, background, step 2, ..., background
    frame_costs = np.zeros((num_frames, num_states))
    frame_costs[:, 1::2] = cost_TK
    staying = np.zeros(num_states)
    staying[1::2] = np.inf if exactly_one else 0.0
    costs = np.full(num_states, np.inf)
    costs[0] = 0.0
    came_from = np.empty((num_frames, num_states), dtype=np.int8)
    ways = np.full(
        (3, num_states), np.inf
    )  # from the state itself, from the one before, and from a step to the next one
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
    return Ordered(step_T, total)


def found_steps(step_T: np.ndarray, shown_TK: np.ndarray) -> float:
    """How many of a video's steps were found: of a step's frames the part in which it is shown, so 0 or 1 where it has one."""
    placed_TK = step_T[:, None] == np.arange(1, shown_TK.shape[1] + 1)
    return float(((placed_TK & shown_TK).sum(axis=0) / np.maximum(placed_TK.sum(axis=0), 1)).sum())


@dataclass(frozen=True)
class StepVideo:
    """A video of a task, a frame a second."""

    task: str
    video_id: str
    shown_TK: np.ndarray
    """bool: whether a step is shown in a frame. A segment covers the frames from floor(start) up to, not with, ceil(end)."""


@dataclass(frozen=True)
class Task:
    title: str
    steps: list[Caption]
    videos: list[StepVideo]


def read_tasks(run: Run, captions: Sequence[Caption], split: str, problems: Problems) -> list[Task]:
    """The tasks of a data set whose captions name steps, each with its videos of ``split``.

    What the steps of a task are is kept with the captions, for not every step is shown in some video. Videos without features are
    reported and left out. Raises ``UserError`` where the captions are not of steps.
    """
    steps_of = (read_captions_about(run.dataset.captions) or {}).get("steps")
    if not steps_of:
        raise UserError(
            f"{run.dataset.captions}: says nothing about the steps of tasks; --task steps expects captions as of crosstask"
        )
    tagged = {(c.task, c.step): c for c in captions}
    listed = sorted(
        (c for c in captions if c.split == split and c.task in steps_of), key=lambda c: (c.task, c.video_id)
    )
    without = without_features("steps", (c.video_id for c in listed), run.features, problems)
    listed = [c for c in listed if c.video_id not in without]
    videos: dict[str, list[StepVideo]] = {title: [] for title in steps_of}
    for (title, video_id), its in groupby(listed, key=lambda c: (c.task, c.video_id)):
        shown_TK = np.zeros(
            (max(math.floor(run.features.duration_seconds(video_id)), 1), len(steps_of[title])), dtype=bool
        )
        for c in its:
            shown_TK[math.floor(c.start_seconds) : math.ceil(c.end_seconds), c.step - 1] = True
        videos[title].append(StepVideo(title, video_id, shown_TK))
    tag = run.scorer.weights.tag_query
    return [
        Task(
            title,
            [tagged.get((title, number)) or tag(text) for number, text in enumerate(texts, start=1)],
            videos[title],
        )
        for title, texts in steps_of.items()
    ]


def step_scores(scorer: Scorer, task: Task, weights: dict[str, float]) -> Iterator[tuple[StepVideo, np.ndarray]]:
    """Each video of a task with the scores [T, K] of its seconds for the task's steps.

    A second is a clip like any other: the score is that of retrieval, with the fusion layers where the run has some.
    """
    some: list[StepVideo] = []
    for number, video in enumerate(task.videos, start=1):
        some.append(video)
        if sum(len(v.shown_TK) for v in some) < SECONDS and number < len(task.videos):
            continue
        clips = [Clip(v.video_id, float(second), second + 1.0) for v in some for second in range(len(v.shown_TK))]
        scores_TK = stage_scores(scorer, task.steps, clips).fused(weights)[0].T
        yield from zip(some, np.split(scores_TK, np.cumsum([len(v.shown_TK) for v in some])[:-1]), strict=True)
        some = []


def costs_of(scores_TK: np.ndarray) -> np.ndarray:
    """CrossTask's: how unlikely a step is among those of the task, given the frame."""
    return -torch.from_numpy(scores_TK).double().log_softmax(dim=1).numpy()


WAYS = {
    "recall": lambda scores_TK, shown_TK, _: order_steps(costs_of(scores_TK)),
    "recall_spans": lambda scores_TK, shown_TK, _: order_steps(costs_of(scores_TK), exactly_one=False),
    "chance": lambda scores_TK, shown_TK, rng: order_steps(costs_of(rng.standard_normal(scores_TK.shape))),
    "ceiling": lambda scores_TK, shown_TK, _: order_steps(-shown_TK.astype(float)),
}
"""{name: how steps are placed}: a frame for each step (CrossTask's recall); spans of them; by scores drawn at random; and knowing what is
shown, which falls short of 1 where the steps were not done in the task's order."""


@dataclass(frozen=True)
class LocalizedVideo:
    task: str
    video_id: str
    scores_TK: np.ndarray
    shown_TK: np.ndarray
    placed: dict[str, Ordered]
    """By the names of ``WAYS``."""


def localize_steps(
    scored: Iterable[tuple[Task, StepVideo, np.ndarray]], problems: Problems
) -> tuple[dict[str, Any], list[LocalizedVideo]]:
    """Recall as CrossTask counts it, in percent: of a task's steps that its videos show, those found; the mean over tasks.

    ``scored``: the videos of tasks with their scores [T, K]. Videos shorter than their task has steps are reported and left out.
    """
    rng = np.random.default_rng(SEED)
    of_tasks: dict[str, dict[str, Any]] = {}
    videos, num_infeasible = [], 0
    for task, video, scores_TK in scored:
        num_frames, num_steps = scores_TK.shape
        if num_frames < num_steps:
            num_infeasible += 1
            problems.add(
                f"video {video.video_id}: {num_frames} s, fewer than {task.title!r} has steps ({num_steps}); left out"
            )
            continue
        placed = {name: place(scores_TK, video.shown_TK, rng) for name, place in WAYS.items()}
        videos.append(LocalizedVideo(task.title, video.video_id, scores_TK, video.shown_TK, placed))
        counts = of_tasks.setdefault(task.title, dict.fromkeys(WAYS, 0.0) | {"num_videos": 0, "num_shown": 0})
        for name, ordered in placed.items():
            counts[name] += found_steps(ordered.step_T, video.shown_TK)
        counts["num_videos"] += 1
        counts["num_shown"] += int(video.shown_TK.any(axis=0).sum())
    recalls = {
        title: counts | {name: 100 * counts[name] / counts["num_shown"] for name in WAYS}
        for title, counts in of_tasks.items()
        if counts["num_shown"]
    }
    means = {name: float(np.mean([row[name] for row in recalls.values()])) if recalls else math.nan for name in WAYS}
    return means | {"num_videos": len(videos), "num_infeasible": num_infeasible, "tasks": recalls}, videos


def _line(video: LocalizedVideo) -> dict[str, Any]:
    """Of ``queries.jsonl``: of each step the second where it was placed, and whether that is right; null where it is not shown."""
    step_T = video.placed["recall"].step_T
    seconds = [int(np.flatnonzero(step_T == number)[0]) for number in range(1, video.shown_TK.shape[1] + 1)]
    right = [
        bool(video.shown_TK[second, k]) if video.shown_TK[:, k].any() else None for k, second in enumerate(seconds)
    ]
    return {"task": video.task, "video_id": video.video_id, "seconds": seconds, "right": right}


def localize(run: Run, question: Question, problems: Problems) -> Answers:
    """Step localisation on a split, by the run's own scores of each second for each step."""
    if run.config.encoder == "spoken":
        raise UserError(f"--task steps: {run.folder.name} hears recordings, and steps are written")
    captions = read_captions(run.dataset.captions)
    tasks = read_tasks(run, captions, question.split, problems)
    num_videos = sum(len(task.videos) for task in tasks)
    if not num_videos:
        why = why_none(run.dataset, run.features, question.split)
        raise UserError(f"{run.dataset.captions}: no steps to place; {why}; pass another --split")

    def scored() -> Iterator[tuple[Task, StepVideo, np.ndarray]]:
        for task in tasks:
            for video, scores_TK in step_scores(run.scorer, task, question.weights):
                yield task, video, scores_TK

    steps, videos = localize_steps(progress(scored(), total=num_videos, what="steps", unit="videos"), problems)
    asked = [c for c in captions if c.split == question.split and c.video_id in run.features]
    listed, placed = of_split(captions, question.split), {(v.task, v.video_id): len(v.shown_TK) for v in videos}
    used = [n for n, c in enumerate(listed) if c.start_seconds < placed.get((c.task, c.video_id), 0)]
    short = {c.video_id: "video shorter than its task has steps" for c in listed if (c.task, c.video_id) not in placed}
    coverage = measure(listed, listed.take(used), run.features, unused_videos=short).result(
        caption="steps", item="videos"
    )
    result = coverage | {"split_checksum": split_checksum(asked), "weights": question.weights, "steps": steps}
    chosen = evenly(len(videos), SHOWN_VIDEOS)
    titles = {task.title: [step.caption for step in task.steps] for task in tasks}
    return Answers(result, map(_line, videos), {"videos": [videos[n] for n in chosen], "steps": titles})
