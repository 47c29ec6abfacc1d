"""Export of stores to files that other programs read."""

import errno
import json
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.progress import Listener, progress, report_progress_to
from ..common.writing import atomic_write
from ..records import VideoFeatures
from ..stores.opening import refuse_frames
from ..stores.store import Store
from .dataset_card import export_hub
from .feature_files import exported_values
from .parquet import export_parquet
from .webdataset import export_tars

MAX_NAME_BYTES = 255 - len("..12345678-12345678.partial")
"""Maximum length of a file's name: 255 bytes on all usual file systems, minus what its temporary name adds."""


def export_store(
    store: Store, target: Path, form: str, problems: Problems, *, on_progress: Listener | None = None
) -> int:
    """Write the features of all videos in their stored type. Exporting a store again gives the same bytes.

    Args:
        store: The store.
        target: A new or empty folder.
        form: ``npy`` writes ID.npy with the rows alone. ``npz`` writes ID.npz with ``features`` and ``EXPORTED``
            (profile and weights as JSON). ``webdataset`` writes tars of at most 1 GB, with KEY.features.npy and
            KEY.json for each video; KEY is the id with dots percent-encoded, because WebDataset ends a key at the
            first dot. ``parquet`` writes files of at most 1 GB with a row for each row of the store; ``hub`` the
            same under ``data/``, with a card that dataset hubs read.
        problems: Receives the videos whose ids cannot be names of files.
        on_progress: Called after each video.

    Returns:
        The number of videos written.

    Raises:
        UserError: The form is unknown or not for frames, or the folder is not empty.
    """
    if form not in FORMS:
        raise UserError(f"form {form!r}: unknown; expected {', '.join(FORMS)}")
    if form not in FORMS_OF_FRAMES:
        refuse_frames(store, f"--form {form} is for features; expected {', '.join(FORMS_OF_FRAMES)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: not empty; pass a new or empty folder")
    ids = sorted(store.video_ids())
    with report_progress_to(on_progress):
        videos = (
            store.get(video_id, dtype=None)
            for video_id in progress(ids, total=len(ids), what="exporting", unit="videos")
        )
        return FORMS[form](store, target, videos, problems)


def _write_npy(file: IO[bytes], store: Store, video: VideoFeatures) -> None:
    np.lib.format.write_array(file, np.ascontiguousarray(video.features), allow_pickle=False)


def _write_npz(file: IO[bytes], store: Store, video: VideoFeatures) -> None:
    arrays = {"features": video.features}
    for name, value in exported_values(store, video).items():
        arrays[name] = np.array(json.dumps(value) if isinstance(value, dict) else value)
    np.savez(file, allow_pickle=True, **arrays)


def _export_files(
    suffix: str,
    write: Callable[[IO[bytes], Store, VideoFeatures], None],
    store: Store,
    target: Path,
    videos: Iterable[VideoFeatures],
    problems: Problems,
) -> int:
    num_written = 0
    for video in videos:
        try:
            path = target / _file_name(video.video_id, suffix)
            with atomic_write(path) as partial_path, partial_path.open("wb") as file:
                write(file, store, video)
            num_written += 1
        except ValueError as error:
            problems.add(f"video {video.video_id!r}: {error}; skipped; export it as webdataset")
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                raise
            problems.add(
                f"video {video.video_id!r}: its file cannot be created beside the others ({error.strerror}); skipped"
            )
    return num_written


def _file_name(video_id: str, suffix: str) -> str:
    """Return the path of a video's file. Raises ``ValueError`` if the id cannot be a path under a folder."""
    name = video_id + suffix
    if any(part == "" or part.startswith(".") for part in video_id.split("/")):
        raise ValueError("its id has a part that is empty or begins with a dot, so it cannot name a file")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in video_id):
        raise ValueError("its id contains a control character")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in name.split("/")):
        raise ValueError(f"its id is too long for the name of a file; the limit is {MAX_NAME_BYTES} bytes")
    return name


FORMS: dict[str, Callable[[Store, Path, Iterable[VideoFeatures], Problems], int]] = {
    "npy": partial(_export_files, ".npy", _write_npy),
    "npz": partial(_export_files, ".npz", _write_npz),
    "webdataset": export_tars,
    "parquet": export_parquet,
    "hub": export_hub,
}
FORMS_OF_FRAMES = ("npy", "npz", "webdataset")
"""Forms that store frames (uint8) unchanged."""
