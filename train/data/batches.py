"""The clips and captions of each training step. They depend on the seed and the step alone."""

import hashlib
import random

import numpy as np

from .clips import Groups
from .order import ORDERS, KeyedOrder, Order, ShardItems, ShardOrder, clips_in_shards, videos_in_shards
from .pairs import Pairs

Drawn = tuple[list[int], list[list[int]]]
"""Indices of clips, and the captions that are drawn for each clip."""


class ClipBatches:
    """Different clips.

    Every clip comes once before any comes again. A last batch that would not be full is skipped, unless there are
    fewer clips than a batch holds.
    """

    def __init__(self, num_clips: int, batch_size: int, seed: int) -> None:
        self.seed = seed
        self._order: Order = KeyedOrder(seed)
        self.size = min(batch_size, num_clips)
        """Clips in a batch."""
        self._num_items, self._at_once = num_clips, self.size
        """Number of items (here clips) in an epoch, and in a batch."""
        self.shards = ""
        """Key of the assignment of videos to shards, if the order depends on it; otherwise empty."""

    def clips_at(self, step: int) -> list[int]:
        """Return the indices of a step's clips. ``step`` counts from 0."""
        return self._next(step)

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their captions, here none. ``step`` counts from 0."""
        clips = self.clips_at(step)
        return clips, [[] for _ in clips]

    def videos_to_prefetch(self, step: int) -> list[list[int]]:
        """Return the videos of each shard to prefetch at a step; here none."""
        return []

    def use_order(self, order: int) -> None:
        """Use this version of the order, the one that a resumed run was started with."""
        if order != self._order.version:
            self._order = ORDERS[order](self.seed)

    def _rng(self, step: int) -> random.Random:
        return random.Random(f"{self.seed} step {step}")

    def _next(self, step: int) -> list[int]:
        return self._order.items(*self._places(step), self._num_items)

    def _places(self, step: int) -> tuple[int, int, int]:
        """Return the epoch of a step, the step's first place in the epoch, and the place after its last."""
        epoch, index = divmod(step, self._num_items // self._at_once)
        return epoch, index * self._at_once, (index + 1) * self._at_once


class Batches(ClipBatches):
    """Different clips, each with one of its captions."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        super().__init__(len(pairs.clips), batch_size, seed)
        self._captions_of = pairs.captions_of_clips
        self._pairs = pairs
        self._by_shard: tuple[ShardOrder, Groups] | None = None

    def shuffle_by_shard(self, videos_of_shards: Groups, shards_at_once: int) -> None:
        """From now on, shuffle the clips of only a few shards at a time.

        Args:
            videos_of_shards: The pairs' videos in each shard.
            shards_at_once: Largest number of shards whose clips are shuffled together.
        """
        self._order = ShardOrder(self.seed, self._in_shards(videos_of_shards), shards_at_once)
        self._by_shard = self._order, videos_of_shards
        parts = (videos_of_shards.members, videos_of_shards.starts)
        self.shards = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def _in_shards(self, videos_of_shards: Groups) -> ShardItems:
        return clips_in_shards(videos_of_shards, self._pairs.clips_of_videos)

    def videos_to_prefetch(self, step: int) -> list[list[int]]:
        """Return the videos of each shard to prefetch at a step.

        These are the next block's shards, each once, spread evenly over the steps of the current block.
        """
        if self._by_shard is None:
            return []
        order, videos_of_shards = self._by_shard
        return [videos_of_shards[shard] for shard in order.shards_to_prefetch(*self._places(step))]

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their captions. ``step`` counts from 0."""
        clips = self.clips_at(step)
        return clips, self._one_caption_of(clips, self._rng(step))

    def _one_caption_of(self, clips: list[int], rng: random.Random) -> list[list[int]]:
        return [[rng.choice(self._captions_of[clip])] for clip in clips]


class VideoBatches(Batches):
    """Several clips of each video, next to each other in the batch and contrasted with each other.

    These are HowTo100M's "intra-video negatives". Every video comes once before any comes again. If a video has fewer
    clips, some come more than once.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, clips_per_video: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._clips_of, self._num_each = pairs.clips_of_videos, clips_per_video
        self._num_items = len(self._clips_of)
        self._at_once = min(batch_size // clips_per_video, self._num_items)
        self.size = self._at_once * clips_per_video

    def clips_at(self, step: int) -> list[int]:
        """Return the indices of a step's clips. ``step`` counts from 0."""
        return self.at(step)[0]

    def _in_shards(self, videos_of_shards: Groups) -> ShardItems:
        return videos_in_shards(videos_of_shards)

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of one caption each. ``step`` counts from 0."""
        rng = self._rng(step)
        clips: list[int] = []
        for video in self._next(step):
            of_video = self._clips_of[video]
            drawn = rng.sample(of_video, min(self._num_each, len(of_video)))
            clips += [drawn[i % len(drawn)] for i in range(self._num_each)]
        return clips, self._one_caption_of(clips, rng)


class CandidateBatches(Batches):
    """Different clips, each with several captions that may be about it (MIL-NCE).

    These are one of the clip's own captions and its neighbours in time in the same video. If a video has fewer
    captions, some are repeated.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, captions_per_clip: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._num_each = captions_per_clip

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their candidates. ``step`` counts from 0."""
        clips, captions = super().at(step)
        return clips, [self._around(clip, caption) for clip, (caption,) in zip(clips, captions, strict=True)]

    def _around(self, clip: int, caption: int) -> list[int]:
        clips = self._pairs.clips_of_videos[int(self._pairs.clips.video[clip])]
        others = np.array(sorted(caption for of_clip in clips for caption in self._captions_of[of_clip]))
        middles = self._middles(self._pairs.clip_of_caption[others])
        distances = np.abs(middles - self._middles(np.array([clip])))
        distances[others == caption] = -1.0
        nearest = others[np.argsort(distances, kind="stable")[: self._num_each]].tolist()
        return [nearest[i % len(nearest)] for i in range(self._num_each)]

    def _middles(self, clips: np.ndarray) -> np.ndarray:
        """Return the middles of clips in seconds; 0 for a whole video."""
        starts, ends = self._pairs.clips.start_seconds[clips], self._pairs.clips.end_seconds[clips]
        return np.nan_to_num((starts + ends) / 2)
