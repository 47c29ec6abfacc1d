"""VATEX (Wang et al. 2019): clips of 10 seconds from Kinetics-600 with 10 English and 10 Chinese captions each.

The official splits: 25,991 clips to train, 3,000 to validate, 6,000 for the public test (its captions were published in
version 1.1). Only the English captions are read. The split of HGR (Chen et al. 2020), which halves the official
validation clips into validation and test, is not offered: its lists are not the authors'.

A clip is named after its YouTube id and its start and end there in seconds, such as ``G9zN5TTuGO4_000179_000189``.
"""

from collections.abc import Iterator

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, text

FILES = {
    "train": "vatex_training_v1.0.json",
    "validation": "vatex_validation_v1.0.json",
    "test": "vatex_public_test_english_v1.1.json",
}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the English captions of all clips. A clip without an id or captions, and an empty caption, are reported."""
    del protocol  # there is only one
    seen: dict[str, str] = {}
    for split, path in zip(FILES, annotations.find(*FILES.values()), strict=True):
        for number, clip in enumerate(annotations.read_json(path, list), start=1):
            with as_published(path, f"clip {number}"):
                video_id, captions = clip["videoID"], clip["enCap"]
                if not isinstance(video_id, str) or not isinstance(captions, list):
                    raise TypeError("expected videoID, a text, and enCap, a list")
            if seen.setdefault(video_id, path.name) != path.name:
                annotations.drop(path, f"clip {number}", f"{video_id!r} is also in {seen[video_id]}")
                continue
            for position, sentence in enumerate(captions, start=1):
                try:
                    yield Caption(video_id=video_id, caption=text(sentence), split=split)
                except ValueError as error:
                    annotations.drop(path, f"clip {number}, caption {position}", str(error))


DATASET = Dataset(read, dict.fromkeys(FILES.values(), "https://eric-xw.github.io/vatex-website/download.html"))
