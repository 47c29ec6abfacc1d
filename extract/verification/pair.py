"""The feature vectors of one video, ours and theirs, in the same form, and the facts that follow from them alone."""

from collections.abc import Callable

import numpy as np

from ...storage.common.errors import UserError
from ...storage.records import VideoFeatures

NEARER = 2
"""A recipe explains their vectors better than another if its vectors are this many times as near."""
ROUNDED_TWICE = 0.5
"""Mean squared distance of two float16 roundings of one number, in steps of float16: 1/6 on average, plus a margin."""
ODD_ROW = 16
"""Among mostly equal vectors, one is different if its squared distance is this many times the rounding's."""
MAX_SHIFT = 8
TRIED_ROWS = 5
"""Number of a video's vectors that are recomputed by other recipes."""
MAX_ORDERED_ROWS = 5000
"""Maximum number of vectors in the search for another order, which compares all pairs."""
SAMPLED_ROWS = 256
"""Number of a video's vectors used to estimate the distance of unrelated vectors."""
FLOAT32_NOISE = 1e-5
"""Difference of float32 sums between machines and batches, relative to a vector's length."""
DROPPED = "the last window was dropped"

POOLS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "mean": lambda rows: rows.mean(axis=0, keepdims=True),
    "maximum": lambda rows: rows.max(axis=0, keepdims=True),
}
"""Functions that pool all vectors [T, D] of a video into one, [1, D]."""


class FeaturePair:
    """Our rows and theirs, pooled and normalised as theirs are.

    Attributes:
        our_rows: Our rows, [T, D].
        their_rows: Their rows, [T', D].
        pool: How our rows became one (see ``POOLS``); empty if they did not.
        distances: [min(T, T')] squared distances of rows that belong together.
        relative_distances: ``distances`` in units of ``tolerance``.
        tolerance: [T] squared distance that float16 rounding may cause.
        rounding: [T'] the same for their rows alone: rows that are computed here for comparison are not rounded.
        unrelated: Squared distance of rows that do not belong together; 0 if there are none.
        notes: The changes made to our rows.
    """

    def __init__(self, ours: VideoFeatures, theirs: np.ndarray, others: np.ndarray) -> None:
        """Convert both to the same form.

        Args:
            ours: Our features of the video.
            theirs: Their vectors [T', D], or [D].
            others: Our vectors [N, D] of other videos; may be empty.

        Raises:
            UserError: Their vectors have another width, or contain non-finite values.
        """
        raw = ours.features.astype(np.float32)
        self.ours, self.num_rows = ours, len(raw)
        self.notes: list[str] = []
        self.their_rows = np.atleast_2d(theirs)
        if self.their_rows.shape[1] != raw.shape[1]:
            raise UserError(
                f"their rows have {self.their_rows.shape[1]:,} values, ours {raw.shape[1]:,}; expected features of the "
                "same model and layer"
            )
        if not np.isfinite(self.their_rows).all():
            num_broken = (~np.isfinite(self.their_rows)).any(axis=1).sum()
            raise UserError(
                f"{num_broken:,} of their {len(self.their_rows):,} rows contain non-finite values; expected finite ones"
            )
        self._normalised = is_unit(self.their_rows) and not is_unit(raw)
        if self._normalised:
            self.notes.append("their rows are L2-normalised, ours raw")
        self.pool = self._pool_of(raw, may_be_first=theirs.ndim == 2)
        if self.pool:
            self.notes.append(f"theirs is one row a video; compared with the {self.pool} of ours")
            raw = POOLS[self.pool](raw)
        self.our_rows = self._scale(raw)
        self._measure(raw, others)

    def _measure(self, raw: np.ndarray, others: np.ndarray) -> None:
        scale = np.linalg.norm(self.our_rows, axis=1) / np.maximum(np.linalg.norm(raw, axis=1), 1e-12)
        self.tolerance = ROUNDED_TWICE / 2 * (scale**2 * float16_steps(raw) + float16_steps(self.our_rows))
        with np.errstate(over="ignore"):
            is_float16 = np.array_equal(self.their_rows, self.their_rows.astype(np.float16))
        squares = (self.their_rows.astype(np.float64) ** 2).sum(axis=1)
        self.rounding = ROUNDED_TWICE / 2 * float16_steps(self.their_rows) if is_float16 else FLOAT32_NOISE**2 * squares
        sample = self.our_rows[np.unique(np.linspace(0, len(self.our_rows) - 1, SAMPLED_ROWS).astype(int))]
        if len(others):
            distances = squared_distances(sample, self._scale(others))
        else:
            distances = squared_distances(sample, sample)[~np.eye(len(sample), dtype=bool)]
        self.unrelated = float(np.median(distances)) if distances.size else 0.0
        num_common = min(len(self.our_rows), len(self.their_rows))
        self.distances = paired_distances(self.our_rows[:num_common], self.their_rows[:num_common])
        self.relative_distances = self.distances / self.tolerance[:num_common]

    def _pool_of(self, raw: np.ndarray, may_be_first: bool) -> str:
        """Return the name of their pooling; empty if they have several vectors, or one that equals our first."""
        if len(self.their_rows) > 1 or len(raw) == 1:
            return ""
        distances = {
            name: float(paired_distances(self._scale(pool(raw)), self.their_rows)[0]) for name, pool in POOLS.items()
        }
        if may_be_first:
            distances[""] = float(paired_distances(self._scale(raw[:1]), self.their_rows)[0])
        return min(distances, key=distances.__getitem__)

    def _scale(self, rows: np.ndarray) -> np.ndarray:
        return unit(rows) if self._normalised else rows

    def pooled_and_normalised(self, rows: np.ndarray) -> np.ndarray:
        """Convert our raw vectors to the form of theirs."""
        rows = rows.astype(np.float32)
        return self._scale(POOLS[self.pool](rows) if self.pool else rows)

    def format_distance(self, squared: float) -> str:
        """Format a squared distance in units of the distance of unrelated vectors."""
        return f"{np.sqrt(squared / self.unrelated):.4f}" if self.unrelated > 0 else f"{np.sqrt(squared):.3g} unscaled"

    @property
    def most_are_equal(self) -> bool:
        """True if at least half of the vectors are equal, apart from rounding."""
        return bool(np.sort(self.relative_distances)[(len(self.relative_distances) - 1) // 2] <= 1)

    @property
    def all_are_equal(self) -> bool:
        """True if all vectors are equal, apart from rounding."""
        return self.most_are_equal and bool(self.relative_distances.max() <= ODD_ROW)

    def why_equal_is_not_enough(self) -> str:
        """Explain why equal vectors prove nothing, if other vectors also equal them; empty if they prove something."""
        if self.unrelated <= ODD_ROW * self.tolerance.mean():
            return "the rows are equal, but there are no rows of other videos that differ from them"
        rows = self.our_rows
        if len(rows) > 1 and paired_distances(rows[1:], rows[:-1]).max() <= self.tolerance.max():
            return "the rows are equal, but so are all rows of this video: their order and rate cannot be compared"
        return ""

    def other_count(self) -> str:
        """Describe the vectors that only one side has; empty if there are none."""
        more = len(self.their_rows) - len(self.our_rows)
        if more == -1:
            return DROPPED
        if more and not self.most_are_equal:
            rates = (
                f"{count / self.ours.duration_seconds:.2f}" for count in (len(self.their_rows), len(self.our_rows))
            )
            return "another rate: {} rows a second, ours {}".format(*rates)
        return f"theirs has {abs(more)} rows {'more' if more > 0 else 'fewer'} at the end" if more else ""

    def other_order(self) -> dict[str, float]:
        """Return {description: squared distance} if their vectors are much nearer to ours at other positions."""
        if shifted := self._shifted():
            return shifted
        our_rows, their_rows, num_rows = self.our_rows, self.their_rows, len(self.distances)
        if len(our_rows) != len(their_rows) or num_rows > MAX_ORDERED_ROWS:
            return {}
        to_all = squared_distances(their_rows, our_rows)
        least, nearest = to_all.min(axis=1), to_all.argmin(axis=1)
        moved = np.maximum(NEARER**2 * least, ODD_ROW * self.tolerance) <= self.distances
        moved &= nearest != np.arange(num_rows)
        name = f"rows in another order ({moved.sum():,} of {num_rows:,} equal ours at other places)"
        return {name: float(least.mean())} if moved.sum() > 1 else {}

    def _shifted(self) -> dict[str, float]:
        """Return the best shift of their vectors, if it brings them much nearer to ours."""
        our_rows, their_rows, num_rows = self.our_rows, self.their_rows, len(self.distances)
        distances = {}
        for shift in (s for s in range(-MAX_SHIFT, MAX_SHIFT + 1) if s and 2 * abs(s) <= num_rows):
            a, b = our_rows[max(-shift, 0) :], their_rows[max(shift, 0) :]
            both = min(len(a), len(b))
            # A quantile, so that a few differing vectors hide no shift, and a few chance matches suggest none.
            distance = float(np.quantile(paired_distances(a[:both], b[:both]), 0.8))
            if NEARER**2 * distance <= np.median(self.distances):
                distances[f"rows {abs(shift)} places {'later' if shift > 0 else 'earlier'}"] = distance
        return dict([min(distances.items(), key=lambda item: item[1])]) if distances else {}

    def other_level(self) -> str:
        """Describe a constant offset between theirs and ours, such as decibels relative to each file's maximum."""
        num_rows = len(self.distances)
        differences = self.their_rows[:num_rows] - self.our_rows[:num_rows]
        level = float(np.median(differences))
        if abs(level) < 1 or np.mean(np.abs(differences - level) < 0.5) < 0.9:
            return ""
        return f"their values are ours {level:+.2f} throughout: another reference"

    def describe_scale(self) -> str:
        """Describe the constant factor between their rows and our rows; empty if there is none."""
        num_rows = len(self.distances)
        our_rows = self.our_rows[:num_rows].astype(np.float64)
        their_rows = self.their_rows[:num_rows].astype(np.float64)
        ratio = float((our_rows * their_rows).sum() / max((our_rows**2).sum(), 1e-24))
        scaled_distances = paired_distances(ratio * our_rows, their_rows)
        limits = ODD_ROW * ratio**2 * self.tolerance[:num_rows]
        if abs(ratio - 1) < 0.02 or ratio <= 0 or (scaled_distances > limits).any():
            return ""
        return f"their rows are {ratio:.3g} times as long"

    def odd_rows(self) -> list[str]:
        """List the vectors that differ, if most do not."""
        odd = np.flatnonzero(self.relative_distances > ODD_ROW)
        if not self.most_are_equal:
            return []
        return [f"{len(odd):,} of {len(self.relative_distances):,} rows differ, from row {odd[0]} on"]

    def rows_to_try(self) -> list[int]:
        """Return the indices of vectors to recompute: the one that differs most, and some others that differ."""
        if self.pool:
            return list(range(self.num_rows))
        odd = np.arange(len(self.distances))
        if self.most_are_equal:
            odd = np.flatnonzero(self.relative_distances > ODD_ROW)
        spread = odd[np.unique(np.linspace(0, len(odd) - 1, TRIED_ROWS - 1).astype(int))]
        return sorted({int(self.relative_distances.argmax()), *map(int, spread)})


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared distances [M, N] of all pairs of vectors of [M, D] and [N, D]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    centre = a.mean(axis=0)  # the common mean would only cost precision
    a, b = a - centre, b - centre
    return np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0)


def paired_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the squared distances [N] of matching vectors of [N, D] and [N, D]."""
    return ((a.astype(np.float64) - b) ** 2).sum(axis=1)


def float16_steps(rows: np.ndarray) -> np.ndarray:
    """Return the squared distance [N] of neighbouring float16 numbers, summed over each vector of [N, D]."""
    _, exponents = np.frexp(rows.astype(np.float64))
    return (np.ldexp(1.0, np.maximum(exponents - 11, -24)) ** 2).sum(axis=1)


def unit(rows: np.ndarray) -> np.ndarray:
    """Return vectors [N, D] scaled to length 1."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def is_unit(rows: np.ndarray) -> bool:
    """Return whether all vectors have length 1."""
    return np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)
