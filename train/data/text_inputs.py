"""The inputs of each kind of text encoder: subwords, averaged word vectors, word ids, or recordings.

    transformer  SubwordInputs       ids of subwords and the weight of each
    gated        WordVectorInputs    the mean of the words' vectors
    htm          EachWordVectorInputs  each word's vector
    words        WordIdInputs        ids of a caption's different words
                 WordSentenceInputs  and of its subwords, for a text encoder
    spoken       RecordingInputs     log-mel rows

A custom encoder may name a custom class with the methods of ``LearnedInputs``.
Tokenizers and encoders are in ``text_encoders``: transformers takes seconds to import, and not every run has one.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from ...storage.captions.idf import IdfEntry
from ...storage.captions.table import CaptionTable
from ...storage.captions.word_vectors import WordVectors, read_word_vectors, split_words, write_word_vectors
from ...storage.common.errors import SettingError
from ...storage.common.files import check_regular, read_object, write_json
from ...storage.common.terminal import number_of, say
from ...storage.common.validation import is_text
from ...storage.common.writing import make_folder, move, remove_file, remove_tree
from ...storage.records import Caption
from ...storage.stores.store import Store
from ..distributed import Workers
from ..settings import SMALL_TEXT_ENCODER, EncoderTraits
from ..untrusted_files import refuse_damaged
from .clip_features import pad_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from typing_extensions import Self

    from .text_towers import TextPooling, TextTower

T = TypeVar("T")
WORD_VECTORS_FILE = "word_vectors.npz"


def average_word_vectors(vectors: WordVectors, texts: Iterable[str]) -> np.ndarray:
    """Return the mean of the vectors of each text's words [N, D] (SSML section 5.1).

    Words without a vector are skipped. A text that has only such words gets zeros.
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
    """Weights of a caption's words of some parts of speech: their normalised idf (TACo, Appendix A) or TF-IDF (ToCo,
    section 3.3)."""

    def __init__(self, entries: Iterable[IdfEntry], pos_tags: Sequence[str], counted: str = "tag") -> None:
        """Take idfs from a table.

        Args:
            entries: The table.
            pos_tags: Parts of speech whose words have a weight.
            counted: Which captions a word's idf counts, one of ``objectives.fusion.IDF_COUNTS``. A table of an
                earlier version has "tag" only, which is then used.
        """
        entries = sorted(entries, key=lambda entry: entry.document_count)
        self.pos_tags = frozenset(pos_tags)
        self._usual_tag = {e.word: e.part_of_speech for e in entries}
        self._idf = {(e.word, e.part_of_speech): e.idf for e in entries}
        # A word that no training caption has is as rare as the rarest one.
        self._unseen = max(self._idf.values(), default=1.0)
        self._has_term_frequency = counted == "tf-idf"
        self._token_idf: dict[str, float] = {}
        if counted != "tag" and entries:
            self._token_idf = {e.word: e.token_idf for e in entries if e.token_idf is not None}
            if entries[0].token_idf is not None and entries[0].token_count is not None:
                self._unseen = entries[0].token_idf + math.log1p(
                    entries[0].token_count
                )  # Eq. 7 for no caption: log |D|

    def tag_query(self, text: str) -> Caption:
        """Return free text as a caption.

        A word has its most frequent tag in the training captions, "X" if it has none.
        """
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

        Words of other parts of speech have 0, the others their idf (0 if it is negative) divided by the sum of all. If
        all are 0, because every caption has them, they weigh the same. With TF-IDF, the idf is first multiplied by the
        number of times that the caption has the word.
        """
        times = Counter(word.lower() for word in caption.words) if self._has_term_frequency else {}
        of_interest = [tag in self.pos_tags for tag in caption.pos_tags]
        idfs = [
            times.get(word.lower(), 1) * max(self._idf_of(word.lower(), tag), 0.0) if wanted else 0.0
            for word, tag, wanted in zip(caption.words, caption.pos_tags, of_interest, strict=True)
        ]
        total = sum(idfs)
        if total == 0:
            idfs, total = [float(wanted) for wanted in of_interest], float(sum(of_interest))
        return [idf / total if total else 0.0 for idf in idfs]

    def _idf_of(self, word: str, tag: str) -> float:
        if self._token_idf:
            return self._token_idf.get(word, self._unseen)
        return self._idf.get((word, tag), self._unseen)

    def subword_weights(self, caption: Caption, offsets: Sequence[tuple[int, int]]) -> list[float]:
        """Return the weight of each of the tokenizer's subwords: its word's weight.

        Args:
            caption: The caption.
            offsets: First character of each subword, and the one after its last.
        """
        weight_at = at_characters(caption, self.word_weights(caption), 0.0)
        return [weight_at[start] if end > start else 0.0 for start, end in offsets]


def tokenize(
    tokenizer: PreTrainedTokenizerFast,
    captions: Sequence[Caption],
    weights: TokenWeights,
    max_tokens: int,
    padded_to: int = 0,
) -> dict[str, Tensor]:
    """Return ``input_ids``, ``attention_mask`` and ``token_weights``, each [B, N], padded to the longest.

    Args:
        tokenizer: Splits captions into subwords.
        captions: The captions.
        weights: Gives each subword its weight.
        max_tokens: Longer captions are cut to this many subwords.
        padded_to: Pad or cut all captions to this many subwords instead, and count padding as subwords; 0: do not.
    """
    encoded = tokenizer(
        [c.caption for c in captions],
        truncation=True,
        max_length=padded_to or max_tokens,
        padding="max_length" if padded_to else True,
        return_offsets_mapping=True,
    )
    if padded_to:
        encoded["attention_mask"] = [[1] * padded_to] * len(captions)
    subword_weights = [
        weights.subword_weights(c, offsets) for c, offsets in zip(captions, encoded["offset_mapping"], strict=True)
    ]
    return {
        "input_ids": torch.tensor(encoded["input_ids"]),
        "attention_mask": torch.tensor(encoded["attention_mask"]),
        "token_weights": torch.tensor(subword_weights, dtype=torch.float32),
    }


class SubwordInputs:
    """Turns captions into a transformer's inputs: subwords and their weights."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        encoder: PreTrainedModel | TextTower,
        pooling: TextPooling,
        weights: TokenWeights,
        max_tokens: int,
    ) -> None:
        if pooling.padded_to > max_tokens:
            raise SettingError(
                "max_text_tokens",
                max_tokens,
                f"the text encoder reads texts padded to {pooling.padded_to} tokens; expected {pooling.padded_to}",
            )
        self.tokenizer, self.encoder, self.pooling = tokenizer, encoder, pooling
        self.weights, self.max_tokens = weights, pooling.padded_to or max_tokens

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return the result of ``tokenize``."""
        return tokenize(self.tokenizer, captions, self.weights, self.max_tokens, self.pooling.padded_to)

    def words_of_tokens(self, caption: Caption) -> list[tuple[int, str]]:
        """Return the index of each subword of a caption, and the word that it is a part of, in lower case.

        Special tokens are skipped. A subword between words, such as a comma, has the word "".
        """
        encoded = self.tokenizer(
            caption.caption, truncation=True, max_length=self.max_tokens, return_offsets_mapping=True
        )
        word_at = at_characters(caption, (word.lower() for word in caption.words), "")
        return [(index, word_at[start]) for index, (start, end) in enumerate(encoded["offset_mapping"]) if end > start]

    def save(self, folder: Path) -> None:
        """Write the tokenizer and the encoder's settings."""
        make_folder(folder)
        # transformers writes through links with the names of its files; a rename replaces such links.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".", suffix=".partial") as partial:
            self.tokenizer.save_pretrained(partial)
            self.encoder.config.save_pretrained(partial)
            for path in Path(partial).iterdir():
                move(path, folder / path.name)
        self.pooling.save(folder)


class WordVectorInputs:
    """Turns captions into the input of gated embeddings: the average of their words' vectors."""

    def __init__(self, vectors: WordVectors) -> None:
        self.vectors = vectors

    @property
    def width(self) -> int:
        """Width of the word vectors."""
        return self.vectors.vectors.shape[1]

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``vectors`` [B, W]."""
        return {"vectors": torch.from_numpy(average_word_vectors(self.vectors, (c.caption for c in captions)))}

    def save(self, folder: Path) -> None:
        """Write the word vectors."""
        write_word_vectors(folder / WORD_VECTORS_FILE, self.vectors)


class EachWordVectorInputs(WordVectorInputs):
    """Turns captions into the input of HowTo100M's model: the vectors of their words, padded with zeros.

    As in its published code, each caption has the same number of vectors, and the padding is treated as words.
    """

    def __init__(self, vectors: WordVectors, max_words: int) -> None:
        """Use ``vectors``; a caption has the vectors of its first ``max_words`` known words."""
        super().__init__(vectors)
        self.max_words = max_words

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``vectors`` [B, max_words, W]."""
        rows = np.zeros((len(captions), self.max_words, self.width), dtype=np.float32)
        for index, caption in enumerate(captions):
            known = (self.vectors.find(word) for word in split_words(caption.caption))
            found = [number for number in known if number is not None][: self.max_words]
            rows[index, : len(found)] = self.vectors.vectors[found]
        return {"vectors": torch.from_numpy(rows)}


WORD_LIST_FILE = "words.json"
MAX_WORDS = 50_000
"""Upper limit of the vocabulary: the most frequent words."""
MAX_BYTES = 16 << 20


class WordIdInputs:
    """Turns captions into the numbers of their different words. Words that no training caption has are skipped."""

    def __init__(self, words: Sequence[str], max_words: int, idf: np.ndarray | None = None) -> None:
        """Take a vocabulary.

        Args:
            words: The known words, all different, in lower case.
            max_words: Upper limit of a caption's words; further ones are skipped.
            idf: Inverse document frequency of each word; None for a saved run, which does not store it.
        """
        self.words, self.max_words, self.idf = list(words), max_words, idf
        self._number = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def learn(cls, texts: Iterable[str], max_words: int) -> WordIdInputs:
        """Return the vocabulary of training texts, with log(number of texts / number that have the word)."""
        counts: Counter[str] = Counter()
        num_texts = 0
        for text in texts:
            counts.update({word.lower() for word in split_words(text)})
            num_texts += 1
        words = sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS] or [""]
        idf = np.log(max(num_texts, 1) / np.array([counts[word] or 1 for word in words]))
        return cls(words, max_words, idf)

    @classmethod
    def read(cls, folder: Path, max_words: int) -> WordIdInputs:
        """Read the vocabulary of a run.

        Raises:
            UserError: The file is not as a training writes it.
        """
        path = folder / WORD_LIST_FILE
        with refuse_damaged(path):
            words = read_object(path, MAX_BYTES)["words"]
            if (
                not isinstance(words, list)
                or not words
                or not all(map(is_text, words))
                or len(set(words)) != len(words)
            ):
                raise ValueError("not a list of distinct words")
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
        """Return the index of each token of a caption, and its word in lower case."""
        return [(index, self.words[number]) for index, number in enumerate(self._numbers(caption.caption))]

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of a text that are not in the vocabulary, in order, each once, in lower case."""
        words = dict.fromkeys(word.lower() for word in split_words(text))
        return [word for word in words if word not in self._number]

    def knows(self, text: str) -> bool:
        """Return whether a word of a text is in the vocabulary."""
        return bool(self._numbers(text))

    def _numbers(self, text: str) -> list[int]:
        known = (self._number.get(word.lower()) for word in split_words(text))
        return list(dict.fromkeys(number for number in known if number is not None))[: self.max_words]

    def save(self, folder: Path) -> None:
        """Write the vocabulary."""
        write_json(folder / WORD_LIST_FILE, {"words": self.words})


class WordSentenceInputs(WordIdInputs):
    """Turns captions into the numbers of their different words, and into subwords for a text encoder."""

    def __init__(self, words: WordIdInputs, sentences: SubwordInputs) -> None:
        super().__init__(words.words, words.max_words, words.idf)
        self.sentences = sentences

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return also ``sentence_ids`` and ``sentence_mask``, each [B, L], padded to the longest."""
        subwords = self.sentences(captions)
        of_sentences = {"sentence_ids": subwords["input_ids"], "sentence_mask": subwords["attention_mask"]}
        return super().__call__(captions) | of_sentences

    def save(self, folder: Path) -> None:
        """Write the vocabulary, the tokenizer and the encoder's settings."""
        self.sentences.save(folder)
        super().save(folder)


ROWS_OF_TOKEN = 16
"""Log-mel rows of 10 ms that become one token."""
DYNAMIC_RANGE = 80.0
"""In dB: values below a recording's loudest value by more than this are raised to it, as in AVLnet, DAVEnet and
others."""


class RecordingInputs:
    """Reads the log-mel rows of spoken captions, each recording's loudest value at 0 dB."""

    def __init__(self, store: Store, max_tokens: int) -> None:
        """Read recordings from ``store``, each cut to the rows of ``max_tokens`` tokens."""
        self.store, self.max_rows = store, ROWS_OF_TOKEN * max_tokens

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``rows_BTD`` [B, T, D], padded to the longest, and ``mask_BT``, True for a row."""
        clips = [(caption.recording or "", None, None) for caption in captions]
        rows = [_levelled(recording.features)[: self.max_rows] for recording in self.store.get_clips(clips)]
        rows_BTD, mask_BT = pad_rows(rows, self.store.profile.dimension)
        return {"rows_BTD": rows_BTD, "mask_BT": mask_BT}

    def save(self, folder: Path) -> None:
        """Do nothing: the recordings stay in their store."""


def seconds_of_token(store: Store) -> float:
    """Return the seconds of sound in a token."""
    assert store.profile.fps is not None, "sound has a rate"
    return ROWS_OF_TOKEN * store.profile.stride / store.profile.fps


def report_cut_recordings(captions: CaptionTable, store: Store, max_tokens: int) -> None:
    """Print the number of recordings that are cut, if there are any.

    Args:
        captions: Captions that have recordings.
        store: Log-mel rows of the recordings.
        max_tokens: Upper limit of the tokens of a recording.
    """
    ids, recording = captions.codes("recording")
    max_rows = ROWS_OF_TOKEN * max_tokens
    is_longer = np.array([name in store and store.about(name).num_rows > max_rows for name in ids] + [False])
    if num_longer := np.count_nonzero(is_longer[recording]):
        seconds = max_tokens * seconds_of_token(store)
        which = f"{num_longer:,} of {number_of(len(captions), 'recordings')}"
        say(f"note: {which} are cut to their first {seconds:.2f} s (max_text_tokens {max_tokens})")


def _levelled(rows_TD: np.ndarray) -> np.ndarray:
    return np.maximum(rows_TD - rows_TD.max(initial=-np.inf), -DYNAMIC_RANGE) if len(rows_TD) else rows_TD


class LearnedInputs(Protocol):
    """Text inputs that are learned from the training captions, and saved with the run in its folder ``text_encoder``.

    A custom encoder names such a class as ``EncoderTraits.caption_input``. Its objects are sent between processes that
    train together, so they must be picklable.
    """

    @classmethod
    def learn(cls, texts: Iterable[str], max_tokens: int, /) -> Self:
        """Return the inputs for training captions; longer texts are cut to ``max_tokens`` tokens."""
        ...

    @classmethod
    def read(cls, folder: Path, max_tokens: int, /) -> Self:
        """Read the inputs of a run, written by ``save``."""
        ...

    def save(self, folder: Path) -> None:
        """Write the files that ``read`` reads, into a folder that may not exist yet."""
        ...

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return the arguments of the model's ``encode_texts``: tensors whose first dimension is the caption."""
        ...


TextInputs = SubwordInputs | WordVectorInputs | WordIdInputs | RecordingInputs | LearnedInputs


@dataclass(frozen=True)
class TextSource:
    """The parts that a run's text inputs are made from."""

    encoder: EncoderTraits
    max_text_tokens: int
    weights: TokenWeights
    recordings: Store | None = None
    """Log-mel rows of the captions, if they are recordings."""
    reads_sentences: bool = False
    """Whether a text encoder, if one is named, reads captions in addition to a vocabulary."""

    def make_recordings(self) -> RecordingInputs:
        """Return the inputs of an encoder that takes recordings."""
        assert self.recordings is not None, "the stores were opened without recordings"
        return RecordingInputs(self.recordings, self.max_text_tokens)


def _learned(caption_input: str | type) -> type[LearnedInputs] | None:
    """Return the class of inputs that are learned from captions, or None for others."""
    if caption_input == "word_ids":
        return WordIdInputs
    return None if isinstance(caption_input, str) else cast("type[LearnedInputs]", caption_input)


def new_text_inputs(
    source: TextSource, text_encoder: str, texts: Iterable[str], word_vectors: Path, workers: Workers
) -> TextInputs:
    """Return the text inputs of a new run.

    Args:
        source: The run's encoder and token weights.
        text_encoder: "small", or a folder or hub name.
        texts: All texts that are trained on. Only the first process reads them, and only if a vocabulary is learned.
        word_vectors: The data set's word vectors.
        workers: The processes that train together.

    Raises:
        UserError: The encoder or the word vectors cannot be read.
    """
    caption_input = source.encoder.caption_input
    if caption_input == "recordings":
        return source.make_recordings()
    if caption_input == "word_vectors":
        return WordVectorInputs(read_word_vectors(word_vectors))
    if caption_input == "each_word_vector":
        return EachWordVectorInputs(read_word_vectors(word_vectors), source.max_text_tokens)
    learned = None
    if (kind := _learned(caption_input)) is not None:
        learned = workers.from_first(lambda: kind.learn(texts, source.max_text_tokens))
        if not source.reads_sentences or text_encoder == SMALL_TEXT_ENCODER:
            return learned
    from .text_encoders import new_text_encoder  # transformers takes seconds to import

    encoder = new_text_encoder(text_encoder, texts, workers)
    return _with_encoder(source, encoder, learned)


def saved_text_inputs(
    source: TextSource, folder: Path, read_shapes: Callable[[], dict[str, tuple[int, ...]]]
) -> TextInputs:
    """Return the text inputs of an existing run, from its folder ``text_encoder``; the encoder has no weights yet.

    Args:
        source: The run's encoder and token weights.
        folder: The folder.
        read_shapes: Reads the shapes of the encoder's tensors in the run's weights, by name.

    Raises:
        UserError: The folder or the weights are not as a training writes them.
    """
    caption_input = source.encoder.caption_input
    if caption_input == "recordings":
        return source.make_recordings()
    if caption_input == "word_vectors":
        return WordVectorInputs(read_word_vectors(folder / WORD_VECTORS_FILE))
    if caption_input == "each_word_vector":
        return EachWordVectorInputs(read_word_vectors(folder / WORD_VECTORS_FILE), source.max_text_tokens)
    learned = None
    if (kind := _learned(caption_input)) is not None:
        for path in folder.rglob("*"):
            check_regular(path)
        with refuse_damaged(folder):
            learned = kind.read(folder, source.max_text_tokens)
        if not source.reads_sentences or not read_shapes():
            return learned
    from .text_encoders import saved_text_encoder  # transformers takes seconds to import

    encoder = saved_text_encoder(folder, read_shapes())
    return _with_encoder(source, encoder, learned)


def _with_encoder(
    source: TextSource, encoder: tuple[PreTrainedTokenizerFast, PreTrainedModel | TextTower, TextPooling], learned: Any
) -> TextInputs:
    """Return the inputs of a text encoder, beside a vocabulary if one was learned."""
    if learned is None:
        return SubwordInputs(*encoder, source.weights, source.max_text_tokens)
    # A text encoder has a fixed number of positions, and may reserve two of them.
    positions = getattr(encoder[1].config, "max_position_embeddings", source.max_text_tokens + 2)
    return WordSentenceInputs(
        learned, SubwordInputs(*encoder, source.weights, min(source.max_text_tokens, positions - 2))
    )


def save_text_inputs(inputs: TextInputs, folder: Path) -> None:
    """Write the files that ``saved_text_inputs`` reads.

    A custom class would write through links in the folder with the names of its files. So it writes into a new folder,
    which replaces the old one.
    """
    own = SubwordInputs, WordVectorInputs, EachWordVectorInputs, WordIdInputs, WordSentenceInputs, RecordingInputs
    if type(inputs) in own:
        inputs.save(folder)
        return
    make_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".", suffix=".partial") as partial:
        new = Path(partial, folder.name)
        inputs.save(new)
        if folder.is_symlink() or not folder.is_dir():
            remove_file(folder, missing_ok=True)
        else:
            remove_tree(folder)
        if new.is_dir():
            move(new, folder)
