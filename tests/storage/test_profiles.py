"""Feature profiles."""

from dataclasses import replace

import pytest
from helpers.stores import PROFILE


@pytest.mark.parametrize("field", sorted(PROFILE.facts()))
def test_each_field_of_a_profile_changes_its_hash(field):
    value = getattr(PROFILE, field)
    other = (
        value + 1
        if isinstance(value, int)
        else (value[0] + 0.5, *value[1:])
        if isinstance(value, tuple)
        else value + "x"
    )
    assert replace(PROFILE, **{field: other}).hash != PROFILE.hash
