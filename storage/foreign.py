"""Feature files that other tools made: one file a video."""

import zipfile
from pathlib import Path

import h5py
import numpy as np

from .console import UserError

FEATURE_SUFFIXES = (".npy", ".npz", ".h5", ".hdf5")


def feature_files(folder: Path) -> dict[str, Path]:
    """{video id: file}: a file's path under ``folder`` without its suffix is the id. Raises ``UserError`` where there is none."""
    files = sorted(p for p in folder.rglob("*") if p.suffix in FEATURE_SUFFIXES and p.is_file()) if folder.is_dir() else []
    if not files:
        raise UserError(f"{folder}: no feature files there; expected one a video, named by its id, ending in {' '.join(FEATURE_SUFFIXES)}")
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def read_features(path: Path) -> np.ndarray:
    """The only array of numbers in the file, or the one called ``features``, without axes of length 1 in front: [T, D], or [D].

    Nothing in the file is executed, and no other file is opened. Raises ``UserError`` for anything else.
    """
    try:
        if path.suffix == ".npy":
            arrays = {"": np.load(path, allow_pickle=False)}
        elif path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        else:
            arrays = _hdf5_arrays(path)
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: no readable feature file ({str(error).splitlines()[0]})") from None
    arrays = {name: a for name, a in arrays.items() if a.dtype.kind in "fiu" and a.ndim > 0}
    chosen = arrays.get("features", next(iter(arrays.values())) if len(arrays) == 1 else None)
    if chosen is None:
        raise UserError(f"{path}: expected one array, or one called 'features'; found {', '.join(arrays) or 'none'}")
    while chosen.ndim > 2 and chosen.shape[0] == 1:
        chosen = chosen[0]
    if chosen.ndim > 2 or 0 in chosen.shape:
        raise UserError(f"{path}: expected [rows, values], got {list(chosen.shape)}")
    return chosen.astype(np.float32)


def _hdf5_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    with h5py.File(path, "r") as file:
        for name in file:
            # A link or an external data set would have HDF5 open any other file.
            if not isinstance(file.get(name, getlink=True), h5py.HardLink) or not isinstance(file[name], h5py.Dataset):
                continue
            if file[name].external or file[name].is_virtual:
                raise UserError(f"{path}: its data set {name!r} lies in another file; that is not followed")
            arrays[name] = file[name][:] if file[name].ndim else np.array([])
    return arrays
