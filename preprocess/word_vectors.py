"""The word vectors of a data set: vectors of its captions' words, and the share of words that have one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ..storage.captions.files import read_captions_about, read_table
from ..storage.captions.word_vectors import WordVectors, read_word_vectors, split_words, write_word_vectors
from ..storage.common.errors import SettingError, refuse_unreadable
from ..storage.common.files import file_identity, sha256_of
from ..storage.common.progress import progress
from ..storage.common.terminal import say
from ..storage.dataset.folder import DatasetFolder
from ..storage.records import SPLITS
from .word_vector_formats import EXPECTED, select_vectors

NUM_SHOWN_WORDS = 10
"""Maximum number of listed words without a vector."""


@dataclass(frozen=True, kw_only=True)
class WordCoverage:
    """Counts of the words of a split that have a vector."""

    words: int
    found: int
    distinct: int
    distinct_found: int
    missing: list[str]
    """The most frequent words without a vector."""


@dataclass(frozen=True, kw_only=True)
class WordVectorSummary:
    """The source of the vectors in ``word_vectors.npz``, and their coverage of the captions' words."""

    file: str
    """Name of the file that the vectors were read from."""
    identity: str
    captions: Mapping[str, Any] | None
    """Contents of ``about.json`` of the captions for which the vectors were chosen."""
    sha256: str
    words_in_file: int
    words: int
    dimension: int
    coverage: dict[str, WordCoverage]
    """By split."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "WordVectorSummary":
        """Return the summary from values of ``to_json``."""
        coverage = {split: WordCoverage(**row) for split, row in values["coverage"].items()}
        others: dict[str, Any] = {f.name: values[f.name] for f in fields(cls) if f.name != "coverage"}
        return cls(**others, coverage=coverage)


def prepare_word_vectors(dataset: DatasetFolder, source: Path) -> WordVectorSummary:
    """Write ``word_vectors.npz`` for the prepared captions of a data set.

    Keep an existing file that was made from the same source and captions.

    Args:
        dataset: Has prepared captions.
        source: word2vec (binary or text), GloVe or npz file.

    Raises:
        UserError: The file does not exist or cannot be read.
    """
    if not source.is_file():
        raise SettingError("word_vectors", source, f"no such file; {EXPECTED}")
    made_from = {
        "file": source.name,
        "identity": file_identity(source),
        "captions": read_captions_about(dataset.captions),
    }
    if dataset.word_vectors.exists():
        about = read_word_vectors(dataset.word_vectors).about
        if {name: about.get(name) for name in made_from} == made_from:
            say(f"{dataset.word_vectors}: already made from the same file and captions; nothing to do")
            with refuse_unreadable(
                dataset.word_vectors, "not readable word vectors", "remove it and run the same command again"
            ):
                return WordVectorSummary.from_json(about)
    counts = count_caption_words(dataset.captions)
    needed = {form for of_split in counts.values() for word in of_split for form in (word, word.lower())}
    words, vectors, num_in_file = select_vectors(source, needed)
    selected = WordVectors(words, vectors, {})
    summary = WordVectorSummary(
        **made_from,
        sha256=sha256_of(source),
        words_in_file=num_in_file,
        words=len(words),
        dimension=vectors.shape[1],
        coverage={split: measure_coverage(of_split, selected) for split, of_split in counts.items()},
    )
    write_word_vectors(dataset.word_vectors, WordVectors(words, vectors, summary.to_json()))
    return summary


def count_caption_words(captions: Path) -> dict[str, Counter[str]]:
    """Return how often each word occurs in the captions, and in the answers of questions, of each split.

    Reads one part of the tables in the folder ``captions`` at a time.
    """
    counts: dict[str, Counter[str]] = {split: Counter() for split in SPLITS}
    parts = sorted(captions.glob("part-*.parquet"))
    for part in progress(parts, total=len(parts), what="counting words", unit="parts"):
        rows = read_table(part, ["caption", "split", "answer"]).to_pydict()
        for caption, split, answer in zip(*rows.values(), strict=True):
            counts[split].update(split_words(caption))
            counts[split].update(split_words(answer or ""))
    return {split: of_split for split, of_split in counts.items() if of_split}


def measure_coverage(counts: Counter[str], vectors: WordVectors) -> WordCoverage:
    """Return how many of the counted words have a vector."""
    missing = Counter({word: count for word, count in counts.items() if vectors.find(word) is None})
    return WordCoverage(
        words=counts.total(),
        found=counts.total() - missing.total(),
        distinct=len(counts),
        distinct_found=len(counts) - len(missing),
        missing=sorted(missing, key=lambda word: (-missing[word], word))[:NUM_SHOWN_WORDS],
    )


def format_coverage(summary: WordVectorSummary) -> str:
    """Return the coverage as a table for people."""
    lines = [
        f"word vectors: {summary.words:,} of the {summary.words_in_file:,} in {summary.file}, "
        f"{summary.dimension} numbers each",
        f"{'split':<12}{'words':>14}{'found':>10}{'distinct':>14}{'found':>10}",
    ]
    for split, row in summary.coverage.items():
        shares = row.found / row.words, row.distinct_found / row.distinct
        lines.append(f"{split:<12}{row.words:>14,}{shares[0]:>10.1%}{row.distinct:>14,}{shares[1]:>10.1%}")
    lines += [
        f"most frequent words without a vector, {split}: {', '.join(row.missing)}"
        for split, row in summary.coverage.items()
        if row.missing
    ]
    return "\n".join(lines)
