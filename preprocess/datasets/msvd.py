"""MSVD (Chen & Dolan 2011): 1,970 YouTube clips with 18 to 81 captions each, in the splits of Venugopalan et al. 2015.

All captions of a clip are used, including duplicates. The authors' corpus has more clips and languages than the
lists: only its English rows are read. A clip is named VideoID_Start_End.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, read_rows, text

CAPTIONS = "captions_msvd.json"
CORPUS = "video_corpus.csv"
LISTS = {"train": "train_list.txt", "validation": "val_list.txt", "test": "test_list.txt"}


class CorpusSentence(NamedTuple):
    """A caption as read from a file, unchecked."""

    row: str
    """Place in the file, for messages."""
    sentence: Any


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of the listed clips. Missing captions are reported in one line per list."""
    del protocol  # there is only one
    use_corpus = annotations.find_optional(CORPUS) and not annotations.find_optional(CAPTIONS)
    path, *lists = annotations.find(CORPUS if use_corpus else CAPTIONS, *LISTS.values())
    captions = _read_corpus(path) if use_corpus else _read_captions(annotations, path)
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


def _read_captions(annotations: Annotations, path: Path) -> dict[str, list[CorpusSentence]]:
    with as_published(path):
        content = annotations.read_json(path)
        if wrong := [video for video, sentences in content.items() if not isinstance(sentences, list)]:
            raise TypeError(f"the captions of video {wrong[0]!r} are not a list")
    return {
        video: [
            CorpusSentence(f"video {video!r}, caption {number}", sentence)
            for number, sentence in enumerate(sentences, start=1)
        ]
        for video, sentences in content.items()
    }


def _read_corpus(path: Path) -> dict[str, list[CorpusSentence]]:
    captions: dict[str, list[CorpusSentence]] = {}
    for line, row in read_rows(path, ("VideoID", "Start", "End", "Language", "Description")):
        if row["Language"] == "English":
            video = f"{row['VideoID']}_{row['Start']}_{row['End']}"
            captions.setdefault(video, []).append(CorpusSentence(f"line {line}", row["Description"]))
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
