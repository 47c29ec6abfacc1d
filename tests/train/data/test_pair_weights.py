"""Weights of training pairs by SSML's density: equal to the definition, and stored for the next run."""

import mmap
import re

import numpy as np
import pytest
from helpers.training import PAIR_CASES, trainer
from vlalign.storage.captions.word_vectors import read_word_vectors
from vlalign.storage.common.errors import SettingError
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.pair_weights import PARTS_SEED, Density, density_weights
from vlalign.train.data.pairs import make_pairs
from vlalign.train.data.text_inputs import average_word_vectors
from vlalign.train.density import nearest_pairs, pair_association_probability
from vlalign.train.distributed import Workers


def test_pair_weights_equal_the_density_and_are_cached(toy, tmp_path, capsys):
    made = trainer(toy, tmp_path / "one", **PAIR_CASES["ssml"])
    pairs = made.examples.pairs["train"]
    features: ClipFeatures = made.scorer.features
    clips = np.stack([features.rows([clip], 1000)[0].max(axis=0).astype(np.float32) for clip in pairs.clips])
    clips /= np.linalg.norm(clips, axis=1, keepdims=True)
    texts = average_word_vectors(read_word_vectors(toy.word_vectors), [c.caption for c in pairs.captions])
    assert clips.any(axis=1).all() and texts.any(axis=1).all()
    expected = pair_association_probability(clips[pairs.clip_of_caption], texts, 2)
    np.testing.assert_allclose(made.examples.pair_weights, expected, atol=1e-5)
    centered = pair_association_probability(
        (clips - clips.mean(axis=0))[pairs.clip_of_caption], texts - texts.mean(axis=0), 3
    )
    settings = {**PAIR_CASES["ssml"], "density_vectors": "centered", "density_neighbors": 3}
    of_centered = trainer(toy, tmp_path / "centered", **settings).examples
    np.testing.assert_allclose(of_centered.pair_weights, centered, atol=1e-5)
    raw = pair_association_probability(clips[pairs.clip_of_caption], texts, 3)
    assert not np.allclose(centered, raw, atol=0.01)
    capsys.readouterr()
    again = trainer(toy, tmp_path / "two", **PAIR_CASES["ssml"]).examples.pair_weights
    assert "pair_weights" not in capsys.readouterr().err, "once is enough"
    assert isinstance(again.base, np.memmap | mmap.mmap) and again.tobytes() == made.examples.pair_weights.tobytes()


def test_weights_that_an_earlier_version_kept_are_not_computed_again(toy, tmp_path, capsys):
    made = trainer(toy, tmp_path / "one", **PAIR_CASES["ssml"]).examples.pair_weights
    (kept,) = (toy.path / "pair_weights").glob("*-k2-*.safetensors")
    np.savez(kept.with_suffix(".npz"), probability=made[::-1], about=np.array("{}"))
    kept.unlink()
    capsys.readouterr()
    found = trainer(toy, tmp_path / "two", **PAIR_CASES["ssml"]).examples.pair_weights
    assert found.tolist() == made[::-1].tolist() and "pair_weights" not in capsys.readouterr().err


def test_neighbours_of_too_many_pairs_are_searched_in_random_parts(toy, tmp_path, capsys, monkeypatch):
    whole = trainer(toy, tmp_path / "whole", **PAIR_CASES["ssml"]).examples
    pairs = whole.pairs["train"]
    clips = whole.source.features.pooled(pairs.clips)
    texts = average_word_vectors(read_word_vectors(toy.word_vectors), [c.caption for c in pairs.captions])
    monkeypatch.setattr("vlalign.train.data.pair_weights.PART_NUMBERS", 6 * (clips.shape[1] + texts.shape[1]))
    monkeypatch.setattr("vlalign.train.data.pair_weights.CLIPS", 5)
    capsys.readouterr()
    found = trainer(toy, tmp_path / "parts", **PAIR_CASES["ssml"]).examples.pair_weights
    assert re.search(r"\bpair_weights/.*: .*\b12\b.*\b6\b", capsys.readouterr().err)
    density = np.full(12, np.nan)
    for part in np.random.default_rng(PARTS_SEED).permutation(12).reshape(2, 6):
        video, text = clips[pairs.clip_of_caption[part]], texts[part]
        density[part] = nearest_pairs(video, text, 2).similarity_NK.mean(axis=1)
    np.testing.assert_allclose(found, (density - density.min()) / (density.max() - density.min()), atol=1e-5)
    assert not np.allclose(found, whole.pair_weights, atol=0.01)


def test_pairs_below_the_threshold_are_discarded(toy, tmp_path, capsys):
    """SSML section 3.4: they are no pair and no negative any more, and the others weigh the same."""
    weighted = trainer(toy, tmp_path / "weighted", **PAIR_CASES["ssml"]).examples
    train, probability = weighted.pairs["train"], np.asarray(weighted.pair_weights)
    threshold = float(np.sort(probability)[5])
    kept = {caption.caption for caption, p in zip(train.captions, probability, strict=True) if p >= threshold}
    settings = {**PAIR_CASES["ssml"], "pair_weights": "discard", "density_threshold": threshold}
    capsys.readouterr()
    made = trainer(toy, tmp_path / "discarded", **settings)
    assert re.search(r"\b5 of 12 training pairs\b", capsys.readouterr().err)
    left = made.examples.pairs["train"]
    assert {caption.caption for caption in left.captions} == kept and len(left.captions) == 7 == len(left.clips)
    assert made.examples.pairs["test"].clips[:] == weighted.pairs["test"].clips[:]
    assert made.examples.pair_weights is None and made.make_inputs(0).weights is None
    clips = {clip for step in range(20) for clip in made.examples.batches.at(step)[0]}
    assert len(made.examples.clips) == 7 and clips == set(range(7))
    with pytest.raises(SettingError, match=r"^density_threshold 1\.0: leaves 1 of 12 training pairs\b"):
        trainer(toy, tmp_path / "none", **{**settings, "density_threshold": 1.0})


def test_weights_of_a_part_of_the_pairs_are_not_those_of_another_part(toy, tmp_path):
    """Two seeds can split off as many pairs for validation, but others."""
    made = trainer(toy, tmp_path / "all", **PAIR_CASES["ssml"])
    train, features = made.examples.pairs["train"], made.scorer.features
    for rows in (np.arange(6), np.arange(6, 12)):
        part = make_pairs(train.captions.take(rows))
        found = density_weights(toy, features, part, Density(2), Workers(), are_some=True)
        clips = features.pooled(part.clips)[part.clip_of_caption]
        texts = average_word_vectors(read_word_vectors(toy.word_vectors), [c.caption for c in part.captions])
        np.testing.assert_allclose(found, pair_association_probability(clips, texts, 2), atol=1e-5)
