"""Places Audio Captions 400k (Harwath et al. 2017, 2018): images of Places205, described aloud, and transcribed by speech recognition.

The corpus has ``metadata/train.json`` and ``val.json``: an object with ``image_base_path``, ``audio_base_path`` and ``data``, a list of
objects with ``uttid``, ``speaker``, ``asr_text``, ``wav`` and ``image``. The loaders of dharwath/DAVEnet-pytorch and wnhsu/ResDAVEnet-VQ
(dataloaders/image_caption_dataset.py) read ``wav`` and ``image``, relative to the two paths, which each user puts in and which mean
nothing here. No public code was found that reads ``asr_text``. Other splits (``train_2020.json``, ...) are not read.

An image's id is its file's path below the images' folder without the suffix, a recording's the same below the corpus's folder
(``wavs/...``): as vlalign-extract names files. The test is ``val.json``, 1,000 pairs, as in all papers; there is no other validation.
"""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

from ...storage.records import Caption
from .sources import Annotations, Dataset, Record, as_published, text

FILES = {"train": "train.json", "test": "val.json"}


def read(annotations: Annotations, protocol: str) -> Iterator[Record]:
    """A caption without a transcript is left out, though its recording may be whole: captions are texts everywhere else."""
    del protocol
    for split, path in zip(FILES, annotations.find(*FILES.values()), strict=True):
        of_image: dict[Any, list[tuple[str, dict[str, Any]]]] = {}
        with as_published(path):
            for place, row in enumerate(annotations.read_json(path)["data"], start=1):
                with as_published(path, f"entry {place} of data"):
                    of_image.setdefault(row["image"], []).append((f"entry {place} of data", row))
        recordings = set()
        for place, row in (item for rows in of_image.values() for item in rows):
            with as_published(path, place):
                image, wav, transcript = row["image"], row["wav"], row["asr_text"]
            try:
                caption = Caption(video_id=id_of(image), caption=text(transcript), split=split, recording=id_of(wav))
                if caption.recording in recordings:
                    raise ValueError(f"the second with the recording {wav!r}")
            except ValueError as error:
                annotations.drop(path, place, str(error))
                continue
            recordings.add(caption.recording)
            yield caption


def id_of(file: Any) -> str:
    """As vlalign-extract names a file. Raises ``ValueError`` for what is no path in a folder."""
    path = PurePosixPath(file) if isinstance(file, str) else PurePosixPath()
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the file is {file!r}, expected a path below the data set's folder")
    return path.with_suffix("").as_posix()


DATASET = Dataset(
    read, dict.fromkeys(FILES.values(), "https://groups.csail.mit.edu/sls/downloads/placesaudio, metadata/")
)
