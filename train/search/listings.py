"""The latest searches, kept open: the next page continues where the previous one ended."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

from .moments import Moment

MAX_LISTINGS = 4
"""Number of searches that are kept open; the least recently used one is closed."""
MAX_MOMENTS = 20_000
"""Maximum number of moments that all open searches have computed together. An open search holds its moments, to know
which windows overlap them. The latest search may have more."""
P = TypeVar("P")


@dataclass
class _Listing(Generic[P]):
    """A search that can continue."""

    prepared: P
    """The state computed before its first moment."""
    later: Iterator[Moment]
    """The moments after ``kept``."""
    start: int = 0
    """Number of moments before ``kept``."""
    kept: list[Moment] = field(default_factory=list)
    """The last requested page, which the next one may overlap, and the moments computed after it."""

    @property
    def end(self) -> int:
        """Number of moments that were computed."""
        return self.start + len(self.kept)


class Listings(Generic[P]):
    """Keeps the latest searches open."""

    def __init__(self) -> None:
        self._listings: OrderedDict[Hashable, _Listing[P]] = OrderedDict()

    def part(
        self,
        search: Hashable,
        prepare: Callable[[], P],
        begin: Callable[[P], Iterator[Moment]],
        offset: int,
        count: int,
    ) -> tuple[P, list[Moment]]:
        """Return (prepared state, moments of a part of a search's list).

        Args:
            search: Key of the search.
            prepare: Prepares the search; called if it is not open.
            begin: Starts the prepared search; called if the search is not open, or is already beyond ``offset``.
            offset: Number of moments to skip.
            count: Number of moments to return; fewer at the end.
        """
        listing = self._listings.pop(search, None)  # stays removed if this fails, which ends its iterator
        if listing is None or offset < listing.start:
            prepared = prepare() if listing is None else listing.prepared
            listing = _Listing(prepared, begin(prepared))
        listing.kept = listing.kept[offset - listing.start :] if offset <= listing.end else self._skip(listing, offset)
        listing.start = offset
        listing.kept += islice(listing.later, max(count - len(listing.kept), 0))
        self._listings[search] = listing
        while len(self._listings) > MAX_LISTINGS or (len(self._listings) > 1 and self._num_moments > MAX_MOMENTS):
            self._listings.popitem(last=False)
        return listing.prepared, listing.kept[:count]

    def close(self) -> None:
        """Close all searches."""
        self._listings.clear()

    @property
    def _num_moments(self) -> int:
        return sum(listing.end for listing in self._listings.values())

    @staticmethod
    def _skip(listing: _Listing[P], offset: int) -> list[Moment]:
        """Skip the moments before ``offset``, which is after ``kept``; return an empty page."""
        for _ in islice(listing.later, offset - listing.end):
            pass
        return []
