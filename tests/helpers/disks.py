"""Small file systems, which fill up."""

import contextlib
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
