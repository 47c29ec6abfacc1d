"""Searches that go on where the page before ended."""

from itertools import islice

import numpy as np
import pytest
from vlalign.train.search import listings as listings_module
from vlalign.train.search.listings import MAX_LISTINGS, Listings

WHOLE = list(range(1000))


class Counted:
    """Lists of the same numbers, each computed one after the other."""

    def __init__(self):
        self.listings, self.computed, self.num_prepared = Listings(), [], 0

    def prepare(self):
        self.num_prepared += 1
        return WHOLE

    def begin(self, numbers):
        for number in numbers:
            self.computed.append(number)
            yield number

    def part(self, search, offset, count):
        prepared, found = self.listings.part(search, self.prepare, self.begin, offset, count)
        assert prepared is WHOLE
        return found


def test_parts_are_those_of_the_whole_list_in_any_order():
    rng, counted = np.random.default_rng(0), Counted()
    for _ in range(3000):
        key, offset, count = int(rng.integers(3)), int(rng.integers(60)) * 20, int(rng.choice([1, 7, 20, 21, 80, 2000]))
        assert counted.part(key, offset, count) == list(islice(WHOLE, offset, offset + count))
    assert counted.num_prepared == 3


def test_pages_that_follow_compute_each_moment_once():
    counted = Counted()
    pages = [counted.part("q", offset, 49) for offset in range(0, 1000, 48)]  # one more, to know of the next
    assert [number for page in pages for number in page[:48]] == WHOLE
    assert counted.computed == WHOLE and counted.num_prepared == 1


def test_few_searches_are_kept_open():
    counted = Counted()
    for key in range(MAX_LISTINGS + 1):
        counted.part(key, 0, 10)
    assert len(counted.computed) == 10 * (MAX_LISTINGS + 1)
    counted.part(1, 0, 10)
    assert len(counted.computed) == 10 * (MAX_LISTINGS + 1), "still open"
    counted.part(0, 0, 10)
    assert len(counted.computed) == 10 * (MAX_LISTINGS + 2), "closed"


def test_open_searches_have_few_moments_in_sum_but_for_the_latest(monkeypatch):
    monkeypatch.setattr(listings_module, "MAX_MOMENTS", 100)
    counted = Counted()
    counted.part("a", 0, 40)
    counted.part("b", 30, 10)
    counted.part("a", 40, 10)
    counted.part("c", 0, 10)
    assert counted.num_prepared == 3 and len(counted.computed) == 40 + 40 + 10 + 10
    counted.part("d", 0, 1)  # 101 in sum: b, which was used longest ago, is closed
    assert counted.part("a", 50, 5) == WHOLE[50:55] and counted.num_prepared == 4
    counted.part("b", 0, 1)
    assert counted.num_prepared == 5
    for offset in range(0, 300, 20):  # longer than all may be, but in use
        counted.part("long", offset, 20)
    assert counted.num_prepared == 6
    counted.part("c", 10, 1)
    assert counted.num_prepared == 7, "the long one alone was left"


def test_a_search_that_failed_begins_again():
    listings, fails = Listings(), [False, True]

    def begin(_):
        yield 0
        if fails.pop():
            raise RuntimeError
        yield 1

    with pytest.raises(RuntimeError):
        listings.part("q", list, begin, 0, 2)
    assert listings.part("q", list, begin, 0, 2) == ([], [0, 1])
