"""Statistics of a data set by split, counted as captions pass by, without keeping them."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from ..storage.records import SPLITS, Caption

MOST_TEXTS = 2_000_000
"""Largest number of different texts of a split that are compared. Above it, shared texts are not counted."""


@dataclass(frozen=True, kw_only=True)
class SplitStatistics:
    """Statistics of one split."""

    videos: int
    clips: int
    captions: int
    shared_texts: int | None
    """Number of different texts that several videos have; None if there are too many texts to compare."""
    words: int
    """Without punctuation."""
    nouns: int
    verbs: int
    adjectives: int


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Inputs that could not be used."""

    count: int
    first: list[str] = field(default_factory=list)
    """Messages about the first ones."""


@dataclass(frozen=True, kw_only=True)
class CaptionStatistics:
    """The content of ``summary.json``."""

    splits: dict[str, SplitStatistics]
    """By name, those with captions only."""
    videos_in_both: dict[str, int]
    """For each two splits, such as ``train, test``, the number of videos that are in both."""
    changed: dict[str, int]
    """How many rows were kept with a changed value, by what was changed."""
    left_out: LeftOut

    @property
    def num_captions(self) -> int:
        """Number of captions in all splits."""
        return sum(split.captions for split in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CaptionStatistics":
        """Return the statistics that ``to_json`` made these values of."""
        return cls(
            splits={name: SplitStatistics(**split) for name, split in values["splits"].items()},
            videos_in_both=dict(values["videos_in_both"]),
            changed=dict(values["changed"]),
            left_out=LeftOut(**values["left_out"]),
        )


class Census:
    """Counts captions, clips, videos and words of each split."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.num_captions: Counter[str] = Counter()
        self.num_clips: Counter[str] = Counter()
        self.tags: dict[str, Counter[str]] = defaultdict(Counter)
        """Counts of part-of-speech tags by split, added by the caller after tagging."""
        self._videos: dict[str, set[str]] = defaultdict(set)
        self._clips: set[tuple[str, float | None, float | None]] = set()
        self._video_id = ""
        """The video that the clips in ``_clips`` belong to."""
        self._video_of_text: dict[str, dict[int, str | None]] = defaultdict(dict)
        """By split and hash of a text, the video that has it; None if several do."""

    def add(self, caption: Caption) -> None:
        """Count a caption. All captions of a video must come together."""
        if caption.video_id != self._video_id:
            self._clips, self._video_id = set(), caption.video_id
        clip = (caption.split, caption.start_seconds, caption.end_seconds)
        self.num_clips[caption.split] += clip not in self._clips
        self._clips.add(clip)
        self._videos[caption.split].add(caption.video_id)
        self.num_captions[caption.split] += 1
        texts = self._video_of_text[caption.split]
        if len(texts) < MOST_TEXTS:
            video_id = texts.setdefault(hash(caption.caption), caption.video_id)
            if video_id != caption.video_id:
                texts[hash(caption.caption)] = None

    def video_ids(self) -> set[str]:
        """Return the ids of all videos that captions name."""
        return set().union(*self._videos.values())

    def statistics(self, *, changed: Mapping[str, int], left_out: LeftOut) -> CaptionStatistics:
        """Return the statistics of everything counted so far."""
        splits = {split: self._split_statistics(split) for split in SPLITS if self.num_captions[split]}
        overlap = {f"{a}, {b}": len(self._videos[a] & self._videos[b]) for a, b in combinations(splits, 2)}
        return CaptionStatistics(splits=splits, videos_in_both=overlap, changed=dict(changed), left_out=left_out)

    def _split_statistics(self, split: str) -> SplitStatistics:
        tags, texts = self.tags[split], self._video_of_text[split]
        return SplitStatistics(
            videos=len(self._videos[split]),
            clips=self.num_clips[split],
            captions=self.num_captions[split],
            shared_texts=sum(video is None for video in texts.values()) if len(texts) < MOST_TEXTS else None,
            words=tags.total() - tags["PUNCT"],
            nouns=tags["NOUN"],
            verbs=tags["VERB"],
            adjectives=tags["ADJ"],
        )


def format_statistics(statistics: CaptionStatistics) -> str:
    """Return the statistics as a table for people."""
    rows = {split: asdict(values) for split, values in statistics.splits.items()}
    columns = list(next(iter(rows.values())))
    lines = [f"{'split':<12}" + "".join(f"{column.replace('_', ' '):>14}" for column in columns)]
    lines += [
        f"{split:<12}" + "".join(f"{'-' if v is None else format(v, ','):>14}" for v in row.values())
        for split, row in rows.items()
    ]
    lines += [f"kept, but changed: {change}: {count:,}" for change, count in statistics.changed.items()]
    lines += [
        f"videos in both {pair.replace(', ', ' and ')}: {count:,}"
        for pair, count in statistics.videos_in_both.items()
        if count
    ]
    return "\n".join(lines)
