"""Places Audio Captions 400k (Harwath et al. 2017, 2018): spoken descriptions of Places205 images, with automatic
transcripts.

The corpus has ``metadata/train.json`` and ``val.json``: an object with ``image_base_path``, ``audio_base_path`` and
``data``, a list of objects with ``uttid``, ``speaker``, ``asr_text``, ``wav`` and ``image``. ``wav`` and ``image``
are relative to the two base paths, which each user sets and which are ignored here (see
dataloaders/image_caption_dataset.py in dharwath/DAVEnet-pytorch and wnhsu/ResDAVEnet-VQ). We found no public code
that reads ``asr_text``. Other splits (``train_2020.json``, ...) are not read.

The id of an image is the path of its file below the image folder, without the suffix. The id of a recording is its path
below the folder of the corpus (``wavs/...``), without the suffix. vlalign-extract gives files the same ids. The test
split is ``val.json``, 1,000 pairs, as in all papers; there is no validation split.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, text

FILES = {"train": "train.json", "test": "val.json"}


class ImageEntry(NamedTuple):
    """An entry of ``data`` in a file."""

    row: str
    """Place in the file, for messages."""
    image: Any
    wav: Any
    transcript: Any


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """Yield the captions of all splits. A caption without a transcript is skipped, even if it has a recording."""
    del protocol  # there is only one
    for split, path in zip(FILES, annotations.find(*FILES.values()), strict=True):
        recordings = set()
        for entry in _entries(annotations, path):
            try:
                image, transcript, recording = id_of(entry.image), text(entry.transcript), id_of(entry.wav)
                caption = Caption(video_id=image, caption=transcript, split=split, recording=recording)
                if recording in recordings:
                    raise ValueError(f"a second entry with the recording {entry.wav!r}")
            except ValueError as error:
                annotations.drop(path, entry.row, str(error))
                continue
            recordings.add(recording)
            yield caption


def _entries(annotations: Annotations, path: Path) -> Iterator[ImageEntry]:
    """Yield the entries of a file, grouped by image."""
    of_image: dict[Any, list[ImageEntry]] = {}
    with as_published(path):
        for position, row in enumerate(annotations.read_json(path)["data"], start=1):
            with as_published(path, f"entry {position} of data"):
                entry = ImageEntry(f"entry {position} of data", row["image"], row["wav"], row["asr_text"])
                of_image.setdefault(entry.image, []).append(entry)
    for entries in of_image.values():
        yield from entries


def id_of(file: Any) -> str:
    """Return the id that vlalign-extract gives to a file.

    Raises:
        ValueError: ``file`` is not a relative path that stays in its folder.
    """
    path = PurePosixPath(file) if isinstance(file, str) else PurePosixPath()
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the file is {file!r}, expected a path below the data set's folder")
    return path.with_suffix("").as_posix()


DATASET = Dataset(
    read, dict.fromkeys(FILES.values(), "https://groups.csail.mit.edu/sls/downloads/placesaudio, metadata/")
)
