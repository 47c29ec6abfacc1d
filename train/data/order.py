"""The order of items in an epoch: over all items at once, or over a few shards of a store at a time, for stores that do
not fit on this machine's disk or into its memory."""

import hashlib
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from .clips import Groups

ROUNDS = 8


class Order(Protocol):
    """An order of items that depends on a seed and the epoch alone."""

    version: int
    """Version of the order, saved in a run's state: a resumed run uses its original order."""

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at the places from ``first`` to ``last`` - 1 of an epoch in which each item comes once."""
        ...


class KeyedOrder:
    """A keyed permutation: each place's item is computed, so nothing is stored.

    Items are numbers of two digits, (a, b) with a < A, b < B and A * B a little more than the number of items. Each
    round adds a hash of one digit to the other, and so permutes the numbers. A number that is not an item is permuted
    again until it is one.

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
    """Return the items, int64, at some places of the permutation of ``num_items`` items that the key determines."""
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
    """The order of earlier versions: each epoch's permutation is drawn and kept in memory. Used to resume old runs."""

    version = 1

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._drawn = -1, np.zeros(0, dtype=np.int64)
        """An epoch and its order, replaced together, since several threads read them."""

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at some places of an epoch."""
        drawn_epoch, order = self._drawn
        if epoch != drawn_epoch:
            order = np.array(random.Random(f"{self.seed} epoch {epoch}").sample(range(num_items), num_items))
            self._drawn = epoch, order
        return order[first:last].tolist()


ORDERS: dict[int, type[KeyedOrder] | type[StoredOrder]] = {order.version: order for order in (StoredOrder, KeyedOrder)}
"""{version: order}"""


@dataclass(frozen=True)
class ShardItems:
    """Items, such as clips, in the order of the shards that their videos are in."""

    starts: np.ndarray
    """Place of the first item of each shard, and the number of all items: [num_shards + 1]."""
    item_at: Callable[[np.ndarray], np.ndarray]
    """Returns the items at some places."""


def group_by_shard(shard_of_video: np.ndarray) -> Groups:
    """Return the videos of each shard that has any, given the shard of each video."""
    shards, shard_of_video = np.unique(shard_of_video, return_inverse=True)
    return Groups.of(shard_of_video, len(shards))


def videos_in_shards(videos_of_shards: Groups) -> ShardItems:
    """Return videos as items."""
    return ShardItems(videos_of_shards.starts.astype(np.int64), videos_of_shards.members.__getitem__)


def clips_in_shards(videos_of_shards: Groups, clips_of_videos: Groups) -> ShardItems:
    """Return clips as items, in memory that depends on the number of videos alone."""
    videos, num_clips = videos_of_shards.members, np.diff(clips_of_videos.starts)
    firsts = np.concatenate([[0], np.cumsum(num_clips[videos], dtype=np.int64)])

    def clip_at(places: np.ndarray) -> np.ndarray:
        numbers = np.searchsorted(firsts, places, side="right") - 1
        return clips_of_videos.members[clips_of_videos.starts[videos[numbers]] + places - firsts[numbers]]

    return ShardItems(firsts[videos_of_shards.starts], clip_at)


@dataclass(frozen=True)
class _Block:
    """Shards whose items are shuffled together."""

    number: int
    shards: np.ndarray
    start: int
    """Place of its first item in the epoch."""
    ends: np.ndarray
    """Number of the block's items up to the end of each shard."""

    @property
    def size(self) -> int:
        """Number of items."""
        return int(self.ends[-1])


class ShardOrder:
    """Shuffles the items of a few shards, then of the next few. The order of the shards differs in each epoch.

    Like every order, it depends on seed and epoch only, and each item occurs once. Both the shards and the items of a
    block are permuted by a ``KeyedOrder``'s permutation.
    """

    version = KeyedOrder.version

    def __init__(self, seed: int, items: ShardItems, shards_at_once: int) -> None:
        """Divide the shards into blocks of about equal numbers of shards, ``shards_at_once`` at most."""
        self.seed, self._items = seed, items
        self._sizes = np.diff(items.starts)
        self._num_blocks = -(-len(self._sizes) // shards_at_once)
        self._blocks = lru_cache(maxsize=2)(self._draw_blocks)

    def _draw_blocks(self, epoch: int) -> list[_Block]:
        num_shards, start, blocks = len(self._sizes), 0, []
        shards = keyed_permutation(np.arange(num_shards), num_shards, f"{self.seed} epoch {epoch} shards")
        for number, of_block in enumerate(np.array_split(shards, self._num_blocks)):
            blocks.append(_Block(number, of_block, start, np.cumsum(self._sizes[of_block])))
            start += blocks[-1].size
        return blocks

    def _parts(self, epoch: int, first: int, last: int) -> Iterator[tuple[_Block, int, int]]:
        """Yield each block with places from ``first`` to ``last`` - 1, and the range of these places in the block."""
        blocks = self._blocks(epoch)
        for block in blocks[bisect_right(blocks, first, key=lambda block: block.start) - 1 :]:
            if block.start >= last:
                return
            yield block, max(first - block.start, 0), min(last - block.start, block.size)

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at the places from ``first`` to ``last`` - 1 of an epoch of all ``num_items`` items."""
        found: list[int] = []
        for block, low, high in self._parts(epoch, first, last):
            key = f"{self.seed} epoch {epoch} block {block.number}"
            places = keyed_permutation(np.arange(low, high), block.size, key)
            numbers = np.searchsorted(block.ends, places, side="right")
            shards = block.shards[numbers]
            offsets = places - (block.ends - self._sizes[block.shards])[numbers]
            found += self._items.item_at(self._items.starts[shards] + offsets).tolist()
        return found

    def shards_to_prefetch(self, epoch: int, first: int, last: int) -> list[int]:
        """Return the next block's shards to fetch at these places; they are spread evenly over the current block."""
        if self._num_blocks == 1:
            return []
        ahead: list[int] = []
        for block, low, high in self._parts(epoch, first, last):
            is_last = block.number == self._num_blocks - 1
            shards = (self._blocks(epoch + 1)[0] if is_last else self._blocks(epoch)[block.number + 1]).shards
            ahead += shards[len(shards) * low // block.size : len(shards) * high // block.size].tolist()
        return ahead
