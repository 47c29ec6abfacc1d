"""The encoders of SSML and of HowTo100M, against plain loops."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from vlalign.storage import Caption
from vlalign.storage.captions.word_vectors import WordVectors
from vlalign.train.data.text_inputs import EachWordVectorInputs, WordVectorInputs
from vlalign.train.models.gated import GatedPair, HtmPair

VIDEO, WORD, WIDTH = 5, 3, 4


def layer(weights: dict[str, torch.Tensor], name: str) -> Callable[[np.ndarray], np.ndarray]:
    weight, bias = weights[f"{name}.weight"].numpy(), weights[f"{name}.bias"].numpy()
    return lambda x: np.array([sum(w * v for w, v in zip(row, x, strict=True)) for row in weight]) + bias


def gated(weights: dict[str, torch.Tensor], name: str, x: np.ndarray) -> np.ndarray:
    """(W1 x + b1) o sigmoid(W2 (W1 x + b1) + b2), SSML section 5.1."""
    embedded = layer(weights, f"{name}.embed")(x)
    return embedded / (1 + np.exp(-layer(weights, f"{name}.gate")(embedded)))


@pytest.fixture
def vectors() -> WordVectors:
    rows = np.random.default_rng(0).standard_normal((4, WORD)).astype(np.float32)
    return WordVectors(["a", "dog", "runs", "home"], rows, {})


TEXTS = ["a dog runs home", "dog zebra runs", "zebra"]
CAPTIONS = [Caption(video_id="v", caption=text, split="train") for text in TEXTS]


def test_htm_takes_the_maximum_over_words_and_padding(vectors):
    """HowTo100M: each word passes a linear layer and ReLU. Captions are padded with zero vectors to as many words."""
    torch.manual_seed(0)
    model = HtmPair(VIDEO, WORD, WIDTH).eval()
    inputs = EachWordVectorInputs(vectors, 3)(CAPTIONS)
    assert inputs["vectors"].shape == (3, 3, WORD)
    found = model.encode_texts(inputs).sentence_BD.detach().numpy()
    weights = model.state_dict()
    for text, of_text in zip(TEXTS, found, strict=True):
        known = [vectors.vectors[vectors.find(word)] for word in text.split() if word != "zebra"][:3]
        padded = known + [np.zeros(WORD)] * (3 - len(known))
        pooled = np.max([np.maximum(layer(weights, "text.0.embed")(x), 0) for x in padded], axis=0)
        np.testing.assert_allclose(of_text, gated(weights, "text.1", pooled), atol=1e-6)
    alone = model.encode_texts(EachWordVectorInputs(vectors, 3)(CAPTIONS[2:])).sentence_BD
    torch.testing.assert_close(alone, torch.from_numpy(found[2:]))  # others of its batch change nothing


@pytest.mark.parametrize("kind", [GatedPair, HtmPair])
def test_clips_and_averaged_captions_pass_a_gated_embedding(kind, vectors):
    torch.manual_seed(1)
    model = kind(VIDEO, WORD, WIDTH).eval()
    clips, mask = torch.randn(2, 1, VIDEO), torch.ones(2, 1, dtype=torch.bool)
    found = model.encode_videos(clips, mask).mean_BD.detach().numpy()
    for clip, of_clip in zip(clips[:, 0].numpy(), found, strict=True):
        np.testing.assert_allclose(of_clip, gated(model.state_dict(), "video", clip), atol=1e-6)
    if kind is GatedPair:
        texts = model.encode_texts(WordVectorInputs(vectors)(CAPTIONS)).sentence_BD.detach().numpy()
        mean = vectors.vectors[[vectors.find("dog"), vectors.find("runs")]].mean(axis=0)
        np.testing.assert_allclose(texts[1], gated(model.state_dict(), "text", mean), atol=1e-6)


def test_htm_has_the_sizes_of_howto100m():
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in HtmPair(4096, 300, 6144).state_dict().items()}
    assert {name: shape for name, shape in shapes.items() if name.endswith("weight")} == {
        "video.embed.weight": (6144, 4096),
        "video.gate.weight": (6144, 6144),
        "text.0.embed.weight": (6144, 300),
        "text.1.embed.weight": (6144, 6144),
        "text.1.gate.weight": (6144, 6144),
    }
