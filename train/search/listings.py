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

    later: Iterator[Moment]
    """The moments behind ``kept``."""
    start: int = 0
    """Number of moments before ``kept``."""
    kept: list[Moment] = field(default_factory=list)
    """The page that was asked for last, since the next one may overlap it, and what was computed behind it."""

    @property
    def end(self) -> int:
        """Number of moments that were computed."""
        return self.start + len(self.kept)


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
        listing.kept = listing.kept[offset - listing.start :] if offset <= listing.end else self._skip(listing, offset)
        listing.start = offset
        listing.kept += islice(listing.later, max(count - len(listing.kept), 0))
        self._listings[search] = listing
        while len(self._listings) > MAX_LISTINGS:
            self._listings.popitem(last=False)
        return listing.kept[:count]

    def close(self) -> None:
        """Close all searches."""
        self._listings.clear()

    @staticmethod
    def _skip(listing: _Listing, offset: int) -> list[Moment]:
        """Go beyond what is kept."""
        for _ in islice(listing.later, offset - listing.end):
            pass
        return []
