"""Texts with an example: how well search ranks parts of a long video for a text and an image or a clip (MomentSeeker).

A query has a text, perhaps an image or a clip, and candidates: parts of the long video that it is about. The candidates
are ranked by their cosine with the query vector of ``vlalign-search TEXT --like EXAMPLE --like-weight W``.

Sources: Yuan et al. 2025; ``build_dataset``, ``evaluate_recall`` and ``evaluate_map`` in
``MomentSeeker/evaluate_languagebind.py`` of yhy-2000/MomentSeeker.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.files import read_small
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ..data.clips import Clip
from ..search.encoder import l2_normalize
from ..search.query_checks import ExampleQuery, VideoSpan
from ..search.search import Search
from .ground_truth import EXPECTED, as_published, file_below, ids_by_name
from .result import RANDOM, Measured

RECALL_AT = (1, 5, 10)
PRECISION_AT = 5
MAX_BYTES = 1 << 28
SPAN = re.compile(r"(?P<start>\d{1,7}(?:\.\d+)?)_(?P<end>\d{1,7}(?:\.\d+)?)", re.ASCII)
"""Name of a candidate's file: when it begins and ends in its video, such as ``30.00_60.00.mp4``."""
KINDS = {"": "text", "image": "text and image", "video": "text and clip"}
NOTES = (
    "only the vectors of queries and candidates are compared: a run's later stages are not used, and search windows "
    "are not merged",
    "mAP@5 follows the authors' code: precisions are weighted by the overlap with the span from the first to the last "
    "right part; it can exceed 100",
    "a query ranks the candidates that it lists; the authors' script ranks those of all queries on its video",
    "mteb's MomentSeeker tasks rank 30 s chunks of all videos together",
)


@dataclass(frozen=True)
class ComposedQuery:
    """A query of MomentSeeker, with paths as in the file."""

    text: str
    kind: str
    """Kind of the example, a key of ``KINDS``."""
    example: str
    """Path of the image or the clip; empty without an example."""
    candidates: Sequence[str]
    """Paths of parts of a video, such as ``/share/movie101_16/30.00_60.00.mp4``."""
    right: frozenset[int]
    """Indices of the answers to the query."""
    file: Path
    """The file that lists the query. Images are searched for in the folder of this file."""


def read_composed(path: Path) -> list[ComposedQuery]:
    """Return the queries in a JSON file of MomentSeeker.

    Raises:
        UserError: The file is not as published.
    """
    try:
        listed = json.loads(read_small(path, MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a file of MomentSeeker") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON in UTF-8 ({error}); {EXPECTED}") from None
    if not isinstance(listed, list):
        raise UserError(f"{path}: the top level is a {type(listed).__name__}, not a list; {EXPECTED}")
    queries = []
    for number, row in enumerate(listed, start=1):
        with as_published(path, f"query {number}"):
            queries.append(_query(row, path))
    return queries


def _query(row: Mapping[str, Any], path: Path) -> ComposedQuery:
    image, clip = row.get("qry_img_path") or "", row.get("qry_video_path") or ""
    candidates = [candidate["output_path"] for candidate in row["candidate_video_list"]]
    right = frozenset(row["gt_indices"])
    if not all(isinstance(value, str) for value in (row["qry_text"], image, clip, *candidates)):
        raise TypeError("expected text in qry_text, qry_img_path, qry_video_path and output_path")
    if any(type(index) is not int for index in right):
        raise TypeError(f"gt_indices {str(sorted(right, key=str))[:80]}, expected whole numbers")
    if not right or not right <= set(range(len(candidates))):
        raise ValueError(f"gt_indices {sorted(right)}, expected some of 0 to {len(candidates) - 1}")
    kind = "image" if image else "video" if clip else ""
    return ComposedQuery(row["qry_text"], kind, image or clip, candidates, right, path)


def span_of(path: str) -> tuple[str, float, float] | None:
    """Return (name of the video, start, end) of a part of a video from its published path; None for any other path.

    >>> span_of("/share/movie101_16/30.00_60.00.mp4")
    ('movie101_16', 30.0, 60.0)
    """
    named = PurePosixPath(path)
    match = SPAN.fullmatch(named.stem)
    if match is None or not named.parent.name:
        return None
    start, end = float(match["start"]), float(match["end"])
    return (named.parent.name, start, end) if start < end else None


class _Skipped(Exception):
    """A query that cannot be evaluated; the message gives the reason."""


def measure_composed(
    search: Search, queries: Sequence[ComposedQuery], like_weight: float, problems: Problems
) -> Measured:
    """Rank the candidates of each query.

    Args:
        search: Search in the data set of the long videos.
        queries: The queries of one or several files.
        like_weight: Share of the example beside the text, 0 to 1.
        problems: Receives skipped queries, whose videos have no features or whose image is missing.
    """
    ids = ids_by_name([v for v in search.index.video_ids if len(search.index.rows_of(v))])
    results: dict[str, list[dict[str, float]]] = {}
    baseline: dict[str, list[dict[str, float]]] = {}
    rows = []
    for query in progress(queries, total=len(queries), what="composed", unit="queries"):
        try:
            spans = [_known_span(ids, path) for path in query.candidates]
            order = np.argsort(-_scores(search, ids, query, spans, like_weight), kind="stable")
        except (_Skipped, UserError) as reason:
            problems.add(f"{query.file}, query {query.text!r}: {reason}; skipped")
            continue
        kind = KINDS[query.kind]
        results.setdefault(kind, []).append(query_metrics(order, spans, query.right))
        baseline.setdefault(kind, []).append(random_metrics(len(spans), len(query.right)))
        best = [query.candidates[i] for i in order[: max(RECALL_AT)].tolist()]
        right = [query.candidates[i] for i in sorted(query.right)]
        rows.append({"query": query.text, "example": query.example, "kind": kind, "right": right, "found": best})
    if not rows:
        raise UserError(
            "every query was skipped, for the reasons above; expected an index of the videos that the file names"
        )
    metrics: dict[str, dict[str, float]] = {}
    for kind in filter(results.__contains__, KINDS.values()):
        metrics[kind] = _means(results[kind])
        metrics[f"{kind}, {RANDOM}" if len(results) > 1 else RANDOM] = _means(baseline[kind])
    return Measured(
        what=f"{len(rows):,} of {len(queries):,} queries",
        metrics=metrics,
        rows=rows,
        notes=(f"weight of the example beside the text: {like_weight:g}", *NOTES),
        num_items=len(rows),
    )


def _known_span(ids: Mapping[str, str], path: str) -> tuple[str, float, float]:
    """Return (id of the video, start, end) of a candidate."""
    span = span_of(path)
    if span is None:
        raise _Skipped(f"candidate {path!r} is not named VIDEO/START_END with times in seconds")
    if span[0] not in ids:
        raise _Skipped(f"video {span[0]!r} is not in the index")
    return ids[span[0]], span[1], span[2]


def _scores(
    search: Search,
    ids: Mapping[str, str],
    query: ComposedQuery,
    spans: Sequence[tuple[str, float, float]],
    like_weight: float,
) -> np.ndarray:
    """Return the score of each candidate, float32 [N]; -inf for one without feature rows."""
    query_D = search.encode_query(query.text, _example(ids, query), like_weight)
    vectors = search.encoder.encode_clips([Clip(*span) for span in spans])
    return np.nan_to_num(l2_normalize(vectors) @ l2_normalize(query_D), nan=-np.inf)


def _example(ids: Mapping[str, str], query: ComposedQuery) -> ExampleQuery | None:
    if query.kind == "":
        return None
    if query.kind == "image":
        path = file_below(query.file.parent, query.example)
        if path is None:
            raise _Skipped(f"image {query.example!r} is not in {query.file.parent}")
        return path
    if (span := span_of(query.example)) is not None and span[0] in ids:
        return VideoSpan(ids[span[0]], span[1], span[2])
    name = PurePosixPath(query.example).stem
    if name not in ids:
        raise _Skipped(f"clip {query.example!r} is not in the index; extract it as a video, or as a part of one")
    return VideoSpan(ids[name])


def query_metrics(
    order: np.ndarray, spans: Sequence[tuple[str, float, float]], right: Collection[int]
) -> dict[str, float]:
    """Return the metrics of a query, 0 to 1.

    Args:
        order: Indices of the candidates, the best first.
        spans: Video, start and end of each candidate.
        right: Indices of the right candidates.
    """
    metrics = {f"R@{k}": float(any(i in right for i in order[:k].tolist())) for k in RECALL_AT}
    start, end = min(spans[i][1] for i in right), max(spans[i][2] for i in right)
    overlaps = np.array([_overlap(spans[i][1:], (start, end)) for i in order[:PRECISION_AT].tolist()])
    precision = overlaps.cumsum() / np.arange(1, len(overlaps) + 1)
    return metrics | {f"mAP@{PRECISION_AT}": float((precision * overlaps).sum())}


def _overlap(span: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the overlap of two spans, divided by the time from the earlier start to the later end."""
    shared = max(0.0, min(span[1], other[1]) - max(span[0], other[0]))
    return shared / (max(span[1], other[1]) - min(span[0], other[0]))


def random_metrics(num_candidates: int, num_right: int) -> dict[str, float]:
    """Return the share of random orders with a right candidate among the first k, 0 to 1."""
    shares = {}
    for k in RECALL_AT:
        missed = 1.0
        for rank in range(min(k, num_candidates)):
            missed *= max(num_candidates - num_right - rank, 0) / (num_candidates - rank)
        shares[f"R@{k}"] = 1 - missed
    return shares


def _means(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: 100 * float(np.mean([of_query[name] for of_query in values])) for name in values[0]}
