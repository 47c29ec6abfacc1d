"""Searches that go on where the page before ended."""

from itertools import islice

import numpy as np
import pytest
from vlalign.train.search.listings import MAX_LISTINGS, Listings

WHOLE = list(range(1000))


@pytest.fixture
def counted():
    """Return a function that begins a list, and the numbers that were computed."""
    computed = []

    def begin():
        for number in WHOLE:
            computed.append(number)
            yield number

    return begin, computed


def test_parts_are_those_of_the_whole_list_in_any_order(counted):
    begin, _ = counted
    rng, listings = np.random.default_rng(0), Listings()
    for _ in range(3000):
        key, offset, count = int(rng.integers(3)), int(rng.integers(60)) * 20, int(rng.choice([1, 7, 20, 21, 80, 2000]))
        assert listings.part(key, begin, offset, count) == list(islice(WHOLE, offset, offset + count))


def test_pages_that_follow_compute_each_moment_once(counted):
    begin, computed = counted
    listings = Listings()
    pages = [listings.part("q", begin, offset, 49) for offset in range(0, 1000, 48)]  # one more, to know of the next
    assert [number for page in pages for number in page[:48]] == WHOLE
    assert computed == WHOLE


def test_few_searches_are_kept_open(counted):
    begin, computed = counted
    listings = Listings()
    for key in range(MAX_LISTINGS + 1):
        listings.part(key, begin, 0, 10)
    assert len(computed) == 10 * (MAX_LISTINGS + 1)
    listings.part(1, begin, 0, 10)
    assert len(computed) == 10 * (MAX_LISTINGS + 1), "still open"
    listings.part(0, begin, 0, 10)
    assert len(computed) == 10 * (MAX_LISTINGS + 2), "closed"


def test_a_search_that_failed_begins_again():
    listings, fails = Listings(), [True]

    def begin():
        yield 0
        if fails.pop():
            raise RuntimeError
        yield 1

    fails.insert(0, False)
    with pytest.raises(RuntimeError):
        listings.part("q", begin, 0, 2)
    assert listings.part("q", begin, 0, 2) == [0, 1]
