"""SSML's probability that a clip and a caption belong together: against a plain loop, and on the paper's toy data."""

import numpy as np
import pytest
import torch
import vlalign.train.density as module
from vlalign.train.comparison.density_bound import toy_data
from vlalign.train.density import nearest_pairs, pair_association_probability


def plain_probability(video: np.ndarray, text: np.ndarray, k: int) -> np.ndarray:
    """Eq. 1 to 3 as they stand."""

    def standardised(vectors):
        size = len(vectors)
        cosines = np.array([[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in vectors] for a in vectors])
        others = cosines[~np.eye(size, dtype=bool)]
        return (cosines - others.mean()) / others.std()

    similarity = np.minimum(standardised(video), standardised(text))
    density = [np.mean(sorted(np.delete(row, i))[-k:]) for i, row in enumerate(similarity)]
    return (np.array(density) - min(density)) / (max(density) - min(density))


@pytest.mark.parametrize(("size", "k"), [(2, 1), (5, 4), (40, 3)])
def test_pair_association_probability_is_equations_1_to_3(size, k):
    rng = np.random.default_rng(size)
    video, text = rng.standard_normal((size, 6)), 3 + rng.standard_normal((size, 4))
    if size == 2:  # each is the other's only neighbour: the same density, and no variance
        assert pair_association_probability(video, text, k).tolist() == [1, 1]
        return
    found = pair_association_probability(video, text, k)
    assert found.dtype == np.float32 and found.min() == 0 and found.max() == 1
    np.testing.assert_allclose(found, plain_probability(video, text, k), atol=1e-5)


def test_too_large_k_and_non_finite_values_are_refused():
    vectors = np.ones((4, 3))
    for k in (0, 4, 10):
        with pytest.raises(ValueError, match=rf"^k {k}: .*\b4\b.*\b3\b"):
            pair_association_probability(vectors, vectors, k)
    with pytest.raises(ValueError, match=r"\b4 clips\b.*\b3 captions\b"):
        pair_association_probability(vectors, vectors[:3], 1)
    with pytest.raises(ValueError, match=r"^captions: 1 of 4\b"):
        pair_association_probability(vectors, np.vstack([vectors[:3], [[np.nan] * 3]]), 1)


def test_vectors_without_variance_have_no_influence():
    rng = np.random.default_rng(0)
    text = rng.standard_normal((30, 5))
    assert pair_association_probability(np.ones((30, 3)), np.ones((30, 3)), 2).tolist() == [1] * 30
    one_side = pair_association_probability(np.ones((30, 3)), text, 2)
    assert one_side.tolist() == [1] * 30, "no pair is nearer than the clips are, and those are all equally near"
    text[:3] = 0  # captions without a word that is known
    found = pair_association_probability(rng.standard_normal((30, 5)), text, 2)
    assert np.isfinite(found).all()


def test_on_the_papers_toy_data_precision_and_recall_are_the_papers():
    found = []
    for seed in range(20):
        clips, captions, right = toy_data(np.random.default_rng(seed))
        taken = pair_association_probability(clips, captions, 4) > 0.48
        found.append((right[taken].mean(), taken[right].mean()))
    precision, recall = np.mean(found, axis=0)
    print(f"precision {precision:.3f}, recall {recall:.3f} (SSML Figure 3b: about 0.9)")
    assert min(precision, recall) >= 0.88


def recall_of(found: np.ndarray, expected: np.ndarray) -> float:
    return float(
        np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), expected.tolist(), strict=True)])
    )


def test_a_search_in_clusters_finds_nearly_all_that_comparing_all_with_all_finds(monkeypatch):
    clips, captions, _ = toy_data(np.random.default_rng(0), num_pairs=3000, num_concepts=200, width=48)
    exact = nearest_pairs(clips, captions, 4)
    monkeypatch.setattr(module, "MAX_EXACT_PAIRS", 1000)
    monkeypatch.setattr(module, "NUM_SAMPLED_PAIRS", 200)
    monkeypatch.setattr(module, "VECTORS_IN_DOUBLE", 700)
    done = []
    found = nearest_pairs(clips, captions, 4, progress=lambda parts: done.extend(parts) or [])
    assert sum(done) == 3000
    assert recall_of(found.index_NK, exact.index_NK) > 0.93
    assert (found.index_NK != np.arange(3000)[:, None]).all()
    same = found.index_NK == exact.index_NK
    np.testing.assert_allclose(found.similarity_NK[same], exact.similarity_NK[same], atol=1e-4)
    again = nearest_pairs(clips, captions, 4)
    np.testing.assert_array_equal(again.index_NK, found.index_NK)


def test_neighbours_do_not_depend_on_how_many_are_looked_at_at_once(monkeypatch):
    clips, captions, _ = toy_data(np.random.default_rng(0), num_pairs=100)
    whole = nearest_pairs(clips, captions, 4)
    monkeypatch.setattr(module, "MAX_VALUES_AT_ONCE", 700)
    parts = nearest_pairs(clips, captions, 4)
    np.testing.assert_array_equal(parts.index_NK, whole.index_NK)
    np.testing.assert_allclose(parts.similarity_NK, whole.similarity_NK, atol=1e-5)


GROUP = module.COLUMNS_PER_GROUP


@pytest.mark.parametrize("columns", [3, 8 * GROUP, 8 * GROUP + 1, 20 * GROUP + 3, 1_000])
def test_the_largest_of_each_row_are_those_of_sorting_it(columns):
    torch.manual_seed(columns)
    for values in (
        torch.randn(5, columns),
        torch.arange(float(columns)).expand(2, -1),
        torch.zeros(2, columns),
        torch.randint(0, 3, (5, columns)),
    ):
        found = module._largest_columns(values, 8)
        assert found.shape == (len(values), min(8, columns)) and all(
            len(set(row.tolist())) == len(row) for row in found
        )
        expected = values.sort(dim=1, descending=True).values[:, :8]
        torch.testing.assert_close(values.gather(1, found).sort(dim=1, descending=True).values, expected)
