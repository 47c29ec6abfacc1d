"""Openers for files in folders that may come from somebody else: ``open(path, mode, opener=own_file)``.

In such a folder, a name that vlalign knows may be a link to a file of yours, another name (hard link) of it, or a pipe
whose opening never ends.
"""

import errno
import os
import stat

from .errors import UserError
from .system import AS_IT_IS, NO_LINK, NO_WAIT

SAFE_FLAGS = NO_LINK | NO_WAIT | AS_IT_IS


def own_file(path: str, flags: int) -> int:
    """Open a regular file that is no link and, if it is opened for writing, has no other name.

    It is emptied only once this is known.

    Args:
        path: The file.
        flags: As ``open`` passes them.

    Raises:
        UserError: It is something else.
    """
    descriptor = lock_file(path, flags & ~os.O_TRUNC)
    num_names = os.fstat(descriptor).st_nlink
    if flags & (os.O_WRONLY | os.O_RDWR) and num_names > 1:
        os.close(descriptor)
        raise UserError(
            f"{path}: a file with {num_names} names (hard links), so writing to it changes another file, too; "
            "expected a file of its own; remove it"
        )
    if flags & os.O_TRUNC:
        os.ftruncate(descriptor, 0)
    return descriptor


def lock_file(path: str, flags: int) -> int:
    """Do what ``own_file`` does for a file that is only locked: it may have other names, as in a copy by hard links.

    Raises:
        UserError: It is a link, or no regular file.
    """
    if not NO_LINK and os.path.islink(path):
        raise _a_link(path)
    try:
        descriptor = os.open(path, flags | SAFE_FLAGS, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and os.path.islink(path):
            raise _a_link(path) from None
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(path)
    return descriptor


def _a_link(path: str) -> UserError:
    return UserError(f"{path}: a link, expected a file of its own; remove it")


def _no_file(path: str) -> UserError:
    return UserError(f"{path}: a pipe, a socket, a device or a folder, expected a file; remove it")
