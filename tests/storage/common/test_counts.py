"""Counts in messages."""

import pytest
from vlalign.storage.common.terminal import number_of


@pytest.mark.parametrize(
    ("count", "things", "said"),
    [
        (0, "videos", "0 videos"),
        (1, "videos", "1 video"),
        (1, "training clips", "1 training clip"),
        (2345, "rows", "2,345 rows"),
    ],
)
def test_one_thing_is_said_as_one(count, things, said):
    assert number_of(count, things) == said
