"""Texts: tokenizers, text encoders, and the weights of a caption's tokens."""

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...storage.captions import IdfEntry
from ...storage.common.errors import UserError
from ...storage.records import Caption
from ...storage.word_vectors import WordVectors, split_words, write_word_vectors
from ..models.saved_encoder import plain_config, read_encoder, without_pooler
from .saved_tokenizer import SPECIAL as SPECIAL_NAMES
from .saved_tokenizer import plain_tokenizer, read_tokenizer

T = TypeVar("T")
SMALL = "small"
WORDS_FILE = "word_vectors.npz"
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def small_tokenizer(captions: Iterable[str], max_words: int = 20_000) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer with BERT's rules, whose pieces are frequent words and letters.

    The same captions give the same pieces; the trainers of the tokenizers library break ties at random.

    Args:
        captions: Texts to take words from.
        max_words: Number of words that are pieces; other words are split into letters.
    """
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts = Counter(word for text in captions for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    words = sorted(counts, key=lambda word: (-counts[word], word))[:max_words]
    letters = sorted({letter for word in counts for letter in word})
    pieces = dict.fromkeys([*SPECIAL.values(), *words, *letters, *(f"##{letter}" for letter in letters)])
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    ids = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)


def small_bert(vocabulary_size: int) -> PreTrainedModel:
    """Return a BERT of two layers, 256 wide, with random weights."""
    config = BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=1024,
        pad_token_id=0,
    )
    return without_pooler(BertModel(config))


def new_text_encoder(name: str, train_captions: Iterable[str]) -> tuple[PreTrainedTokenizerFast, PreTrainedModel]:
    """Return the tokenizer and the text encoder of a new run. No file of them is executed.

    Args:
        name: "small" for one that is learned from the captions, or a BERT-like model by folder or hub name.
        train_captions: Texts for the tokenizer of "small".

    Raises:
        UserError: The model cannot be loaded.
    """
    if name == SMALL:
        tokenizer = small_tokenizer(train_captions)
        return tokenizer, small_bert(len(tokenizer))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # transformers' progress bars and messages
            config = plain_config(AutoConfig.from_pretrained(name, trust_remote_code=False).to_dict())
            tokenizer = _fast_tokenizer(AutoTokenizer.from_pretrained(name, trust_remote_code=False))
            encoder = AutoModel.from_pretrained(name, config=config, use_safetensors=True, trust_remote_code=False)
            return tokenizer, without_pooler(encoder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"text encoder {name!r}: not loadable ({str(error).splitlines()[0]}); expected 'small', a folder with "
            "config.json, tokenizer and safetensors, or a hub name that this machine can reach"
        ) from None


def _fast_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerFast:
    """Return a tokenizer as it will be when it is read back."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError("its tokenizer does not say which characters a token covers")
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items() if name in SPECIAL_NAMES}
    return plain_tokenizer(json.loads(tokenizer.backend_tokenizer.to_str()), special)


def saved_text_encoder(
    folder: Path, shapes: dict[str, tuple[int, ...]]
) -> tuple[PreTrainedTokenizerFast, PreTrainedModel]:
    """Return the tokenizer of a run, and its encoder with random weights.

    Args:
        folder: The run's folder ``text_encoder``.
        shapes: Shapes of the encoder's tensors in the run's weights, by name.

    Raises:
        UserError: The files are not as a training writes them, or do not match each other.
    """
    tokenizer, encoder = read_tokenizer(folder), read_encoder(folder, shapes)
    embeddings = encoder.get_input_embeddings()
    assert isinstance(embeddings, nn.Embedding), "encoders of the allowed kinds have a table of pieces"
    if max(tokenizer.get_vocab().values()) >= embeddings.num_embeddings:
        raise UserError(f"{folder / 'tokenizer.json'}: has more tokens than the encoder; train the run again")
    return tokenizer, encoder


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
        self.tokenizer.save_pretrained(folder)
        self.encoder.config.save_pretrained(folder)


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
        folder.mkdir(parents=True, exist_ok=True)
        write_word_vectors(folder / WORDS_FILE, self.vectors)
