"""WebDataset tars that vlalign exported: KEY.features.npy and KEY.json for each video."""

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from ..common.errors import UserError
from ..untrusted.limits import Read
from .array_tree import EXPORTED, ForeignFeatures, read_tree, refuse_damaged

ROWS_SUFFIX, ABOUT_SUFFIX = ".features.npy", ".json"


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

    def read(self, key: str) -> ForeignFeatures:
        """Read a video. Raises ``UserError`` or a format error if it is not one that vlalign exported."""
        if f"{key}{ABOUT_SUFFIX}" not in self.members:
            raise UserError(
                f"{self.path}: no {key}{ABOUT_SUFFIX} beside {key}{ROWS_SUFFIX}; expected a tar that vlalign exported"
            )
        about = json.loads(self._content(f"{key}{ABOUT_SUFFIX}"))
        if about["video_id"] != self.video_id(key):
            raise ValueError(f"its JSON says video {about['video_id']!r}")
        tree: dict[str, Read] = {"features": partial(self._array, f"{key}{ROWS_SUFFIX}")}
        tree |= {name: partial(_value, about[name]) for name in EXPORTED}
        features = read_tree(tree, str(self.path))
        as_json = {name: json.dumps(about[name]) for name in ("profile", "weights")}
        return ForeignFeatures(features.rows, {**(features.exported or {}), **as_json})

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
    """Read which videos are in a tar. Raises ``UserError`` if it is damaged."""
    members: dict[str, _Member] = {}
    last = -1
    with refuse_damaged(path), tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.size < 0 or member.offset <= last:  # tarfile would loop for ever (CVE-2025-8194)
                raise ValueError("a tar whose members overlap")
            last = member.offset
            if member.isreg() and not member.issparse():
                members[member.name] = _Member(member.offset_data, member.size)
    return TarVideos(path, members)
