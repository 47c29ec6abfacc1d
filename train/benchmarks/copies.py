"""Copies: how well vectors of videos find the source of a copied video (VSC2022).

The videos are from the Meta AI Video Similarity Challenge. Ids of queries begin with Q, and ids of references with R.
All pairs of a query and a reference are ranked in one list, by their score:

- ``whole videos``: the cosine of the vectors of both videos, by which ``vlalign-index --duplicates`` finds duplicates;
- ``search windows``: the highest cosine of any search window of one video with any of the other. In the same way, the
  challenge's descriptor track compares all descriptors, and ``vlalign-search --like`` finds a part of a video.

Sources: Pizzi et al. 2023; ``evaluate_descriptor_track`` in ``vsc/descriptor_eval_lib.py`` and ``average_precision`` in
``vsc/metrics.py`` of facebookresearch/vsc2022.
"""

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...storage.common.errors import UserError
from ...storage.common.files import read_small
from ...storage.common.problems import Problems
from ...storage.common.progress import progress
from ..search.encoder import l2_normalize
from ..search.index import WindowIndex
from .ground_truth import EXPECTED, ids_by_name
from .result import RANDOM, Measured

MAX_BYTES, MAX_SHOWN = 16 << 20, 80
"""Maximum size of the file (published ones have less than 1 MB), and maximum length of an id in a message."""
PAIRS_PER_QUERY = 25
"""Average number of pairs for each query in the list; a query may have more pairs, or none
(``AGGREGATED_CANDIDATES_PER_QUERY``)."""
MAX_DIMENSIONS = 512
"""Maximum dimension of a descriptor, by the rules of the challenge."""
NEAREST = 10
"""Number of references of each query that mAP@10 is computed from."""
WINDOWS_AT_ONCE = 1 << 12
"""Number of query windows, and of reference windows, that are compared at once: their products take 64 MiB."""
NOTES = (
    "descriptors are the vectors of search windows: fewer than the challenge allows, which is one per second",
    "the official script takes pairs of videos from the best pairs of descriptors, 1,200 times the number of "
    "queries; here all pairs of windows are compared: the list can have more pairs at its end, and micro-AP can be "
    "a little higher",
    "the matching track (when a copy begins in both videos) is not measured: search does not report these times",
)


@dataclass(frozen=True)
class RankedPairs:
    """The pairs of queries and references with the highest scores."""

    queries: np.ndarray
    """int64 [P], index of each pair's query, the best pair first."""
    references: np.ndarray
    """int64 [P]"""
    scores: np.ndarray
    """float32 [P]"""
    nearest_QK: np.ndarray
    """int64 [Q, K], the best references of each query, the best first; -1 where there are fewer."""


def read_copies(path: Path) -> set[tuple[str, str]]:
    """Return the (query, reference) pairs of a ground truth of VSC2022: a CSV file with ``query_id`` and ``ref_id``.

    The files of both tracks can be read. The matching track's file has a row for each copied part; times are ignored.

    Raises:
        UserError: The file is not as published.
    """
    pairs: set[tuple[str, str]] = set()
    try:
        text = read_small(path, MAX_BYTES).decode("utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        if missing := {"query_id", "ref_id"} - set(reader.fieldnames or ()):
            raise UserError(f"{path}: no column {', '.join(sorted(missing))}; {EXPECTED}")
        for row in reader:
            query, reference = row["query_id"], row["ref_id"]
            if not (query or "").startswith("Q") or not (reference or "").startswith("R"):
                shown = f"{str(query)[:MAX_SHOWN]!r} and {str(reference)[:MAX_SHOWN]!r}"
                problem = f"the pair {shown}, expected ids that begin with Q and R"
                raise UserError(f"{path}, line {reader.line_num}: {problem}")
            pairs.add((query, reference))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a ground truth of VSC2022") from None
    except (csv.Error, ValueError) as error:
        raise UserError(f"{path}: not valid CSV in UTF-8 ({error}); {EXPECTED}") from None
    if not pairs:
        raise UserError(f"{path}: has no pairs; {EXPECTED}")
    return pairs


def measure_copies(index: WindowIndex, pairs: Collection[tuple[str, str]], problems: Problems) -> Measured:
    """Rank all pairs of a query and a reference, and compare the best pairs with the right pairs.

    Args:
        index: The search windows of all queries and references.
        pairs: The right pairs.
        problems: Receives the pairs whose videos are not in the index, which are skipped.
    """
    ids = {name: video_id for name, video_id in ids_by_name(index.video_ids).items() if len(index.rows_of(video_id))}
    queries = sorted(name for name in ids if name.startswith("Q"))
    references = sorted(name for name in ids if name.startswith("R"))
    if not queries or not references:
        raise UserError(
            f"of {len(index.video_ids):,} videos in the index, {len(queries):,} are queries (Q...) and "
            f"{len(references):,} references (R...); expected both, with VSC2022's ids"
        )
    number_of = {name: number for names in (queries, references) for number, name in enumerate(names)}
    right: set[tuple[int, int]] = set()
    for query, reference in sorted(pairs):
        if missing := [name for name in (query, reference) if name not in number_of]:
            problems.add(f"copy {query} of {reference}: {missing[0]} is not in the index; skipped")
        else:
            right.add((number_of[query], number_of[reference]))
    if not right:
        raise UserError("no pair of the ground truth has both videos in the index; run vlalign-extract on them")
    metrics: dict[str, dict[str, float]] = {}
    rows = []
    of_queries, of_references = ([ids[name] for name in names] for names in (queries, references))
    for kind, whole in (("whole videos", True), ("search windows", False)):
        found = rank_pairs(index, of_queries, of_references, whole=whole)
        metrics[kind] = {"micro-AP": 100 * micro_ap(found, right), "mAP@10": 100 * mean_ap(found, right)}
        listed = zip(found.queries.tolist(), found.references.tolist(), found.scores.tolist(), strict=True)
        rows += [
            {"by": kind, "query": queries[q], "reference": references[r], "score": score, "right": (q, r) in right}
            for q, r, score in listed
        ]
    metrics[RANDOM] = _random_baseline(len(queries), len(references), right)
    copied = len({query for query, _ in right})
    return Measured(
        what=f"{len(right):,} of {len(pairs):,} copies; {len(queries):,} queries, {len(references):,} references",
        metrics=metrics,
        rows=rows,
        notes=list(_notes(index.dim)),
        num_items=copied,
    )


def _notes(num_dimensions: int) -> Iterator[str]:
    """Yield the differences between the measurement, with vectors of ``num_dimensions``, and the challenge."""
    if num_dimensions > MAX_DIMENSIONS:
        yield f"descriptors have {num_dimensions:,} dimensions; the challenge allows {MAX_DIMENSIONS}"
    yield from NOTES


def rank_pairs(index: WindowIndex, queries: Sequence[str], references: Sequence[str], *, whole: bool) -> RankedPairs:
    """Return the best pairs of queries and references.

    Args:
        index: Their windows.
        queries: Ids of videos.
        references: Ids of other videos.
        whole: Compare the vectors of whole videos; else the score is the highest of any two windows.
    """
    most = PAIRS_PER_QUERY * len(queries)
    best, least = np.zeros((0, 3)), -np.inf  # score, query and reference of each pair; least score that counts
    nearest = np.full((len(queries), NEAREST), -1, dtype=np.int64)
    nearest_scores = np.full((len(queries), NEAREST), -np.inf, dtype=np.float32)
    blocks = list(_blocks(index, references, whole=whole))
    for first_reference, reference_vectors, reference_starts in progress(
        iter(blocks), total=len(blocks), what="whole videos" if whole else "search windows", unit="blocks"
    ):
        reference_WD = reference_vectors()
        for first_query, query_vectors, query_starts in _blocks(index, queries, whole=whole):
            products = np.nan_to_num(query_vectors() @ reference_WD.T, nan=-np.inf)
            scores = np.maximum.reduceat(np.maximum.reduceat(products, reference_starts, axis=1), query_starts, axis=0)
            rows = slice(first_query, first_query + len(scores))
            _keep_nearest(nearest[rows], nearest_scores[rows], scores, first_reference)
            q, r = np.nonzero((scores >= least) & np.isfinite(scores))
            best = np.concatenate([best, np.stack([scores[q, r], q + first_query, r + first_reference], axis=1)])
            if len(best) > 2 * most:
                best = _sorted(best)[:most]
                least = best[-1, 0]
    best = _sorted(best)[:most]
    return RankedPairs(best[:, 1].astype(np.int64), best[:, 2].astype(np.int64), best[:, 0].astype(np.float32), nearest)


def _sorted(pairs_P3: np.ndarray) -> np.ndarray:
    """Return pairs (score, query, reference), the best first; equal scores are sorted by query and reference."""
    return pairs_P3[np.lexsort((pairs_P3[:, 2], pairs_P3[:, 1], -pairs_P3[:, 0]))]


def _blocks(
    index: WindowIndex, video_ids: Sequence[str], *, whole: bool
) -> Iterator[tuple[int, "_Vectors", np.ndarray]]:
    """Yield blocks of a few videos: (number of the first video, their vectors, the start of each video's vectors)."""
    rows: list[np.ndarray] = []
    first = 0
    for number, video_id in enumerate(video_ids):
        of_video = index.rows_of(video_id)
        rows.append(of_video[:1] if whole else of_video)
        if sum(map(len, rows)) >= WINDOWS_AT_ONCE or number == len(video_ids) - 1:
            starts = np.cumsum([0, *map(len, rows)])[:-1]
            yield first, _Vectors(index, np.concatenate(rows)), starts
            rows, first = [], number + 1


@dataclass(frozen=True)
class _Vectors:
    """Vectors of windows, which are read when this is called."""

    index: WindowIndex
    rows: np.ndarray

    def __call__(self) -> np.ndarray:
        return l2_normalize(self.index.vectors_of(self.rows))


def _keep_nearest(nearest: np.ndarray, nearest_scores: np.ndarray, scores: np.ndarray, first_reference: int) -> None:
    """Merge the best of new references into the previous best, in place: [Q, K] each."""
    numbers = np.broadcast_to(np.arange(first_reference, first_reference + scores.shape[1]), scores.shape)
    all_scores, all_numbers = np.hstack([nearest_scores, scores]), np.hstack([nearest, numbers])
    order = np.argsort(-all_scores, axis=1, kind="stable")[:, :NEAREST]
    nearest_scores[:] = np.take_along_axis(all_scores, order, axis=1)
    nearest[:] = np.where(np.isfinite(nearest_scores), np.take_along_axis(all_numbers, order, axis=1), -1)


def micro_ap(found: RankedPairs, right: Collection[tuple[int, int]]) -> float:
    """Return the average precision of one list of all pairs, 0 to 1: the challenge's micro-AP.

    Args:
        found: The list.
        right: (query, reference) of each copy.
    """
    is_right = np.array(
        [pair in right for pair in zip(found.queries.tolist(), found.references.tolist(), strict=True)], dtype=bool
    )
    precision = is_right.cumsum() / np.arange(1, len(is_right) + 1)
    return float(precision[is_right].sum() / len(right))


def mean_ap(found: RankedPairs, right: Collection[tuple[int, int]]) -> float:
    """Return the mean average precision of the first ten references, over the queries that are copies, 0 to 1.

    It is ``map_at_10`` of mteb's task VSC2022Retrieval, which has a part of the challenge's queries and references.
    """
    sources: dict[int, set[int]] = {}
    for query, reference in right:
        sources.setdefault(query, set()).add(reference)
    precisions = []
    for query, of_query in sources.items():
        is_right = np.array([reference in of_query for reference in found.nearest_QK[query].tolist()])
        precision = is_right.cumsum() / np.arange(1, len(is_right) + 1)
        precisions.append(float(precision[is_right].sum() / len(of_query)))
    return float(np.mean(precisions))


def _random_baseline(num_queries: int, num_references: int, right: Collection[tuple[int, int]]) -> dict[str, float]:
    """Return the expected metrics of lists in random order.

    At rank n of N, a right pair has the expected precision (1 + (n - 1) (R - 1) / (N - 1)) / n, if R pairs are right.
    """
    num_pairs = num_queries * num_references
    of_query = np.unique([query for query, _ in right], return_counts=True)[1]
    by_query = [_random_ap(int(count), num_references, NEAREST) for count in of_query]
    return {
        "micro-AP": 100 * _random_ap(len(right), num_pairs, PAIRS_PER_QUERY * num_queries),
        "mAP@10": 100 * float(np.mean(by_query)),
    }


def _random_ap(num_right: int, num_all: int, num_counted: int) -> float:
    """Return the expected average precision of the first ``num_counted`` of a list in random order."""
    ranks = np.arange(1, min(num_all, num_counted) + 1)
    others = (num_right - 1) / max(num_all - 1, 1)
    return float(np.sum((1 + (ranks - 1) * others) / ranks) / num_all)
