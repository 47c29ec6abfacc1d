"""Real data and golden values that may lie beside a checkout."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[3] / "shared"
"""Real data and golden values, where a checkout has them beside it."""


def shared(path: str) -> Path:
    """A file or folder of ``SHARED``; the test is skipped, and says so, where it is not there."""
    if not (SHARED / path).exists():
        pytest.skip(f"no {path} beside this checkout")
    return SHARED / path
