"""Allowed values of the fields of records."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DATASET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names that become folders: of data sets, features and protocols."""


def is_text(value: Any) -> bool:
    """Return True for a string that can be encoded. Strings from JSON and HDF5 may contain lone surrogates."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def check_text(value: Any) -> None:
    """Raise ``ValueError`` for anything but a text (``is_text``)."""
    if not is_text(value):
        raise ValueError(f"{value!r}: expected a text in valid Unicode")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31


def _is_colour(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_number, value))


@dataclass(frozen=True)
class Rule:
    """The allowed values of a field of a profile."""

    expected: str
    allows: Callable[[Any], bool]


_COUNT = Rule("an integer above 0", _is_count)
_COLOUR = Rule("three numbers", _is_colour)
TEXT = Rule("a text", lambda value: isinstance(value, str))
PROFILE_RULES = {
    "name": Rule(
        "letters, digits, '.', '_' and '-', because it names a folder",
        lambda value: isinstance(value, str) and DATASET_NAME.fullmatch(value) is not None,
    ),
    "fps": Rule(
        "a number above 0, or null if rows are spread evenly over the video",
        lambda value: value is None or (_is_number(value) and value > 0),
    ),
    "window": _COUNT,
    "stride": _COUNT,
    "short_side_px": Rule(
        "an integer, 0 if it does not apply", lambda value: _is_count(value) or (_is_number(value) and value == 0)
    ),
    "crop_px": Rule("an integer above 0, or null for the whole frame", lambda value: value is None or _is_count(value)),
    "mean": _COLOUR,
    "std": _COLOUR,
    "dimension": _COUNT,
}
"""Rules by field. All other fields are texts."""
