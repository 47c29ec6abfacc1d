"""The first pass over the captions, which counts them and computes the key of each part.

If a file is read in chunks, several processes read them, and the findings are written to ``survey.jsonl``. A later call
resumes from there if file, code and settings are the same.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from ..storage.common.problems import Problems
from ..storage.common.process_pool import OrderedMap
from ..storage.common.progress import progress
from ..storage.common.validation import is_text
from ..storage.common.writing import errors_naming, make_folder, open_to_write
from ..storage.records import VideoRecord
from .chunks import ChunkedRecords, ReadChunk, captions_among
from .corpus_statistics import CorpusCounter
from .datasets.sources import Chunk
from .parts import input_bytes

BYTES_PER_PROCESS = 1 << 23
"""Smallest share of a file that is worth starting a process."""
LOG_NAME = "survey.jsonl"
"""Its lines use names of earlier versions: ``pieces`` are chunks, and a ``census`` has the counts of a chunk."""


@dataclass(frozen=True)
class ChunkCounts:
    """The counts and problems of a chunk of the captions."""

    counter: CorpusCounter
    messages: list[str]
    """Problems."""
    changed: Counter[str]
    """Number of rows by change (``Problems.changed``)."""

    @property
    def num_captions(self) -> int:
        """Number of captions of the chunk."""
        return self.counter.num_captions.total()


@dataclass(frozen=True)
class FirstPassLine:
    """A line of the log."""

    keys: list[str]
    """Keys of the next parts."""
    chunks: list[ChunkCounts]
    """The next chunks. All their captions are in parts of this line or of earlier lines."""
    is_last: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        chunks = [
            {"census": chunk.counter.to_json(), "messages": chunk.messages, "changed": dict(chunk.changed)}
            for chunk in self.chunks
        ]
        return {"keys": self.keys, "pieces": chunks, "is_last": self.is_last}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "FirstPassLine":
        """Return the line from values of ``to_json``. Raises ``ValueError`` and others for anything else."""
        chunks = [
            ChunkCounts(CorpusCounter.from_json(chunk["census"]), chunk["messages"], Counter(chunk["changed"]))
            for chunk in values["pieces"]
        ]
        texts = [*values["keys"], *(message for chunk in chunks for message in chunk.messages)]
        counts = [count for chunk in chunks for count in chunk.changed.values()]
        if (
            not isinstance(values["keys"], list)
            or not all(map(is_text, texts))
            or not all(type(n) is int for n in counts)
        ):
            raise ValueError("a key or a message is not a text, or a count is not an integer")
        return cls(values["keys"], chunks, bool(values["is_last"]))


@dataclass
class FirstPassLog:
    """The log of a first pass, which resumes where an earlier call ended."""

    file: BinaryIO
    """Opened for appending."""
    lines: list[FirstPassLine] = field(default_factory=list)
    """The findings of earlier calls."""

    @property
    def ended(self) -> bool:
        """True if earlier calls found everything."""
        return bool(self.lines) and self.lines[-1].is_last

    def add(self, line: FirstPassLine) -> None:
        """Write a line."""
        with errors_naming(Path(self.file.name)):
            self.file.write(json.dumps(line.to_json()).encode() + b"\n")
            self.file.flush()


@contextmanager
def open_first_pass_log(path: Path, about: Mapping[str, Any]) -> Iterator[FirstPassLog]:
    """Open the log of a first pass.

    Args:
        path: The log. Its valid lines are used if its header equals ``about``; otherwise, it starts empty.
        about: Everything that decides what the first pass finds.

    Raises:
        UserError: The log is a link, or no regular file.
    """
    header = json.dumps(about, sort_keys=True).encode() + b"\n"
    make_folder(path.parent)
    with errors_naming(path), open_to_write(path, "a+b") as file:
        file.seek(0)
        log, end = FirstPassLog(file), 0
        if file.readline(len(header) + 1) == header:
            end = len(header)
            for line in file:
                try:
                    log.lines.append(FirstPassLine.from_json(json.loads(line)))
                except (
                    ValueError,
                    TypeError,
                    KeyError,
                    AttributeError,
                    RecursionError,
                ):  # cut short when its process ended
                    break
                end += len(line)
        file.truncate(end)
        if not end:
            file.write(header)
        yield log


@cache
def code_hash() -> str:
    """Return a hash of the code that reads captions from files, since changed code may find other captions."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted([*package.rglob("*.py"), package.parent / "storage" / "records.py"]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclass
class FirstPass:
    """The result of the first pass."""

    part_captions: int
    counter: CorpusCounter = field(default_factory=CorpusCounter)
    videos: list[VideoRecord] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    """Keys of all parts, in order."""
    chunk_sizes: list[int] = field(default_factory=list)
    """Number of captions of each chunk."""

    @property
    def num_captions(self) -> int:
        """Number of captions so far."""
        return self.counter.num_captions.total()

    def size_of(self, part: int) -> int:
        """Return the number of captions of a part."""
        return min(self.part_captions, self.num_captions - part * self.part_captions)

    def add_line(self, line: FirstPassLine, problems: Problems) -> None:
        """Add the findings of an earlier call."""
        self.keys += line.keys
        for chunk in line.chunks:
            self.add(chunk, problems)

    def add(self, chunk: ChunkCounts, problems: Problems) -> None:
        """Add the counts of a chunk, and report its problems."""
        self.counter.add_all(chunk.counter)
        self.chunk_sizes.append(chunk.num_captions)
        for message in chunk.messages:
            problems.add(message)
        problems.changed.update(chunk.changed)


class CollectedProblems(Problems):
    """All problems of a chunk, for another process to report."""

    def add(self, message: str) -> None:
        """Keep the message."""
        self.messages.append(message)


@dataclass(frozen=True)
class CountedChunk:
    """The captions and videos of a chunk, as a process counted them."""

    counts: ChunkCounts
    videos: list[VideoRecord]
    inputs: list[bytes]
    """For each caption, its fields from the annotations (``input_bytes``)."""
    num_bytes: int
    """Bytes of the chunk."""


def count_chunk(chunk: Chunk, read: ReadChunk) -> CountedChunk:
    """Read and count the captions of a chunk."""
    problems, counter = CollectedProblems(), CorpusCounter()
    videos: list[VideoRecord] = []
    inputs = []
    for caption in captions_among(read(chunk.content, problems), problems, videos):
        counter.add(caption)
        inputs.append(input_bytes(caption))
    return CountedChunk(ChunkCounts(counter, problems.messages, problems.changed), videos, inputs, chunk.num_bytes)


class PartKeys:
    """Computes the keys of parts from captions, which arrive in chunks of any size."""

    def __init__(self, tagger: str, part_captions: int, skip: int) -> None:
        """Begin with a new part.

        Args:
            tagger: Name of the tagger.
            part_captions: Number of captions of each part but the last.
            skip: Number of captions at the start that belong to earlier parts.
        """
        self._begin = partial(hashlib.sha256, tagger.encode())
        self._part_captions, self._skip = part_captions, skip
        self._digest, self._count = self._begin(), 0

    def add(self, inputs: list[bytes]) -> Iterator[str]:
        """Add captions, and yield the key of each part that they complete."""
        position = min(self._skip, len(inputs))
        self._skip -= position
        while position < len(inputs):
            taken = inputs[position : position + self._part_captions - self._count]
            self._digest.update(b"".join(taken))
            self._count, position = self._count + len(taken), position + len(taken)
            if self._count == self._part_captions:
                yield from self.end()

    def end(self) -> Iterator[str]:
        """Yield the key of the last part, if one has begun."""
        if self._count:
            yield self._digest.hexdigest()
            self._digest, self._count = self._begin(), 0


def run_first_pass(
    chunks: ChunkedRecords,
    tagger: str,
    problems: Problems,
    *,
    part_captions: int,
    parallel_map: OrderedMap,
    log: FirstPassLog | None = None,
) -> FirstPass:
    """Read and count all captions, and compute the keys of their parts.

    Args:
        chunks: The captions.
        tagger: Name of the tagger, which is a part of the keys.
        problems: Receives inputs that are skipped.
        part_captions: Number of captions of each part but the last.
        parallel_map: Calls the function that reads and counts a chunk.
        log: What an earlier call found. It is extended.

    Raises:
        UserError: The captions cannot be read.
    """
    found = FirstPass(part_captions)
    for line in log.lines if log else ():
        found.add_line(line, problems)
    if log and log.ended:
        return found
    num_logged = found.num_captions
    keys = PartKeys(tagger, part_captions, skip=len(found.keys) * part_captions - num_logged)
    unlogged: list[ChunkCounts] = []
    for result in _read(chunks, problems, len(found.chunk_sizes), parallel_map):
        found.add(result.counts, problems)
        found.videos += result.videos
        unlogged.append(result.counts)
        if new := list(keys.add(result.inputs)):
            found.keys += new
            # Only chunks whose captions all belong to a part with a key: the next call need not read them again.
            whole = []
            while unlogged and num_logged + unlogged[0].num_captions <= len(found.keys) * part_captions:
                whole.append(unlogged.pop(0))
                num_logged += whole[-1].num_captions
            if log:
                log.add(FirstPassLine(new, whole))
    new = list(keys.end())
    found.keys += new
    if log:
        log.add(FirstPassLine(new, unlogged, is_last=True))
    return found


def _read(
    chunks: ChunkedRecords, problems: Problems, num_known: int, parallel_map: OrderedMap
) -> Iterator[CountedChunk]:
    """Yield the content of the chunks after the first ``num_known``. Show progress for chunks of a file."""
    split, read = chunks.split(problems), partial(count_chunk, read=chunks.read)
    if chunks.source is None:
        return parallel_map(read, islice(split, num_known, None), doing="reading captions")
    num_bytes = 0
    if num_known:
        known = progress(islice(split, num_known), total=num_known, what="passing what was read before", unit="chunks")
        num_bytes = sum(chunk.num_bytes for chunk in known)
    return progress(
        parallel_map(read, split, doing="reading captions"),
        total=chunks.source.stat().st_size,
        what="reading captions",
        unit="bytes",
        size=lambda found: found.num_bytes,
        done=num_bytes,
    )
