"""Checks of values: texts, names of folders, numbers."""

import re
import sys
from typing import Any

DATASET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""Names that become folders: of data sets, features and protocols."""


def is_text(value: Any) -> bool:
    """Return True for a string that can be encoded. Strings from JSON and HDF5 may contain lone surrogates."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def check_text(value: Any) -> None:
    """Raise ``ValueError`` if a value is not a text (``is_text``)."""
    if not is_text(value):
        raise ValueError(f"{value!r}: expected a text in valid Unicode")


def is_number(value: Any) -> bool:
    """Return True for a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -sys.float_info.max <= value <= sys.float_info.max  # math.isfinite raises for integers beyond it


def is_count(value: Any) -> bool:
    """Return True for an integer from 1 to 2**31 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 31
