"""Comparison of two sets of rows of one video: by the numbers, were they made in the same way? Nothing is decoded here.

All rows of one network are alike, so a cosine says little. What is measured is the distance between rows that belong
together, in units of the distance between rows of different videos. What decides is which way of making rows theirs are
nearest to: ours, or another.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...storage.records import VideoFeatures
from .pair import DROPPED, NEARER, ODD_ROW, FeaturePair, paired_distances

SAME, DIFFERENT, NOT_TOLD = "same", "DIFFERENT", "CANNOT BE TOLD"
CLOSE = 0.2
"""Rows of the same recipe are at most this far apart, if unrelated rows are 1 apart."""
MAX_POOLED_ROWS = 64
"""A mean or a maximum needs all rows of a video; for a longer video nothing is computed."""
OUR_RECIPE = "our recipe"
UNEXPLAINED = "no cause known here explains it"


@dataclass(frozen=True)
class Hypothesis:
    """A way in which their rows may have been made, and what it makes of our video."""

    name: str
    rows: np.ndarray
    """[N, D]: the rows that were asked for."""
    ours: bool = False
    """True for our own recipe, computed less precisely."""
    another_rate: bool = False
    """True if it gives another number of rows."""


Alternatives = Callable[[Sequence[int], int], Iterable[Hypothesis]]
"""(indices of rows of the video, number of their rows) -> hypotheses with these rows."""


@dataclass(frozen=True)
class Comparison:
    """The verdict on a video."""

    num_rows: int
    """Ours."""
    num_their_rows: int
    distance: float
    """Root mean square over the rows that both have. 0: equal; 1: as far apart as rows of different videos; nan: there
    are no rows of other videos."""
    largest: float
    """Distance of the row that differs most."""
    verdict: str
    notes: list[str]
    cause: str = ""
    """The one hypothesis that explains the difference."""

    @property
    def same(self) -> bool:
        """True if the rows were made in the same way."""
        return self.verdict == SAME


@dataclass
class _Explanations:
    """Squared distances of their rows from what each recipe makes of our video."""

    own: dict[str, float]
    """Distances of our own recipe, computed more or less precisely."""
    others: dict[str, float]
    from_ours: dict[str, float] = field(default_factory=dict)
    """Squared distances of the recipes' rows from ours."""
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
        """Return the other recipes that are about as near, the nearest first."""
        ranked = sorted(self.others, key=self.others.__getitem__)
        return [name for name in ranked if self.others[name] <= NEARER**2 * max(distance, least)]


def compare(
    ours: VideoFeatures,
    theirs: np.ndarray,
    others: np.ndarray,
    alternatives: Alternatives | None,
    known: Collection[str] = (),
) -> Comparison:
    """Compare two sets of rows of one video.

    Args:
        ours: Our features of the video.
        theirs: Their rows [T, D], or [D] for one row a video.
        others: Our rows [N, D] of other videos. If there are none, the video's own rows stand in for them.
        alternatives: Makes rows in other ways; None if nothing can be computed.
        known: Hypotheses that alone explained other videos. If one of them explains this video exactly, no more are
        tried.

    Raises:
        UserError: The rows cannot be compared.
    """
    return _Judge(FeaturePair(ours, theirs, others)).judge(alternatives, known)


class _Judge:
    """Decides on a pair of rows."""

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
        # Rows times a number are not in another order, though small rows lie near to each other.
        order = {} if pair.describe_scale() else pair.other_order()
        if any(distance <= ODD_ROW * pair.tolerance.mean() for distance in order.values()):
            return self._verdict(DIFFERENT, f"theirs have {min(order, key=order.__getitem__)}")
        if alternatives is None or (pair.pool and pair.num_rows > MAX_POOLED_ROWS):
            count = pair.other_count()
            why = "the rows differ, and what they were made of could not be looked at"
            return self._verdict(DIFFERENT if count else NOT_TOLD, *([count] if count else []), why)
        return self._nearest(order, alternatives, known)

    def _nearest(self, order: dict[str, float], alternatives: Alternatives, known: Collection[str]) -> Comparison:
        """Judge rows that are not equal to ours: which way of making them are they nearest to?"""
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
            # no more than rounding may cause
            return self._verdict(
                NOT_TOLD, f"theirs may be {best}, or have {' or '.join(unclear)}: as near, but for rounding", hint
            )
        if unclear:
            return self._verdict(DIFFERENT, UNEXPLAINED, hint)
        return self._verdict(SAME, *([best] if best != OUR_RECIPE else []))
