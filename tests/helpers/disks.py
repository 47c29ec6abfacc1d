"""Small file systems, which fill up."""

import contextlib
import errno
import os
import subprocess

from helpers.needs import SYSTEM, need


@contextlib.contextmanager
def mounted(folder, *options):
    folder.mkdir(exist_ok=True)
    if os.geteuid() or subprocess.run(["mount", *options, folder], capture_output=True).returncode:
        need(SYSTEM, ["the right to mount a file system"])
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def without_locks(monkeypatch):
    """File systems refuse locks, as NFS without a lock server does."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("vlalign.storage.common.system.fcntl.flock", refuse)
