"""Retrieval on a split: metrics, and what was retrieved."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..storage.console import Problems, UserError
from ..storage.files import write_json, write_jsonl
from .checkpoint import Run, load_run
from .data import Pairs, read_pairs
from .metrics import count, retrieval_metrics
from .report import write_report
from .runs import METRICS_FILE, QUERIES_FILE
from .scoring import score_matrix

GALLERY_QUERIES = 8
GALLERY_RESULTS = 5


def gallery(scores: np.ndarray, pairs: Pairs) -> list[dict[str, Any]]:
    """The best clips for a few captions of clips spread evenly over the split."""
    chosen = np.linspace(0, len(pairs.clips) - 1, min(GALLERY_QUERIES, len(pairs.clips))).round().astype(int)
    queries = []
    for clip, captions in enumerate(pairs.captions_of_clips()):
        if clip not in chosen:
            continue
        row = scores[captions[0]]
        best = np.argsort(-row, kind="stable")[:GALLERY_RESULTS]
        queries.append(
            {
                "caption": pairs.captions[captions[0]].caption,
                "rank_of_right": int((row > row[clip]).sum()) + 1,
                "results": [{**vars(pairs.clips[i]), "score": float(row[i]), "right": bool(i == clip)} for i in best],
            }
        )
    return queries


def split_checksum(pairs: Pairs) -> str:
    """The same where the same captions are asked of the same clips, in whatever order: 16 digits of a SHA-256."""
    rows = sorted(f"{caption.clip_id}\t{caption.caption}\n" for caption in pairs.captions)
    return hashlib.sha256("".join(rows).encode()).hexdigest()[:16]


def answers(scores: np.ndarray, pairs: Pairs) -> Iterator[dict[str, Any]]:
    """Each caption with its clip, that clip's rank (a tied one counts half), and the clip that came first."""
    right = pairs.clip_of_caption
    counts = count(lambda rows: scores[rows], scores[np.arange(len(right)), right], right, "average")
    for number, caption in enumerate(pairs.captions):
        best = int(scores[number].argmax())
        yield {
            "caption": caption.caption,
            "clip": vars(pairs.clips[right[number]]),
            "rank": 1 + counts.above[number].item() + counts.tied[number].item() / 2,
            "score": scores[number, right[number]].item(),
            "first": vars(pairs.clips[best]),
            "first_score": scores[number, best].item(),
        }


def evaluate_run(folder: Path, split: str, ties: str, problems: Problems, fingerprint: dict[str, Any]) -> dict[str, Any]:
    """Scores every caption of ``split`` against every clip; writes ``metrics.json`` (returned), ``queries.jsonl`` and ``report.html``."""
    run: Run = load_run(folder)
    usable = read_pairs(run.dataset, run.features, problems)
    pairs = usable[split]
    if not pairs.clips:
        there = ", ".join(name for name in usable if usable[name].clips)
        raise UserError(f"{run.dataset.captions}: no usable captions with split {split!r}; pass another --split ({there})")
    if ties == "coot" and len(pairs.captions) != len(pairs.clips):
        raise UserError(
            f"--ties coot: is for one caption a clip; {split} has {len(pairs.captions):,} captions of {len(pairs.clips):,} clips"
        )
    scores = score_matrix(run.model, run.tokenizer, run.weights, run.features, pairs.captions, pairs.clips, run.config)
    result = {
        "run": folder.name,
        "dataset": run.dataset.name,
        "split": split,
        "num_captions": len(pairs.captions),
        "num_clips": len(pairs.clips),
        "note": run.note,
        "split_checksum": split_checksum(pairs),
        "ties": ties,
        "metrics": retrieval_metrics(scores, pairs.clip_of_caption, ties),
        "left_out": problems.count,
        "fingerprint": fingerprint,
    }
    write_jsonl(folder / QUERIES_FILE, answers(scores, pairs))
    write_report(run, result, gallery(scores, pairs))
    write_json(folder / METRICS_FILE, result)  # last: its presence says that both are there
    return result
