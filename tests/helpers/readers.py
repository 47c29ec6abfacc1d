"""Readers of annotations, as tests call them."""

import json
from collections import Counter
from itertools import groupby

import pytest
from vlalign.preprocess.datasets.sources import Annotations
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.problems import Problems


def annotations_of(reader, folder):
    return Annotations(folder, reader.DATASET.published, Problems())


def captions_of(reader, folder, protocol=None):
    """Return (captions, problems), and check that the captions of a video come together."""
    annotations = annotations_of(reader, folder)
    captions = list(reader.DATASET.read(annotations, reader.DATASET.protocols[0] if protocol is None else protocol))
    runs = [video_id for video_id, _ in groupby(c.video_id for c in captions)]
    assert len(runs) == len(set(runs))
    assert {c.split for c in captions} <= {"train", "validation", "test"}
    return captions, annotations.problems


def counts(captions):
    """Return {split: (number of videos, number of captions)}."""
    numbers = Counter(c.split for c in captions)
    return {
        split: (len({c.video_id for c in captions if c.split == split}), number) for split, number in numbers.items()
    }


def brief(captions):
    return [(c.video_id, c.split, c.caption, c.start_seconds, c.end_seconds) for c in captions]


def write(folder, files):
    """Write ``files``, {name: text, bytes or JSON values}. Return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def refused(reader, folder, protocol=None):
    with pytest.raises(UserError) as raised:
        captions_of(reader, folder, protocol)
    message = str(raised.value)
    assert "\n" not in message and "Traceback" not in message
    return message


def left_out(problems, *expected):
    """Check that each problem contains the expected words, in order."""
    assert problems.count == len(problems.messages) == len(expected), problems.messages
    for message, words in zip(problems.messages, expected, strict=True):
        assert all(word in message for word in words), message


def warnings(capsys):
    return [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines()]


def lines(*rows):
    return "".join(f"{row}\n" for row in rows)


def untimed_captions_of(reader, folder, protocol=None):
    """Return (captions, number of problems) of a data set whose captions have no times."""
    annotations = annotations_of(reader, folder)
    captions = list(reader.DATASET.read(annotations, reader.DATASET.protocols[0] if protocol is None else protocol))
    runs = [key for key, _ in groupby((c.split, c.video_id) for c in captions)]
    assert len(runs) == len(set(runs))
    assert {c.split for c in captions} <= {"train", "validation", "test"}
    assert all(c.start_seconds is None and c.video_id and not c.words for c in captions)
    return captions, annotations.problems.count


def write_named(folder, **files):
    """Write files whose names have ``__`` instead of the dot: text, bytes or JSON values. Return the folder."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8", newline="")
    return folder
