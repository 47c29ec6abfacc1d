"""What turns a run's captions into what its encoder takes: word pieces, averaged word vectors, or recordings."""

from collections.abc import Iterable
from pathlib import Path

from ...storage.layout import DatasetFolder
from ...storage.word_vectors import read_word_vectors
from ..config import TrainConfig
from ..models.spoken import Recordings
from ..outside import BEGIN_ANEW, read_shapes
from ..runs import STATE_FILE, TEXT_FOLDER, open_recordings
from .text import WORDS_FILE, Pieces, TokenWeights, Words, new_text_encoder, saved_text_encoder

TextInputs = Pieces | Words | Recordings


def new_text_inputs(
    config: TrainConfig, dataset: DatasetFolder, weights: TokenWeights, captions: Iterable[str]
) -> TextInputs:
    """Of a run that begins. Raises ``UserError`` where the encoder, the word vectors or the recordings cannot be read."""
    if config.encoder == "gated":
        return Words(read_word_vectors(dataset.word_vectors))
    if config.encoder == "spoken":
        return Recordings(open_recordings(dataset, config), config.max_text_tokens)
    return Pieces(*new_text_encoder(config.text_encoder, captions), weights, config.max_text_tokens)


def saved_text_inputs(config: TrainConfig, tensors: Path, dataset: DatasetFolder, weights: TokenWeights) -> TextInputs:
    """Of a run that is there, from its folder ``text_encoder``; the encoder without weights. ``tensors``: the run's file that has them;
    ``dataset``: whose captions are asked."""
    folder = tensors.parent / TEXT_FOLDER
    if config.encoder == "gated":
        return Words(read_word_vectors(folder / WORDS_FILE))
    if config.encoder == "spoken":
        return Recordings(open_recordings(dataset, config), config.max_text_tokens)
    if tensors.name == STATE_FILE:
        shapes = read_shapes(tensors, "model.text_encoder.", BEGIN_ANEW)
    else:
        shapes = read_shapes(tensors, "text_encoder.")
    return Pieces(*saved_text_encoder(folder, shapes), weights, config.max_text_tokens)
