"""Compare two sets of feature vectors of one video: were they made in the same way?

All vectors of one network are similar, and their cosine is not informative. Therefore the distance between matching
vectors is measured, in units of the distance between vectors of different videos. The verdict depends on the recipe
whose vectors are nearest to theirs: ours, or another. Nothing is decoded here.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...storage.records import VideoFeatures
from .pair import DROPPED, NEARER, ODD_ROW, FeaturePair, paired_distances

SAME, DIFFERENT, NOT_TOLD = "same", "DIFFERENT", "CANNOT BE TOLD"
CLOSE = 0.2
"""Maximum distance of vectors of the same recipe; unrelated vectors have distance 1."""
MAX_POOLED_ROWS = 64
"""Maximum number of vectors of a video for which a mean or maximum over all vectors is computed."""
OUR_RECIPE = "our recipe"
UNEXPLAINED = "no cause known here explains it"


@dataclass(frozen=True)
class Hypothesis:
    """A recipe that may have made their vectors, and its vectors of our video."""

    name: str
    rows: np.ndarray
    """[N, D]: the requested vectors."""
    ours: bool = False
    """True for our own recipe, computed less precisely."""
    another_rate: bool = False
    """True if it yields another number of vectors."""


Alternatives = Callable[[Sequence[int], int], Iterable[Hypothesis]]
"""(indices of the video's vectors, number of their vectors) -> hypotheses, with the vectors at these indices."""


@dataclass(frozen=True)
class Comparison:
    """The verdict on a video."""

    num_rows: int
    """Number of our vectors."""
    num_their_rows: int
    distance: float
    """Root mean square distance of the common vectors. 0: equal; 1: as far apart as vectors of different videos; nan:
    there are no vectors of other videos.
    """
    largest: float
    """Distance of the vector that differs most."""
    verdict: str
    notes: list[str]
    cause: str = ""
    """The only hypothesis that explains the difference; empty if there is none or several."""

    @property
    def same(self) -> bool:
        """True if the vectors were made in the same way."""
        return self.verdict == SAME


@dataclass
class _Explanations:
    """Squared distances between their vectors and each recipe's vectors of our video."""

    own: dict[str, float]
    """Distances of our own recipe, computed more or less precisely."""
    others: dict[str, float]
    from_ours: dict[str, float] = field(default_factory=dict)
    """Squared distances between the recipes' vectors and ours."""
    rates: set[str] = field(default_factory=set)
    """Recipes with another rate."""

    @property
    def best_own(self) -> str:
        return min(self.own, key=self.own.__getitem__)

    @property
    def best_other(self) -> str:
        return min(self.others, key=self.others.__getitem__, default="")

    @property
    def best(self) -> str:
        distances = self.own | self.others
        return min(distances, key=distances.__getitem__)

    def within(self, distance: float, least: float) -> list[str]:
        """Return the other recipes that are about as near as ``distance``, the nearest first."""
        ranked = sorted(self.others, key=self.others.__getitem__)
        return [name for name in ranked if self.others[name] <= NEARER**2 * max(distance, least)]


def compare(
    ours: VideoFeatures,
    theirs: np.ndarray,
    others: np.ndarray,
    alternatives: Alternatives | None,
    known: Collection[str] = (),
) -> Comparison:
    """Compare two sets of feature vectors of one video.

    Args:
        ours: Our features of the video.
        theirs: Their vectors [T, D], or [D] for one vector a video.
        others: Our vectors [N, D] of other videos; if there are none, vectors of this video are used instead.
        alternatives: Computes vectors by other recipes; None if this is impossible.
        known: Hypotheses that explained other videos. If one of them explains this video exactly, no others are tried.

    Raises:
        UserError: The vectors cannot be compared.
    """
    return _Judge(FeaturePair(ours, theirs, others)).judge(alternatives, known)


class _Judge:
    """Reaches a verdict on a pair of vector sets."""

    def __init__(self, pair: FeaturePair) -> None:
        self._pair = pair

    def _verdict(self, verdict: str, *notes: str, cause: str = "") -> Comparison:
        pair = self._pair
        distance, largest = float("nan"), float("nan")
        if pair.unrelated > 0:
            squared = pair.distances.mean(), pair.distances.max()
            distance, largest = (float(np.sqrt(d / pair.unrelated)) for d in squared)
        all_notes = [*notes, *pair.notes]
        return Comparison(pair.num_rows, len(pair.their_rows), distance, largest, verdict, all_notes, cause)

    def judge(self, alternatives: Alternatives | None, known: Collection[str]) -> Comparison:
        pair = self._pair
        if pair.all_are_equal:
            if count := pair.other_count():
                return self._verdict(DIFFERENT, count)
            if why := pair.why_equal_is_not_enough():
                return self._verdict(NOT_TOLD, why)
            return self._verdict(SAME)
        if level := pair.other_level():
            return self._verdict(DIFFERENT, level)
        # Scaled vectors are not reordered, though small vectors are near to each other.
        order = {} if pair.describe_scale() else pair.other_order()
        if any(distance <= ODD_ROW * pair.tolerance.mean() for distance in order.values()):
            return self._verdict(DIFFERENT, f"theirs have {min(order, key=order.__getitem__)}")
        if alternatives is None or (pair.pool and pair.num_rows > MAX_POOLED_ROWS):
            count = pair.other_count()
            why = "the rows differ, and no other recipe could be tried"
            return self._verdict(DIFFERENT if count else NOT_TOLD, *([count] if count else []), why)
        return self._nearest(order, alternatives, known)

    def _nearest(self, order: dict[str, float], alternatives: Alternatives, known: Collection[str]) -> Comparison:
        """Judge vectors that differ from ours by the recipe that they are nearest to."""
        pair = self._pair
        indices = pair.rows_to_try()
        compared = [0] if pair.pool else indices
        tolerance, rounding = float(pair.tolerance[compared].mean()), float(pair.rounding[compared].mean())
        tried = self._explain(indices, compared, order, alternatives, known)
        own, other = tried.own[tried.best_own], tried.best_other
        count = pair.other_count()
        counted = [count] if count else []
        if other and NEARER**2 * tried.others[other] <= own:
            return self._other_recipe(tried, rounding, counted)
        if scaled := pair.describe_scale():
            return self._verdict(DIFFERENT if count else SAME, *counted, scaled)
        least = min(own, *tried.others.values()) if tried.others else own
        hint = f"nearest is {tried.best} (distance {pair.format_distance(least)})"
        if count:
            unclear = tried.within(own, tolerance)
            return self._verdict(DIFFERENT, count, *([] if count == DROPPED and not unclear else [hint]))
        if not tried.others or pair.most_are_equal:
            return self._verdict(DIFFERENT, UNEXPLAINED, *pair.odd_rows())
        return self._our_recipe_or_none(tried, tolerance, hint)

    def _explain(
        self,
        indices: list[int],
        compared: list[int],
        order: dict[str, float],
        alternatives: Alternatives,
        known: Collection[str],
    ) -> _Explanations:
        pair = self._pair
        our_rows, their_rows = pair.our_rows[compared], pair.their_rows[compared]
        rounding = float(pair.rounding[compared].mean())
        tried = _Explanations({OUR_RECIPE: float(paired_distances(our_rows, their_rows).mean())}, dict(order))
        for hypothesis in alternatives(indices, pair.num_rows if pair.pool else len(pair.their_rows)):
            name, rows = hypothesis.name, pair.pooled_and_normalised(hypothesis.rows)
            distance = float(paired_distances(rows, their_rows).mean())
            (tried.own if hypothesis.ours else tried.others)[name] = distance
            tried.from_ours[name] = float(paired_distances(rows, our_rows).mean())
            if hypothesis.another_rate:
                tried.rates.add(name)
            if name in known and distance <= rounding:
                break
        return tried

    def _other_recipe(self, tried: _Explanations, rounding: float, counted: list[str]) -> Comparison:
        pair, other = self._pair, tried.best_other
        alike = tried.within(tried.others[other], rounding)
        theirs, ours = pair.format_distance(tried.others[other]), pair.format_distance(tried.own[tried.best_own])
        named = f"theirs have {' or '.join(alike)} (distance {theirs}, ours {ours})"
        untold = [f"this video cannot tell these {len(alike)} apart"] if len(alike) > 1 else []
        rest = [] if other in tried.rates else counted
        return self._verdict(DIFFERENT, named, *untold, *rest, cause="" if untold else other)

    def _our_recipe_or_none(self, tried: _Explanations, tolerance: float, hint: str) -> Comparison:
        pair, best = self._pair, tried.best_own
        distance = tried.own[best]
        if not pair.unrelated:
            return self._verdict(NOT_TOLD, "there are no other rows to compare with", hint)
        if max(distance, pair.distances.max() if best == OUR_RECIPE else 0) > CLOSE**2 * pair.unrelated:
            return self._verdict(DIFFERENT, UNEXPLAINED, hint)
        unclear = tried.within(distance, tolerance)
        if unclear and distance <= max(tolerance, *(tried.from_ours.get(name, 0) for name in tried.own)):
            # the difference is no larger than rounding may cause
            return self._verdict(
                NOT_TOLD,
                f"theirs may be {best}, or have {' or '.join(unclear)}; equally near, apart from rounding",
                hint,
            )
        if unclear:
            return self._verdict(DIFFERENT, UNEXPLAINED, hint)
        return self._verdict(SAME, *([best] if best != OUR_RECIPE else []))
