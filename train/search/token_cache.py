"""Encoded clips that are kept between queries: those of one data set look at the same clips again and again."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from ..data.clips import Clip
from ..models.tokens import VideoTokens, present
from ..scoring.scorer import Scorer, join_videos
from .limits import check_time

MOST_KEPT_BYTES = 256 << 20


class KeptTokens:
    """Tokens of the clips that were asked for last, without padding."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self.most_bytes, self.num_bytes = most_bytes, 0
        self._by_clip: OrderedDict[Clip, VideoTokens] = OrderedDict()

    def __contains__(self, clip: Clip) -> bool:
        return clip in self._by_clip

    def __getitem__(self, clip: Clip) -> VideoTokens:
        self._by_clip.move_to_end(clip)
        return self._by_clip[clip]

    def add(self, clip: Clip, tokens: VideoTokens) -> None:
        """Keep the tokens of a clip."""
        self._by_clip[clip] = tokens
        self.num_bytes += _num_bytes(tokens)

    def forget(self) -> None:
        """Forget the clips that were not asked for longest, until the rest is small enough."""
        while self.num_bytes > self.most_bytes:
            self.num_bytes -= _num_bytes(self._by_clip.popitem(last=False)[1])


@dataclass(frozen=True)
class KeepingScorer(Scorer):
    """A scorer that encodes a clip once, as long as its tokens are kept."""

    kept: KeptTokens = field(default_factory=KeptTokens)

    @classmethod
    def of(cls, scorer: Scorer) -> "KeepingScorer":
        """Return a scorer that keeps what it encodes."""
        return cls(**{of.name: getattr(scorer, of.name) for of in fields(Scorer)})

    def encode_videos(self, clips: Sequence[Clip]) -> VideoTokens:
        """Return the tokens of clips."""
        check_time()
        new = [clip for clip in dict.fromkeys(clips) if clip not in self.kept]
        if new:
            encoded = super().encode_videos(new)
            for row, clip in enumerate(new):
                self.kept.add(clip, _alone(encoded, row))
        joined = join_videos([self.kept[clip] for clip in clips])
        self.kept.forget()
        return joined


def _alone(encoded: VideoTokens, row: int) -> VideoTokens:
    """Return one video without its padding, in memory of its own."""
    length = int(encoded.mask_BM[row].sum())
    values = present(encoded[row : row + 1])
    return VideoTokens(**{n: (v if n == "whole_BD" else v[:, :length]).clone() for n, v in values.items()})


def _num_bytes(video: VideoTokens) -> int:
    return sum(value.nbytes for value in present(video).values())
