"""The clips and captions of each training step. They depend on the seed and the step alone."""

import random

import numpy as np

from .order import ORDERS, KeyedOrder, Order
from .pairs import Pairs

Drawn = tuple[list[int], list[list[int]]]
"""Indices of clips, and for each clip those of its captions that are drawn."""


class ClipBatches:
    """Different clips.

    Every clip comes once before any comes again. A last batch that would not be full is left out, unless there are
    fewer clips than a batch holds.
    """

    def __init__(self, num_clips: int, batch_size: int, seed: int) -> None:
        self.seed = seed
        self._order: Order = KeyedOrder(seed)
        self.size = min(batch_size, num_clips)
        """Clips in a batch."""
        self._num_clips = num_clips

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their captions, here none. ``step`` counts from 0."""
        clips = self._next(step, self._num_clips, self.size)
        return clips, [[] for _ in clips]

    def follow(self, order: int) -> None:
        """Go on with the order of a run that was begun with this version of it."""
        self._order = ORDERS[order](self.seed)

    def _rng(self, step: int) -> random.Random:
        return random.Random(f"{self.seed} step {step}")

    def _next(self, step: int, num_items: int, at_once: int) -> list[int]:
        epoch, index = divmod(step, num_items // at_once)
        return self._order.items(epoch, index * at_once, (index + 1) * at_once, num_items)


class Batches(ClipBatches):
    """Different clips, each with one of its captions."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        super().__init__(len(pairs.clips), batch_size, seed)
        self._captions_of = pairs.captions_of_clips

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their captions. ``step`` counts from 0."""
        clips, _ = super().at(step)
        return clips, self._one_caption_of(clips, self._rng(step))

    def _one_caption_of(self, clips: list[int], rng: random.Random) -> list[list[int]]:
        return [[rng.choice(self._captions_of[clip])] for clip in clips]


class VideoBatches(Batches):
    """Several clips of each video, one after the other, which are contrasted with each other.

    These are HowTo100M's "intra-video negatives". Every video comes once before any comes again. If a video has fewer
    clips, some come more than once.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, clips_per_video: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._clips_of, self._num_each = pairs.clips_of_videos, clips_per_video
        self._num_videos = min(batch_size // clips_per_video, len(self._clips_of))
        self.size = self._num_videos * clips_per_video

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of one caption each. ``step`` counts from 0."""
        rng = self._rng(step)
        clips: list[int] = []
        for video in self._next(step, len(self._clips_of), self._num_videos):
            of_video = self._clips_of[video]
            drawn = rng.sample(of_video, min(self._num_each, len(of_video)))
            clips += [drawn[i % len(drawn)] for i in range(self._num_each)]
        return clips, self._one_caption_of(clips, rng)


class CandidateBatches(Batches):
    """Different clips, each with several captions that may be about it (MIL-NCE).

    These are one of the clip's own captions and those of its video that are next to it in time. If a video has fewer
    captions, some come more than once.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, captions_per_clip: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._num_each = captions_per_clip
        self._pairs = pairs

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
