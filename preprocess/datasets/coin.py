"""COIN (Tang et al. 2019): instructional videos of 180 tasks, with a segment for each step that is shown.

The captions are the labels of the 778 steps. Steps with different numbers can have the same label.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, seconds, text

COIN = "COIN.json"
SPLITS = {"training": "train", "testing": "test"}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield a caption for each segment."""
    del protocol  # there is only one
    (path,) = annotations.find(COIN)
    for video_id, video in _database(annotations, path).items():
        with as_published(path, f"video {video_id!r}"):
            captions = _captions(annotations, path, video_id, video)
        yield from captions


def background_share(annotations: Annotations) -> float:
    """Return the share of the test videos' frames, at 1 fps, that show no step.

    A model that predicts no step at all labels this share correctly: 58.53 %. A video has floor(duration) frames,
    394,030 in total. A segment covers the frames from floor(start) up to but excluding ceil(end).
    """
    (path,) = annotations.find(COIN)
    num_frames = num_background = 0
    for video_id, video in _database(annotations, path).items():
        with as_published(path, f"video {video_id!r}"):
            if SPLITS[video["subset"]] != "test":
                continue
            length = math.floor(seconds(video["duration"]))
            covered = set()
            for segment in video["annotation"]:
                start, end = map(seconds, segment["segment"])
                covered.update(range(max(math.floor(start), 0), min(math.ceil(end), length)))
        num_frames += length
        num_background += length - len(covered)
    return num_background / num_frames if num_frames else math.nan


def _database(annotations: Annotations, path: Path) -> Mapping[str, Any]:
    with as_published(path):
        return dict(annotations.read_json(path)["database"])


def _captions(annotations: Annotations, path: Path, video_id: str, video: Mapping[str, Any]) -> list[Caption]:
    captions = []
    split, task = SPLITS[video["subset"]], video["class"]
    for number, segment in enumerate(video["annotation"], start=1):
        try:
            start, end = map(seconds, segment["segment"])
            caption = Caption(
                video_id=video_id,
                caption=text(segment["label"]),
                split=split,
                start_seconds=start,
                end_seconds=end,
                task=task,
                step=int(segment["id"]),
            )
            captions.append(annotations.cut_at_end(caption, video["duration"]))
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, segment {number}", str(error))
    return captions


def facts(annotations: Annotations, protocol: str) -> dict[str, int | str]:
    """Return the share of background frames as text."""
    del protocol
    return {"background at 1 fps, testing videos": f"{background_share(annotations):.2%}"}


DATASET = Dataset(read, {COIN: "https://coin-dataset.github.io, 'annotations'"}, facts=facts, task="segmentation")
