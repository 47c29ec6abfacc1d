"""Texts as sets of words with numbers, for encoders that have a vector for each word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.word_vectors import split_words
from ...storage.common.files import read_object, write_json
from ...storage.common.validation import is_text
from ...storage.records import Caption
from ..untrusted_files import refusing

WORD_LIST_FILE = "words.json"
MOST_WORDS = 50_000
"""The most frequent ones are kept."""
MOST_BYTES = 16 << 20


class WordIds:
    """Makes captions into the numbers of their different words. Words that no training caption has are left out."""

    def __init__(self, words: Sequence[str], max_words: int, idf: np.ndarray | None = None) -> None:
        """Take a vocabulary.

        Args:
            words: The known words, all different, in lower case.
            max_words: Upper limit of a caption's words; further ones are left out.
            idf: Inverse document frequency of each word; None if it is not known any more.
        """
        self.words, self.max_words, self.idf = list(words), max_words, idf
        self._number = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of_texts(cls, texts: Iterable[str], max_words: int) -> WordIds:
        """Return the vocabulary of training texts, with log(number of texts / number that have the word)."""
        counts: Counter[str] = Counter()
        num_texts = 0
        for text in texts:
            counts.update({word.lower() for word in split_words(text)})
            num_texts += 1
        words = sorted(counts, key=lambda word: (-counts[word], word))[:MOST_WORDS] or [""]
        idf = np.log(max(num_texts, 1) / np.array([counts[word] or 1 for word in words]))
        return cls(words, max_words, idf)

    @classmethod
    def read(cls, folder: Path, max_words: int) -> WordIds:
        """Read the vocabulary of a run.

        Raises:
            UserError: The file is not as a training writes it.
        """
        path = folder / WORD_LIST_FILE
        with refusing(path):
            words = read_object(path, MOST_BYTES)["words"]
            if not isinstance(words, list) or not all(map(is_text, words)) or len(set(words)) != len(words):
                raise ValueError("not a list of different words")
        return cls(words, max_words)

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask``, each [B, N], padded to the longest."""
        numbers = [self._numbers(caption.caption) for caption in captions]
        longest = max(map(len, numbers), default=0) or 1
        ids, mask = torch.zeros(len(numbers), longest, dtype=torch.int64), torch.zeros(len(numbers), longest)
        for row, of_caption in enumerate(numbers):
            ids[row, : len(of_caption)] = torch.tensor(of_caption, dtype=torch.int64)
            mask[row, : len(of_caption)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def words_of_tokens(self, caption: Caption) -> list[tuple[int, str]]:
        """Return the index of each token of a caption, and the word that it is, in lower case."""
        return [(index, self.words[number]) for index, number in enumerate(self._numbers(caption.caption))]

    def _numbers(self, text: str) -> list[int]:
        known = (self._number.get(word.lower()) for word in split_words(text))
        return list(dict.fromkeys(number for number in known if number is not None))[: self.max_words]

    def save(self, folder: Path) -> None:
        """Write the vocabulary."""
        write_json(folder / WORD_LIST_FILE, {"words": self.words})
