"""Word vectors from where they are published: the rows that a data set's captions need, and how many of its words they cover."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from ..storage.captions import read_captions_about
from ..storage.common.errors import UserError
from ..storage.common.progress import progress
from ..storage.common.terminal import say
from ..storage.files import file_identity, sha256_of
from ..storage.layout import DatasetFolder
from ..storage.word_vectors import WordVectors, read_word_vectors, split_words, write_word_vectors
from .census import SPLITS

MOST_FREQUENT = 50_000
"""First words of a file, which lists frequent ones first: kept for what people search for, whether the captions have them or not."""
SHOWN = 10
"""Words without a vector that are named."""
HEADER = re.compile(rb"(\d+) (\d+)\s*\n")
BLOCK = 1 << 22
EXPECTED = "expected word2vec's binary or text form, GloVe's text, or an npz with an array of words and one of vectors"

Chunk = tuple[list[str], np.ndarray]
"""Words of a file in its order, and their vectors [n, D]."""


def prepare_word_vectors(dataset: DatasetFolder, source: Path) -> dict[str, Any]:
    """Writes ``word_vectors.npz`` for the captions that are there; returns its note. One from the same file and captions is kept."""
    if not source.is_file():
        raise UserError(f"--word-vectors {source}: no such file; {EXPECTED}")
    made_from = {
        "file": source.name,
        "identity": file_identity(source),
        "captions": read_captions_about(dataset.captions),
    }
    if dataset.word_vectors.exists():
        about = read_word_vectors(dataset.word_vectors).about
        if {name: about.get(name) for name in made_from} == made_from:
            say(f"{dataset.word_vectors}: made from the same file and captions before; nothing to do")
            return about
    counts = count_caption_words(dataset.captions)
    needed = {form for of_split in counts.values() for word in of_split for form in (word, word.lower())}
    words, vectors, num_in_file = select(source, needed)
    found = WordVectors(words, vectors, {})
    about = {
        **made_from,
        "sha256": sha256_of(source),
        "words_in_file": num_in_file,
        "words": len(words),
        "dimension": vectors.shape[1],
        "coverage": {split: coverage(of_split, found) for split, of_split in counts.items()},
    }
    write_word_vectors(dataset.word_vectors, WordVectors(words, vectors, about))
    return about


def count_caption_words(captions: Path) -> dict[str, Counter[str]]:
    """{split: how often its captions, and the answers of those that are questions, have each word}, a part of the tables in memory at a
    time."""
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    parts = sorted(captions.glob("part-*.parquet"))
    for part in progress(parts, total=len(parts), what="counting words", unit="parts"):
        rows = pq.read_table(part, columns=["caption", "split", "answer"]).to_pydict()
        for caption, split, answer in zip(*rows.values(), strict=True):
            counts[split].update(split_words(caption))
            counts[split].update(split_words(answer or ""))
    return {split: of_split for split, of_split in counts.items() if of_split}


def coverage(counts: Counter[str], vectors: WordVectors) -> dict[str, Any]:
    missing = Counter({word: count for word, count in counts.items() if vectors.find(word) is None})
    return {
        "words": counts.total(),
        "found": counts.total() - missing.total(),
        "distinct": len(counts),
        "distinct_found": len(counts) - len(missing),
        "missing": sorted(missing, key=lambda word: (-missing[word], word))[:SHOWN],
    }


def format_coverage(about: dict[str, Any]) -> str:
    """The table that people see."""
    lines = [
        f"word vectors: {about['words']:,} of the {about['words_in_file']:,} in {about['file']}, {about['dimension']} numbers each",
        f"{'split':<12}{'words':>14}{'found':>10}{'distinct':>14}{'found':>10}",
    ]
    for split, row in about["coverage"].items():
        shares = row["found"] / row["words"], row["distinct_found"] / row["distinct"]
        lines.append(f"{split:<12}{row['words']:>14,}{shares[0]:>10.1%}{row['distinct']:>14,}{shares[1]:>10.1%}")
    lines += [
        f"most frequent without, {split}: {', '.join(row['missing'])}"
        for split, row in about["coverage"].items()
        if row["missing"]
    ]
    return "\n".join(lines)


def select(path: Path, needed: set[str]) -> tuple[list[str], np.ndarray, int]:
    """(words, [V, D] vectors, words in the file): the needed ones and the most frequent, in the file's order.

    A word that comes again keeps its first vector. Raises ``UserError`` for a file of another kind, and for one that is cut short.
    """
    words: dict[str, None] = {}
    rows, num_in_file = [], 0
    for some, vectors in _chunks(path):
        for number, word in enumerate(some):
            if (word in needed or num_in_file + number < MOST_FREQUENT) and word not in words:
                words[word] = None
                rows.append(vectors[number].astype(np.float32))
        num_in_file += len(some)
    if not rows:
        raise UserError(f"{path}: no vector of a word; {EXPECTED}")
    kept = np.stack(rows)
    if len(bad := np.flatnonzero(~np.isfinite(kept).all(axis=1))):
        raise UserError(
            f"{path}: the vector of {list(words)[bad[0]]!r} has numbers that are not finite; get the file again"
        )
    return list(words), kept, num_in_file


def _chunks(path: Path) -> Iterator[Chunk]:
    try:
        if path.suffix == ".npz":
            yield _from_npz(path)
            return
        with pa.input_stream(str(path)) as file:  # unpacks .gz and .bz2
            head = file.read(BLOCK)
        if head.startswith(b"PK"):
            raise UserError(f"{path}: a zip archive; unpack it, and pass the file of vectors in it")
        header = HEADER.match(head)
        first = head[header.end() if header else 0 :].split(b"\n")[0]
        fields = first.rstrip().split(b" ")
        dimension = int(header[2]) if header else len(fields) - 1
        if dimension >= 1 and len(fields) == dimension + 1 and all(map(_is_number, fields[1:])):
            yield from _from_text(path, dimension, has_header=header is not None, ends_in_blank=first.endswith(b" "))
        elif header:
            yield _from_binary(path)
        else:
            raise ValueError("its first line has no word with numbers after it")
    except (OSError, EOFError, ValueError, KeyError, AssertionError, MemoryError) as error:  # pyarrow's are among them
        raise UserError(
            f"{path}: not readable as word vectors ({str(error)[:200] or type(error).__name__}); {EXPECTED}"
        ) from None


def _is_number(field: bytes) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _from_binary(path: Path) -> Chunk:
    from gensim.models import KeyedVectors  # seconds to import

    say(f"reading {path}: all of it is held in memory")
    vectors = KeyedVectors.load_word2vec_format(str(path), binary=True, unicode_errors="replace")
    return vectors.index_to_key, vectors.vectors


def _from_text(path: Path, dimension: int, *, has_header: bool, ends_in_blank: bool) -> Iterator[Chunk]:
    """Words with a blank in them, which glove.840B has, are passed over: no word of a caption has one. gensim stops at them."""
    names = [str(number) for number in range(dimension + 1 + ends_in_blank)]
    kept = names[: dimension + 1]

    def has_blank(row: pa_csv.InvalidRow) -> str:
        return "skip" if row.actual_columns > row.expected_columns else "error"

    with path.open("rb") as raw:
        stream = pa.input_stream(raw, compression={".gz": "gzip", ".bz2": "bz2"}.get(path.suffix))
        reader = pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(column_names=names, skip_rows=int(has_header), block_size=BLOCK),
            pa_csv.ParseOptions(delimiter=" ", quote_char=False, double_quote=False, invalid_row_handler=has_blank),
            pa_csv.ConvertOptions(
                column_types={kept[0]: pa.binary()} | dict.fromkeys(kept[1:], pa.float32()),
                include_columns=kept,
                null_values=[],
            ),
        )
        for batch in progress(
            reader, total=path.stat().st_size, what="reading vectors", unit="bytes", size=_bytes_since(raw.tell)
        ):
            words = [word.decode(errors="replace") for word in batch.column(0).to_pylist()]
            yield words, np.column_stack([column.to_numpy() for column in batch.columns[1:]])


def _bytes_since(tell: Callable[[], int]) -> Callable[[Any], int]:
    last = 0

    def since(_: Any) -> int:
        nonlocal last
        before, last = last, tell()
        return last - before

    return since


def _from_npz(path: Path) -> Chunk:
    with np.load(path) as arrays:
        words = [name for name in arrays.files if arrays[name].dtype.kind in "US" and arrays[name].ndim == 1]
        vectors = [name for name in arrays.files if arrays[name].dtype.kind == "f" and arrays[name].ndim == 2]
        if len(words) != 1 or len(vectors) != 1 or len(arrays[words[0]]) != len(arrays[vectors[0]]):
            raise ValueError(
                f"its arrays are {', '.join(f'{name} {list(arrays[name].shape)}' for name in arrays.files) or 'none'}"
            )
        return arrays[words[0]].astype(np.str_).tolist(), arrays[vectors[0]]
