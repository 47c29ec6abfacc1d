"""A text encoder of one's own with its own tokenizer: words as bags of three letters, so that misspelt words are known.

The tokenizer learns its table from the training captions, and is saved with the run. Beside this file:

    vlalign-train --dataset demo --features s3d --objective mil-nce --encoder own_text_encoder:TrigramPair
    vlalign-evaluate --dataset demo --trust own_text_encoder
    vlalign-search --dataset demo --trust own_text_encoder "a rde bal"
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from vlalign.storage.records import Caption
from vlalign.train import EncoderTraits, ModelPlan, ModelSettings, PairModel, TextTokens, VideoTokens
from vlalign.train.models.base import MakeModules

WIDTH = 128


def trigrams(text: str) -> list[str]:
    """Return all sequences of three letters of a text: "a dog" -> " a ", "a d", " do", "dog", "og "."""
    padded = f" {' '.join(text.lower().split())} "
    return [padded[start : start + 3] for start in range(len(padded) - 2)]


class TrigramInputs:
    """The tokenizer: numbers of a caption's trigrams; 0 is padding, and a trigram that no training caption has."""

    def __init__(self, known: list[str], max_tokens: int) -> None:
        self.known, self.max_tokens = known, max_tokens
        self.numbers = {trigram: number for number, trigram in enumerate(known, start=1)}

    @classmethod
    def learn(cls, texts: Iterable[str], max_tokens: int) -> "TrigramInputs":
        """Return the tokenizer for training captions."""
        counts = Counter(trigram for text in texts for trigram in trigrams(text))
        return cls(sorted(counts, key=lambda trigram: (-counts[trigram], trigram))[:20_000], max_tokens)

    @classmethod
    def read(cls, folder: Path, max_tokens: int) -> "TrigramInputs":
        """Return the tokenizer of a run."""
        return cls(json.loads((folder / "trigrams.json").read_text(encoding="utf-8")), max_tokens)

    def save(self, folder: Path) -> None:
        """Write the table into the run's folder."""
        folder.mkdir(exist_ok=True)
        (folder / "trigrams.json").write_text(json.dumps(self.known), encoding="utf-8")

    def __call__(self, captions: Sequence[Caption]) -> dict[str, Tensor]:
        """Return ``ids`` [B, N] of captions."""
        ids = [[self.numbers.get(each, 0) for each in trigrams(c.caption)[: self.max_tokens]] for c in captions]
        return {"ids": nn.utils.rnn.pad_sequence([torch.tensor(row or [0]) for row in ids], batch_first=True)}


class TrigramPair(PairModel):
    """A caption is the mean of its trigrams' vectors, a clip that of its rows, both through a small network."""

    traits: ClassVar[EncoderTraits] = EncoderTraits(
        description="bags of three letters, and means of feature vectors",
        caption_input=TrigramInputs,
        ignored_settings=("text_encoder", "embedding_size", "num_video_layers", "num_fusion_layers", "dropout"),
    )

    def __init__(self, feature_dim: int, num_trigrams: int, make_modules: MakeModules) -> None:
        super().__init__(WIDTH, standardised_dim=feature_dim)
        self.trigrams = nn.Embedding(num_trigrams + 1, WIDTH, padding_idx=0)
        self.text = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.video = nn.Sequential(nn.Linear(feature_dim, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.add(make_modules)

    @classmethod
    def from_settings(cls, settings: ModelSettings, plan: ModelPlan) -> "TrigramPair":
        """Return a new model."""
        assert isinstance(plan.text_inputs, TrigramInputs)
        return cls(plan.feature_dim, len(plan.text_inputs.known), plan.make_modules)

    def compile_layers(self) -> None:
        """Compile nothing: the layers are small."""

    def encode_texts(self, inputs: dict[str, Tensor]) -> TextTokens:
        """Return one token for each caption."""
        ids_BN = inputs["ids"]
        num_known_B1 = (ids_BN > 0).sum(dim=1, keepdim=True)
        text_B1D = self.text(self.trigrams(ids_BN).sum(dim=1) / num_known_B1.clamp(min=1))[:, None]
        return TextTokens(text_B1D, torch.ones_like(num_known_B1).bool(), torch.zeros_like(text_B1D[:, :, 0]))

    def encode_videos(self, features_BMF: Tensor, mask_BM: Tensor, lengths_B: Tensor | None = None) -> VideoTokens:
        """Return a token for each row of a clip; the clip's vector is their mean."""
        return VideoTokens(self.video(self.standardised(features_BMF)), mask_BM, lengths_B=lengths_B)
