"""Any JSON value, for property tests, and JSON values of which one part is another."""

import copy
from typing import Any

from hypothesis import strategies as st

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Return the paths to all parts of a value, that to the whole first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@st.composite
def one_part_changed(draw: st.DrawFn, value: Any) -> Any:
    """Draw ``value`` with one of its parts replaced by any JSON value."""
    changed = copy.deepcopy(value)
    *path, last = draw(st.sampled_from(places(changed)[1:]))
    part = changed
    for key in path:
        part = part[key]
    part[last] = draw(ANY_JSON)
    return changed
