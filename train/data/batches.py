"""Which clips and captions a training step gets: they depend on the seed and the step alone."""

import random
from collections.abc import Sequence

import numpy as np

from ..config import TrainConfig
from .pairs import Groups, Pairs

Drawn = tuple[list[int], list[list[int]]]
"""Numbers of clips, and for each clip those of one or more of its captions."""


class Batches:
    """Different clips, each with one of its captions.

    Every clip comes once before any comes again; a last batch that would not be full is left out, unless there are fewer clips than a
    batch holds.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        self.seed = seed
        self.size = min(batch_size, len(pairs.clips))
        self._captions_of = pairs.captions_of_clips()
        self._num = len(pairs.clips)
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def at(self, step: int) -> Drawn:
        """``step`` counts from 0."""
        clips = self._next(step, self._num, self.size)
        return clips, self._one_caption_each(clips, self._drawing(step))

    def _one_caption_each(self, clips: list[int], rng: random.Random) -> list[list[int]]:
        return [[rng.choice(self._captions_of[n])] for n in clips]

    def _drawing(self, step: int) -> random.Random:
        return random.Random(f"{self.seed} step {step}")

    def _next(self, step: int, number: int, at_once: int) -> list[int]:
        epoch, place = divmod(step, number // at_once)
        if epoch != self._epoch:
            self._order = np.array(random.Random(f"{self.seed} epoch {epoch}").sample(range(number), number))
            self._epoch = epoch
        return self._order[place * at_once : (place + 1) * at_once].tolist()


class VideoBatches(Batches):
    """Several clips of each video, one after the other, so that those are contrasted with each other (HowTo100M's "intra-video
    negatives"). Every video comes once before any comes again; of one with fewer clips some come more than once."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, clips_per_video: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._clips_of, self._each = Groups(pairs.clips.video, len(pairs.clips.video_ids)), clips_per_video
        self._num_videos = min(batch_size // clips_per_video, len(self._clips_of))
        self.size = self._num_videos * clips_per_video

    def at(self, step: int) -> Drawn:
        rng = self._drawing(step)
        clips: list[int] = []
        for video in self._next(step, len(self._clips_of), self._num_videos):
            own = self._clips_of[video]
            there = rng.sample(own, min(self._each, len(own)))
            clips += [there[place % len(there)] for place in range(self._each)]
        return clips, self._one_caption_each(clips, rng)


class CandidateBatches(Batches):
    """Different clips, each with several captions that may be about it: one of its own, and those of its video that are next to that one
    in time (MIL-NCE). Of a video with fewer captions some come more than once."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, captions_per_clip: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._each = captions_per_clip
        starts, ends = pairs.captions.numbers("start_seconds"), pairs.captions.numbers("end_seconds")
        self._middles = np.nan_to_num((starts + ends) / 2)
        """In seconds; 0 for a caption of a whole video."""
        self._video_of = pairs.clips.video[pairs.clip_of_caption]
        self._of_video = Groups(self._video_of, len(pairs.clips.video_ids))

    def at(self, step: int) -> Drawn:
        clips, captions = super().at(step)
        return clips, [self._around(own) for (own,) in captions]

    def _around(self, own: int) -> list[int]:
        others = self._of_video[self._video_of[own]]
        far = np.abs(self._middles[others] - self._middles[own])
        far[others.index(own)] = -1.0
        nearest: Sequence[int] = [others[place] for place in np.argsort(far, kind="stable")[: self._each]]
        return [nearest[place % len(nearest)] for place in range(self._each)]


def make_batches(pairs: Pairs, config: TrainConfig) -> Batches:
    if config.objective == "mil-nce":
        return CandidateBatches(pairs, config.batch_size, config.seed, config.captions_per_clip)
    if config.clips_per_video > 1:
        return VideoBatches(pairs, config.batch_size, config.seed, config.clips_per_video)
    return Batches(pairs, config.batch_size, config.seed)
