"""Vectors of a data set's words, as ``word_vectors.npz``: plain arrays and a note of where they come from."""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from .common.errors import UserError
from .exchange.npz import open_npz
from .files import check_regular, written_whole

NOT_READABLE = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    MemoryError,
    RecursionError,
    BadZipFile,
    zlib.error,
)
WORD = re.compile(r"[\w']+")


def split_words(text: str) -> list[str]:
    """As HowTo100M's code does for its word vectors: letters, digits, ``_`` and ``'``; the rest separates."""
    return WORD.findall(text)


@dataclass(frozen=True, eq=False)
class WordVectors:
    words: Sequence[str]
    vectors: np.ndarray
    """[V, D], float32; a row for each word."""
    about: dict[str, Any]
    """Where they come from, and how many of the captions' words they cover."""
    _rows: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.words) != len(self.vectors):
            raise ValueError(f"{len(self.words)} words and vectors of the shape {self.vectors.shape}; expected [V, D]")
        object.__setattr__(self, "_rows", {word: row for row, word in enumerate(self.words)})

    def find(self, word: str) -> int | None:
        """Its row; as it is written, or else in lower case."""
        return self._rows.get(word, self._rows.get(word.lower()))


def write_word_vectors(path: Path, vectors: WordVectors) -> None:
    with written_whole(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            words=np.array(vectors.words, dtype=np.str_),
            vectors=vectors.vectors,
            about=np.array(json.dumps(vectors.about)),
        )


def read_word_vectors(path: Path) -> WordVectors:
    """Raises ``UserError`` where there is no such file, or another one."""
    if not path.exists():
        raise UserError(f"{path}: not found; run vlalign-preprocess with --word-vectors FILE first")
    check_regular(path)
    try:
        with open_npz(path) as arrays:
            words, vectors, about = (arrays[name]() for name in ("words", "vectors", "about"))
            if vectors.dtype.kind != "f" or words.dtype.kind != "U":
                raise ValueError("they are no words and numbers")
            return WordVectors(words.tolist(), vectors, json.loads(about.item()))
    except NOT_READABLE as error:
        raise UserError(
            f"{path}: no word vectors ({error}); run vlalign-preprocess with --word-vectors FILE again"
        ) from None
