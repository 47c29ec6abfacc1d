"""Search windows made of shots: how the shots of a video become windows, and whether an index has such windows."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from ...storage.common.errors import UserError, refuse_unreadable
from ...storage.common.files import read_object, write_json
from ...storage.dataset.folder import DatasetFolder
from ...storage.profiles import SHOTS
from ...storage.stores.opening import find_features
from ...storage.stores.store import Store

WindowKind = Literal["lengths", "shots"]
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 1.0, 16.0
"""Shots are joined until they reach the first length, and divided if they are longer than the second."""
FILE_NAME, MAX_FILE_BYTES = "windows.json", 1 << 16


def plan_shot_windows(duration_seconds: float, cuts: np.ndarray) -> np.ndarray:
    """Return the windows of a video: the whole video, then its shots in order of time.

    A cut is skipped if it is less than ``MIN_WINDOW_SECONDS`` after the last kept cut, or before the end of the video:
    short shots are joined. Windows longer than ``MAX_WINDOW_SECONDS`` are divided into equal parts.

    >>> plan_shot_windows(26.0, np.array([0.0, 4.0, 4.5, 5.5, 25.5])).tolist()
    [[0.0, 26.0], [0.0, 4.0], [4.0, 5.5], [5.5, 15.75], [15.75, 26.0]]

    Args:
        duration_seconds: When the video ends.
        cuts: When each shot begins, in seconds, ascending.

    Returns:
        Start and end of each window in seconds, float64 [W, 2].
    """
    borders = [0.0]
    for cut in cuts.tolist():
        if cut - borders[-1] >= MIN_WINDOW_SECONDS and duration_seconds - cut >= MIN_WINDOW_SECONDS:
            borders.append(cut)
    borders.append(duration_seconds)
    windows = [np.array([[0.0, duration_seconds]])]
    for start, end in pairwise(borders):
        num_parts = max(math.ceil((end - start) / MAX_WINDOW_SECONDS), 1)
        edges = np.linspace(start, end, num_parts + 1)
        windows.append(np.stack([edges[:-1], edges[1:]], axis=1))
    planned = np.concatenate(windows)
    return planned[:1] if len(planned) == 2 else planned  # the only shot is the whole video


def read_window_kind(folder: Path) -> WindowKind:
    """Return the kind of windows of an index: the last one requested, or else windows of fixed lengths.

    Args:
        folder: Folder of the index.

    Raises:
        UserError: The file with the kind is damaged.
    """
    path = folder / FILE_NAME
    if not path.exists():
        return "lengths"
    with refuse_unreadable(path, "has no kind of windows", "remove it and run vlalign-index"):
        kind = read_object(path, MAX_FILE_BYTES).get("windows")
        if kind == "lengths" or kind == "shots":
            return kind
        raise ValueError(f"windows {str(kind)[:20]!r}; expected {' or '.join(get_args(WindowKind))}")


def write_window_kind(folder: Path, kind: WindowKind) -> None:
    """Write which windows an index has from now on."""
    write_json(folder / FILE_NAME, {"windows": kind})


def open_shots(dataset: DatasetFolder) -> Store:
    """Open the shots of a data set.

    Raises:
        UserError: There are none.
    """
    store = find_features(dataset, SHOTS)
    if store is None or not store.profile.is_shots:
        raise UserError(
            f"{dataset.features(SHOTS)}: no shots found for the search windows; run vlalign-extract "
            f"--dataset {dataset.name} --features {SHOTS}, or vlalign-index with --windows lengths"
        )
    return store
