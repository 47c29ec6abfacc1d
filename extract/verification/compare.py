"""Two sets of rows of one video: whether they were made in the same way, judged by the numbers. Nothing is decoded here.

All rows of one network are alike, so a cosine says little. What is measured is the distance between rows that belong together, in units
of the distance between rows of different videos; and what decides is which way of making rows theirs are nearest to: ours, or another.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...storage.common.errors import UserError
from ...storage.records import VideoFeatures

SAME, DIFFERENT, NOT_TOLD = "same", "DIFFERENT", "CANNOT BE TOLD"
NEARER = 2
"""One way explains their rows better than another if they are this many times as near to it."""
CLOSE = 0.2
"""Rows of the same recipe are at most this far apart, where unrelated rows are 1 apart."""
ROUNDED_TWICE = 0.5
"""Mean squared distance of two float16 roundings of one number, in steps of float16: 1/6 on average, here with a margin."""
ODD_ROW = 16
"""Where most rows are equal, one whose squared distance is this many times that of rounding is another row."""
MOST_SHIFT = 8
TRIED_ROWS = 5
"""Of a video, for which the other ways of making rows are computed."""
MOST_POOLED_ROWS = 64
"""A mean or a maximum needs all rows of a video; of a longer one nothing is computed."""
MOST_ORDERED_ROWS = 5000
"""Each row is compared with each for another order, but of no more rows than these."""
SAMPLED_ROWS = 256
"""Of a video, for the distance of unrelated rows."""
FLOAT32_NOISE = 1e-5
"""By which float32 sums differ between machines and batches, of a row's length."""
OUR_RECIPE = "our recipe"
DROPPED = "the last window was dropped"


@dataclass(frozen=True)
class Hypothesis:
    """A way in which their rows may have been made, and what it makes of our video."""

    name: str
    rows: np.ndarray
    """[places, D]: those rows that were asked for."""
    ours: bool = False
    """Whether it is our own recipe, computed less precisely."""
    another_rate: bool = False
    """Whether it is that which makes the number of rows."""


Alternatives = Callable[[Sequence[int], int], Iterable[Hypothesis]]
"""(places of the rows in the video, how many rows theirs are) -> hypotheses."""


@dataclass(frozen=True)
class Comparison:
    rows: int
    """Ours."""
    their_rows: int
    distance: float
    """Root mean square over the rows that both have; 0: equal, 1: as far apart as rows of different videos; nan: there are no others."""
    largest: float
    """That of the row that differs most."""
    verdict: str
    remarks: list[str]
    cause: str = ""
    """The one hypothesis that explains the difference."""

    @property
    def same(self) -> bool:
        return self.verdict == SAME


def compare(
    ours: VideoFeatures,
    theirs: np.ndarray,
    others: np.ndarray,
    alternatives: Alternatives | None,
    known: Collection[str] = (),
) -> Comparison:
    """``theirs``: [T, D], or [D] for one row a video. ``others``: [N, D], rows of ours of other videos; the video's own rows stand in for
    them where there are none. ``alternatives``: None where nothing can be computed. ``known``: hypotheses that explained other videos
    alone; where one of them explains this one to the last digit, no more are tried.

    Raises ``UserError`` where the rows cannot be compared.
    """
    return _Rows(ours, theirs, others).judged(alternatives, known)


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """[M, N], of all pairs of rows of [M, D] and [N, D]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    centre = a.mean(axis=0)  # what all rows have in common only costs digits
    a, b = a - centre, b - centre
    return np.maximum((a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T, 0)


def matched(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Squared distances [N] of rows that belong together, of [N, D] and [N, D]."""
    return ((a.astype(np.float64) - b) ** 2).sum(axis=1)


def float16_steps(rows: np.ndarray) -> np.ndarray:
    """Squared distance [N] between neighbouring float16 numbers, summed over each row of [N, D]."""
    _, exponents = np.frexp(rows.astype(np.float64))
    return (np.ldexp(1.0, np.maximum(exponents - 11, -24)) ** 2).sum(axis=1)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _is_unit(rows: np.ndarray) -> bool:
    return np.allclose(np.linalg.norm(rows, axis=1), 1, atol=2e-3)


POOLS = {"mean": lambda rows: rows.mean(axis=0, keepdims=True), "maximum": lambda rows: rows.max(axis=0, keepdims=True)}


class _Rows:
    """Ours and theirs in the same form: pooled and normalised as theirs are."""

    def __init__(self, ours: VideoFeatures, theirs: np.ndarray, others: np.ndarray) -> None:
        raw = ours.features.astype(np.float32)
        self.ours, self.num_rows, self.remarks = ours, len(raw), []
        self.theirs = np.atleast_2d(theirs)
        if self.theirs.shape[1] != raw.shape[1]:
            raise UserError(
                f"their rows have {self.theirs.shape[1]:,} values, ours {raw.shape[1]:,}: another layer or another model"
            )
        if not np.isfinite(self.theirs).all():
            broken = (~np.isfinite(self.theirs)).any(axis=1).sum()
            raise UserError(f"{broken:,} of their {len(self.theirs):,} rows are not finite")
        self.normalised = _is_unit(self.theirs) and not _is_unit(raw)
        if self.normalised:
            self.remarks.append("their rows are L2-normalised, ours raw")
        self.pool = self.pool_of(raw, may_be_first=theirs.ndim == 2)
        if self.pool:
            self.remarks.append(f"theirs is one row a video; compared with the {self.pool} of ours")
            raw = POOLS[self.pool](raw)
        self.mine = self._formed(raw)
        scale = np.linalg.norm(self.mine, axis=1) / np.maximum(np.linalg.norm(raw, axis=1), 1e-12)
        self.tolerance = ROUNDED_TWICE / 2 * (scale**2 * float16_steps(raw) + float16_steps(self.mine))  # [rows]
        with np.errstate(over="ignore"):
            rounded = np.array_equal(self.theirs, self.theirs.astype(np.float16))
        squares = (self.theirs.astype(np.float64) ** 2).sum(axis=1)
        self.rounding = ROUNDED_TWICE / 2 * float16_steps(self.theirs) if rounded else FLOAT32_NOISE**2 * squares
        """Of theirs alone: what is computed here for comparison is not rounded."""
        some = self.mine[np.unique(np.linspace(0, len(self.mine) - 1, SAMPLED_ROWS).astype(int))]
        if len(others):
            pairs = squared_distances(some, self._formed(others))
        else:
            pairs = squared_distances(some, some)[~np.eye(len(some), dtype=bool)]
        self.unrelated = float(np.median(pairs)) if pairs.size else 0.0
        n = min(len(self.mine), len(self.theirs))
        self.apart = matched(self.mine[:n], self.theirs[:n])
        self.levels = self.apart / self.tolerance[:n]

    def pool_of(self, raw: np.ndarray, may_be_first: bool) -> str:
        """How one row was made of many; empty where theirs are not one row, or are our first."""
        if len(self.theirs) > 1 or len(raw) == 1:
            return ""
        near = {name: matched(self._formed(pool(raw)), self.theirs)[0] for name, pool in POOLS.items()}
        if may_be_first:
            near[""] = matched(self._formed(raw[:1]), self.theirs)[0]
        return min(near, key=near.get)

    def _formed(self, rows: np.ndarray) -> np.ndarray:
        return unit(rows) if self.normalised else rows

    def formed(self, rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float32)
        return self._formed(POOLS[self.pool](rows) if self.pool else rows)

    @property
    def most_are_equal(self) -> bool:
        return np.sort(self.levels)[(len(self.levels) - 1) // 2] <= 1

    @property
    def all_are_equal(self) -> bool:
        return self.most_are_equal and self.levels.max() <= ODD_ROW

    def verdict(self, verdict: str, *remarks: str, cause: str = "") -> Comparison:
        distance, largest = float("nan"), float("nan")
        if self.unrelated > 0:
            distance, largest = (float(np.sqrt(d / self.unrelated)) for d in (self.apart.mean(), self.apart.max()))
        remarks = [*remarks, *self.remarks]
        return Comparison(self.num_rows, len(self.theirs), distance, largest, verdict, remarks, cause)

    def judged(self, alternatives: Alternatives | None, known: Collection[str]) -> Comparison:
        if self.all_are_equal:
            if count := self.other_count():
                return self.verdict(DIFFERENT, count)
            if why := self.why_equal_says_nothing():
                return self.verdict(NOT_TOLD, why)
            return self.verdict(SAME)
        if level := self.other_level():
            return self.verdict(DIFFERENT, level)
        # Rows times a number are not in another order, though small ones lie near to each other.
        order = {} if self.scaled() else self.other_order()
        if any(apart <= ODD_ROW * self.tolerance.mean() for apart in order.values()):
            return self.verdict(DIFFERENT, f"theirs have {min(order, key=order.get)}")
        return self.nearest(order, alternatives, known)

    def why_equal_says_nothing(self) -> str:
        """Equal rows settle nothing where other rows are equal to them, too."""
        if self.unrelated <= ODD_ROW * self.tolerance.mean():
            return "the rows are equal, but there are no rows of other videos that differ from them"
        if len(self.mine) > 1 and matched(self.mine[1:], self.mine[:-1]).max() <= self.tolerance.max():
            return "the rows are equal, but all rows of this video are: their order and their rate may be any"
        return ""

    def other_count(self) -> str:
        """Rows that one has and the other has not."""
        more = len(self.theirs) - len(self.mine)
        if more == -1:
            return DROPPED
        rates = (f"{count / self.ours.duration_seconds:.2f}" for count in (len(self.theirs), len(self.mine)))
        if more and not self.most_are_equal:
            return "another rate: {} rows a second, ours {}".format(*rates)
        return f"theirs has {abs(more)} rows {'more' if more > 0 else 'fewer'} at the end" if more else ""

    def other_order(self) -> dict[str, float]:
        """{what their rows have: squared distance} where they are much nearer to our rows of other places."""
        mine, theirs, n = self.mine, self.theirs, len(self.apart)
        found = {}
        for shift in (s for s in range(-MOST_SHIFT, MOST_SHIFT + 1) if s and 2 * abs(s) <= n):
            a, b = mine[max(-shift, 0) :], theirs[max(shift, 0) :]
            both = min(len(a), len(b))
            # Not the mean: a few rows that are others do not make the rest come earlier or later. Nor do a few that fit by chance.
            found[f"rows {abs(shift)} places {'later' if shift > 0 else 'earlier'}"] = float(
                np.quantile(matched(a[:both], b[:both]), 0.8)
            )
        found = {name: apart for name, apart in found.items() if NEARER**2 * apart <= np.median(self.apart)}
        if found or len(mine) != len(theirs):
            return dict([min(found.items(), key=lambda item: item[1])]) if found else {}
        if n > MOST_ORDERED_ROWS:
            return {}
        to_all = squared_distances(theirs, mine)
        least, nearest = to_all.min(axis=1), to_all.argmin(axis=1)
        moved = (np.maximum(NEARER**2 * least, ODD_ROW * self.tolerance) <= self.apart) & (nearest != np.arange(n))
        name = f"rows in another order ({moved.sum():,} of {n:,} are ours of other places)"
        return {name: float(least.mean())} if moved.sum() > 1 else {}

    def other_level(self) -> str:
        """Decibels of another reference, as that of each file's maximum."""
        n = len(self.apart)
        differences = self.theirs[:n] - self.mine[:n]
        level = float(np.median(differences))
        if abs(level) < 1 or np.mean(np.abs(differences - level) < 0.5) < 0.9:
            return ""
        return f"their values are ours {level:+.2f} throughout: another reference"

    def places(self) -> list[int]:
        """Rows to look at: those that differ, where most do not; else the one that differs most, the last, and some between."""
        if self.pool:
            return list(range(self.num_rows))
        odd = np.flatnonzero(self.levels > ODD_ROW) if self.most_are_equal else np.arange(len(self.levels))
        spread = odd[np.unique(np.linspace(0, len(odd) - 1, TRIED_ROWS - 1).astype(int))]
        return sorted({int(self.levels.argmax()), *map(int, spread)})

    def nearest(self, order: dict[str, float], alternatives: Alternatives | None, known: Collection[str]) -> Comparison:
        """The verdict on rows that are not equal to ours: which way of making them are they nearest to?"""
        count = self.other_count()
        counted = [count] if count else []
        if alternatives is None or (self.pool and self.num_rows > MOST_POOLED_ROWS):
            why = "the rows differ, and what they were made of could not be looked at"
            return self.verdict(DIFFERENT if count else NOT_TOLD, *counted, why)
        places = self.places()
        kept = [0] if self.pool else places
        mine, theirs = self.mine[kept], self.theirs[kept]
        tolerance, rounding = float(self.tolerance[kept].mean()), float(self.rounding[kept].mean())
        own, others, from_ours, rates = {OUR_RECIPE: float(matched(mine, theirs).mean())}, dict(order), {}, set()
        for tried in alternatives(places, self.num_rows if self.pool else len(self.theirs)):
            made = self.formed(tried.rows)
            (own if tried.ours else others)[tried.name] = apart = float(matched(made, theirs).mean())
            from_ours[tried.name] = float(matched(made, mine).mean())
            rates |= {tried.name} if tried.another_rate else set()
            if tried.name in known and apart <= rounding:
                break
        best, other = min(own, key=own.get), min(others, key=others.get, default="")
        if other and NEARER**2 * others[other] <= own[best]:
            alike = self.within(others, others[other], rounding)
            named = (
                f"theirs have {' or '.join(alike)} (distance {self.shown(others[other])}, ours {self.shown(own[best])})"
            )
            untold = [f"this video cannot tell these {len(alike)} apart"] if len(alike) > 1 else []
            return self.verdict(
                DIFFERENT, named, *untold, *([] if other in rates else counted), cause="" if untold else other
            )
        if scaled := self.scaled():
            return self.verdict(DIFFERENT if count else SAME, *counted, scaled)
        nearest = min(own | others, key=(own | others).get)
        hint = (
            f"nearest is {nearest} (distance {self.shown(min(own[best], *others.values()) if others else own[best])})"
        )
        unclear = self.within(others, own[best], tolerance)
        if count == DROPPED and not unclear:
            return self.verdict(DIFFERENT, count)
        if count:
            return self.verdict(DIFFERENT, count, hint)
        if not others or self.most_are_equal:
            return self.verdict(DIFFERENT, "no cause known here explains it", *self.odd_rows())
        if not self.unrelated:
            return self.verdict(NOT_TOLD, "there are no other rows to compare with", hint)
        if max(own[best], self.apart.max() if best == OUR_RECIPE else 0) > CLOSE**2 * self.unrelated:
            return self.verdict(DIFFERENT, "no cause known here explains it", hint)
        if unclear and own[best] <= max(
            tolerance, *(from_ours.get(name, 0) for name in own)
        ):  # no more than rounding may do
            return self.verdict(
                NOT_TOLD, f"theirs may be {best}, or have {' or '.join(unclear)}: as near, but for rounding", hint
            )
        if unclear:
            return self.verdict(DIFFERENT, "no cause known here explains it", hint)
        return self.verdict(SAME, *([best] if best != OUR_RECIPE else []))

    @staticmethod
    def within(others: dict[str, float], apart: float, least: float) -> list[str]:
        """Those that are about as near, the nearest first."""
        return [name for name in sorted(others, key=others.get) if others[name] <= NEARER**2 * max(apart, least)]

    def odd_rows(self) -> list[str]:
        odd = np.flatnonzero(self.levels > ODD_ROW)
        return (
            [f"{len(odd):,} of {len(self.levels):,} rows differ, from row {odd[0]} on"] if self.most_are_equal else []
        )

    def scaled(self) -> str:
        """Whether theirs are ours times a number."""
        n = len(self.apart)
        mine, theirs = self.mine[:n].astype(np.float64), self.theirs[:n].astype(np.float64)
        ratio = float((mine * theirs).sum() / max((mine**2).sum(), 1e-24))
        apart = matched(ratio * mine, theirs)
        if abs(ratio - 1) < 0.02 or ratio <= 0 or (apart > ODD_ROW * ratio**2 * self.tolerance[:n]).any():
            return ""
        return f"their rows are {ratio:.3g} times as long"

    def shown(self, squared: float) -> str:
        return f"{np.sqrt(squared / self.unrelated):.4f}" if self.unrelated > 0 else f"{np.sqrt(squared):.3g} unscaled"
