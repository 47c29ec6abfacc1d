"""Canonical correlations against their textbook form in numpy, and the directions where words begin."""

import numpy as np
import pytest
import torch
from vlalign.train.models.closed_form import CanonicalCorrelations, Covariances, Strengths, Sums, principal_directions
from vlalign.train.models.word_directions import SHARPNESS, SWEEPS, whiten, word_directions

STRENGTHS = Strengths(clips=0.3, words=1.5, power=2.0)


@pytest.fixture
def data():
    """40 clips of 7 numbers with one to three captions of three or four of 11 words."""
    rng = np.random.default_rng(0)
    clips = rng.normal(size=(40, 7))
    clip_of = np.repeat(np.arange(40), rng.integers(1, 4, 40))
    words = np.zeros((len(clip_of), 11))
    ids, weights = np.zeros((len(clip_of), 4), np.int64), np.zeros((len(clip_of), 4))
    for row in range(len(clip_of)):
        count = rng.integers(3, 5)
        ids[row, :count] = rng.choice(11, count, replace=False)
        weights[row, :count] = rng.random(count)
        words[row, ids[row, :count]] = weights[row, :count]
    clips[clip_of, 0] += words[:, 3]
    return clips, clip_of, words, ids, weights


def sums_of(data, parts):
    clips, clip_of, _, ids, weights = data
    sums = Sums.zeros(7, 11)
    for of in np.array_split(np.arange(len(clips)), parts):
        here = np.isin(clip_of, of)
        pieces = clips[of], ids[here], weights[here], clip_of[here] - of[0]
        sums.add(*(torch.from_numpy(piece) for piece in pieces))
    return sums


def whitener(covariance, penalty):
    values, vectors = np.linalg.eigh(covariance + penalty * np.eye(len(covariance)))
    return vectors / np.sqrt(values) @ vectors.T


@pytest.mark.parametrize("parts", [1, 5])
def test_scores_are_those_of_the_textbook(data, parts):
    clips, clip_of, words, *_ = data
    share = 1 / np.bincount(clip_of)[clip_of] / len(clips)  # of each caption: clips count the same
    x, y = (clips - clips.mean(0)) / clips.std(0), words - share @ words
    xx, yy, xy = x.T @ x / len(x), (y * share[:, None]).T @ y, (x[clip_of] * share[:, None]).T @ y
    of_x = whitener(xx, STRENGTHS.clips * np.trace(xx) / 7)
    of_y = whitener(yy, STRENGTHS.words * np.trace(yy) / 11)
    left, correlations, right = np.linalg.svd(of_x @ xy @ of_y, full_matrices=False)
    expected = (y @ of_y @ right.T * correlations) @ (x @ of_x @ left * correlations).T

    linear = CanonicalCorrelations(Covariances(sums_of(data, parts))).solve(STRENGTHS, 16)
    captions = torch.from_numpy(words).float() @ linear.words_VK + linear.caption_bias_K
    vectors = torch.from_numpy(clips).float() @ linear.clips_DK + linear.clip_bias_K
    assert captions.shape == (len(words), 16)
    np.testing.assert_allclose((captions @ vectors.T).numpy(), expected, atol=1e-5)


def test_the_first_features_alone_give_what_the_others_cannot_change(data):
    clips, *others = data
    few = CanonicalCorrelations(Covariances(sums_of((clips, *others), 1)), 3).solve(STRENGTHS, 3)
    clips[:, 3:] = 0
    alone = CanonicalCorrelations(Covariances(sums_of((clips, *others), 1)), 3).solve(STRENGTHS, 3)
    assert not few.clips_DK[3:].any()
    torch.testing.assert_close(few, alone)


def test_a_strong_penalty_on_words_gives_ridge_regression(data):
    clips, clip_of, words, *_ = data
    share = 1 / np.bincount(clip_of)[clip_of] / len(clips)
    x, y = (clips - clips.mean(0)) / clips.std(0), words - share @ words
    xx, xy = x.T @ x / len(x), (x[clip_of] * share[:, None]).T @ y
    predicted = x @ np.linalg.solve(xx + 0.3 * np.trace(xx) / 7 * np.eye(7), xy)
    linear = CanonicalCorrelations(Covariances(sums_of(data, 1))).solve(Strengths(0.3, 1e6, 1.0), 7)
    captions = torch.from_numpy(words).float() @ linear.words_VK + linear.caption_bias_K
    vectors = torch.from_numpy(clips).float() @ linear.clips_DK + linear.clip_bias_K
    scores = (captions @ vectors.T).numpy()
    expected = y @ predicted.T
    np.testing.assert_allclose(scores / np.abs(scores).max(), expected / np.abs(expected).max(), atol=1e-3)


def test_principal_directions_of_many_features_are_those_of_all():
    rng = np.random.default_rng(1)
    rows = torch.from_numpy(rng.normal(size=(400, 300)) * 0.9 ** np.arange(300))
    covariance = rows.T @ rows / len(rows)
    values, vectors = principal_directions(covariance, 20, seed=0)
    all_values, all_vectors = torch.linalg.eigh(covariance)
    torch.testing.assert_close(values, all_values.flip(0)[:20], rtol=1e-6, atol=0)
    cosines = (vectors * all_vectors.flip(1)[:, :20]).sum(dim=0).abs()
    assert cosines.min() > 0.9999


def plain_directions(rows, shares, sweeps, sharpness):
    """As the docstring says, one word and one clip at a time."""
    found = []
    for word in range(shares.shape[1]):
        direction, total = np.zeros(rows[0].shape[1]), shares[:, word].sum()
        for sweep in range(1 + sweeps):
            weights = [np.exp((sharpness if sweep else 0) * clip @ direction) for clip in rows]
            chosen = np.stack([w @ clip / w.sum() for w, clip in zip(weights, rows, strict=True)])
            direction = shares[:, word] @ chosen - total * chosen.mean(0)
            direction = direction / (np.linalg.norm(direction) or 1)
        found.append(direction)
    return np.stack(found)


def test_directions_of_words_are_those_of_one_word_at_a_time():
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(rng.integers(2, 6), 5)) for _ in range(12)]
    shares = (rng.random((12, 4)) < 0.4) * rng.random((12, 4))
    shares[:, 3] = 0
    padded, mask = np.full((12, 6, 5), 7.0), np.zeros((12, 6), bool)
    for index, clip in enumerate(rows):
        padded[index, : len(clip)], mask[index, : len(clip)] = clip, True
    sparse = torch.from_numpy(shares).to_sparse().coalesce()
    found = word_directions(torch.from_numpy(padded).float(), torch.from_numpy(mask), sparse, 4)
    np.testing.assert_allclose(found[:3], plain_directions(rows, shares, SWEEPS, SHARPNESS)[:3], atol=1e-4)
    assert not found[3].any()


def test_directions_find_what_two_rows_of_each_clip_show():
    """Where a word shows is not said, and the mean of a clip hides it."""
    rng = np.random.default_rng(3)
    shown = rng.normal(size=32)
    shown /= np.linalg.norm(shown)
    rows = rng.normal(size=(100, 40, 32))
    rows[:50, 7:9] += 6 * shown
    shares = torch.zeros(100, 1)
    shares[:50] = 1
    flat = torch.from_numpy(rows.reshape(-1, 32)).float()
    whitening = whiten(flat, 32)
    white = whitening(torch.from_numpy(rows).float())
    assert white.flatten(0, 1).std(dim=0).sub(1).abs().max() < 0.1
    [found] = word_directions(white, torch.ones(100, 40, dtype=torch.bool), shares.to_sparse().coalesce(), 1)
    cosine = torch.nn.functional.cosine_similarity(
        found, torch.from_numpy(shown).float() @ whitening.directions_FK, dim=0
    )
    assert cosine > 0.9


def test_features_of_no_variance_give_vectors_of_zeros(data):
    _, clip_of, _, ids, weights = data
    sums = Sums.zeros(7, 11)
    sums.add(torch.zeros(40, 7), *(torch.from_numpy(part) for part in (ids, weights, clip_of)))
    linear = CanonicalCorrelations(Covariances(sums)).solve(STRENGTHS, 5)
    assert not any(part.any() for part in linear)
