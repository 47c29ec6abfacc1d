"""Read feature files of other programs, and vlalign's own exports.

Nothing in the files is executed, and they cannot make HDF5 open other files.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import NoReturn

import numpy as np

from ..common.errors import UserError
from ..common.terminal import one_line, say
from ..dataset.media_types import VIDEO_SUFFIXES
from ..untrusted.limits import ArrayGroup
from .feature_files import (
    ARRAY_SUFFIXES,
    EXPORTED,
    FEATURE_SUFFIXES,
    SourceFeatures,
    choose_features,
    flatten,
    join_names,
    open_arrays,
    read_video,
    refuse_damaged,
)
from .parquet import SUFFIX, open_parquet
from .webdataset import open_tar


@dataclass(frozen=True)
class _Choice:
    """Names of the arrays to read from a video, as for ``source_videos``."""

    key: str | None
    times: str | None

    def read(self, group: ArrayGroup, where: str) -> SourceFeatures:
        """Read the features of a video from its group of arrays."""
        return read_video(group, where, self.key, self.times)


@dataclass(frozen=True)
class SourceVideo:
    """A video in a source of features."""

    video_id: str
    path: Path
    read_unchecked: Callable[[], SourceFeatures]
    name: str = ""
    """Name of its array in the file; empty if the file holds only this video."""

    @property
    def where(self) -> str:
        """The file and the name in it, for messages."""
        return one_line(f"{self.path}, {self.name!r}" if self.name else str(self.path))

    def read(self) -> SourceFeatures:
        """Read the features. Raises ``UserError`` unless they are numbers [rows, values]."""
        with refuse_damaged(self.where):
            return self.read_unchecked()


def feature_files(folder: Path) -> dict[str, Path]:
    """Return the feature files in a folder, by video id: the path under ``folder`` without suffixes.

    Raises:
        UserError: There are none.
    """
    files = _files(folder, FEATURE_SUFFIXES)
    if not files:
        raise UserError(
            f"{folder}: no feature files there; expected one for each video, named by its id, ending in "
            + " ".join(FEATURE_SUFFIXES)
        )
    return {_video_id(file.relative_to(folder)): file for file in files}


def read_features(path: Path) -> np.ndarray:
    """Read one feature file: float32 [T, D], or [D].

    The file must have one array of numbers, or one called ``features``. Axes of length 1 are dropped.

    Raises:
        UserError: The file has no such array, or is damaged.
    """
    with refuse_damaged(path), open_arrays(path) as group:
        return choose_features(group, str(path)).astype(np.float32)


@contextmanager
def source_videos(
    source: Path, pattern: str | None = None, *, key: str | None = None, times: str | None = None
) -> Iterator[list[SourceVideo]]:
    """Yield the videos in a source; the source is open in the block.

    Args:
        source: One of these:
            a folder with a file for each video (the id is the path without suffixes), or with Parquet files, or with
            tars of vlalign;
            a Parquet file with a column of ids and one of embeddings (``parquet.py``);
            a .npz or HDF5 file with an array for each video, or a group with one array or one called ``features``;
            a pickle or torch.save file with a dict {id: array}, {id: list of arrays} or {id: {name: array}};
            a file of one video: a .npy file, a file with an array called ``features``, or a pickle of one array.
        pattern: Pattern of the file names to read, such as ``{id}_rgb.npy``, or ``*/{id}.h5/features.s3d`` for an array
            in each file. If the source is a file, pattern of its array names, such as ``{id}/c3d_features``. ``*``
            matches any text without a slash.
        key: Name of each video's array of features, as for ``read_video``.
        times: Name of each video's array of times, as for ``read_video``.

    Raises:
        UserError: There are no videos, or the source is damaged.
    """
    with ExitStack() as stack:
        with refuse_damaged(source):
            videos = _videos_in(source, pattern, _Choice(key, times), stack)
            if not videos:
                like = f" like {pattern!r}" if pattern is not None else ""
                suffixes = " ".join(ARRAY_SUFFIXES)
                raise UserError(
                    f"{source}: no features{like} in it; expected {suffixes}, .parquet or .tar files, or arrays by id"
                )
        yield videos


def _videos_in(source: Path, pattern: str | None, choice: _Choice, stack: ExitStack) -> list[SourceVideo]:
    suffix = source.suffix.lower()
    if source.is_dir():
        return _in_folder(source, pattern, choice)
    if not source.is_file():
        raise UserError(f"{source}: not found; expected a folder or file of features")
    if suffix == ".tar":
        if pattern is not None:
            raise UserError(f"{source}: a tar file has the ids in its JSON; omit --pattern {pattern!r}")
        return _in_tar(source)
    if suffix == SUFFIX:
        if pattern is not None:
            raise UserError(f"{source}: a Parquet file has the ids in a column; omit --pattern {pattern!r}")
        return _in_parquet(source)
    if suffix in ARRAY_SUFFIXES:
        return _in_group(source, stack.enter_context(open_arrays(source)), pattern, choice)
    known = " ".join((*ARRAY_SUFFIXES, ".tar", SUFFIX))
    raise UserError(f"{source}: unknown suffix; expected a folder, or a file ending in {known}")


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes and path.is_file())


def _video_id(relative: PurePath) -> str:
    name = relative.with_suffix("")
    # Many feature files, such as HowTo100M's, are called ID.mp4.npy.
    name = name.with_suffix("") if name.suffix.lower() in VIDEO_SUFFIXES else name
    return unicodedata.normalize("NFC", name.as_posix())


def _in_folder(folder: Path, pattern: str | None, choice: _Choice) -> list[SourceVideo]:
    inside = re.fullmatch(r"(.+\.(?:npz|h5|hdf5|pkl|pickle|pth|pt))/(.+)", pattern or "", re.IGNORECASE)
    file_pattern, name = inside.groups() if inside else (pattern, "")
    names = _compiled(file_pattern)
    videos = []
    for path in _files(folder, ARRAY_SUFFIXES):
        relative = path.relative_to(folder)
        match = names.fullmatch(relative.as_posix()) if names else None
        if names is None or match:
            video_id = match[1] if match else _video_id(relative)
            videos.append(SourceVideo(video_id, path, partial(_read_file, path, name, choice), name))
    for path in _files(folder, (".tar", SUFFIX)) if names is None else ():
        try:
            videos += _in_tar(path) if path.suffix.lower() == ".tar" else _in_parquet(path)
        except UserError as error:
            videos.append(SourceVideo(path.stem, path, partial(_refuse, error)))
    return videos


def _in_tar(path: Path) -> list[SourceVideo]:
    tar = open_tar(path)
    return [SourceVideo(tar.video_id(key), path, partial(tar.read, key), key) for key in tar.video_keys()]


def _in_parquet(path: Path) -> list[SourceVideo]:
    opened = open_parquet(path)
    return [
        SourceVideo(video_id, path, partial(opened.read, index), video_id)
        for index, (video_id, _) in enumerate(opened.places)
    ]


def _refuse(error: UserError) -> NoReturn:
    raise error


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    if pattern.count("{id}") != 1:
        raise UserError(f"pattern {pattern!r}: expected {{id}} once, for the video's id, such as '{{id}}_rgb.npy'")
    parts = {"{id}": "(.+)", "*": "[^/]*"}
    return re.compile(
        "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\{id\}|\*)", pattern)), re.DOTALL
    )


def _read_file(path: Path, name: str, choice: _Choice) -> SourceFeatures:
    with open_arrays(path) as group:
        if name:
            arrays = flatten(group)
            if name not in arrays:
                raise UserError(f"{path}: no array {name!r} in it; found {join_names(arrays)}")
            group = {name: arrays[name]}
        return choice.read(group, str(path))


def _say_what_is_left_out(source: Path, video_id: str, group: ArrayGroup, choice: _Choice) -> None:
    """Report which arrays are not read, if a file is taken as one video."""
    taken = choice.key or "features"
    exported = EXPORTED if {"profile", "start_seconds"} <= group.keys() else ()
    others = [name for name in group if name not in (taken, choice.times, *exported)]
    if taken in group and others:  # not a .npy, which has only one array
        omit = f"; if each array is a video, omit --key {taken}" if choice.key else ""
        say(
            f"note: {source}: read as one video, {video_id!r}, with its array {taken!r}; skipped arrays: "
            f"{join_names(others)}{omit}"
        )


def _in_group(source: Path, group: ArrayGroup, pattern: str | None, choice: _Choice) -> list[SourceVideo]:
    names = _compiled(pattern)
    videos: list[tuple[str, str, ArrayGroup]] = []
    if names is not None:
        if choice.key is not None:
            raise UserError(f"{source}: pattern {pattern!r} names the arrays; omit --key {choice.key!r}")
        for name, read in flatten(group).items():
            if match := names.fullmatch(name):
                videos.append((match[1], name, {name: read}))
    elif callable(group.get(choice.key or "features")) or source.suffix.lower() == ".npy":
        video_id = _video_id(PurePath(source.name))
        videos.append((video_id, "", group))
        _say_what_is_left_out(source, video_id, group, choice)
    else:
        videos += [(name, name, {name: item} if callable(item) else item) for name, item in group.items()]
        if choice.key is not None and videos and all(map(callable, group.values())):
            raise UserError(
                f"{source}: no array {choice.key!r} in it, and no groups of arrays; found {join_names(group)}"
            )
    return [
        SourceVideo(video_id, source, partial(choice.read, arrays, f"{source}, {video_id!r}"), name)
        for video_id, name, arrays in videos
    ]
