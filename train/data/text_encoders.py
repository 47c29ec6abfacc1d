"""Tokenizers and text encoders of runs that have a transformer: new ones, and those of a run's folder."""

import contextlib
import io
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from ...storage.common.errors import UserError
from ...storage.hub.files import ModelFiles, download_model
from ...storage.hub.loading import load_network, load_processor, read_config
from ...storage.hub.names import HUB_ID
from ..distributed import Workers
from .saved_encoder import plain_config, read_encoder, without_pooler
from .saved_tokenizer import SPECIAL as SPECIAL_NAMES
from .saved_tokenizer import plain_tokenizer, read_tokenizer

SMALL = "small"
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


def new_text_encoder(
    name: str, train_captions: Iterable[str], workers: Workers
) -> tuple[PreTrainedTokenizerFast, PreTrainedModel]:
    """Return the tokenizer and the text encoder of a new run. No file of them is executed.

    Args:
        name: "small" for one that is learned from the captions, or a BERT-like model by folder or hub name.
        train_captions: Texts for the tokenizer of "small". Only the first process reads them.
        workers: The processes that train together.

    Raises:
        UserError: The model cannot be loaded.
    """
    if name == SMALL:
        tokenizer = workers.from_first(lambda: small_tokenizer(train_captions))
        return tokenizer, small_bert(len(tokenizer))
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # transformers' progress bars and messages
            files = _find_files(name)
            config = plain_config(read_config(files).to_dict())
            tokenizer = _fast_tokenizer(load_processor(files, "tokenizer"))
            encoder, _ = load_network(files, config)
            return tokenizer, without_pooler(encoder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"text encoder {name!r}: not loadable ({str(error).splitlines()[0]}); expected 'small', a folder with "
            "config.json, tokenizer and safetensors, or a hub name that this machine can reach"
        ) from None


def _find_files(name: str) -> ModelFiles:
    if (folder := Path(name)).is_dir():
        return ModelFiles(folder.absolute(), folder.name, "")
    if not HUB_ID.fullmatch(name):
        raise ValueError("no such folder, and no name of the hub's")
    return download_model(name, None, f"text encoder {name!r}", "--text-encoder FOLDER")


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
