"""Feature files that other tools made, and our own exports. Nothing in them is executed, and none makes another file be opened."""

import io
import json
import pickle
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import unquote

import h5py
import numpy as np

from ..common.errors import UserError
from ..common.terminal import one_line
from ..files import VIDEO_SUFFIXES
from ..hdf5 import check_size, is_inside, own_dataset, place_of
from .npz import open_npz
from .pickles import MOST_BYTES, Read, Tree, pickle_tree

FEATURE_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")
PICKLE_SUFFIXES = (".pkl", ".pickle")
EXPORTED = ("start_seconds", "end_seconds", "valid_frames", "duration_seconds", "profile", "weights", "partial")
"""What our own exports say beside ``features``."""


@dataclass(frozen=True, eq=False)
class ForeignFeatures:
    rows: np.ndarray
    """[T, D], float16 or float32; not necessarily finite."""
    exported: dict[str, Any] | None = None
    """Where it is an export of ours, the values of ``EXPORTED``; profile and weights as JSON."""


@dataclass(frozen=True)
class ForeignVideo:
    video_id: str
    path: Path
    read_unchecked: Callable[[], ForeignFeatures]
    name: str = ""
    """Of its array inside the file; empty where the file is this video's alone."""

    @property
    def place(self) -> str:
        return one_line(f"{self.path}, {self.name!r}" if self.name else str(self.path))

    def read(self) -> ForeignFeatures:
        """Raises ``UserError`` for anything that is not [rows, values] of numbers."""
        with _reading(self.place):
            return self.read_unchecked()


def feature_files(folder: Path) -> dict[str, Path]:
    """{video id: file}: a file's path under ``folder`` without its suffixes is the id. Raises ``UserError`` where there is none."""
    files = _files(folder, FEATURE_SUFFIXES)
    if not files:
        raise UserError(
            f"{folder}: no feature files there; expected one a video, named by its id, ending in {' '.join(FEATURE_SUFFIXES)}"
        )
    return {_video_id(file.relative_to(folder)): file for file in files}


def read_features(path: Path) -> np.ndarray:
    """The only array of numbers in the file, or the one called ``features``, without axes of length 1: [T, D], or [D].

    Raises ``UserError`` for anything else.
    """
    with _reading(str(path)), _opened(path) as tree:
        return _choose(tree, str(path)).astype(np.float32)


@contextmanager
def foreign_videos(source: Path, pattern: str | None = None) -> Iterator[list[ForeignVideo]]:
    """The videos in ``source``, which stays open meanwhile. Raises ``UserError`` where there are none.

    ``source``: a folder with a file a video, whose path without its suffixes is the id (and with tars of ours); one .npz or HDF5
    file with an array a video, or a group with one array or one called ``features``; a pickle of a dict {id: array}, {id: list of
    arrays} or {id: {name: array}}; or a file of one video, called ``features`` in it.
    ``pattern``: the only names taken, as in ``{id}_rgb.npy`` or ``*/{id}.h5/features.s3d`` for an array in each file; for a
    source that is a file, the names inside, as in ``{id}/c3d_features``. ``*``: anything but a slash.
    """
    with ExitStack() as stack:
        with _reading(str(source)):
            suffix = source.suffix.lower()
            if source.is_dir():
                videos = _in_folder(source, pattern)
            elif not source.is_file():
                raise UserError(f"{source}: not found; expected a folder or file of features")
            elif suffix == ".tar":
                videos = _in_tar(source, pattern)
            elif suffix in PICKLE_SUFFIXES:
                videos = _in_tree(source, pickle_tree(source), pattern)
            elif suffix in FEATURE_SUFFIXES:
                videos = _in_tree(source, stack.enter_context(_opened(source)), pattern)
            else:
                known = " ".join((*FEATURE_SUFFIXES, *PICKLE_SUFFIXES, ".tar"))
                raise UserError(f"{source}: not known by its suffix; expected a folder, or a file ending in {known}")
            if not videos:
                wanted = f" like {pattern!r}" if pattern is not None else ""
                raise UserError(
                    f"{source}: no features{wanted} in it; expected {' '.join(FEATURE_SUFFIXES)} or .tar files, or arrays by id"
                )
        yield videos


@contextmanager
def _reading(place: str) -> Iterator[None]:
    """Whatever the libraries make of a file becomes one line that says where."""
    try:
        yield
    except UserError as error:
        raise UserError(one_line(str(error))) from None
    except Exception as error:  # NumPy, zipfile, tarfile, HDF5 and pickle raise nearly everything on damaged files
        what = next(iter(str(error).splitlines()), "")
        if not what or not isinstance(error, OSError | ValueError | pickle.UnpicklingError):
            what = f"{type(error).__name__} {what}".strip()
        raise UserError(one_line(f"{place}: no readable feature file ({what})")) from None


# Folders


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    return (
        sorted(p for p in folder.rglob("*") if p.suffix.lower() in suffixes and p.is_file()) if folder.is_dir() else []
    )


def _video_id(relative: PurePath) -> str:
    name = relative.with_suffix("")
    # Many feature files are called ID.mp4.npy, as HowTo100M's.
    return (name.with_suffix("") if name.suffix.lower() in VIDEO_SUFFIXES else name).as_posix()


def _in_folder(folder: Path, pattern: str | None) -> list[ForeignVideo]:
    inside = re.fullmatch(r"(.+\.(?:npz|h5|hdf5))/(.+)", pattern or "", re.IGNORECASE)
    file_pattern, name = inside.groups() if inside else (pattern, "")
    named = _compiled(file_pattern)
    videos = []
    for path in _files(folder, FEATURE_SUFFIXES):
        relative = path.relative_to(folder)
        found = named.fullmatch(relative.as_posix()) if named else None
        if named is None or found:
            video_id = found[1] if found else _video_id(relative)
            videos.append(ForeignVideo(video_id, path, partial(_read_file, path, name), name))
    for path in _files(folder, (".tar",)) if named is None else ():
        try:
            videos += _in_tar(path, None)
        except UserError as error:
            videos.append(ForeignVideo(path.stem, path, partial(_refuse, error)))
    return videos


def _refuse(error: UserError) -> ForeignFeatures:
    raise error


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    if pattern.count("{id}") != 1:
        raise UserError(
            f"pattern {pattern!r}: expected {{id}} once in it, where the video's id stands, as in '{{id}}_rgb.npy'"
        )
    parts = {"{id}": "(.+)", "*": "[^/]*"}
    return re.compile(
        "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\{id\}|\*)", pattern)), re.DOTALL
    )


def _read_file(path: Path, name: str) -> ForeignFeatures:
    with _opened(path) as tree:
        if name:
            arrays = _flat(tree)
            if name not in arrays:
                raise UserError(f"{path}: no array {name!r} in it; found {_listed(arrays)}")
            tree = {name: arrays[name]}
        return _read_tree(tree, str(path))


# One file with many arrays


@contextmanager
def _opened(path: Path) -> Iterator[Tree]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        with np.errstate(over="ignore"):  # it computes the size of a shape that has none, and refuses it then
            array = np.lib.format.open_memmap(path, mode="r")
        yield {path.stem: lambda: array}
    elif suffix == ".npz":
        with open_npz(path) as arrays:
            yield arrays
    else:
        with h5py.File(path, "r", locking=False) as file:
            if "profile_hash" in file.attrs:
                raise UserError(f"{path}: a shard of a feature store of this package; it needs no import")
            yield _hdf5_tree(file, {}, deeper=True)


def _hdf5_tree(group: h5py.Group, known: dict[int, str], *, deeper: bool) -> Tree:
    """``known``: the first name of what lies at each place of the file; a second one takes some bytes, and stands for all of it."""
    tree: dict[str, Any] = {}
    for name in group:
        if not is_inside(group, name):
            tree[name] = lambda: None
            continue
        full_name, kind = f"{group.name.rstrip('/')}/{name}", group.get(name, getclass=True)
        first = known.setdefault(place_of(group, name), full_name)
        if first != full_name:
            tree[name] = partial(_known, first)
        elif kind is h5py.Dataset:
            tree[name] = partial(_hdf5_array, group, name)
        elif kind is h5py.Group and deeper:
            tree[name] = _hdf5_tree(group[name], known, deeper=False)
    return tree


def _known(first: str) -> None:
    raise ValueError(f"the same as {first!r} under another name; expected each once")


def _hdf5_array(group: h5py.Group, name: str) -> np.ndarray | None:
    dataset = own_dataset(group, name)
    return check_size(dataset, MOST_BYTES)[()] if dataset.dtype.kind in "fiu" and dataset.shape else None


def _in_tree(source: Path, tree: Tree, pattern: str | None) -> list[ForeignVideo]:
    named = _compiled(pattern)
    if named is not None:
        found = [(named.fullmatch(name), name, {name: read}) for name, read in _flat(tree).items()]
        videos = [(match[1], name, arrays) for match, name, arrays in found if match]
    elif callable(tree.get("features")) or source.suffix.lower() == ".npy":
        videos = [(_video_id(PurePath(source.name)), "", tree)]
    else:
        videos = [(name, name, {name: found} if callable(found) else found) for name, found in tree.items()]
    return [
        ForeignVideo(i, source, partial(_read_tree, arrays, f"{source}, {i!r}"), name) for i, name, arrays in videos
    ]


def _flat(tree: Tree) -> dict[str, Read]:
    arrays: dict[str, Read] = {}
    for name, found in tree.items():
        arrays |= (
            {name: found} if callable(found) else {f"{name}/{inner}": read for inner, read in _flat(found).items()}
        )
    return arrays


def _read_tree(tree: Tree, place: str) -> ForeignFeatures:
    rows = np.atleast_2d(_choose(tree, place))
    with np.errstate(over="ignore"):
        rows = np.array(rows, np.float16 if rows.dtype.kind == "f" and rows.dtype.itemsize == 2 else np.float32)
    if not {"profile", "start_seconds"} <= tree.keys():
        return ForeignFeatures(rows)
    return ForeignFeatures(rows, {name: tree[name]() for name in EXPORTED if callable(tree.get(name))})


def _choose(tree: Tree, place: str) -> np.ndarray:
    """The array called ``features``, or else the only one of numbers: [T, D], or [D] for one row."""
    arrays = {name: read for name, read in tree.items() if callable(read)}
    found = {name: array for name in ("features",) if name in arrays and (array := _numbers(arrays[name])) is not None}
    found = found or {name: array for name, read in arrays.items() if (array := _numbers(read)) is not None}
    if len(found) != 1:
        raise UserError(f"{place}: expected one array, or one called 'features'; found {_listed(found)}")
    (array,) = found.values()
    shape = list(array.shape)
    if array.ndim > 2:
        array = array.squeeze() if max(shape) > 1 else array.reshape(1, 1)
    if array.ndim > 2 or (
        0 in shape and not (array.ndim == 2 and "profile" in tree)
    ):  # our exports may have videos without rows
        raise UserError(f"{place}: expected [rows, values], got {shape}")
    return array


def _numbers(read: Read) -> np.ndarray | None:
    array = read()
    return array if isinstance(array, np.ndarray) and array.dtype.kind in "fiu" and array.ndim > 0 else None


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "") or "none"


# WebDataset tars of ours: KEY.features.npy and KEY.json


def _in_tar(path: Path, pattern: str | None) -> list[ForeignVideo]:
    if pattern is not None:
        raise UserError(f"{path}: the ids are in its JSON; expected no pattern, got {pattern!r}")
    members: dict[str, tuple[int, int]] = {}
    last = -1
    with _reading(str(path)), tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.size < 0 or member.offset <= last:  # tarfile goes round in circles on it (CVE-2025-8194)
                raise ValueError("a tar whose members lie one in the other")
            last = member.offset
            if member.isreg() and not member.issparse():
                members[member.name] = member.offset_data, member.size
    keys = [name.removesuffix(".features.npy") for name in members if name.endswith(".features.npy")]
    return [ForeignVideo(unquote(key), path, partial(_read_sample, path, key, members), key) for key in keys]


def _read_sample(path: Path, key: str, members: Mapping[str, tuple[int, int]]) -> ForeignFeatures:
    if f"{key}.json" not in members:
        raise UserError(
            f"{path}: no {key}.json beside {key}.features.npy; expected a tar that an export of this package made"
        )
    about = json.loads(_read_at(path, *members[f"{key}.json"]))
    if about["video_id"] != unquote(key):
        raise ValueError(f"its JSON says video {about['video_id']!r}")
    tree = {"features": partial(_npy_array, path, *members[f"{key}.features.npy"])}
    tree |= {name: partial(lambda value: value, about[name]) for name in EXPORTED}
    found = _read_tree(tree, str(path))
    return ForeignFeatures(
        found.rows, found.exported | {name: json.dumps(about[name]) for name in ("profile", "weights")}
    )


def _read_at(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(min(size, path.stat().st_size))


def _npy_array(path: Path, offset: int, size: int) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(_read_at(path, offset, size)), allow_pickle=False)
