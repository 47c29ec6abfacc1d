"""Search: find the moments of a data set that fit a text. ``vlalign-search`` wraps ``open_search``."""

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...storage.common.errors import SettingError, UserError
from ...storage.common.terminal import say
from ...storage.layout import DatasetFolder
from ..data.clips import Clip
from .build import IndexFolder, add_videos
from .encoders import Encoder, unit
from .examples import Example, VideoPart
from .index import WindowIndex
from .limits import check_count, check_query
from .moments import Hit, Moment, ScoreCurve, merge_hits, span_lines
from .opening import open_encoder
from .windows import plan_windows

SMALL_WINDOWS = 20_000
"""With fewer windows missing, a search makes the index itself."""
BLOCK_WINDOWS = 1 << 12
"""Windows that are scored at once: their vectors stay in the processor's cache."""
CANDIDATES_PER_RESULT, MIN_CANDIDATES = 16, 256
"""Windows that are looked at for each moment: overlapping ones become one."""


class Search:
    """A data set, ready to be searched. Call it with a text."""

    def __init__(self, encoder: Encoder, index: WindowIndex) -> None:
        self.encoder, self.index = encoder, index

    @property
    def dataset(self) -> DatasetFolder:
        """The data set that is searched."""
        return self.encoder.dataset

    @property
    def name(self) -> str:
        """Name of the features, or of the run."""
        return self.encoder.name

    @property
    def note(self) -> str | None:
        """What must be said beside every result, such as that features come from random weights."""
        return self.encoder.note

    @property
    def described(self) -> str:
        """The data set's name, and whose run it is if that is another one's."""
        return self.encoder.described

    @property
    def num_windows(self) -> int:
        """Number of windows that are searched."""
        return self.index.num_windows

    def __call__(
        self,
        query: str = "",
        *,
        like: Example | None = None,
        like_weight: float = 0.5,
        num_results: int = 5,
        rerank: int = 50,
        videos: Collection[str] | None = None,
    ) -> list[Moment]:
        """Find the moments that fit a text best, the best first.

        Args:
            query: What to look for; may be empty with ``like``.
            like: A part of a video, or a picture, that moments should look like. The part itself is left out.
            like_weight: Share of ``like`` beside a text, 0 to 1: both vectors have length 1 and are added.
            num_results: Number of moments to return.
            rerank: Number of candidates that a run's fusion layers score, for a text alone.
            videos: Ids of the videos to search; None for all.

        Raises:
            UserError: There is no query, it is too long, ``like`` cannot be read, or a number is impossible.
        """
        if like is None or query.strip():
            check_query(query)
        check_count("num_results", num_results)
        check_count("rerank", rerank)
        if not 0 <= like_weight <= 1:
            raise SettingError("like_weight", like_weight, "expected 0 to 1")
        if like is None:
            query_D = self.encoder.text_vector(query)
            hits = self._hits(query_D, num_results, videos)
            return self._moments(self._scored(query, hits, max(rerank, num_results)), query_D, num_results)
        query_D = self._vector_like(like)
        if query.strip():
            text_D = self.encoder.text_vector(query)
            query_D = like_weight * unit(query_D) + (1 - like_weight) * unit(text_D)
        hits = self._hits(query_D, num_results, videos)
        if isinstance(like, VideoPart):
            start, end = self._span(like)
            hits = [h for h in hits if h.video_id != like.video_id or h.start_seconds >= end or h.end_seconds <= start]
        return self._moments(hits, query_D, num_results)

    def like(
        self, video_id: str, start_seconds: float | None = None, end_seconds: float | None = None, **options: Any
    ) -> list[Moment]:
        """Find moments that look like a part of a video.

        Args:
            video_id: The video.
            start_seconds: Where the part begins; None for the start of the video.
            end_seconds: Where it ends; None for the end of the video.
            options: Those of ``__call__``, such as ``num_results``.

        Raises:
            UserError: The video has no features, or the part is empty or outside of the video.
        """
        return self(like=VideoPart(video_id, start_seconds, end_seconds), **options)

    def score_curve(self, query: str, video_id: str) -> ScoreCurve:
        """Return how well a text fits a video over its time.

        Args:
            query: What to look for.
            video_id: A video of the data set.

        Raises:
            UserError: The query is empty, or the video has no features.
        """
        check_query(query)
        self._check_video(video_id)
        return self._curve(self.encoder.text_vector(query), video_id)

    def lines(self, moments: Sequence[Moment]) -> list[str]:
        """Return a table of moments for the terminal."""
        return list(span_lines(moments))

    def remarks(self, query: str) -> list[str]:
        """Return what should be said about a text: words that the model does not know, or does not read."""
        return self.encoder.remarks(query)

    def _span(self, part: VideoPart) -> tuple[float, float]:
        """Return start and end of a part of a video, in seconds."""
        self._check_video(part.video_id)
        duration = self.encoder.duration_seconds(part.video_id)
        start, end = part.start_seconds or 0.0, duration if part.end_seconds is None else part.end_seconds
        if not 0 <= start < min(end, duration):
            raise UserError(
                f"{part.video_id}@{start:g}-{end:g}: no part of this video, which has {duration:.2f} s; "
                "expected 0 <= start < end"
            )
        return start, end

    def _vector_like(self, like: Example) -> np.ndarray:
        """Return the vector of a part of a video, or of a picture."""
        if isinstance(like, Path):
            return self.encoder.picture_vector(like)
        start, end = self._span(like)
        whole = start == 0 and end >= self.encoder.duration_seconds(like.video_id)
        clip = Clip(like.video_id, None, None) if whole else Clip(like.video_id, start, end)
        return self.encoder.clip_vectors([clip])[0]

    def _hits(self, query_D: np.ndarray, num_results: int, videos: Collection[str] | None) -> list[Hit]:
        """Return the best windows, the best first."""
        scores = self._scan(query_D)
        live = np.sort(scores[self.index.is_live])
        allowed = self.index.is_live
        if videos is not None:
            chosen = np.array([video_id in videos for video_id in self.index.video_ids], dtype=bool)
            allowed = allowed & chosen[self.index.video]
        rows = np.flatnonzero(allowed)
        count = min(max(CANDIDATES_PER_RESULT * num_results, MIN_CANDIDATES), len(rows))
        if count < len(rows):
            rows = rows[np.argpartition(-scores[rows], count - 1)[:count]]
        rows = rows[np.lexsort((rows, -scores[rows]))]
        below = np.searchsorted(live, scores[rows], side="left") / max(len(live) - 1, 1) * 100
        return [
            Hit(
                self.index.video_ids[self.index.video[row]],
                float(self.index.spans[row, 0]),
                float(self.index.spans[row, 1]),
                float(scores[row]),
                under,
            )
            for row, under in zip(rows.tolist(), below.tolist(), strict=True)
        ]

    def _scan(self, query_D: np.ndarray) -> np.ndarray:
        """Return the score of every window, float32 [W]; -inf for one that is not finite."""
        scores = np.empty(len(self.index.video), dtype=np.float32)
        for first, block in self.index.blocks(BLOCK_WINDOWS):
            scores[first : first + len(block)] = half_product(block, query_D)
        return np.nan_to_num(scores, nan=-np.inf, neginf=-np.inf, posinf=-np.inf)

    def _scored(self, query: str, hits: list[Hit], rerank: int) -> list[Hit]:
        """Return hits in the order of all stages."""
        clips = [self._clip(hit) for hit in hits]
        scores = self.encoder.score(query, clips, rerank) if clips else None
        if scores is None:
            return hits
        order = np.argsort(-scores.total, kind="stable").tolist()
        return [
            Hit(
                hits[i].video_id,
                hits[i].start_seconds,
                hits[i].end_seconds,
                float(scores.total[i]),
                hits[i].percentile,
                {stage: float(values[i]) for stage, values in scores.stages.items()},
            )
            for i in order
        ]

    def _clip(self, hit: Hit) -> Clip:
        duration = self.encoder.duration_seconds(hit.video_id)
        if hit.start_seconds == 0 and hit.end_seconds >= duration:
            return Clip(hit.video_id, None, None)
        return Clip(hit.video_id, hit.start_seconds, hit.end_seconds)

    def _moments(self, hits: list[Hit], query_D: np.ndarray, num_results: int) -> list[Moment]:
        return merge_hits(hits, num_results, lambda video_id: self._curve(query_D, video_id))

    def _curve(self, query_D: np.ndarray, video_id: str) -> ScoreCurve:
        """Return the encoder's own curve, else the scores of the video's shortest windows."""
        curve = self.encoder.curve(query_D, video_id)
        if curve is not None:
            return curve
        rows = self.index.rows_of(video_id)
        spans = self.index.spans[rows]
        lengths = (spans[:, 1] - spans[:, 0]).round(3)
        shortest = np.flatnonzero(lengths == lengths.min(initial=np.inf))
        shortest = shortest[np.argsort(spans[shortest, 0], kind="stable")]
        scores = self.index.vectors_of(rows[shortest]) @ query_D
        return ScoreCurve(spans[shortest, 0], spans[shortest, 1], scores)

    def _check_video(self, video_id: str) -> None:
        if not len(self.index.rows_of(video_id)):
            raise UserError(f"video {video_id!r}: not in the index of {self.dataset.name}; expected one of its ids")


def half_product(block: np.ndarray, query_D: np.ndarray) -> np.ndarray:
    """Return the dot products [N] of float16 vectors [N, D] and a query, in float32.

    torch converts float16 ten times faster than numpy (``tests/benchmarks/search.py``).
    """
    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        half = torch.from_numpy(block)
    return (half.float() @ torch.from_numpy(np.ascontiguousarray(query_D, dtype=np.float32))).numpy()


def open_search(
    folder: Path | str | None = None,
    *,
    features: str | None = None,
    run: Path | str | None = None,
    weights: Path | str | None = None,
    root: Path | str = "vlalign_data",
    device: str = "cpu",
) -> Search:
    """Open a data set for search, without training (``features``) or with a trained ``run``.

    Args:
        folder: The data set's folder, ``<root>/<dataset>``. None: that of the run.
        features: Name of a store whose model also reads texts, such as "clip_vit_b32".
        run: Folder of a run, or its name; its features are searched.
        weights: With ``features``: file or folder of the weights that made the store. None: where the extraction found
            them.
        root: Where a run is looked up if ``folder`` is None.
        device: What a run computes on: "cpu", "cuda" or "cuda:N".

    Raises:
        UserError: Neither or both of ``features`` and ``run`` are given, one cannot be used, or the index is missing
            and too large to be made now.
    """
    encoder = open_encoder(folder, features=features, run=run, weights=weights, root=root, device=device)
    return Search(encoder, _open_index(encoder))


def _open_index(encoder: Encoder) -> WindowIndex:
    """Open the index, after adding what is missing if that is little."""
    folder = IndexFolder.of(encoder)
    index = folder.open()
    missing = index.state.missing
    if not missing:
        return index
    num_missing = 0
    for video_id in missing:
        num_missing += len(plan_windows(encoder.duration_seconds(video_id)))
        if num_missing > SMALL_WINDOWS:
            break
    if num_missing <= SMALL_WINDOWS:
        add_videos(folder, missing)
        return folder.open()
    todo = f"run vlalign-index --dataset {encoder.dataset.name}"
    if not index.num_windows:
        raise UserError(f"{folder.path}: no index of {len(missing):,} videos yet; {todo} first")
    say(f"note: {len(missing):,} videos are not in the index {folder.path} and were not searched; {todo}")
    return index
