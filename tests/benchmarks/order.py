"""How random batches are if some shards are shuffled at a time (``--shuffle-shards``): python tests/benchmarks/order.py

HowTo100M's shape at a sixth of its size: 20 million clips of 180,000 videos in shards of 64. Batches of each order are
compared with those of a true shuffle: how many pairs of clips in a batch are of the same video, which makes them
harder negatives, and of how many videos and shards a batch is; and how long a batch takes to be drawn.
"""

import time
from collections.abc import Callable

import numpy as np
from vlalign.train.data.clips import Groups
from vlalign.train.data.order import KeyedOrder, ShardOrder, clips_in_shards, group_by_shard

NUM_VIDEOS, CLIPS_OF_VIDEO, VIDEOS_OF_SHARD = 180_000, 111, 64
NUM_CLIPS = NUM_VIDEOS * CLIPS_OF_VIDEO
BATCH_SIZES, NUM_BATCHES = (128, 4096), 400
SHARDS_AT_ONCE = (50, 200, 1000)


def measured(batch_size: int, draw: Callable[[int], np.ndarray]) -> str:
    """Return the figures of some batches, as the cells of a row."""
    pairs, videos_of_batch, shards_of_batch, seconds = [], [], [], 0.0
    for step in np.linspace(0, NUM_CLIPS // batch_size - 1, NUM_BATCHES).astype(int).tolist():
        began = time.perf_counter()
        clips = draw(step)
        seconds += time.perf_counter() - began
        videos, counts = np.unique(np.asarray(clips) // CLIPS_OF_VIDEO, return_counts=True)
        pairs.append((counts * (counts - 1) // 2).sum())
        videos_of_batch.append(len(videos))
        shards_of_batch.append(len(np.unique(videos // VIDEOS_OF_SHARD)))
    means = np.mean(pairs), np.mean(videos_of_batch), np.mean(shards_of_batch)
    share = 100 * means[0] / (batch_size * (batch_size - 1) / 2)
    return f"{means[0]:.3f} ({share:.4f} %) | {means[1]:.1f} | {means[2]:.1f} | {1000 * seconds / NUM_BATCHES:.2f} ms"


def main() -> None:
    """Print a table for each size of a batch."""
    rng = np.random.default_rng(0)
    clips_of_videos = Groups(np.arange(NUM_CLIPS, dtype=np.int32), np.arange(NUM_VIDEOS + 1) * CLIPS_OF_VIDEO)
    items = clips_in_shards(group_by_shard(np.arange(NUM_VIDEOS) // VIDEOS_OF_SHARD), clips_of_videos)
    orders = {"all (the default)": KeyedOrder(0)} | {str(n): ShardOrder(0, items, n) for n in SHARDS_AT_ONCE}
    shuffled = rng.permutation(NUM_CLIPS)
    for size in BATCH_SIZES:
        print(f"\n| batches of {size} | pairs of the same video | videos | shards | time |\n|---|---|---|---|---|")
        print(
            f"| a true shuffle | {measured(size, lambda step, size=size: shuffled[step * size : (step + 1) * size])} |"
        )
        for name, order in reversed(orders.items()):

            def draw(step: int, order: KeyedOrder | ShardOrder = order, size: int = size) -> np.ndarray:
                return np.array(order.items(0, step * size, (step + 1) * size, NUM_CLIPS))

            print(f"| `--shuffle-shards` {name} | {measured(size, draw)} |", flush=True)


if __name__ == "__main__":
    main()
