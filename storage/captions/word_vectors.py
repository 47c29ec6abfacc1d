"""Vectors of the words of a data set, in ``word_vectors.npz``: plain arrays, and a description of their origin."""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from ..common.errors import READ_ERRORS, UserError, refuse_unreadable
from ..common.files import check_regular
from ..common.writing import atomic_write
from ..untrusted.npz import open_npz

WORD = re.compile(r"[\w']+")


def split_words(text: str) -> list[str]:
    """Split a text into words of letters, digits, ``_`` and ``'``, as HowTo100M's code does for its word vectors."""
    return WORD.findall(text)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors."""

    words: Sequence[str]
    vectors: np.ndarray
    """[V, D], float32: a row for each word."""
    about: dict[str, Any]
    """Source of the vectors, and how many of the captions' words they cover."""
    _rows: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.words) != len(self.vectors):
            raise ValueError(f"{len(self.words)} words and vectors of the shape {self.vectors.shape}; expected [V, D]")
        object.__setattr__(self, "_rows", {word: row for row, word in enumerate(self.words)})

    def find(self, word: str) -> int | None:
        """Return the row of a word in its own spelling, or else in lower case; None if there is none."""
        return self._rows.get(word, self._rows.get(word.lower()))


def write_word_vectors(path: Path, vectors: WordVectors) -> None:
    """Write word vectors."""
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez(
            file,
            words=np.array(vectors.words, dtype=np.str_),
            vectors=vectors.vectors,
            about=np.array(json.dumps(vectors.about)),
        )


def read_word_vectors(path: Path) -> WordVectors:
    """Read word vectors.

    Raises ``UserError`` if the file is missing or was not written by ``write_word_vectors``.
    """
    todo = "run vlalign-preprocess with --word-vectors FILE"
    if not path.exists():
        raise UserError(f"{path}: not found; {todo} first")
    check_regular(path)
    errors = (*READ_ERRORS, BadZipFile, zlib.error)
    with refuse_unreadable(path, "not readable word vectors", f"{todo} again", errors), open_npz(path) as arrays:
        words, vectors, about = (arrays[name]() for name in ("words", "vectors", "about"))
        if words is None or vectors is None or about is None or vectors.dtype.kind != "f" or words.dtype.kind != "U":
            raise ValueError("expected words and their vectors")
        return WordVectors(words.tolist(), vectors, json.loads(about.item()))
