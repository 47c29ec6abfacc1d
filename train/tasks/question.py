"""What a run is asked, and what an evaluation answers, whatever the task."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...storage.records import Caption


@dataclass(frozen=True)
class Question:
    """What a run is asked."""

    task: str
    """One of ``TASKS``."""
    split: str
    ties: str
    rerank: int | None
    """The fusion layers look at so many best clips of each caption, and captions of each clip; None: at all pairs."""
    weights: dict[str, float]
    """Of the stages of the score."""
    normalize: str = "none"
    """One of ``NORMALIZATIONS``."""
    temperature: float = 1.0
    """By which similarities become retrieval probabilities."""
    device: str = "cpu"


@dataclass(frozen=True)
class Answers:
    result: dict[str, Any]
    """Goes into ``metrics.json``, beside what was asked of which run."""
    rows: Iterable[dict[str, Any]]
    """The lines of ``queries.jsonl``."""
    shown: dict[str, Any]
    """What the report's page of the task draws."""


def split_checksum(captions: Iterable[Caption]) -> str:
    """The same where the same captions, questions with their answers, or recordings are asked of the same clips, in whatever order: 16
    digits of a SHA-256."""
    rows = sorted("\t".join(filter(None, (c.clip_id, c.caption, c.answer, c.recording))) + "\n" for c in captions)
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:16]
