"""ActivityNet Captions (Krishna et al. 2017): videos of human activities, with a sentence for each event.

``train.json`` has the training videos and ``val_1.json`` the test videos. ``val_2.json`` is not read: it has other
captions for 4,885 of the same 4,917 videos, and TACo and CE report their results on val_1.

Protocols:

- ``paragraphs`` (TACo, after Zhang et al. 2018 and CE): one caption per video, its sentences joined in the order of
  the file. Published paragraphs use the same order, which differs from the order of start times in 376 videos.
- ``clips``: one caption per sentence. If a clip ends after its video (by 0.01 s in the published files), it is cut
  and counted.

Video ids begin with ``v_``, like the names of the video files.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, seconds, text

TRAIN, TEST = "train.json", "val_1.json"
SOURCE = "https://cs.stanford.edu/people/ranjaykrishna/densevid/captions.zip"


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of both splits."""
    for path, split in zip(annotations.find(TRAIN, TEST), ("train", "test"), strict=True):
        for video_id, video in annotations.read_json(path).items():
            with as_published(path, f"video {video_id!r}"):
                sentences = list(zip(video["timestamps"], video["sentences"], strict=True))
                if protocol == "paragraphs":
                    captions = _paragraph(annotations, path, video_id, split, sentences)
                else:
                    captions = _clips(annotations, path, video_id, split, sentences, video["duration"])
            yield from captions


def _paragraph(
    annotations: Annotations, path: Path, video_id: str, split: str, sentences: Sequence[tuple[Any, Any]]
) -> list[Caption]:
    kept = []
    for number, (_, sentence) in enumerate(sentences, start=1):
        try:
            kept.append(text(sentence))
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, sentence {number}", str(error))
    try:
        return [Caption(video_id=video_id, caption=" ".join(kept), split=split)] if kept else []
    except ValueError as error:
        annotations.drop(path, f"video {video_id!r}", str(error))
        return []


def _clips(
    annotations: Annotations, path: Path, video_id: str, split: str, sentences: Sequence[tuple[Any, Any]], duration: Any
) -> list[Caption]:
    captions = []
    for number, ((start, end), sentence) in enumerate(sentences, start=1):
        try:
            start_seconds, end_seconds = seconds(start), seconds(end)
            caption = Caption(
                video_id=video_id,
                caption=text(sentence),
                split=split,
                start_seconds=start_seconds,
                end_seconds=end_seconds,
            )
            captions.append(annotations.cut_at_end(caption, duration))
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, sentence {number}", str(error))
    return captions


DATASET = Dataset(read, {TRAIN: SOURCE, TEST: SOURCE}, protocols=("paragraphs", "clips"))
