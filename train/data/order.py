"""The order in which items come in an epoch."""

import hashlib
import math
import random
from typing import Protocol

import numpy as np

ROUNDS = 8


class Order(Protocol):
    """An order of items that depends on a seed and the epoch alone."""

    version: int
    """Kept in a run's state, so that a run goes on with the order that it began with."""

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at the places from ``first`` to ``last`` - 1 of an epoch in which each item comes once."""
        ...


class KeyedOrder:
    """A keyed permutation: each place's item is computed, so nothing is stored.

    Items are numbers of two digits, (a, b) with a < A, b < B and A * B a little more than the number of items. Each
    round adds a hash of one digit to the other, and so permutes the numbers. A number that is no item is permuted again
    until it is one.

    Source: the generalised Feistel cipher, with cycle walking, of Black and Rogaway, Ciphers with Arbitrary Finite
    Domains, 2002.
    """

    version = 2

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at some places of an epoch."""
        return keyed_permutation(np.arange(first, last), num_items, f"{self.seed} epoch {epoch}").tolist()


def keyed_permutation(places: np.ndarray, num_items: int, key: str) -> np.ndarray:
    """Return the items, int64, at some places of a permutation of ``num_items`` items that the key decides."""
    digest = hashlib.blake2b(key.encode(), digest_size=8 * ROUNDS).digest()
    keys = np.frombuffer(digest, "<u8")
    items = _permuted(places.astype(np.uint64), num_items, keys)
    while (outside := np.flatnonzero(items >= num_items)).size:
        items[outside] = _permuted(items[outside], num_items, keys)
    return items.astype(np.int64)


def _permuted(numbers: np.ndarray, num_items: int, keys: np.ndarray) -> np.ndarray:
    size_a = math.isqrt(num_items - 1) + 1
    size_b = -(-num_items // size_a)
    a, b = np.divmod(numbers, np.uint64(size_b))
    for number, key in enumerate(keys):
        if number % 2:
            b = (b + _hash(a, key)) % np.uint64(size_b)
        else:
            a = (a + _hash(b, key)) % np.uint64(size_a)
    return a * np.uint64(size_b) + b


def _hash(values: np.ndarray, key: np.uint64) -> np.ndarray:
    """Return 61 bits for each value: the output function of SplitMix64 (Steele, Lea and Flood 2014)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) ^ key
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(3)


class StoredOrder:
    """The order of earlier versions: an epoch's permutation is drawn, and held in memory. For runs that began so."""

    version = 1

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn = -1, np.zeros(0, dtype=np.int64)
        """An epoch and its order, replaced together, since several threads ask."""

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at some places of an epoch."""
        drawn_epoch, order = self._drawn
        if epoch != drawn_epoch:
            order = np.array(random.Random(f"{self.seed} epoch {epoch}").sample(range(num_items), num_items))
            self._drawn = epoch, order
        return order[first:last].tolist()


ORDERS: dict[int, type[KeyedOrder] | type[StoredOrder]] = {of.version: of for of in (StoredOrder, KeyedOrder)}
"""{version: order}"""
