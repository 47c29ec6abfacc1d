"""Stores into files that other programs read."""

import errno
import io
import json
import re
import tarfile
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.progress import progress
from ..feature_store import FeatureStore
from ..files import written_whole
from ..records import VideoFeatures

TAR_BYTES = 1_000_000_000
MOST_NAME_BYTES = 255 - len("..12345678-12345678.partial")
"""Of a file's name: on all usual file systems 255 bytes, less what a file is called while it is written."""


def export_store(store: FeatureStore, target: Path, form: str, problems: Problems) -> int:
    """Writes all videos of ``store`` into the empty or new folder ``target``, in the type they are stored in; returns how many.

    npy: ``ID.npy``, the rows alone. npz: ``ID.npz`` with ``features`` and ``EXPORTED`` (profile and weights are JSON). webdataset:
    tars of at most 1 GB, in which a video is ``KEY.features.npy`` and ``KEY.json``; KEY is the id with dots percent-encoded, as
    WebDataset ends a key at the first. The same store gives the same bytes. Raises ``UserError`` for a folder with something in it.
    """
    if form not in FORMS:
        raise UserError(f"form {form!r}: not known; expected {', '.join(FORMS)}")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{target}: something is there already; pass a new or empty folder")
    ids = sorted(store.video_ids())
    videos = (
        store.get(video_id, dtype=None) for video_id in progress(ids, total=len(ids), what="exporting", unit="videos")
    )
    return FORMS[form](store, target, videos, problems)


def _export_files(suffix: str, write: Callable[..., None]) -> Callable[..., int]:
    def export(store: FeatureStore, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
        num_written = 0
        for video in videos:
            try:
                with written_whole(target / _file_name(video.video_id, suffix)) as partial, partial.open("wb") as file:
                    write(file, store, video)
                num_written += 1
            except ValueError as error:
                problems.add(f"video {video.video_id!r}: {error}; left out, export it as webdataset")
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
                    raise
                problems.add(
                    f"video {video.video_id!r}: no file can have that name beside the others ({error.strerror}); left out"
                )
        return num_written

    return export


def _file_name(video_id: str, suffix: str) -> str:
    """Raises ``ValueError`` for an id that is no file's path under a folder."""
    name = video_id + suffix
    if any(part == "" or part.startswith(".") for part in video_id.split("/")):
        raise ValueError("its id has an empty part or one that begins with a dot, which no file may have here")
    if any(unicodedata.category(c) in ("Cc", "Cs") for c in video_id):
        raise ValueError("its id has a control character in it")
    if any(len(part.encode()) > MOST_NAME_BYTES for part in name.split("/")):
        raise ValueError(f"its id is too long for a file's name, of which {MOST_NAME_BYTES} bytes are taken")
    return name


def _write_npy(file: IO[bytes], store: FeatureStore, video: VideoFeatures) -> None:
    np.lib.format.write_array(file, np.ascontiguousarray(video.features), allow_pickle=False)


def _write_npz(file: IO[bytes], store: FeatureStore, video: VideoFeatures) -> None:
    about = {
        name: json.dumps(value) if isinstance(value, dict) else value for name, value in _about(store, video).items()
    }
    np.savez(file, features=video.features, **{name: np.array(value) for name, value in about.items()})


def _about(store: FeatureStore, video: VideoFeatures) -> dict[str, Any]:
    """The values of ``EXPORTED``, as arrays, numbers, texts and dicts."""
    times = {
        name: getattr(video, name) for name in ("start_seconds", "end_seconds", "valid_frames", "duration_seconds")
    }
    return times | {
        "profile": json.loads(store.profile.to_json()),
        "weights": asdict(store.weights),
        "partial": video.partial,
    }


def _export_tars(store: FeatureStore, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
    samples = (_sample(store, video) for video in videos)
    sample = next(samples, None)
    num_tars = num_written = 0
    while sample is not None:
        with (
            written_whole(target / f"{num_tars:06d}.tar") as partial,
            tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar,
        ):
            num_before = num_written
            while sample is not None and (num_written == num_before or tar.offset + _tar_bytes(sample) <= TAR_BYTES):
                for name, content in sample:
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                num_written += 1
                sample = next(samples, None)
        num_tars += 1
    return num_written


def _sample(store: FeatureStore, video: VideoFeatures) -> list[tuple[str, bytes]]:
    # Dots would end the key; slashes that no path has would be lost; WebDataset passes over names that begin with two underscores.
    key = re.sub(r"[.%\x00-\x1f\x7f]|^/|/$|(?<=/)/|^_(?=_)", lambda found: f"%{ord(found[0]):02X}", video.video_id)
    about = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in _about(store, video).items()
    }
    rows = io.BytesIO()
    _write_npy(rows, store, video)
    text = json.dumps({"video_id": video.video_id} | about, ensure_ascii=False)
    return [(f"{key}.features.npy", rows.getvalue()), (f"{key}.json", text.encode())]


def _tar_bytes(sample: list[tuple[str, bytes]]) -> int:
    """At most: each with its header, one for a long name, and padding; and the end of the tar."""
    return sum(len(content) + 8 * tarfile.BLOCKSIZE for _, content in sample) + tarfile.RECORDSIZE


FORMS = {"npy": _export_files(".npy", _write_npy), "npz": _export_files(".npz", _write_npz), "webdataset": _export_tars}
