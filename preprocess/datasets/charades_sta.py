"""Charades-STA (Gao et al. 2017): sentences about moments of the videos of Charades.

A line has a video, the seconds at which the moment begins and ends, and a sentence: ``AO8RW 0.0 6.9##a person is
putting a book on a shelf.`` There are 12,408 training and 3,720 test sentences. The files have no durations, so a
moment that ends after its video is not cut. A video has the name of its file in Charades, such as ``AO8RW``.
"""

from collections.abc import Iterator
from itertools import chain

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, read_lines, seconds, text

FILES = {"train": "charades_sta_train.txt", "test": "charades_sta_test.txt"}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of both splits, grouped by video. A sentence without valid times is reported."""
    del protocol  # there is only one
    for split, path in zip(FILES, annotations.find(*FILES.values()), strict=True):
        of_video: dict[str, list[Caption]] = {}
        for number, line in enumerate(read_lines(path), start=1):
            with as_published(path, f"sentence {number}"):
                about, sentence = line.split("##", 1)
                video_id, start, end = about.split()
            try:
                caption = Caption(
                    video_id=video_id,
                    caption=text(sentence),
                    split=split,
                    start_seconds=seconds(start),
                    end_seconds=seconds(end),
                )
            except ValueError as error:
                annotations.drop(path, f"sentence {number}", str(error))
                continue
            of_video.setdefault(video_id, []).append(caption)
        yield from chain.from_iterable(of_video.values())


DATASET = Dataset(read, dict.fromkeys(FILES.values(), "https://github.com/jiyanggao/TALL"))
