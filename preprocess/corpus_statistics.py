"""Statistics of a data set by split, counted as captions are read, without keeping them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from ..storage.common.validation import is_text
from ..storage.records import SPLITS, Caption

MAX_COMPARED_TEXTS = 2_000_000
"""Largest number of different texts of a split that are compared. Above it, shared texts are not counted."""


@dataclass(frozen=True, kw_only=True)
class SplitStatistics:
    """Statistics of one split."""

    videos: int
    clips: int
    captions: int
    shared_texts: int | None
    """Number of different texts that occur with several videos; None if there are too many texts to compare."""
    words: int
    """Without punctuation."""
    nouns: int
    verbs: int
    adjectives: int


@dataclass(frozen=True, kw_only=True)
class SkippedInputs:
    """Inputs that could not be used."""

    count: int
    first: list[str] = field(default_factory=list)
    """Messages about the first skipped inputs."""


@dataclass(frozen=True, kw_only=True)
class CaptionStatistics:
    """The content of ``summary.json``."""

    splits: dict[str, SplitStatistics]
    """By name; only splits with captions."""
    videos_in_both: dict[str, int]
    """For each pair of splits, such as ``train, test``, the number of videos that are in both."""
    changed: dict[str, int]
    """{the change: number of rows that were used with a changed value}"""
    left_out: SkippedInputs
    other_languages: dict[str, float] = field(default_factory=dict)
    """Share of captions in each language that the tagger does not know, estimated from a sample; empty if hardly any
    caption is in such a language.
    """

    @property
    def num_captions(self) -> int:
        """Number of captions in all splits."""
        return sum(split.captions for split in self.splits.values())

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CaptionStatistics":
        """Return the statistics from values of ``to_json``. Raises ``ValueError`` and others for anything else."""
        statistics = cls(
            splits={name: SplitStatistics(**split) for name, split in values["splits"].items()},
            videos_in_both=dict(values["videos_in_both"]),
            changed=dict(values["changed"]),
            left_out=SkippedInputs(**values["left_out"]),
            other_languages=dict(values.get("other_languages", {})),  # 1.0.0 wrote none
        )
        counts = [*statistics.videos_in_both.values(), *statistics.changed.values(), statistics.left_out.count]
        for split in statistics.splits.values():
            counts += [count for name, count in vars(split).items() if (name, count) != ("shared_texts", None)]
        shares = statistics.other_languages.values()
        if not all(type(count) is int for count in counts) or not all(type(s) is float for s in shares):
            raise ValueError("a count is not an integer")
        if not statistics.splits:
            raise ValueError("no split")
        return statistics


class CorpusCounter:
    """Counts captions, clips, videos and words of each split."""

    def __init__(self) -> None:
        """Begin with nothing counted."""
        self.num_captions: Counter[str] = Counter()
        self.num_clips: Counter[str] = Counter()
        self.tags: dict[str, Counter[str]] = defaultdict(Counter)
        """Counts of part-of-speech tags by split, added by the caller after tagging."""
        self.videos: dict[str, set[str]] = defaultdict(set)
        """Ids of the videos of each split."""
        self._clips: set[tuple[str, float | None, float | None]] = set()
        self._video_id = ""
        """The video that the clips in ``_clips`` belong to."""

    def add(self, caption: Caption) -> None:
        """Count a caption. All captions of a video must come together."""
        if caption.video_id != self._video_id:
            self._clips, self._video_id = set(), caption.video_id
        clip = (caption.split, caption.start_seconds, caption.end_seconds)
        self.num_clips[caption.split] += clip not in self._clips
        self._clips.add(clip)
        self.videos[caption.split].add(caption.video_id)
        self.num_captions[caption.split] += 1

    def add_all(self, other: "CorpusCounter") -> None:
        """Add the counts of another counter, from other videos."""
        self.num_captions.update(other.num_captions)
        self.num_clips.update(other.num_clips)
        for split, video_ids in other.videos.items():
            self.videos[split] |= video_ids

    def to_json(self) -> dict[str, Any]:
        """Return the counts of captions and clips and the video ids, by split."""
        return {
            split: {"captions": count, "clips": self.num_clips[split], "videos": sorted(self.videos[split])}
            for split, count in sorted(self.num_captions.items())
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "CorpusCounter":
        """Return the counter from values of ``to_json``."""
        counter = cls()
        for split, counts in values.items():
            if not type(counts["captions"]) is type(counts["clips"]) is int or not all(map(is_text, counts["videos"])):
                raise ValueError("a count is not an integer, or an id is not a text")
            counter.num_captions[split], counter.num_clips[split] = counts["captions"], counts["clips"]
            counter.videos[split] = set(counts["videos"])
        return counter

    def video_ids(self) -> set[str]:
        """Return the ids of all videos that captions name."""
        return set().union(*self.videos.values())

    def statistics(
        self, *, shared_texts: Mapping[str, int | None], changed: Mapping[str, int], left_out: SkippedInputs
    ) -> CaptionStatistics:
        """Return the statistics of everything counted so far."""
        splits = {
            split: self._split_statistics(split, shared_texts[split]) for split in SPLITS if self.num_captions[split]
        }
        overlap = {f"{a}, {b}": len(self.videos[a] & self.videos[b]) for a, b in combinations(splits, 2)}
        return CaptionStatistics(splits=splits, videos_in_both=overlap, changed=dict(changed), left_out=left_out)

    def _split_statistics(self, split: str, shared_texts: int | None) -> SplitStatistics:
        tags = self.tags[split]
        return SplitStatistics(
            videos=len(self.videos[split]),
            clips=self.num_clips[split],
            captions=self.num_captions[split],
            shared_texts=shared_texts,
            words=tags.total() - tags["PUNCT"],
            nouns=tags["NOUN"],
            verbs=tags["VERB"],
            adjectives=tags["ADJ"],
        )


def count_shared_texts(rows: Iterable[tuple[str, str, str]], splits: Collection[str]) -> dict[str, int | None]:
    """Return, for each split, how many different texts occur with several videos; None if there are too many texts.

    Args:
        rows: The split, the video and the text of each caption. Not read further once all splits have too many texts.
        splits: Names of the splits.
    """
    video_of_text: dict[str, dict[int, str | None]] = {split: {} for split in splits}
    """By split and hash of a text, the video that has it; None if several do."""
    counted = set(splits)
    for split, video_id, text in rows:
        if split not in counted:
            continue
        texts, key = video_of_text[split], hash(text)
        if texts.setdefault(key, video_id) != video_id:
            texts[key] = None
        if len(texts) >= MAX_COMPARED_TEXTS:
            counted.remove(split)
            texts.clear()
            if not counted:
                break
    return {
        split: sum(video is None for video in texts.values()) if split in counted else None
        for split, texts in video_of_text.items()
    }


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
