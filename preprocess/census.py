"""What a data set has, split by split: counted as captions come by, without keeping them."""

from collections import Counter, defaultdict
from itertools import combinations
from typing import Any

from ..storage.records import Caption

SPLITS = ("train", "validation", "test")
MOST_TEXTS = 2_000_000
"""Of a split, whose texts are compared; above, who shares a caption is not counted."""
WORD_TAGS = {"nouns": "NOUN", "verbs": "VERB", "adjectives": "ADJ"}


class Census:
    def __init__(self) -> None:
        self.num_captions: Counter[str] = Counter()
        self.num_clips: Counter[str] = Counter()
        self.tags: dict[str, Counter[str]] = defaultdict(Counter)
        """Of the words, to be added from what was tagged."""
        self._videos: dict[str, set[str]] = defaultdict(set)
        self._clips: set[tuple] = set()
        self._clips_of = ""
        self._video_of_text: dict[str, dict[int, str | None]] = defaultdict(dict)
        """By split and hash of a text, the video that has it; None where several do."""

    def add(self, caption: Caption) -> None:
        """All captions of a video come together."""
        if caption.video_id != self._clips_of:
            self._clips, self._clips_of = set(), caption.video_id
        clip = (caption.split, caption.start_seconds, caption.end_seconds)
        self.num_clips[caption.split] += clip not in self._clips
        self._clips.add(clip)
        self._videos[caption.split].add(caption.video_id)
        self.num_captions[caption.split] += 1
        texts = self._video_of_text[caption.split]
        if len(texts) < MOST_TEXTS:
            owner = texts.setdefault(hash(caption.caption), caption.video_id)
            if owner != caption.video_id:
                texts[hash(caption.caption)] = None

    def video_ids(self) -> set[str]:
        return set().union(*self._videos.values())

    def summary(self) -> dict[str, Any]:
        """Plain values. ``shared_texts``: captions' texts that several videos have; None where there are too many to compare."""
        splits = {}
        for split in (split for split in SPLITS if self.num_captions[split]):
            tags, texts = self.tags[split], self._video_of_text[split]
            splits[split] = {
                "videos": len(self._videos[split]),
                "clips": self.num_clips[split],
                "captions": self.num_captions[split],
                "shared_texts": sum(owner is None for owner in texts.values()) if len(texts) < MOST_TEXTS else None,
                "words": tags.total() - tags["PUNCT"],
                **{name: tags[tag] for name, tag in WORD_TAGS.items()},
            }
        overlap = {f"{a}, {b}": len(self._videos[a] & self._videos[b]) for a, b in combinations(splits, 2)}
        return {"splits": splits, "videos_in_both": overlap}


def format_summary(summary: dict[str, Any]) -> str:
    """The table that people see."""
    splits = summary["splits"]
    columns = list(next(iter(splits.values())))
    lines = [f"{'split':<12}" + "".join(f"{column.replace('_', ' '):>14}" for column in columns)]
    lines += [
        f"{split:<12}" + "".join(f"{'-' if v is None else format(v, ','):>14}" for v in row.values())
        for split, row in splits.items()
    ]
    lines += [f"kept, but changed: {what}: {count:,}" for what, count in summary["changed"].items()]
    lines += [
        f"videos in both {pair.replace(', ', ' and ')}: {count:,}"
        for pair, count in summary["videos_in_both"].items()
        if count
    ]
    return "\n".join(lines)
