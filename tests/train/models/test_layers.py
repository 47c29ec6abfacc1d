"""Grouping sequences of similar length."""

from hypothesis import given
from hypothesis import strategies as st
from vlalign.train.models.layers import LEAST_FILLED, length_groups


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 300))
def test_groups_hold_every_sequence_once_and_little_padding(lengths, max_tokens):
    groups = length_groups(lengths, max_tokens)
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        longest = lengths[group[0]]
        assert longest == max(lengths[n] for n in group) and min(lengths[n] for n in group) >= LEAST_FILLED * longest
        assert len(group) * longest <= max(max_tokens, longest)
