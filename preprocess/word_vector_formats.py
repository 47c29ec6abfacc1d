"""Readers of published word vectors: word2vec, GloVe and npz files."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from ..storage.common.errors import UserError, refuse_unreadable
from ..storage.common.progress import progress
from ..storage.untrusted.limits import FORMAT_ERRORS, Budget
from ..storage.untrusted.npz import open_npz

T = TypeVar("T")

NUM_FREQUENT_WORDS = 50_000
"""Number of words at the start of a file that are always selected. Files list frequent words first, and people search
for them whether or not the captions contain them."""
HEADER = re.compile(rb"(\d+) (\d+)\s*\n")
BLOCK_BYTES = 1 << 22
MAX_DIMENSION, MAX_WORD_BYTES = 1 << 16, 1 << 16
"""Limits for the binary format: numbers of a vector, and bytes of a word. A file beyond them has another format, and
reading on would fill the memory."""
EXPECTED = "expected word2vec's binary or text form, GloVe's text, or an npz with an array of words and one of vectors"


class VectorBlock(NamedTuple):
    """Consecutive words of a file with their vectors."""

    words: list[str]
    vectors: np.ndarray
    """[n, D]"""


class SelectedVectors(NamedTuple):
    """The selected words of a file, with their vectors, in the order of the file."""

    words: list[str]
    vectors: np.ndarray
    """[V, D], float32"""
    num_in_file: int
    """Number of words in the file."""


def select_vectors(path: Path, needed: set[str]) -> SelectedVectors:
    """Return the vectors of the needed words and of the most frequent ones. A duplicate word keeps its first vector.

    Args:
        path: word2vec (binary or text), GloVe or npz file; ``.gz`` and ``.bz2`` are unpacked.
        needed: Words to keep if the file has them.

    Raises:
        UserError: The file has another format, is truncated, or has non-finite values.
    """
    words: dict[str, None] = {}
    rows, num_in_file, budget = [], 0, Budget(path.stat().st_size)
    for chunk in _blocks(path):
        for index, word in enumerate(chunk.words):
            if (word in needed or num_in_file + index < NUM_FREQUENT_WORDS) and word not in words:
                words[word] = None
                rows.append(chunk.vectors[index].astype(np.float32))
                with refuse_unreadable(path, "not readable as word vectors", EXPECTED):
                    budget.take(rows[-1].nbytes, f"the vectors until {word[:80]!r}")
        num_in_file += len(chunk.words)
    if not rows:
        raise UserError(f"{path}: contains no vector of a word; {EXPECTED}")
    vectors = np.stack(rows)
    if len(bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1))):
        word = list(words)[bad[0]]
        raise UserError(f"{path}: the vector of {word!r} has numbers that are not finite; download the file again")
    return SelectedVectors(list(words), vectors, num_in_file)


def _blocks(path: Path) -> Iterator[VectorBlock]:
    try:
        if path.suffix == ".npz":
            yield _from_npz(path)
            return
        with pa.input_stream(str(path)) as file:  # unpacks .gz and .bz2
            head = file.read(BLOCK_BYTES)
        if head.startswith(b"PK"):
            raise UserError(f"{path}: is a zip archive; unpack it, and pass the file of vectors in it")
        header = HEADER.match(head)
        first = head[header.end() if header else 0 :].split(b"\n")[0]
        fields = first.rstrip().split(b" ")
        dimension = int(header[2]) if header else len(fields) - 1
        if dimension >= 1 and len(fields) == dimension + 1 and all(map(_is_number, fields[1:])):
            yield from _from_text(path, dimension, has_header=header is not None, ends_in_blank=first.endswith(b" "))
        elif header:
            yield from _from_binary(path, header)
        else:
            raise ValueError("its first line is not a word followed by numbers")
    except FORMAT_ERRORS as error:
        reason = str(error)[:200] or type(error).__name__
        raise UserError(f"{path}: not readable as word vectors ({reason}); {EXPECTED}") from None


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _from_binary(path: Path, header: re.Match[bytes]) -> Iterator[VectorBlock]:
    """Yield the words of a binary file in blocks. A word is followed by a blank and float32 numbers.

    The file is never in memory as a whole: Google's news vectors take 3.6 GB.
    """
    num_words, dimension = int(header[1]), int(header[2])
    if not 1 <= dimension <= MAX_DIMENSION:
        raise ValueError(f"vectors of {dimension:,} numbers")
    size, left, rest = 4 * dimension, num_words, b""
    with path.open("rb") as raw:
        stream = _unpacked(path, raw)
        stream.read(header.end())
        blocks = iter(lambda: stream.read(BLOCK_BYTES), b"")
        for block in _shown(blocks, path, raw):
            buffer, position = rest + block, 0
            words, vectors = [], []
            while len(words) < left and 0 <= (blank := buffer.find(b" ", position)) < len(buffer) - size:
                words.append(buffer[position:blank].lstrip(b"\n").decode(errors="replace"))
                vectors.append(np.frombuffer(buffer, "<f4", dimension, blank + 1))
                position = blank + 1 + size
            rest, left = buffer[position:], left - len(words)
            if words:
                yield VectorBlock(words, np.stack(vectors))
            if not left:
                return
            if len(rest) > size + MAX_WORD_BYTES:
                raise ValueError(f"a word of more than {MAX_WORD_BYTES:,} bytes")
    if left:
        raise ValueError(f"unexpected end: the last {left:,} of {num_words:,} words are missing")


def _from_text(path: Path, dimension: int, *, has_header: bool, ends_in_blank: bool) -> Iterator[VectorBlock]:
    """Yield the words of a text file in blocks.

    Skips words that contain a blank, which glove.840B has: captions contain no such words. gensim fails on them.
    """
    names = [str(index) for index in range(dimension + 1 + ends_in_blank)]
    columns = names[: dimension + 1]

    def skip_blank_words(row: pa_csv.InvalidRow) -> str:
        return "skip" if row.actual_columns > row.expected_columns else "error"

    with path.open("rb") as raw:
        stream = _unpacked(path, raw)
        reader = pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(column_names=names, skip_rows=int(has_header), block_size=BLOCK_BYTES),
            pa_csv.ParseOptions(
                delimiter=" ", quote_char=False, double_quote=False, invalid_row_handler=skip_blank_words
            ),
            pa_csv.ConvertOptions(
                column_types={columns[0]: pa.binary()} | dict.fromkeys(columns[1:], pa.float32()),
                include_columns=columns,
                null_values=[],
            ),
        )
        for batch in _shown(reader, path, raw):
            words = [word.decode(errors="replace") for word in batch.column(0).to_pylist()]
            yield VectorBlock(words, np.column_stack([column.to_numpy() for column in batch.columns[1:]]))


def _unpacked(path: Path, raw: BinaryIO) -> pa.NativeFile:
    return pa.input_stream(raw, compression={".gz": "gzip", ".bz2": "bz2"}.get(path.suffix))


def _shown(blocks: Iterable[T], path: Path, raw: BinaryIO) -> Iterator[T]:
    """Yield the blocks, and report the progress of reading the file."""
    size = _bytes_since(raw.tell)
    return progress(blocks, total=path.stat().st_size, what="reading vectors", unit="bytes", size=size)


def _bytes_since(tell: Callable[[], int]) -> Callable[[Any], int]:
    """Return a function that returns the number of bytes read from a file since its last call."""
    last = 0

    def since(_: Any) -> int:
        nonlocal last
        before, last = last, tell()
        return last - before

    return since


def _from_npz(path: Path) -> VectorBlock:
    with open_npz(path) as read:
        arrays = {name: array for name, member in read.items() if (array := member()) is not None}
        words = [name for name, array in arrays.items() if array.dtype.kind in "US" and array.ndim == 1]
        vectors = [name for name, array in arrays.items() if array.dtype.kind == "f" and array.ndim == 2]
        if len(words) != 1 or len(vectors) != 1 or len(arrays[words[0]]) != len(arrays[vectors[0]]):
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            raise ValueError(f"its arrays are {shapes or 'none'}")
        return VectorBlock(list(map(str, arrays[words[0]].astype(np.str_))), arrays[vectors[0]])
