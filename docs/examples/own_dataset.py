"""A data set of one's own: cooking videos, whose annotations are one JSON file.

    {"v1": {"subset": "training", "sentences": ["a man cuts an onion", "he fries it"]}, ...}

Put ``kitchens.json`` into ``vlalign_data/kitchens/annotations/``, and this file into the current folder. Then::

    vlalign-preprocess --dataset own_dataset:KITCHENS
    vlalign-train --dataset kitchens
"""

from collections.abc import Iterator

from vlalign.preprocess import Annotations, Dataset
from vlalign.storage import Caption

SPLITS = {"training": "train", "validation": "validation", "testing": "test"}


def read(annotations: Annotations, protocol: str) -> Iterator[Caption]:
    """Yield the captions; report and skip sentences that cannot be used."""
    del protocol  # there is only one
    [path] = annotations.find("kitchens.json")
    for video_id, video in annotations.read_json(path).items():
        for number, sentence in enumerate(video["sentences"], start=1):
            try:
                yield Caption(video_id=video_id, caption=sentence, split=SPLITS[video["subset"]])
            except ValueError as error:
                annotations.drop(path, f"video {video_id!r}, sentence {number}", str(error))


KITCHENS = Dataset(read, name="kitchens")
