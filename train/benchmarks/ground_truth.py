"""Tools for readers of published ground truth: paths of videos in it, and errors that name the file and the row."""

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from ...storage.common.errors import UserError

EXPECTED = "expected the file as its authors publish it"
MAX_PATH_CHARACTERS = 1024


@contextmanager
def as_published(path: Path, row: str) -> Iterator[None]:
    """Turn the errors of code that expects the published structure of a file into a ``UserError`` of one line."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise UserError(f"{path}, {row}: {reason}; {EXPECTED}") from None


def file_below(folder: Path, named: str) -> Path | None:
    """Find a file in a folder by its path on another machine, which a published file has; None if it is not found.

    The longest end of the path that exists below the folder is used. A path with ``..``, or a link that leads out of
    the folder, is not found.

    Args:
        folder: The folder.
        named: The path, such as ``/share/momentseeker/images/12.png``.
    """
    parts = [part for part in PurePosixPath(named[:MAX_PATH_CHARACTERS]).parts if part != "/"]
    if ".." in parts or len(named) > MAX_PATH_CHARACTERS:
        return None
    home = os.path.realpath(folder)
    for first in range(len(parts)):
        path = folder.joinpath(*parts[first:])
        if os.path.isfile(path):  # Path.is_file raises OSError for a long name
            return path if Path(os.path.realpath(path)).is_relative_to(home) else None
    return None


def ids_by_name(video_ids: Collection[str]) -> dict[str, str]:
    """Return {last part of an id: the id}, without last parts that several ids have."""
    names: dict[str, str | None] = {}
    for video_id in video_ids:
        name = video_id.rsplit("/", 1)[-1]
        names[name] = None if name in names else video_id
    return {name: video_id for name, video_id in names.items() if video_id is not None}
