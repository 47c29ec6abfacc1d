"""The order of an epoch: every item once, computed place by place, and as irregular as a shuffle."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.train.data.order import ORDERS, KeyedOrder, StoredOrder

SIZE, EPOCHS = 10_000, 40
BLOCKS = 50


def epochs(size: int = SIZE, count: int = EPOCHS, seed: int = 3) -> np.ndarray:
    order = KeyedOrder(seed)
    return np.array([order.items(epoch, 0, size, size) for epoch in range(count)])


@settings(deadline=None)
@given(size=st.integers(1, 3000), seed=st.integers(0, 5), epoch=st.integers(0, 10**9))
def test_every_item_comes_once_an_epoch(size, seed, epoch):
    assert sorted(KeyedOrder(seed).items(epoch, 0, size, size)) == list(range(size))


@pytest.mark.parametrize("version", ORDERS)
def test_places_may_be_asked_in_parts_and_in_any_order(version):
    whole = ORDERS[version](1).items(2, 0, 1000, 1000)
    order, parts = ORDERS[version](1), {}
    for first in random.Random(0).sample(range(0, 1000, 7), 143):
        order.items(9, 0, 3, 1000)  # another epoch in between
        parts[first] = order.items(2, first, min(first + 7, 1000), 1000)
    assert [item for first in sorted(parts) for item in parts[first]] == whole


def test_the_order_of_136_million_items_needs_no_memory():
    items = KeyedOrder(0).items(5, 70_000_000, 70_100_000, 136_600_000)
    assert len(set(items)) == 100_000 and min(items) >= 0 and max(items) < 136_600_000
    low, high = np.quantile(items, [0.25, 0.75]) / 136_600_000
    assert low == pytest.approx(0.25, abs=0.01) and high == pytest.approx(0.75, abs=0.01)


def test_the_order_of_earlier_versions_is_the_shuffle_that_they_drew():
    assert StoredOrder(7).items(3, 0, 20, 20) == random.Random("7 epoch 3").sample(range(20), 20)


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def test_items_of_all_blocks_come_in_all_blocks_as_often_as_in_a_shuffle():
    place = np.arange(SIZE) * BLOCKS // SIZE
    values = []
    for items in epochs():
        counts = np.zeros((BLOCKS, BLOCKS))
        np.add.at(counts, (place, items * BLOCKS // SIZE), 1)
        values.append(chi_square(counts))
    # Row and column sums are fixed: (BLOCKS - 1)^2 degrees of freedom, 2,401; the mean of 40 has deviation 11.
    degrees = (BLOCKS - 1) ** 2
    assert np.mean(values) == pytest.approx(degrees, abs=5 * np.sqrt(2 * degrees / EPOCHS))
    assert np.std(values) == pytest.approx(np.sqrt(2 * degrees), rel=0.5)


def test_distances_of_neighbours_are_distributed_as_in_a_shuffle():
    def distances(orders: np.ndarray) -> np.ndarray:
        return np.sort(np.abs(np.diff(orders, axis=1)).ravel())

    rng = np.random.default_rng(0)
    ours, shuffled = distances(epochs()), distances(np.array([rng.permutation(SIZE) for _ in range(EPOCHS)]))
    grid = np.arange(SIZE)
    below = [np.searchsorted(values, grid, side="right") / values.size for values in (ours, shuffled)]
    # Kolmogorov and Smirnov: 1.95 is the limit for one error in a thousand, for independent distances.
    assert np.abs(below[0] - below[1]).max() < 1.95 * np.sqrt(2 / ours.size)


def test_epochs_and_seeds_are_not_correlated():
    orders = np.concatenate([epochs(count=20), epochs(count=20, seed=4)]).astype(float)
    correlations = np.corrcoef(orders)[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(SIZE)
    assert correlations.std() == pytest.approx(1 / np.sqrt(SIZE), rel=0.15)
    same_place = [(a == b).sum() for i, a in enumerate(orders) for b in orders[:i]]
    assert np.mean(same_place) == pytest.approx(1, abs=0.2)  # as in two shuffles


@pytest.mark.slow
def test_small_orders_are_all_about_as_frequent():
    counts: dict[tuple[int, ...], int] = {}
    order = KeyedOrder(0)
    for epoch in range(24_000):
        of_epoch = tuple(order.items(epoch, 0, 4, 4))
        counts[of_epoch] = counts.get(of_epoch, 0) + 1
    assert len(counts) == 24 and chi_square(np.array([*counts.values()])) < 50  # 23 degrees of freedom
