"""Conversion of a run's captions to its encoder's input: word pieces, averaged word vectors, or recordings."""

from dataclasses import dataclass
from pathlib import Path

from ...storage.captions.word_vectors import read_word_vectors
from ...storage.stores.store import Store
from ..run_file_names import STATE_FILE, TEXT_FOLDER
from ..settings import EncoderTraits
from ..untrusted_files import BEGIN_ANEW, read_shapes
from .examples import Examples
from .recordings import Recordings
from .text import WORDS_FILE, Pieces, TokenWeights, Words
from .word_ids import WordIds

TextInputs = Pieces | Words | WordIds | Recordings


@dataclass(frozen=True)
class TextSource:
    """The parts that a run's text inputs are made from."""

    encoder: EncoderTraits
    max_text_tokens: int
    weights: TokenWeights
    recordings: Store | None = None
    """Log-mel rows of the captions, if they are recordings."""

    def make_recordings(self) -> Recordings:
        """Return the inputs of an encoder that takes recordings."""
        assert self.recordings is not None, "the stores were opened without recordings"
        return Recordings(self.recordings, self.max_text_tokens)


def new_text_inputs(source: TextSource, text_encoder: str, examples: Examples) -> TextInputs:
    """Return the text inputs of a new run.

    Args:
        source: The run's encoder and token weights.
        text_encoder: "small", or a folder or hub name.
        examples: What is trained on. A vocabulary that is learned from its texts is counted in the first process only.

    Raises:
        UserError: The encoder or the word vectors cannot be read.
    """
    if not source.encoder.reads_words:
        return source.make_recordings()
    if not source.encoder.gives_tokens:
        return Words(read_word_vectors(examples.source.dataset.word_vectors))
    texts, workers = examples.train_texts(), examples.source.workers
    if source.encoder.gives_word_vectors:
        return workers.from_first(lambda: WordIds.of_texts(texts, source.max_text_tokens))
    from .text_encoders import new_text_encoder  # transformers takes seconds to import

    return Pieces(*new_text_encoder(text_encoder, texts, workers), source.weights, source.max_text_tokens)


def saved_text_inputs(source: TextSource, tensors: Path) -> TextInputs:
    """Return the text inputs of an existing run, from its folder ``text_encoder``; the encoder has no weights yet.

    Args:
        source: The run's encoder and token weights.
        tensors: The run's file that has the weights.

    Raises:
        UserError: The folder or the weights are not as a training writes them.
    """
    if not source.encoder.reads_words:
        return source.make_recordings()
    folder = tensors.parent / TEXT_FOLDER
    if not source.encoder.gives_tokens:
        return Words(read_word_vectors(folder / WORDS_FILE))
    if source.encoder.gives_word_vectors:
        return WordIds.read(folder, source.max_text_tokens)
    from .text_encoders import saved_text_encoder  # transformers takes seconds to import

    if tensors.name == STATE_FILE:
        shapes = read_shapes(tensors, "model.text_encoder.", BEGIN_ANEW)
    else:
        shapes = read_shapes(tensors, "text_encoder.")
    return Pieces(*saved_text_encoder(folder, shapes), source.weights, source.max_text_tokens)
