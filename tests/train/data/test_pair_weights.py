"""Weights of training pairs by SSML's density: equal to the definition, and stored for the next run."""

import mmap
import re

import numpy as np
from helpers.training import PAIR_CASES, trainer
from vlalign.storage.captions.word_vectors import read_word_vectors
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.pair_weights import PARTS_SEED
from vlalign.train.data.text_inputs import average_word_vectors
from vlalign.train.density import nearest_pairs, pair_association_probability


def test_pair_weights_equal_the_density_and_are_cached(toy, tmp_path, capsys):
    made = trainer(toy, tmp_path / "one", **PAIR_CASES["ssml"])
    pairs = made.examples.pairs["train"]
    features: ClipFeatures = made.scorer.features
    clips = np.stack([features.rows([clip], 1000)[0].max(axis=0).astype(np.float32) for clip in pairs.clips])
    clips /= np.linalg.norm(clips, axis=1, keepdims=True)
    texts = average_word_vectors(read_word_vectors(toy.word_vectors), [c.caption for c in pairs.captions])
    assert clips.any(axis=1).all() and texts.any(axis=1).all()
    expected = pair_association_probability(
        (clips - clips.mean(axis=0))[pairs.clip_of_caption], texts - texts.mean(axis=0), 2
    )
    np.testing.assert_allclose(made.examples.pair_weights, expected, atol=1e-5)
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
        density[part] = nearest_pairs(video - video.mean(axis=0), text - text.mean(axis=0), 2).similarity_NK.mean(
            axis=1
        )
    np.testing.assert_allclose(found, (density - density.min()) / (density.max() - density.min()), atol=1e-5)
    assert not np.allclose(found, whole.pair_weights, atol=0.01)
