"""The data sets: a reader takes the annotations (file or folder, None: the usual place) and a seed, and gives records."""

from collections.abc import Callable, Iterator
from pathlib import Path

from ...storage.console import Problems
from ...storage.records import Caption, VideoRecord
from . import demo

Reader = Callable[[Path | None, int, Problems], Iterator[VideoRecord | Caption]]

DATASETS: dict[str, Reader] = {
    "demo": demo.read,
}
