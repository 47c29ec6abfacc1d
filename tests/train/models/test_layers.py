"""Grouping sequences of similar length."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from vlalign.train.models.layers import MIN_FILLED, GroupSize, length_groups

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=80)


@given(LENGTHS, st.integers(1, 300))
def test_groups_hold_every_sequence_once_and_little_padding(lengths, max_tokens):
    groups = length_groups(lengths, GroupSize(max_tokens, 0))
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        longest = lengths[group[0]]
        assert longest == max(lengths[n] for n in group) and min(lengths[n] for n in group) >= MIN_FILLED * longest
        assert len(group) * longest <= max(max_tokens, longest)


@given(LENGTHS, st.integers(1, 300), st.integers(1, 300))
def test_only_large_groups_end_before_a_shorter_sequence(lengths, most, least):
    groups = length_groups(lengths, GroupSize(most, least))
    assert [n for group in groups for n in group] == sorted(range(len(lengths)), key=lambda n: (-lengths[n], n))
    for group, following in itertools.pairwise(groups):
        longest, size = lengths[group[0]], len(group) * lengths[group[0]]
        assert size <= max(most, longest)
        is_full, is_shorter = size + longest > most, lengths[following[0]] < MIN_FILLED * longest
        assert is_full or (is_shorter and size >= least)
