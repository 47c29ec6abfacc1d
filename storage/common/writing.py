"""The only functions that change files and folders of a data set, a store, a run or a cache.

Such a folder may come from a stranger. A file in it may be a link or hard link to one of the user's files, or a pipe
that blocks when opened. A folder in it may be a link to another place. Therefore links at the end of a path are not
followed. A file below a folder that was passed to ``restrict_writes`` must be where that call allows. Folders are
opened, then checked, then used by their descriptor: replacing one by a link has no effect.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .errors import UserError
from .system import BINARY_CLOEXEC, IS_WINDOWS, NOFOLLOW, NONBLOCK, flush_file, flush_folder, real_path_of

SAFE_FLAGS = NOFOLLOW | NONBLOCK | BINARY_CLOEXEC
FOLDER_FLAGS = os.O_RDONLY | BINARY_CLOEXEC | getattr(os, "O_DIRECTORY", 0)
NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of a system where writing is not permitted."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a system whose disk or quota is full."""
NOT_A_FOLDER = "not a folder, and no link to one"
"""Message of the system error for a file, or a link, where a folder is needed."""
OPEN_FOLDERS = "/proc/self/fd/"
"""Folder in which Linux shows the open folders of this process."""
HAS_DIR_FD = not IS_WINDOWS and {os.open, os.unlink, os.rmdir, os.rename} <= os.supports_dir_fd
"""True if folders can be opened, and functions of ``os`` accept ``dir_fd``."""

FolderCheck = Callable[[str, str], None]
"""Called with a folder's path and its real path; raises ``UserError`` if the folder must not be changed."""
_folder_checks: dict[str, FolderCheck] = {}


def restrict_writes(folder: Path, check: FolderCheck | None = None) -> None:
    """Restrict from now on which files below ``folder`` may be written, and which folders pass ``check_folders``.

    ``check`` decides whether a real folder is allowed. Without ``check``, the real folder must be in ``folder``.
    """
    _folder_checks[os.path.abspath(folder)] = check or partial(_only_inside, folder)


def _only_inside(folder: Path, path: str, real_path: str) -> None:
    if not f"{real_path}/".startswith(os.path.realpath(folder).rstrip("/") + "/"):
        raise UserError(f"{path}: a link to {real_path}, outside of {folder}; nothing is written there; remove it")


def check_folders(*folders: Path) -> None:
    """Raise ``UserError`` if a folder must not be changed. Folders need not exist yet."""
    for folder in folders:
        _check(folder, os.path.realpath(folder))


def _check(folder: Path, real_path: str) -> None:
    path = Path(os.path.abspath(folder))
    for guarded in (path, *path.parents):
        if check := _folder_checks.get(str(guarded)):
            check(str(path), real_path)


@contextlib.contextmanager
def _in_folder_of(path: Path) -> Iterator[tuple[str, int | None]]:
    """Open and check the folder of ``path``; yield the file's name and the folder's descriptor, or ``path`` and
    None where folders cannot be opened. Errors of the block name ``path``.
    """
    if not HAS_DIR_FD:
        check_folders(path.parent)
        yield str(path), None
        return
    folder = os.open(path.parent, FOLDER_FLAGS)
    try:
        _check(path.parent, real_path_of(folder, path.parent))
        try:
            yield path.name, folder
        except OSError as error:
            if str(error.filename).startswith((path.name, f".{path.name}.")):
                error.filename = str(path)
                del error.filename2  # None would be shown as "-> None"
            raise
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, unless they exist."""
    check_folders(path)
    if not HAS_DIR_FD or path.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    top = next(folder for folder in path.parents if folder.is_dir())
    folder = os.open(top, FOLDER_FLAGS)
    try:
        _check(top, real_path_of(folder, top))
        for name in path.relative_to(top).parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=folder)
            inner = os.open(name, FOLDER_FLAGS | NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
    except NotADirectoryError:  # a file, or a link that leads to no folder
        raise FileExistsError(errno.EEXIST, NOT_A_FOLDER, str(path)) from None
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(folder)


def open_to_write(path: Path, mode: str, *, allow_hard_links: bool = False, **options: Any) -> Any:
    """Open a regular file for writing, as ``open`` does; refuse links and files with several names.

    The file is truncated only after these checks.

    Args:
        path: The file.
        mode: Mode of ``open``.
        allow_hard_links: Accept a file with other names, as in a copy made of hard links. For a lock file, which is
            never written.
        options: Other arguments of ``open``.

    Raises:
        UserError: The file is refused, or its folder must not be changed.
    """
    with _in_folder_of(path) as (name, folder):

        def opener(_: str, flags: int) -> int:
            return _own_file(path, name, folder, flags, allow_hard_links=allow_hard_links)

        return open(path, mode, opener=opener, **options)


def _own_file(path: Path, name: str, folder: int | None, flags: int, *, allow_hard_links: bool) -> int:
    descriptor = _regular_file(path, name, folder, flags & ~os.O_TRUNC)
    num_names = os.fstat(descriptor).st_nlink
    if num_names > 1 and not allow_hard_links:
        os.close(descriptor)
        raise UserError(
            f"{path}: has {num_names} names (hard links), so writing to it would also change another file; "
            "expected a file with one name; remove it"
        )
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def _regular_file(path: Path, name: str, folder: int | None, flags: int) -> int:
    if not NOFOLLOW and path.is_symlink():
        raise _a_link(path)
    try:
        descriptor = os.open(name, flags | SAFE_FLAGS, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise _a_link(path) from None
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a pipe without a reader, a socket, or a folder
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _a_link(path: Path) -> UserError:
    return UserError(f"{path}: a link; expected a file; remove it")


def _no_file(path: Path) -> UserError:
    return UserError(f"{path}: a pipe, a socket, a device or a folder; expected a file; remove it")


def open_to_read(path: Path, mode: str = "r", **options: Any) -> Any:
    """Open a regular file for reading, as ``open`` does; refuse links.

    Raises:
        UserError: It is a link, or not a regular file.
    """

    def opener(_: str, flags: int) -> int:
        return _regular_file(path, str(path), None, flags)

    return open(path, mode, opener=opener, **options)


@contextlib.contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Add the path to each ``OSError`` of the block.

    Errors of writing and flushing have no file name; errors of files opened below ``/proc/self/fd`` have a meaningless
    one.
    """
    try:
        yield
    except OSError as error:
        is_ours = isinstance(error.filename, str) and error.filename.startswith(OPEN_FOLDERS)
        if error.errno is None or not (is_ours or error.filename is None):
            raise
        advice = "; make room there" if error.errno in NO_ROOM else ""
        raise OSError(error.errno, f"{error.strerror}{advice}", str(path)) from error


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; at the end of the block, flush this file and rename it to ``path``.

    A link at ``path`` is replaced, not followed. The temporary path cannot be a link, since its name is random. If the
    block fails, the temporary file is removed.
    """
    make_folder(path.parent)
    with _in_folder_of(path) as (name, folder):
        partial_name = f".{path.name}.{os.getpid()}-{secrets.token_urlsafe(6)}.partial"
        unfinished = path.with_name(partial_name)
        if folder is not None and os.path.isdir(f"{OPEN_FOLDERS}{folder}"):
            # the checked folder, even if its path leads elsewhere by now
            unfinished = Path(f"{OPEN_FOLDERS}{folder}", partial_name)
        try:
            with errors_naming(path):
                yield unfinished
                flush_file(unfinished)
            if folder is None:
                os.replace(unfinished, name)
                flush_folder(path.parent)
            else:
                os.replace(partial_name, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)  # the name must survive a power cut also
        finally:
            # it was renamed, or the file system is read-only, as the first error reports
            with contextlib.suppress(OSError):
                unfinished.unlink()


def move(path: Path, target: Path) -> None:
    """Rename a file or a folder. An existing ``target`` is replaced, as by ``os.replace``."""
    with _in_folder_of(path) as (name, folder), _in_folder_of(target) as (new_name, new_folder):
        os.replace(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)


def remove_file(path: Path, *, missing_ok: bool = False) -> None:
    """Remove a file or a link."""
    try:
        with _in_folder_of(path) as (name, folder):
            os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        if not missing_ok:
            raise


def remove_empty_folder(path: Path) -> None:
    """Remove a folder that is empty. Raises ``OSError`` if it is not."""
    with _in_folder_of(path) as (name, folder):
        os.rmdir(name, dir_fd=folder)


def remove_tree(path: Path) -> None:
    """Remove a folder with its content. Links in it are removed; their targets are not touched.

    Raises:
        OSError: It is a link, or a file in it cannot be removed.
    """
    check_folders(path.parent)
    shutil.rmtree(path)
