"""Texts: what encoders take of a caption, and the weights of its tokens.

Tokenizers and encoders are in ``text_encoders``: transformers takes seconds to import, and not every run has one.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.idf import IdfEntry
from ...storage.captions.word_vectors import WordVectors, split_words, write_word_vectors
from ...storage.common.writing import make_folder, move
from ...storage.records import Caption

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

T = TypeVar("T")
WORDS_FILE = "word_vectors.npz"


def average_words(vectors: WordVectors, texts: Iterable[str]) -> np.ndarray:
    """Return the mean of the vectors of each text's words [N, D] (SSML section 5.1).

    Words without a vector are skipped. A text without any other word has zeros.
    """
    rows = [[row for word in split_words(text) if (row := vectors.find(word)) is not None] for text in texts]
    means = np.zeros((len(rows), vectors.vectors.shape[1]), dtype=np.float32)
    for index, of_text in enumerate(rows):
        if of_text:
            means[index] = vectors.vectors[of_text].mean(axis=0)
    return means


def at_characters(caption: Caption, of_words: Iterable[T], elsewhere: T) -> list[T]:
    """Return a value for each character of a caption, and for one past its end.

    Args:
        caption: The caption.
        of_words: The value of each of its words.
        elsewhere: The value between words.
    """
    values = [elsewhere] * (len(caption.caption) + 1)
    for word, start, value in zip(caption.words, caption.word_starts, of_words, strict=True):
        values[start : start + len(word)] = [value] * len(word)
    return values


class TokenWeights:
    """Weights of a caption's words of interest: their normalised idf (TACo, Appendix A)."""

    def __init__(self, entries: Iterable[IdfEntry], pos_tags: Sequence[str]) -> None:
        """Take idfs from a table.

        Args:
            entries: The table.
            pos_tags: Parts of speech that are of interest.
        """
        entries = sorted(entries, key=lambda entry: entry.document_count)
        self.pos_tags = frozenset(pos_tags)
        self._usual_tag = {e.word: e.part_of_speech for e in entries}
        self._idf = {(e.word, e.part_of_speech): e.idf for e in entries}
        # A word that no training caption has is as rare as the rarest one.
        self._unseen = max(self._idf.values(), default=1.0)

    def tag_query(self, text: str) -> Caption:
        """Return free text as a caption. A word has its most frequent tag in the training captions, "X" if it has
        none."""
        words = list(re.finditer(r"\w+", text))
        return Caption(
            video_id="query",
            caption=text,
            split="",
            words=[word.group() for word in words],
            word_starts=[word.start() for word in words],
            pos_tags=[self._usual_tag.get(word.group().lower(), "X") for word in words],
        )

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that no training caption has, in order, each once."""
        words = dict.fromkeys(word.group() for word in re.finditer(r"\w+", text))
        return [word for word in words if word.lower() not in self._usual_tag]

    def word_weights(self, caption: Caption) -> list[float]:
        """Return the weight of each word.

        Words of no interest have 0, the others their idf (0 if it is negative) divided by the sum of all. If all are 0,
        because every caption has them, they weigh the same.
        """
        of_interest = [tag in self.pos_tags for tag in caption.pos_tags]
        idfs = [
            max(self._idf.get((word.lower(), tag), self._unseen), 0.0) if wanted else 0.0
            for word, tag, wanted in zip(caption.words, caption.pos_tags, of_interest, strict=True)
        ]
        total = sum(idfs)
        if total == 0:
            idfs, total = [float(wanted) for wanted in of_interest], float(sum(of_interest))
        return [idf / total if total else 0.0 for idf in idfs]

    def piece_weights(self, caption: Caption, offsets: Sequence[tuple[int, int]]) -> list[float]:
        """Return the weight of each of the tokenizer's pieces: that of its word.

        Args:
            caption: The caption.
            offsets: First character of each piece, and the one after its last.
        """
        weight_at = at_characters(caption, self.word_weights(caption), 0.0)
        return [weight_at[start] if end > start else 0.0 for start, end in offsets]


def tokenize(
    tokenizer: PreTrainedTokenizerFast, captions: Sequence[Caption], weights: TokenWeights, max_tokens: int
) -> dict[str, Tensor]:
    """Return ``input_ids``, ``attention_mask`` and ``token_weights``, each [B, N], padded to the longest.

    Args:
        tokenizer: Splits captions into pieces.
        captions: The captions.
        weights: Gives each piece its weight.
        max_tokens: Longer captions are cut to this many pieces.
    """
    encoded = tokenizer(
        [c.caption for c in captions], truncation=True, max_length=max_tokens, padding=True, return_offsets_mapping=True
    )
    piece_weights = [
        weights.piece_weights(c, offsets) for c, offsets in zip(captions, encoded["offset_mapping"], strict=True)
    ]
    return {
        "input_ids": torch.tensor(encoded["input_ids"]),
        "attention_mask": torch.tensor(encoded["attention_mask"]),
        "token_weights": torch.tensor(piece_weights, dtype=torch.float32),
    }


class Pieces:
    """Makes captions into what a transformer takes: word pieces and their weights."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, encoder: PreTrainedModel, weights: TokenWeights, max_tokens: int
    ) -> None:
        self.tokenizer, self.encoder, self.weights, self.max_tokens = tokenizer, encoder, weights, max_tokens

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return what ``tokenize`` does."""
        return tokenize(self.tokenizer, captions, self.weights, self.max_tokens)

    def words_of_tokens(self, caption: Caption) -> list[tuple[int, str]]:
        """Return the index of each word piece of a caption, and the word that it is a part of, in lower case.

        Special pieces are left out. A piece between words, such as a comma, has the word "".
        """
        encoded = self.tokenizer(
            caption.caption, truncation=True, max_length=self.max_tokens, return_offsets_mapping=True
        )
        word_at = at_characters(caption, (word.lower() for word in caption.words), "")
        return [(index, word_at[start]) for index, (start, end) in enumerate(encoded["offset_mapping"]) if end > start]

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the encoder's settings."""
        make_folder(folder)
        # transformers follows links that have the names of its files, a rename replaces them.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".partial") as partial:
            self.tokenizer.save_pretrained(partial)
            self.encoder.config.save_pretrained(partial)
            for path in Path(partial).iterdir():
                move(path, folder / path.name)


class Words:
    """Makes captions into what gated embeddings take: the average of their words' vectors."""

    def __init__(self, vectors: WordVectors) -> None:
        self.vectors = vectors

    @property
    def width(self) -> int:
        """Width of the word vectors."""
        return self.vectors.vectors.shape[1]

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``vectors`` [B, W]."""
        return {"vectors": torch.from_numpy(average_words(self.vectors, (c.caption for c in captions)))}

    def save(self, folder: Path) -> None:
        """Write the word vectors."""
        write_word_vectors(folder / WORDS_FILE, self.vectors)
