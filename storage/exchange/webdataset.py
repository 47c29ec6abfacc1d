"""WebDataset tars, written and read: KEY.features.npy and KEY.json for each video."""

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from ..common.errors import UserError
from ..common.problems import Problems
from ..common.writing import atomic_write
from ..records import VideoFeatures
from ..stores.store import Store
from ..untrusted.limits import ReadArray
from .feature_files import EXPORTED, SourceFeatures, exported_values, read_video, refuse_damaged

ROWS_SUFFIX, ABOUT_SUFFIX = ".features.npy", ".json"
TAR_BYTES = 1_000_000_000


@dataclass(frozen=True)
class _Sample:
    """A video in a tar."""

    members: dict[str, bytes]
    """Content by name."""

    def max_tar_bytes(self) -> int:
        """Return an upper bound of the video's size in a tar, including headers, padding and the tar's end."""
        return sum(len(content) + 8 * tarfile.BLOCKSIZE for content in self.members.values()) + tarfile.RECORDSIZE


def export_tars(store: Store, target: Path, videos: Iterable[VideoFeatures], problems: Problems) -> int:
    """Write videos into tars of at most ``TAR_BYTES``; a larger video gets its own tar. Return the number of videos."""
    samples = (_sample(store, video) for video in videos)
    sample = next(samples, None)
    num_tars = num_written = 0
    while sample is not None:
        with (
            atomic_write(target / f"{num_tars:06d}.tar") as partial_path,
            tarfile.open(partial_path, "w", format=tarfile.PAX_FORMAT) as tar,
        ):
            num_before = num_written
            while sample is not None and (
                num_written == num_before or tar.offset + sample.max_tar_bytes() <= TAR_BYTES
            ):
                for name, content in sample.members.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
                num_written += 1
                sample = next(samples, None)
        num_tars += 1
    return num_written


def _sample(store: Store, video: VideoFeatures) -> _Sample:
    # A dot would end the key; leading, trailing and double slashes would be lost; WebDataset skips names that begin
    # with two underscores.
    key = re.sub(r"[.%\x00-\x1f\x7f]|^/|/$|(?<=/)/|^_(?=_)", lambda match: f"%{ord(match[0]):02X}", video.video_id)
    about = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in exported_values(store, video).items()
    }
    rows = io.BytesIO()
    np.lib.format.write_array(rows, np.ascontiguousarray(video.features), allow_pickle=False)
    text = json.dumps({"video_id": video.video_id} | about, ensure_ascii=False)
    return _Sample({f"{key}{ROWS_SUFFIX}": rows.getvalue(), f"{key}{ABOUT_SUFFIX}": text.encode()})


@dataclass(frozen=True)
class _Member:
    offset: int
    size: int


@dataclass(frozen=True)
class TarVideos:
    """The videos in a tar."""

    path: Path
    members: Mapping[str, _Member]

    def video_keys(self) -> list[str]:
        """Return the key of each video."""
        return [name.removesuffix(ROWS_SUFFIX) for name in self.members if name.endswith(ROWS_SUFFIX)]

    def video_id(self, key: str) -> str:
        """Return the id of a video: its key, percent-decoded."""
        return unquote(key)

    def read(self, key: str) -> SourceFeatures:
        """Read a video. Raises ``UserError`` or a format error for a video that was not exported by vlalign."""
        if f"{key}{ABOUT_SUFFIX}" not in self.members:
            raise UserError(
                f"{self.path}: no {key}{ABOUT_SUFFIX} beside {key}{ROWS_SUFFIX}; expected a tar that vlalign exported"
            )
        about = json.loads(self._content(f"{key}{ABOUT_SUFFIX}"))
        if about["video_id"] != self.video_id(key):
            raise ValueError(f"its JSON is about video {about['video_id']!r}")
        arrays: dict[str, ReadArray] = {"features": partial(self._array, f"{key}{ROWS_SUFFIX}")}
        arrays |= {name: partial(_value, about[name]) for name in EXPORTED}
        features = read_video(arrays, str(self.path))
        as_json = {name: json.dumps(about[name]) for name in ("profile", "weights")}
        return SourceFeatures(features.rows, {**(features.exported or {}), **as_json})

    def _array(self, name: str) -> np.ndarray:
        return np.lib.format.read_array(io.BytesIO(self._content(name)), allow_pickle=False)

    def _content(self, name: str) -> bytes:
        member = self.members[name]
        with self.path.open("rb") as file:
            file.seek(member.offset)
            return file.read(min(member.size, self.path.stat().st_size))


def _value(value: Any) -> Any:
    return value


def open_tar(path: Path) -> TarVideos:
    """Return the videos of a tar file. Raises ``UserError`` if it is damaged."""
    members: dict[str, _Member] = {}
    last = -1
    with refuse_damaged(path), tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.size < 0 or member.offset <= last:  # tarfile would loop for ever (CVE-2025-8194)
                raise ValueError("a tar with overlapping members")
            last = member.offset
            if member.isreg() and not member.issparse():
                members[member.name] = _Member(member.offset_data, member.size)
    return TarVideos(path, members)
