"""The times of spoken words, from a forced aligner or a speech recogniser: one file for each recording.

The files are in the folder ``word_times`` of a data set. A recording ``audio/run/a`` has one of these files:

- ``audio/run/a.TextGrid``: a tier of intervals named "words", or "NAME - words", in Praat's long or short format, as
  the Montreal Forced Aligner writes it;
- ``audio/run/a.csv``: the columns Begin, End, Label and Type of the Montreal Forced Aligner; or the columns
  start_seconds, end_seconds and word, for words of any other program.
"""

import csv
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..common.errors import UserError
from ..common.files import check_regular, read_small

MAX_BYTES = 8 << 20
SILENT = ("", "<eps>", "sil", "sp", "spn")
"""Labels of intervals without a word."""
COLUMNS = {"start_seconds": "begin", "end_seconds": "end", "word": "label"}
"""{column: its name in files of the Montreal Forced Aligner}"""


@dataclass(frozen=True)
class SpokenWord:
    """A word, in lower case, and when it is spoken."""

    word: str
    start_seconds: float
    end_seconds: float


def read_word_times(folder: Path, recording: str) -> list[SpokenWord]:
    """Return the words of a recording in order of time; empty if it has no file.

    Args:
        folder: The data set's folder ``word_times``.
        recording: Id of the recording.

    Raises:
        UserError: The file is not as described above.
    """
    for suffix, read in ((".TextGrid", _of_text_grid), (".csv", _of_csv)):
        path = folder / f"{recording}{suffix}"
        if not path.is_file() or Path(os.path.realpath(folder)) not in Path(os.path.realpath(path)).parents:
            continue
        check_regular(path)
        try:
            text = read_small(path, MAX_BYTES).decode(_encoding(path))
            words = [SpokenWord(word.lower(), start, end) for start, end, word in read(text) if word not in SILENT]
            if wrong := [word for word in words if not 0 <= word.start_seconds < word.end_seconds]:
                times = f"from {wrong[0].start_seconds:g} to {wrong[0].end_seconds:g} s"
                raise ValueError(f"{wrong[0].word[:40]!r} lasts {times}, expected 0 <= start < end")
        except (ValueError, LookupError, csv.Error) as error:
            problem = f"not a file of word times ({error})"
            raise UserError(f"{path}: {problem}; expected a TextGrid or CSV file of a forced aligner") from None
        return sorted(words, key=lambda word: word.start_seconds)
    return []


def words_at(words: list[SpokenWord], seconds: list[float]) -> list[str]:
    """Return the word that is spoken at each time; "" for none."""
    return [
        next((word.word for word in words if word.start_seconds <= time < word.end_seconds), "") for time in seconds
    ]


def checksum_of(folder: Path) -> str:
    """Return 16 hexadecimal digits over the names, sizes and times of a folder's files; "" if it is not there."""
    if not folder.is_dir():
        return ""
    facts = sorted(
        f"{path.relative_to(folder)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in folder.rglob("*")
        if path.is_file()
    )
    return hashlib.sha256("\n".join(facts).encode(errors="replace")).hexdigest()[:16]


def _encoding(path: Path) -> str:
    """Return the encoding of a file: Praat writes UTF-16 where a text is not ASCII."""
    with path.open("rb") as file:
        return "utf-16" if file.read(2) in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


TOKEN = re.compile(r'"((?:[^"]|"")*)"|(?<![\w.\[])(-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)(?![\w.\]])')
"""A text or a number of a TextGrid. Numbers in brackets, such as ``item [1]``, are only counters and do not match."""


def _of_text_grid(text: str) -> Iterator[tuple[float, float, str]]:
    """Yield start, end and label of the intervals of the tier of words.

    Both formats have the values in the same order; the long format also has their names.
    """
    values = [
        match[1].replace('""', '"') if match[1] is not None else float(match[2]) for match in TOKEN.finditer(text)
    ]
    if values[:2] != ["ooTextFile", "TextGrid"]:
        raise ValueError("it does not begin like a TextGrid")
    place = 5  # two texts, the start, the end and the number of tiers
    for _ in range(int(float(values[4]))):
        kind, name, num_items = str(values[place]), str(values[place + 1]), int(float(values[place + 4]))
        place += 5
        width = 3 if kind == "IntervalTier" else 2
        items = [values[place + width * index :][:width] for index in range(num_items)]
        place += width * num_items
        if width == 3 and name.lower().rpartition(" - ")[2] == "words":
            for start, end, label in items:
                yield float(start), float(end), str(label)
            return
    raise ValueError("it has no tier named 'words'")


def _of_csv(text: str) -> Iterator[tuple[float, float, str]]:
    """Yield (start, end, word) of each row."""
    reader = csv.DictReader(text.splitlines())
    names = {name.strip().lower(): name for name in reader.fieldnames or ()}
    columns = [names.get(name) or names.get(other) for name, other in COLUMNS.items()]
    if None in columns:
        raise ValueError(f"its columns are {', '.join(names)[:80]}; expected {', '.join(COLUMNS)}")
    start, end, word = (str(column) for column in columns)
    kind = names.get("type")
    for row in reader:
        if kind is None or row[kind] == "words":
            yield float(row[start]), float(row[end]), row[word]
