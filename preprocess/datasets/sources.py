"""Tools for readers of official files: find the files, read them, and report errors with file and row."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ...storage.common.errors import UserError
from ...storage.common.files import check_regular, read_small
from ...storage.common.problems import Problems
from ...storage.common.validation import DATASET_NAME
from ...storage.records import Caption, VideoRecord

Record = VideoRecord | Caption

EXPECTED = "expected the file as its authors publish it"

MAX_BYTES = 1 << 30
"""Largest size of a file that is read at once. The largest published file has a tenth of this size."""
csv.field_size_limit(1 << 27)  # captions can be long; Python's default limit is 128 KiB


@dataclass(frozen=True)
class Annotations:
    """The annotation files of a data set, as a reader sees them.

    Example:
        >>> import json
        >>> from pathlib import Path
        >>> from vlalign.preprocess import Annotations
        >>> from vlalign.storage.common.problems import Problems
        >>> Path("annotations").mkdir(exist_ok=True)
        >>> with open("annotations/kitchens.json", "w") as file:
        ...     json.dump({"v1": ["a man cuts an onion"]}, file)
        >>> annotations = Annotations(Path("annotations"), {}, Problems(quiet=True))
        >>> [path] = annotations.find("kitchens.json")
        >>> annotations.read_json(path)
        {'v1': ['a man cuts an onion']}
    """

    folder: Path
    """Folder to search, with all folders below it."""
    published: Mapping[str, str]
    """Maps official file names to where their authors publish them."""
    problems: Problems
    """Receives one line, with file and row, for each row that is skipped."""

    def find(self, *names: str) -> list[Path]:
        """Return the paths of official files, in the order of ``names``.

        Args:
            names: Names of the files. They may contain folders.

        Raises:
            UserError: Files are missing. The message lists all of them, and where they are published if that is known.
        """
        paths = {name: path for name in names if (path := self.find_optional(name))}
        if missing := [name for name in names if name not in paths]:
            sources = _with_sources({name: self.published.get(name, "") for name in missing})
            raise UserError(f"{self.folder}: missing {sources}; put them there, or pass --annotations DIR")
        return [paths[name] for name in names]

    def find_optional(self, name: str) -> Path | None:
        """Return the file nearest to the top of the folder, or None.

        Args:
            name: Name of the file, or of a folder. It may contain folders.

        Raises:
            UserError: It is a pipe, a socket or a device.
        """
        path = min(self.folder.rglob(name), key=lambda path: (len(path.parts), path), default=None)
        if path is not None:
            check_regular(path)
        return path

    def read_json(self, path: Path, kind: type = dict) -> Any:
        """Return the content of a JSON file in UTF-8, with or without a byte order mark.

        If an object has the same key twice, the second value is skipped and reported.

        Args:
            path: File to read.
            kind: Type that the top-level value must have: ``dict`` or ``list``.

        Raises:
            UserError: The file is not valid JSON in UTF-8, or its top-level value has another type.
        """

        def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            values: dict[str, Any] = {}
            for key, value in pairs:
                if key in values:
                    self.drop(path, f"entry {key!r}", "duplicate of an earlier entry")
                else:
                    values[key] = value
            return values

        try:
            content = read_small(path, MAX_BYTES).decode("utf-8-sig")
            value = json.loads(content, object_pairs_hook=without_duplicates)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not valid JSON in UTF-8 ({error}); {EXPECTED}") from None
        if not isinstance(value, kind):
            raise UserError(f"{path}: the top level is a {type(value).__name__}, not a {kind.__name__}; {EXPECTED}")
        return value

    def drop(self, path: Path, row: str, reason: str) -> None:
        """Report a row that is skipped.

        Args:
            path: The file.
            row: The row in it, such as "line 6".
            reason: Why it cannot be used.
        """
        self.problems.add(f"{path}, {row}: {reason}; skipped")

    def cut_at_end(self, caption: Caption, duration_seconds: Any) -> Caption:
        """Return the caption with its clip cut at the end of the video; count it if that changes the clip.

        Args:
            caption: Any caption, with or without times.
            duration_seconds: Duration of the video, as read from the file.

        Raises:
            ValueError: The duration is not a number, or the clip starts after the end of the video.
        """
        last = round(seconds(duration_seconds), 2)  # 70.29 is published as 70.28999999999999
        if caption.end_seconds is None or caption.end_seconds <= last:
            return caption
        cut = replace(caption, end_seconds=last)
        self.count_change("ends after the video, cut at its duration")
        return cut

    def count_change(self, change: str) -> None:
        """Count a row that is used with a changed value. The counts are shown in the summary.

        Args:
            change: What was changed, the same text for all such rows.
        """
        self.problems.changed[change] += 1


@dataclass(frozen=True)
class Chunk:
    """Some videos of a data set, with their captions.

    Example:
        >>> from vlalign.preprocess import Chunk
        >>> line = b"v1 cut the onion"
        >>> Chunk(line, num_bytes=len(line)).num_bytes
        16
    """

    content: Any
    """Argument of ``ChunkedReader.read_chunk``."""
    num_bytes: int = 0
    """Number of bytes of the file in this chunk. Over all chunks, they add up to the size of the file."""


class ChunkedReader(NamedTuple):
    """Reader of a file that is too large for one process.

    Example:
        >>> from pathlib import Path
        >>> from vlalign.preprocess import Chunk, ChunkedReader
        >>> from vlalign.storage import Caption
        >>> def find(annotations, protocol):
        ...     return annotations.find("captions.txt")[0]
        >>> def split(path):
        ...     for line in path.read_bytes().splitlines(keepends=True):
        ...         yield Chunk(line, num_bytes=len(line))
        >>> def read_chunk(path, protocol, line, problems):
        ...     video_id, _, text = line.decode().strip().partition(" ")
        ...     yield Caption(video_id=video_id, caption=text, split="train")
        >>> reader = ChunkedReader(find, split, read_chunk)
        >>> [caption.caption for caption in reader.read_chunk(Path("captions.txt"), "", b"v1 cut the onion", None)]
        ['cut the onion']
    """

    find: Callable[[Annotations, str], Path]
    """Returns the file of a protocol. The captions must depend on nothing else."""
    split: Callable[[Path], Iterator[Chunk]]
    """Yields the file in chunks of whole videos, in order, with little work."""
    read_chunk: Callable[[Path, str, Any, Problems], Iterable[Record]]
    """Yields the records of a chunk, given the file's name, the protocol and the chunk's content. Any process on any
    machine can call it."""


def _with_sources(files: Mapping[str, str]) -> str:
    """Return file names, each with where its authors publish it, if that is known."""
    return "; ".join(f"{name} ({source})" if source else name for name, source in files.items())


@dataclass(frozen=True)
class Dataset:
    """The reader of a data set, and the files it reads: a row of ``DATASETS``, or a data set in a module of your own.

    ``vlalign-preprocess --dataset my_module:KITCHENS`` prepares the data set ``KITCHENS`` of ``my_module``.

    Raises:
        ValueError: The name cannot be used for a folder.

    Example:
        >>> from vlalign.preprocess import Dataset
        >>> from vlalign.storage import Caption
        >>> def read(annotations, protocol):
        ...     [path] = annotations.find("kitchens.json")
        ...     for video_id, sentences in annotations.read_json(path).items():
        ...         for sentence in sentences:
        ...             yield Caption(video_id=video_id, caption=sentence, split="train")
        >>> KITCHENS = Dataset(read, name="kitchens")
        >>> KITCHENS.task
        'retrieval'
    """

    read: Callable[[Annotations, str], Iterator[Record]]
    """Yields the records, given the files and the name of a protocol. All captions of a video in a split come together.
    Videos need not be listed. It is called twice, and must yield the same records each time."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Maps each official file name to where its authors publish it, for the message about a missing file."""
    name: str = ""
    """Name of a custom data set, and of its folder under the root. In ``DATASETS``, the key is the name instead."""
    protocols: Sequence[str] = field(default=("",))
    """Names of the choices of splits and captions; the first is the default. One empty name if there is no choice."""
    facts: Callable[[Annotations, str], Mapping[str, int | str]] | None = None
    """Returns further facts about the files to print and store, such as the number of tasks."""
    task: str = "retrieval"
    """Default task of ``vlalign-train`` and ``vlalign-evaluate`` on this data set; stored with the captions."""
    steps: Callable[[Annotations], dict[str, list[str]]] | None = None
    """Returns the steps of each instructional task in order, including those that no video shows; stored with the
    captions."""
    speech: bool | None = None
    """True if the captions are the speech of the videos."""
    chunked_reader: ChunkedReader | None = None
    """Reads the same records as ``read``, with several processes."""

    def __post_init__(self) -> None:
        if self.name and not DATASET_NAME.fullmatch(self.name):
            raise ValueError(f"data set name {self.name!r}: expected letters, digits, '.', '_' and '-'")

    @property
    def files(self) -> str:
        """The official files, each with where its authors publish it, for messages."""
        return _with_sources(self.published)


@contextmanager
def as_published(path: Path, row: str = "") -> Iterator[None]:
    """Turn the errors of code that expects the published structure of a file into a ``UserError`` of one line.

    Args:
        path: File that is being read.
        row: Which part of it, such as ``video 'x'``.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path}{', ' if row else ''}{row}: {reason}; {EXPECTED}") from None


def read_rows(path: Path, columns: Sequence[str], *, header: bool = True) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line number, row) for each row of a CSV file in UTF-8.

    Args:
        path: File to read.
        columns: Columns that the file must have. Without a header, these are all of its columns, in order.
        header: Whether the first line names the columns.

    Raises:
        UserError: The file is not CSV in UTF-8, lacks a column, or has a row with another number of fields.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            reader = csv.DictReader(file, fieldnames=None if header else columns, strict=True)
            existing = list(reader.fieldnames or ())
            if missing := [name for name in columns if name not in existing]:
                raise UserError(f"{path}: no column {', '.join(missing)}; {EXPECTED}")
            for row in reader:
                if None in row or None in row.values():
                    raise UserError(f"{path}, line {reader.line_num}: expected {len(existing)} fields")
                yield reader.line_num, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{path}: not valid CSV in UTF-8 ({error}); {EXPECTED}") from None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file, stripped, without blank ones.

    Raises:
        UserError: The file is not valid UTF-8.
    """
    try:
        content = read_small(path, MAX_BYTES).decode("utf-8-sig")
        return [line.strip() for line in content.splitlines() if line.strip()]
    except ValueError as error:
        raise UserError(f"{path}: not valid UTF-8 ({error}); {EXPECTED}") from None


def seconds(value: Any) -> float:
    """Return a time in seconds.

    Raises:
        ValueError: ``value`` is neither a finite number nor the text of one.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a time; expected seconds")
    return number


def text(value: Any) -> str:
    """Return the text of a caption on one line, with runs of white space replaced by one space.

    Raises:
        ValueError: ``value`` is not text, is blank, or contains half of a surrogate pair.
    """
    if not isinstance(value, str) or not (clean := " ".join(value.split())):
        raise ValueError(f"the caption is {value!r}, expected a sentence")
    clean.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return clean
