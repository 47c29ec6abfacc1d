"""YouCook2 (Zhou et al. 2018): cooking videos, with a sentence for each step.

Protocols: ``retrieval`` tests on the 3,350 clips of ``validation_youcook.csv`` (Miech et al. 2019; TACo's Table 5),
which leaves out videos that are in HowTo100M or no longer available. ``all`` tests on all 3,492 clips of the
validation videos.
"""

from collections.abc import Iterator
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_rows, seconds, text

ANNOTATIONS = "youcookii_annotations_trainval.json"
RETRIEVAL = "validation_youcook.csv"
SPLITS = {"training": "train", "validation": "test"}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield a caption for each clip."""
    path, *retrieval = annotations.find(ANNOTATIONS, *([RETRIEVAL] if protocol == "retrieval" else []))
    with as_published(path):
        videos = annotations.read_json(path)["database"].items()
    for video_id, video in videos:
        with as_published(path, f"video {video_id!r}"):
            split = SPLITS[video["subset"]]
            for clip in video["annotations"] if split == "train" or not retrieval else ():
                try:
                    start, end = clip["segment"]
                    caption = _caption(video_id, split, start, end, clip["sentence"], video["recipe_type"])
                    yield annotations.cut_at_end(caption, video["duration"])
                except ValueError as error:
                    annotations.drop(path, f"video {video_id!r}, clip {clip['id']}", str(error))
    for path in retrieval:
        rows = read_rows(path, ("video_id", "start", "end", "text", "task"))
        for line, row in sorted(rows, key=lambda item: item[1]["video_id"]):
            try:
                yield _caption(row["video_id"], "test", row["start"], row["end"], row["text"], row["task"])
            except ValueError as error:
                annotations.drop(path, f"line {line}", str(error))


def _caption(video_id: str, split: str, start: Any, end: Any, sentence: Any, recipe: str) -> Caption:
    return Caption(
        video_id=video_id,
        caption=text(sentence),
        split=split,
        start_seconds=seconds(start),
        end_seconds=seconds(end),
        task=recipe,
    )


DATASET = Dataset(
    read,
    {
        ANNOTATIONS: "http://youcook2.eecs.umich.edu/download, 'annotations'",
        RETRIEVAL: "https://github.com/antoine77340/MIL-NCE_HowTo100M, csv/",
    },
    protocols=("retrieval", "all"),
)
