"""Annotations to captions with part-of-speech tags, and the IDF table. ``prepare_captions`` does all of it."""

from typing import TYPE_CHECKING

from ..storage.common.lazy import names_from

if TYPE_CHECKING:
    from .prepare import PreparedCaptions, prepare_captions

__all__ = ["PreparedCaptions", "prepare_captions"]

# Importing one reader imports nothing heavy.
__getattr__ = names_from(__name__, dict.fromkeys(__all__, "prepare"))
