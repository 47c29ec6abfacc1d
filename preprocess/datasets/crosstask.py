"""CrossTask (Zhukov et al. 2019): instructional videos of 18 primary tasks, with a segment for each step that is shown.

The 65 related tasks have no segments and are not read. A video can repeat steps, and their order can differ from the
task's.

Protocols: in ``official``, ``videos_val.csv`` is validation, 30 other videos of each task are train, and the rest is
test: 1,850 videos. The authors' code draws the 30 videos without a seed. Here the seed is 0 and videos are drawn in
the order of ``videos.csv``. VideoCLIP (Xu et al. 2021) draws the same split if no file is missing; it removes missing
videos before it draws, so that one missing file changes the test set. Here missing videos are removed after the draw.
``split-N`` uses the seed N instead of 0.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, seconds, text

TASKS, VIDEOS, VALIDATION, SEGMENTS = "tasks_primary.txt", "videos.csv", "videos_val.csv", "annotations"
SOURCE = "https://www.di.ens.fr/~dzhukov/crosstask/crosstask_release.zip"
NUM_TRAIN = 30
"""Training videos of each task."""
PROTOCOLS = ("official", *(f"split-{seed}" for seed in range(1, 20)))
"""Splits drawn with the seeds 0 to 19: the one usually reported, and 19 more for a mean over 20."""


class InstructionalTask(NamedTuple):
    """An instructional task."""

    task_id: str
    title: str
    steps: list[str]
    """In the intended order. Step number n of a segment is ``steps[n - 1]``."""


class TaskVideo(NamedTuple):
    """A video of a task. The same video can belong to several tasks."""

    task_id: str
    video_id: str


def read_tasks(path: Path) -> list[InstructionalTask]:
    """Return the tasks in ``tasks_primary.txt`` or ``tasks_related.txt``.

    Raises:
        UserError: The file has another structure.
    """
    lines = read_lines(path)
    tasks = []
    for first in range(0, len(lines), 5):
        with as_published(path, f"record {first // 5 + 1}"):
            task_id, title, _, num_steps, steps = lines[first : first + 5]
            task = InstructionalTask(task_id, title, [step.strip() for step in steps.split(",")])
            tasks.append(task)
            if int(num_steps) != len(task.steps):
                raise ValueError(f"task {task_id} lists {len(task.steps)} steps, expected {num_steps}")
    return tasks


def draw_splits(videos: Sequence[TaskVideo], validation: set[TaskVideo], seed: int = 0) -> dict[TaskVideo, str]:
    """Return the split of each video.

    Args:
        videos: In the order of ``videos.csv``, which decides what is drawn.
        validation: Videos that belong to the validation split.
        seed: Seed of the draw.
    """
    splits = {video: "validation" if video in validation else "test" for video in videos}
    random = np.random.RandomState(seed)
    for task_id in dict.fromkeys(video.task_id for video in videos):
        candidates = [video for video in videos if video.task_id == task_id and video not in validation]
        enough = len(candidates) > NUM_TRAIN
        drawn = random.choice(len(candidates), NUM_TRAIN, replace=False) if enough else range(len(candidates))
        splits.update((candidates[index], "train") for index in drawn)
    return splits


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield a caption for each segment, ordered by video. Videos without a segment file are reported together."""
    tasks_path, videos_path, validation_path, folder = annotations.find(TASKS, VIDEOS, VALIDATION, SEGMENTS)
    primary = {task.task_id: task for task in read_tasks(tasks_path)}
    videos = _read_videos(annotations, videos_path, primary)
    validation_rows = read_rows(validation_path, ("task", "video", "url"), header=False)
    validation = {TaskVideo(row["task"], row["video"]) for _, row in validation_rows}
    splits = draw_splits(videos, validation, PROTOCOLS.index(protocol))
    missing = []
    for video, split in sorted(splits.items(), key=lambda item: item[0].video_id):
        path = folder / f"{video.task_id}_{video.video_id}.csv"
        if path.is_file():
            yield from _captions(annotations, path, video.video_id, split, primary[video.task_id])
        else:
            missing.append(path.name)
    if missing:
        reason = f"no {missing[0]}" + (", ..." if missing[1:] else "")
        annotations.drop(folder, f"{len(missing):,} of {len(videos):,} videos", reason)


def _read_videos(annotations: Annotations, path: Path, primary: dict[str, InstructionalTask]) -> list[TaskVideo]:
    """Return the videos of the primary tasks, without duplicates."""
    videos: dict[TaskVideo, None] = {}
    for line, row in read_rows(path, ("task", "video", "url"), header=False):
        video = TaskVideo(row["task"], row["video"])
        if video.task_id not in primary:
            continue
        if video in videos:
            annotations.drop(path, f"line {line}", f"task {video.task_id} lists video {video.video_id!r} twice")
        videos[video] = None
    return list(videos)


def _captions(
    annotations: Annotations, path: Path, video_id: str, split: str, task: InstructionalTask
) -> Iterator[Caption]:
    for line, row in read_rows(path, ("step", "start", "end"), header=False):
        try:
            if not 1 <= (step := int(row["step"])) <= len(task.steps):
                raise ValueError(f"step {step}, expected 1 to {len(task.steps)}")
            yield Caption(
                video_id=video_id,
                caption=text(task.steps[step - 1]),
                split=split,
                start_seconds=seconds(row["start"]),
                end_seconds=seconds(row["end"]),
                task=task.title,
                step=step,
            )
        except ValueError as error:
            annotations.drop(path, f"line {line}", str(error))


def facts(annotations: Annotations, protocol: str) -> dict[str, int | str]:
    """Return the numbers of tasks and steps."""
    del protocol
    tasks = read_tasks(*annotations.find(TASKS))
    return {"primary tasks": len(tasks), "steps": sum(len(task.steps) for task in tasks)}


def steps(annotations: Annotations) -> dict[str, list[str]]:
    """Return the steps of each task, by its title."""
    return {task.title: [text(step) for step in task.steps] for task in read_tasks(*annotations.find(TASKS))}


DATASET = Dataset(
    read,
    dict.fromkeys((TASKS, VIDEOS, VALIDATION, SEGMENTS), SOURCE),
    protocols=PROTOCOLS,
    facts=facts,
    task="steps",
    steps=steps,
)
