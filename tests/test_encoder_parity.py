"""Encoders by name give, on both sides, the vectors that the library's own pipeline gives, through the public calls."""

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from helpers.dual_encoders import FAMILIES, TEXTS, own_pair_vectors, save_dual_encoder
from helpers.hub_models import FRAMES, windows_of
from helpers.videos import extract_two_shapes
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.encoders.hub_text import HubTextTower
from vlalign.storage import FeatureStore
from vlalign.train import open_search
from vlalign.train.search.encoder import l2_normalize

MODELS = [name for name in FAMILIES if name != "siglip2_naflex"]
"""NaFlex cuts pictures into patches itself: its pictures are refused."""
VIDEO_MODELS = ("xclip", "videoprism")
OF_TOKENS = ("siglip2", "clip", "tipsv2", "videoprism")
"""Models that another pooling is tried with."""
WORDS = " ".join(TEXTS).split()
MOST = 1e-5
"""The largest difference between vectors of length 1."""


def made_texts(count=50):
    """Return texts of 1 to 10 words, in lower case, capitals and title case, some with a full stop."""
    rng, cases = random.Random(0), (str.lower, str.upper, str.title)
    texts = [" ".join(rng.choices(WORDS, k=1 + number % 10)) for number in range(count)]
    return [cases[number % 3](text) + "." * (number % 4 == 1) for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: save_dual_encoder(name, folder / name) for name in MODELS}


def name_of(folder) -> str:
    return f"hf:{folder}{':2fps' if folder.name in VIDEO_MODELS else ''}"


@pytest.fixture(scope="module")
def dataset(folders, tmp_path_factory):
    return extract_two_shapes(tmp_path_factory.mktemp("root"), "--features", ",".join(map(name_of, folders.values())))


@pytest.fixture(scope="module")
def video(dataset):
    return dataset.root / "videos" / "v0.mp4"


@pytest.fixture(scope="module")
def theirs(folders, video):
    """Return a function of a model: the library's own vectors of the video's frames and of the texts."""

    @cache
    def of(name):
        fps, window = (2, FRAMES) if name in VIDEO_MODELS else (1, 1)
        return own_pair_vectors(name, folders[name], windows_of(video, fps, window), made_texts())

    return of


@pytest.fixture(scope="module")
def ours(folders, video):
    """The rows of the video, by model; those of another pooling by its name with ":mean"."""
    names = {name: name_of(folder) for name, folder in folders.items()}
    names |= {f"{name}:mean": f"{name_of(folders[name])}:mean" for name in OF_TOKENS}
    extractors = {key: load_extractor(name) for key, name in names.items()}
    found = extract_video(video, list(extractors.values()))
    return {key: found[extractor.profile.name].features for key, extractor in extractors.items()}


def of_texts(encoder):
    return np.stack([encoder.encode_text(text) for text in made_texts()])


@pytest.mark.parametrize("name", MODELS)
def test_both_sides_are_the_librarys_own(folders, dataset, ours, theirs, name):
    search = open_search(dataset.path, features=name_of(folders[name]))
    stored = FeatureStore(dataset.features(search.encoder.name))
    np.testing.assert_allclose(stored.get("v0").features, ours[name], rtol=2e-3, atol=1e-3)  # float16
    pictures, texts = theirs(name)
    assert np.abs(l2_normalize(ours[name]) - pictures).max() < MOST
    assert np.abs(of_texts(search.encoder) - texts).max() < MOST
    for vectors in (pictures, texts):
        assert np.abs(vectors - vectors[0]).max() > 100 * MOST, "the same vectors for all would prove nothing"


OTHERWISE = {
    "padding": {"is_padded": False},
    "lower case": {"is_lower": False},
    "punctuation": {"has_punctuation": True},
}


@pytest.mark.parametrize("what", OTHERWISE)
@pytest.mark.parametrize("name", ["siglip", "siglip2"])
def test_texts_prepared_otherwise_are_noticed(folders, dataset, theirs, name, what):
    encoder = open_search(dataset.path, features=name_of(folders[name])).encoder
    encoder.tower = replace(encoder.tower, recipe=replace(encoder.tower.recipe, **OTHERWISE[what]))
    is_same = name == "siglip2" and what == "punctuation"  # which it keeps anyway
    assert (np.abs(of_texts(encoder) - theirs(name)[1]).max() < MOST) == is_same


@pytest.mark.parametrize("name", OF_TOKENS)
def test_other_pooling_is_noticed(folders, dataset, ours, theirs, name, monkeypatch):
    """The mean of all tokens in place of the model's own vector, where both have the same size."""
    pictures, texts = theirs(name)
    assert np.abs(l2_normalize(ours[f"{name}:mean"]) - pictures).max() > 100 * MOST
    encoder = open_search(dataset.path, features=name_of(folders[name])).encoder

    def mean_of_tokens(tower, given, **options):
        tokens = tower.processor(text=given, return_tensors="pt", truncation=True, max_length=tower.max_tokens)
        return tower.model.get_text_features(**tokens).last_hidden_state.mean(dim=1)

    monkeypatch.setattr(HubTextTower, "_vectors", torch.inference_mode()(mean_of_tokens))
    assert np.abs(of_texts(encoder) - texts).max() > 100 * MOST
