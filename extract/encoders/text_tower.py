"""Text towers: they encode texts as vectors that can be compared with a store's features.

A tower is one half of a published model whose other half made the features. Its weights and its tokenizer are files on
this machine; nothing is downloaded, and no file is executed.
"""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...storage.common.device import on_meta_device
from ...storage.common.errors import UserError, refuse_unreadable, unreadable
from ...storage.common.files import check_regular, read_object, sha256_of
from ...storage.records import Profile, Weights
from ..models.clip_text import ClipText, ClipTextSizes
from ..models.weights import TENSORS_FILE, read_state
from . import is_shared_with_texts
from .saved_tower import run_of
from .text_preparation import AS_THE_FILES_SAY, NoTextRule
from .weights_paths import find_weights

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .hub_text import HubTextTower

WITH_TEXT_TOWER = ("clip_vit_b32",)
"""Names of features whose published model also reads texts."""
HUB_NAME = "openai/clip-vit-base-patch32"
START, END = "<|startoftext|>", "<|endoftext|>"
PREFIXES = ("text_model.", "text_projection.")
POSITIONS = "text_model.embeddings.position_ids"
CONFIG_FILE = "config.json"
MAX_TOKENIZER_BYTES, MAX_CONFIG_BYTES = 32 << 20, 1 << 20


@dataclass(frozen=True)
class ClipTextTower:
    """A text tower with its tokenizer."""

    network: ClipText
    tokenizer: "Tokenizer"
    weights_path: Path
    """File or folder of the weights."""
    preparation = AS_THE_FILES_SAY.describe(0)
    """Description of the preparation of texts."""
    uses_default_preparation = True

    @torch.inference_mode()
    def encode(self, texts: list[str]) -> np.ndarray:
        """Return a vector of length 1 for each text, float32 [N, D].

        Longer texts are cut (at 77 tokens for CLIP).
        """
        rows = [self.network(torch.tensor([self.token_ids(text)]))[0] for text in texts]
        vectors = torch.stack(rows).float().cpu().numpy()
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of the start token, at most ``max_tokens`` tokens of a text, and the end token."""
        start, end = self.tokenizer.token_to_id(START), self.tokenizer.token_to_id(END)
        assert start is not None and end is not None, "checked when the tokenizer was read"
        return [start, *self.tokenizer.encode(text, add_special_tokens=False).ids[: self.max_tokens], end]

    @property
    def max_tokens(self) -> int:
        """Maximum number of tokens of a text, without the start and end tokens."""
        return self.network.sizes.max_position_embeddings - 2

    def is_cut(self, text: str) -> bool:
        """Return whether the tower reads only the beginning of a text."""
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids) > self.max_tokens


def has_text_tower(profile: Profile) -> bool:
    """Return whether the model that made features also reads texts, according to the profile."""
    return profile.name in WITH_TEXT_TOWER or is_shared_with_texts(profile)


def load_text_tower(profile: Profile, used: Weights, weights: Path | None = None) -> "ClipTextTower | HubTextTower":
    """Load the text tower of a store's model.

    Args:
        profile: The store's profile.
        used: The weights that made the store.
        weights: The file of these weights, or the folder of a model as ``save_pretrained`` writes it. None to
            find them (``find_weights``).

    Raises:
        UserError: The profile's model reads no texts, or the weights or the tokenizer are missing, damaged, or of
            another model.
    """
    if not has_text_tower(profile):
        raise UserError(
            f"features {profile.name}: {profile.model} has no text tower; search with a run that was trained on them, "
            f"or extract {' or '.join((*WITH_TEXT_TOWER, 'siglip2'))}"
        )
    if used.is_random:
        raise UserError(
            f"features {profile.name}: made with weights {used.name}, which have no text tower; extract them "
            "with trained weights, or search with a run"
        )
    if not used.sha256:
        raise UserError(
            f"features {profile.name}: imported without the SHA-256 of their weights, so their text tower is not "
            "known; extract them, import them with that SHA-256 (import_features, weights), or search "
            "with a run that was trained on them"
        )
    place = weights or find_weights(profile, used)
    if (run := run_of(place) or run_of(place.parent)) is not None:
        raise NoTextRule(
            f"weights {place}: tuned by a run, which has its own text encoder; search with that run: "
            f"vlalign-search {run.name} TEXT"
        )
    if is_shared_with_texts(profile):
        from .hub_text import load_hub_text_tower  # transformers takes seconds to import

        return load_hub_text_tower(profile, used, place)
    tensors = place / TENSORS_FILE if place.is_dir() else place
    if not tensors.is_file():
        raise UserError(f"weights {tensors}: no such file; pass --weights with the file or folder of {used.name}")
    check_regular(tensors)
    if (sha256 := sha256_of(tensors)) != used.sha256:
        raise UserError(
            f"weights {tensors}: SHA-256 {sha256[:16]}..., but the store was made with {used.name}, "
            f"{used.sha256[:16] or 'of unknown SHA-256'}...; pass --weights with the file or folder of that model"
        )
    sizes = _read_sizes(place / CONFIG_FILE) if place.is_dir() else ClipTextSizes()
    return ClipTextTower(_read_network(tensors, sizes), _read_tokenizer(place, sizes.vocab_size), place)


def _read_sizes(path: Path) -> ClipTextSizes:
    with refuse_unreadable(path, "not the configuration of a CLIP", "expected what save_pretrained writes"):
        about = read_object(path, MAX_CONFIG_BYTES)
        if about.get("model_type") != "clip":
            raise ValueError(f"model_type {str(about.get('model_type'))[:80]!r}")
        given = {"projection_dim": about.get("projection_dim", 512), **(about.get("text_config") or {})}
        if "projection_dim" in about:
            given["projection_dim"] = about["projection_dim"]
        names = {field.name for field in fields(ClipTextSizes)}
        return ClipTextSizes(**{name: value for name, value in given.items() if name in names and value is not None})


def _read_network(path: Path, sizes: ClipTextSizes) -> ClipText:
    state = {n: v for n, v in read_state(path).items() if n.startswith(PREFIXES) and n != POSITIONS}
    with refuse_unreadable(path, "not the weights of this text tower", "pass --weights with a whole CLIP"):
        if sizes.num_hidden_layers > len(state):
            raise ValueError(f"{len(state)} entries of a text tower, {sizes.num_hidden_layers} layers stated")
        with on_meta_device():
            network = ClipText(sizes)
        for name, expected in network.state_dict().items():
            there = tuple(state[name].shape) if name in state else "nothing"
            if there != tuple(expected.shape):
                raise ValueError(f"{name}: expected {tuple(expected.shape)}, found {there}")
        network.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    return network.eval().requires_grad_(False)


def _read_tokenizer(place: Path, vocab_size: int) -> "Tokenizer":
    """Read CLIP's vocabulary and merges from the weights' folder, or from the hub's cache on this machine."""
    from tokenizers import Tokenizer, models

    path = _tokenizer_file(place if place.is_dir() else place.parent)
    try:
        vocabulary, merges = _read_merges(path)
        model = models.BPE(vocabulary, merges, unk_token=END, continuing_subword_prefix="", end_of_word_suffix="</w>")
        tokenizer = Tokenizer(model)
    except UserError:
        raise
    except Exception as error:  # tokenizers raises Exception itself
        raise unreadable(path, "not the tokenizer of a CLIP", error, "put the model's own there") from None
    _prepare(tokenizer)
    ids = [tokenizer.token_to_id(token) for token in (START, END)]
    if None in ids or max(vocabulary.values()) >= vocab_size:
        raise UserError(f"{path}: not the tokenizer of a CLIP with {vocab_size:,} tokens; put the model's own there")
    return tokenizer


def _tokenizer_file(folder: Path) -> Path:
    snapshots = _hub_cache() / f"models--{HUB_NAME.replace('/', '--')}" / "snapshots"
    for place in (folder, *sorted(snapshots.glob("*"))):
        if (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
        if (place / "vocab.json").is_file() and (place / "merges.txt").is_file():
            return place / "vocab.json"
    raise UserError(
        f"{folder / 'tokenizer.json'}: not found; put the model's tokenizer.json there, or its vocab.json and "
        f"merges.txt (from https://huggingface.co/{HUB_NAME})"
    )


def _hub_cache() -> Path:
    home = Path(os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"))
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def _read_merges(path: Path) -> tuple[dict[str, int], list[tuple[str, str]]]:
    about = read_object(path, MAX_TOKENIZER_BYTES)
    if path.name == "tokenizer.json":
        vocabulary, lines = about["model"]["vocab"], about["model"]["merges"]
    else:
        vocabulary, merges_file = about, path.with_name("merges.txt")
        check_regular(merges_file)
        with merges_file.open("rb") as file:
            lines = file.read(MAX_TOKENIZER_BYTES).decode().splitlines()
        lines = [line for line in lines if line and not line.startswith("#version")]
    pairs = [line.split(" ") if isinstance(line, str) else list(line) for line in lines]
    if any(len(pair) != 2 for pair in pairs) or not all(type(v) is int and v >= 0 for v in vocabulary.values()):
        raise ValueError("its merges are not pairs, or its ids are not numbers")
    return vocabulary, [(first, second) for first, second in pairs]


def _prepare(tokenizer: "Tokenizer") -> None:
    """Make a tokenizer split texts as CLIP does (transformers' ``CLIPTokenizer``)."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    words = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
