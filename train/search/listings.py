"""The latest searches, kept open: the next page of one goes on where the page before ended."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from .moments import Moment

MAX_LISTINGS = 4
"""Searches that are kept open; the one that was used longest ago is closed."""


@dataclass
class _Listing:
    """A search that can go on."""

    moments: Iterator[Moment]
    """The moments behind ``kept``."""
    start: int = 0
    """Number of moments before ``kept``."""
    kept: list[Moment] = field(default_factory=list)
    """The page that was returned last, since the next one may overlap it."""


class Listings:
    """Keeps the latest searches open."""

    def __init__(self) -> None:
        self._listings: OrderedDict[Hashable, _Listing] = OrderedDict()

    def part(self, search: Hashable, begin: Callable[[], Iterator[Moment]], offset: int, count: int) -> list[Moment]:
        """Return some moments of a search: those that its whole list would have there.

        Args:
            search: What tells the search from others.
            begin: Begins the search; called if it is not open, or beyond ``offset``.
            offset: Number of moments to skip.
            count: Number of moments to return; fewer at the end.
        """
        listing = self._listings.pop(search, None)  # gone if this fails, since its iterator is finished then
        if listing is None or offset < listing.start:
            listing = _Listing(begin())
        found = list(islice(self._from(listing, offset), count))
        listing.start, listing.kept = offset, found
        self._listings[search] = listing
        while len(self._listings) > MAX_LISTINGS:
            self._listings.popitem(last=False)
        return found

    def close(self) -> None:
        """Close all searches."""
        self._listings.clear()

    @staticmethod
    def _from(listing: _Listing, offset: int) -> Iterator[Moment]:
        """Yield the moments of a listing from an offset on."""
        skipped = offset - listing.start
        yield from listing.kept[skipped:]
        yield from islice(listing.moments, max(skipped - len(listing.kept), 0), None)
