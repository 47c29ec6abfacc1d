"""The type of a recipe."""

from collections.abc import Mapping
from typing import Any

Recipe = Mapping[str, Any]
"""{setting: value}, such as ``{"objective": "taco", "batch_size": 128}``."""
