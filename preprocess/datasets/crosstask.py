"""CrossTask (Zhukov et al. 2019): instructional videos of 18 primary tasks, a segment for each step that is shown.

The 65 related tasks have no segments, and are not read. Protocol ``official``: ``videos_val.csv`` is validation, 30 other videos of
each task are train, the rest is test: 1,850 videos. The authors' code draws the 30 without a seed. Here the seed is 0 and the videos
are in the order of ``videos.csv``, as in VideoCLIP (Xu et al. 2021), whose split this is where no file is missing: it leaves out
missing videos before it draws, so that one more or less changes who is tested. Here missing ones are left out afterwards.

A video may show steps several times and in another order than the task's.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, seconds, text

TASKS, VIDEOS, VALIDATION, SEGMENTS = "tasks_primary.txt", "videos.csv", "videos_val.csv", "annotations"
SOURCE = "https://www.di.ens.fr/~dzhukov/crosstask/crosstask_release.zip"
NUM_TRAIN = 30
"""Videos of each task."""
SPLITS = ("official", *(f"split-{seed}" for seed in range(1, 20)))
"""Drawn with the seeds 0 to 19: the one usually reported, and others for a mean over 20."""


class Task(NamedTuple):
    task_id: str
    title: str
    steps: list[str]
    """In the order in which they are meant to be done; number n in a segment is ``steps[n - 1]``."""


def tasks(path: Path) -> list[Task]:
    """Those of ``tasks_primary.txt`` or ``tasks_related.txt``. Raises ``UserError`` for a file of another shape."""
    lines = read_lines(path)
    found = []
    for first in range(0, len(lines), 5):
        with as_published(path, f"record {first // 5 + 1}"):
            task_id, title, _, num_steps, steps = lines[first : first + 5]
            found.append(Task(task_id, title, [step.strip() for step in steps.split(",")]))
            if int(num_steps) != len(found[-1].steps):
                raise ValueError(f"task {task_id} has {len(found[-1].steps)} steps and says {num_steps}")
    return found


def draw_splits(
    videos: list[tuple[str, str]], validation: set[tuple[str, str]], seed: int = 0
) -> dict[tuple[str, str], str]:
    """{(task, video): split}, of (task, video) in the order of ``videos.csv``."""
    splits = {video: "validation" if video in validation else "test" for video in videos}
    random = np.random.RandomState(seed)
    for task_id in dict.fromkeys(task_id for task_id, _ in videos):
        left = [video for video in videos if video[0] == task_id and video not in validation]
        drawn = random.choice(len(left), NUM_TRAIN, replace=False) if len(left) > NUM_TRAIN else range(len(left))
        splits.update((left[place], "train") for place in drawn)
    return splits


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    tasks_path, videos_path, validation_path, folder = annotations.find(TASKS, VIDEOS, VALIDATION, SEGMENTS)
    primary = {task.task_id: task for task in tasks(tasks_path)}
    videos = _read_videos(annotations, videos_path, primary)
    validation = {
        (row["task"], row["video"]) for _, row in read_rows(validation_path, ("task", "video", "url"), header=False)
    }
    missing = []
    for (task_id, video_id), split in sorted(
        draw_splits(videos, validation, SPLITS.index(protocol)).items(), key=lambda item: item[0][1]
    ):
        path = folder / f"{task_id}_{video_id}.csv"
        if path.is_file():
            yield from _captions(annotations, path, video_id, split, primary[task_id])
        else:
            missing.append(path.name)
    if missing:
        annotations.drop(
            folder, f"{len(missing):,} of {len(videos):,} videos", f"no {missing[0]}" + (", ..." if missing[1:] else "")
        )


def _read_videos(annotations: Annotations, path: Path, primary: dict[str, Task]) -> list[tuple[str, str]]:
    videos = {}
    for line, row in read_rows(path, ("task", "video", "url"), header=False):
        video = row["task"], row["video"]
        if row["task"] not in primary:
            continue
        if video in videos:
            annotations.drop(path, f"line {line}", f"video {row['video']!r} of task {row['task']} again")
        videos[video] = line
    return list(videos)


def _captions(annotations: Annotations, path: Path, video_id: str, split: str, task: Task) -> Iterator[Caption]:
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


def facts(annotations: Annotations, protocol: str) -> dict[str, int]:
    del protocol
    found = tasks(*annotations.find(TASKS))
    return {"primary tasks": len(found), "steps": sum(len(task.steps) for task in found)}


def steps(annotations: Annotations) -> dict[str, list[str]]:
    return {task.title: [text(step) for step in task.steps] for task in tasks(*annotations.find(TASKS))}


DATASET = Dataset(
    read,
    dict.fromkeys((TASKS, VIDEOS, VALIDATION, SEGMENTS), SOURCE),
    protocols=SPLITS,
    facts=facts,
    task="steps",
    steps=steps,
)
