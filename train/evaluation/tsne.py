"""t-SNE (van der Maaten and Hinton 2008), exact, for a codebook (CMCM, Figure 6) and toy data (SSML, Figure 3)."""

import numpy as np

from ...storage.common.progress import progress

PERPLEXITY = 30.0
NUM_STEPS, NUM_EXAGGERATED = 500, 150
EXAGGERATION = 12.0
FROM_STEP = 150
"""The momentum rises from 0.5 to 0.8 after this step."""


def tsne(vectors_ND: np.ndarray, perplexity: float = PERPLEXITY) -> np.ndarray:
    """Return positions in the plane [N, 2], where similar vectors are near each other.

    It starts from the vectors' first two principal components, so the same vectors get the same positions.

    Args:
        vectors_ND: The vectors.
        perplexity: The number of neighbours that a vector has, roughly; fewer if there are few vectors.
    """
    num = len(vectors_ND)
    if num == 0:
        return np.zeros((0, 2))
    centred = np.asarray(vectors_ND, np.float64) - np.mean(vectors_ND, axis=0)
    if num < 4:
        return np.pad(centred[:, :2], ((0, 0), (0, 2 - min(2, centred.shape[1]))))
    p_NN = joint_probabilities(squared_distances(centred), min(perplexity, (num - 1) / 3))
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    places = u[:, :2] * s[:2] if len(s) > 1 else np.pad(u * s, ((0, 0), (0, 1)))
    places *= 1e-4 / max(float(places[:, 0].std()), 1e-12)
    rate = max(num / EXAGGERATION / 4, 50.0)  # Belkina et al. 2019
    velocity, gains = np.zeros_like(places), np.ones_like(places)
    for step in progress(range(NUM_STEPS), total=NUM_STEPS, what="t-SNE", unit="steps"):
        gradient = tsne_gradient(p_NN * (EXAGGERATION if step < NUM_EXAGGERATED else 1.0), places)
        is_same = np.sign(gradient) == np.sign(velocity)
        gains = np.maximum(np.where(is_same, gains * 0.8, gains + 0.2), 0.01)
        velocity = (0.5 if step < FROM_STEP else 0.8) * velocity - rate * gains * gradient
        places = places + velocity
    return places - places.mean(axis=0)


def squared_distances(vectors_ND: np.ndarray) -> np.ndarray:
    """Return the squared distances of all vectors [N, N]."""
    squares_N = np.square(vectors_ND).sum(axis=1)
    return np.maximum(squares_N[:, None] + squares_N - 2 * vectors_ND @ vectors_ND.T, 0)


def joint_probabilities(squares_NN: np.ndarray, perplexity: float) -> np.ndarray:
    """Return p_ij [N, N] (section 3.1), the mean of p_j|i and p_i|j over all pairs."""
    p_NN = conditional_probabilities(squares_NN, perplexity)
    return (p_NN + p_NN.T) / (2 * len(p_NN))


def conditional_probabilities(squares_NN: np.ndarray, perplexity: float) -> np.ndarray:
    """Return p_j|i [N, N] (Eq. 1), a row for each i: Gaussians whose widths give each row the perplexity."""
    num = len(squares_NN)
    others = ~np.eye(num, dtype=bool)
    low, high, beta = np.zeros(num), np.full(num, np.inf), np.ones(num) / max(float(squares_NN.mean()), 1e-12)
    p_NN = np.zeros_like(squares_NN)
    for _ in range(60):
        logits = np.where(others, -squares_NN * beta[:, None], -np.inf)
        p_NN = np.exp(logits - logits.max(axis=1, keepdims=True))
        p_NN /= p_NN.sum(axis=1, keepdims=True)
        entropy = -np.sum(p_NN * np.log(np.maximum(p_NN, 1e-300)), axis=1)
        is_wide = entropy > np.log(perplexity)
        low, high = np.where(is_wide, beta, low), np.where(is_wide, high, beta)
        beta = np.where(np.isinf(high), beta * 2, (low + high) / 2)
    return p_NN


def tsne_gradient(p_NN: np.ndarray, places_N2: np.ndarray) -> np.ndarray:
    """Return the gradient of the Kullback-Leibler divergence with respect to the places (Eq. 5) [N, 2]."""
    weights_NN = 1 / (1 + squared_distances(places_N2))
    np.fill_diagonal(weights_NN, 0)
    force_NN = (p_NN - weights_NN / weights_NN.sum()) * weights_NN
    return 4 * (force_NN.sum(axis=1)[:, None] * places_N2 - force_NN @ places_N2)
