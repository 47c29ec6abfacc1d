"""ActivityNet Captions (Krishna et al. 2017): videos of human activities, a sentence for each event.

Training videos are in ``train.json``, test videos in ``val_1.json``. ``val_2.json`` is not read: it has 4,885 of the same 4,917
videos with other captions, and what TACo and CE report is on val_1.

Protocols: ``paragraphs`` (TACo, after Zhang et al. 2018 and CE) is the retrieval of a whole video by all its sentences, in the file's
order, as in the paragraphs that others made of it (it is not that of their starts in 376 videos); ``clips`` has a caption for each
sentence. An end after the video, by 0.01 s in the published files, is cut and counted.
Ids begin with ``v_``, as the names of the video files do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, seconds, text

TRAIN, TEST = "train.json", "val_1.json"
SOURCE = "https://cs.stanford.edu/people/ranjaykrishna/densevid/captions.zip"


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
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
    annotations: Annotations, path: Path, video_id: str, split: str, sentences: list[tuple[Any, Any]]
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
    annotations: Annotations, path: Path, video_id: str, split: str, sentences: list[tuple[Any, Any]], duration: Any
) -> list[Caption]:
    captions = []
    for number, ((start, end), sentence) in enumerate(sentences, start=1):
        try:
            times = {"start_seconds": seconds(start), "end_seconds": seconds(end)}
            captions.append(
                annotations.within(Caption(video_id=video_id, caption=text(sentence), split=split, **times), duration)
            )
        except ValueError as error:
            annotations.drop(path, f"video {video_id!r}, sentence {number}", str(error))
    return captions


DATASET = Dataset(read, {TRAIN: SOURCE, TEST: SOURCE}, protocols=("paragraphs", "clips"))
