"""An order that reads some shards of a store at a time, for stores that no disk or memory here holds whole."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from .clips import Groups
from .order import KeyedOrder, keyed_permutation


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
    """For each shard, the number of the block's items up to its last one."""

    @property
    def size(self) -> int:
        """Number of items."""
        return int(self.ends[-1])


class ShardOrder:
    """Shuffles the items of some shards, then those of the next ones, in another order of shards in each epoch.

    Like every order, it depends on seed and epoch alone, and each item comes once. Both the shards and the items of a
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
        """Yield the blocks of the places from ``first`` to ``last`` - 1, and which of its places these are in each."""
        blocks = self._blocks(epoch)
        for block in blocks[bisect_right(blocks, first, key=lambda block: block.start) - 1 :]:
            if block.start >= last:
                return
            yield block, max(first - block.start, 0), min(last - block.start, block.size)

    def items(self, epoch: int, first: int, last: int, num_items: int) -> list[int]:
        """Return the items at the places from ``first`` to ``last`` - 1 of an epoch; ``num_items`` are all shards'."""
        found: list[int] = []
        for block, low, high in self._parts(epoch, first, last):
            key = f"{self.seed} epoch {epoch} block {block.number}"
            places = keyed_permutation(np.arange(low, high), block.size, key)
            numbers = np.searchsorted(block.ends, places, side="right")
            shards = block.shards[numbers]
            offsets = places - (block.ends - self._sizes[block.shards])[numbers]
            found += self._items.item_at(self._items.starts[shards] + offsets).tolist()
        return found

    def shards_ahead(self, epoch: int, first: int, last: int) -> list[int]:
        """Return shards of the next block, to be fetched at these places; all of them, evenly over a block's places."""
        if self._num_blocks == 1:
            return []
        ahead: list[int] = []
        for block, low, high in self._parts(epoch, first, last):
            is_last = block.number == self._num_blocks - 1
            shards = (self._blocks(epoch + 1)[0] if is_last else self._blocks(epoch)[block.number + 1]).shards
            ahead += shards[len(shards) * low // block.size : len(shards) * high // block.size].tolist()
        return ahead
