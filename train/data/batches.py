"""The clips and captions of each training step. They depend on the seed and the step alone."""

import random
from collections.abc import Sequence

import numpy as np

from .clips import Groups
from .pairs import Pairs

Drawn = tuple[list[int], list[list[int]]]
"""Indices of clips, and for each clip those of one or more of its captions."""


class ClipBatches:
    """Different clips.

    Every clip comes once before any comes again. A last batch that would not be full is left out, unless there are
    fewer clips than a batch holds.
    """

    def __init__(self, num_clips: int, batch_size: int, seed: int) -> None:
        self.seed = seed
        self.size = min(batch_size, num_clips)
        """Clips in a batch."""
        self._num_clips = num_clips
        self._epoch, self._order = -1, np.zeros(0, dtype=np.int64)

    def clips_at(self, step: int) -> list[int]:
        """Return the indices of a step's clips. ``step`` counts from 0."""
        return self._next(step, self._num_clips, self.size)

    def _rng(self, step: int) -> random.Random:
        return random.Random(f"{self.seed} step {step}")

    def _next(self, step: int, num_items: int, at_once: int) -> list[int]:
        epoch, index = divmod(step, num_items // at_once)
        if epoch != self._epoch:
            self._order = np.array(random.Random(f"{self.seed} epoch {epoch}").sample(range(num_items), num_items))
            self._epoch = epoch
        return self._order[index * at_once : (index + 1) * at_once].tolist()


class Batches(ClipBatches):
    """Different clips, each with one of its captions."""

    def __init__(self, pairs: Pairs, batch_size: int, seed: int) -> None:
        super().__init__(len(pairs.clips), batch_size, seed)
        self._captions_of = pairs.captions_of_clips()

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their captions. ``step`` counts from 0."""
        clips, rng = self.clips_at(step), self._rng(step)
        return clips, self._one_caption_of(clips, rng)

    def _one_caption_of(self, clips: list[int], rng: random.Random) -> list[list[int]]:
        return [[rng.choice(self._captions_of[clip])] for clip in clips]


class VideoBatches(Batches):
    """Several clips of each video, one after the other, which are contrasted with each other.

    These are HowTo100M's "intra-video negatives". Every video comes once before any comes again. If a video has fewer
    clips, some come more than once.
    """

    def __init__(self, pairs: Pairs, batch_size: int, seed: int, clips_per_video: int) -> None:
        super().__init__(pairs, batch_size, seed)
        self._clips_of, self._num_each = Groups(pairs.clips.video, len(pairs.clips.video_ids)), clips_per_video
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
        starts, ends = pairs.captions.numbers("start_seconds"), pairs.captions.numbers("end_seconds")
        self._middles = np.nan_to_num((starts + ends) / 2)
        """In seconds; 0 for a caption of a whole video."""
        self._video_of = pairs.clips.video[pairs.clip_of_caption]
        self._of_video = Groups(self._video_of, len(pairs.clips.video_ids))

    def at(self, step: int) -> Drawn:
        """Return the indices of a step's clips and of their candidates. ``step`` counts from 0."""
        clips, captions = super().at(step)
        return clips, [self._around(caption) for (caption,) in captions]

    def _around(self, caption: int) -> list[int]:
        others = self._of_video[self._video_of[caption]]
        distances = np.abs(self._middles[others] - self._middles[caption])
        distances[others.index(caption)] = -1.0
        nearest: Sequence[int] = [others[i] for i in np.argsort(distances, kind="stable")[: self._num_each]]
        return [nearest[i % len(nearest)] for i in range(self._num_each)]
