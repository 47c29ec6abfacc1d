"""MSVD (Chen & Dolan 2011): 1,970 YouTube clips, 18 to 81 captions each, with the splits of Venugopalan et al. 2015.

All captions of a clip are kept, also those that it has twice. The authors' corpus has more clips and languages than the lists: only
its English rows count, and a clip is called VideoID_Start_End.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, text

CAPTIONS = "captions_msvd.json"
CORPUS = "video_corpus.csv"
LISTS = {"train": "train_list.txt", "validation": "val_list.txt", "test": "test_list.txt"}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Clips of a list without captions are one problem a list."""
    del protocol
    in_corpus = annotations.find_optional(CORPUS) and not annotations.find_optional(CAPTIONS)
    path, *lists = annotations.find(CORPUS if in_corpus else CAPTIONS, *LISTS.values())
    captions = _corpus(path) if in_corpus else _captions(annotations, path)
    for split, list_path in zip(LISTS, lists, strict=True):
        videos = list(dict.fromkeys(read_lines(list_path)))
        if missing := sum(not captions.get(video) for video in videos):
            annotations.problems.add(f"{list_path}: {missing:,} of {len(videos):,} videos have no captions in {path}")
        for video in videos:
            for row, sentence in captions.get(video, ()):
                try:
                    yield Caption(video_id=video, caption=text(sentence), split=split)
                except ValueError as error:
                    annotations.drop(path, row, str(error))


def _captions(annotations: Annotations, path: Path) -> dict[str, list[tuple[str, Any]]]:
    """{video: [(row, caption)]}"""
    with as_published(path):
        content = annotations.read_json(path)
        if odd := [video for video, sentences in content.items() if not isinstance(sentences, list)]:
            raise TypeError(f"the captions of video {odd[0]!r} are no list")
    return {
        video: [(f"video {video!r}, caption {number}", sentence) for number, sentence in enumerate(sentences, start=1)]
        for video, sentences in content.items()
    }


def _corpus(path: Path) -> dict[str, list[tuple[str, Any]]]:
    captions: dict[str, list[tuple[str, Any]]] = {}
    for line, row in read_rows(path, ("VideoID", "Start", "End", "Language", "Description")):
        if row["Language"] == "English":
            captions.setdefault(f"{row['VideoID']}_{row['Start']}_{row['End']}", []).append(
                (f"line {line}", row["Description"])
            )
    return captions


EXPERTS = "https://github.com/albanie/collaborative-experts, misc/datasets/msvd/"
DATASET = Dataset(
    read,
    {
        CAPTIONS: "https://github.com/layer6ai-labs/xpool, data/MSVD/; or the authors' CSV as video_corpus.csv",
        CORPUS: "https://www.microsoft.com/en-us/download/details.aspx?id=52422",
        **dict.fromkeys(LISTS.values(), EXPERTS),
    },
)
