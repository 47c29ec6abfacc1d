"""Locks of files."""

import errno
import subprocess
import threading

import pytest
from helpers.disks import mounted
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.locks import file_lock, folder_lock
from vlalign.storage.common.writing import open_to_write


def test_a_file_lock_times_out_and_may_be_unsupported(tmp_path, monkeypatch):
    path = tmp_path / "x"
    monkeypatch.setattr("vlalign.storage.common.locks.TURN_SECONDS", 0.2)
    with file_lock(path):
        waiting = threading.Thread(target=lambda: file_lock(path).__enter__())
        waiting.start()
        waiting.join(10)
        assert not waiting.is_alive()
    monkeypatch.setattr("vlalign.storage.common.locks.try_lock", raising(OSError(errno.ENOLCK, "no locks")))
    with file_lock(path):
        pass


@pytest.mark.parametrize("name", ["x.lock", "new/x.lock"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, name):
    with mounted(tmp_path / "disk", "-t", "tmpfs", "tmpfs") as disk:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(UserError, match="not writable") as error, folder_lock(disk / name, "syncs"):
            pytest.fail("it is locked")
        assert str((disk / name).parent) in str(error.value)
        with pytest.raises(OSError, match=r"x\.lock'$"):
            open_to_write(disk / "x.lock", "a")


def raising(error: Exception):
    def call(*_):
        raise error

    return call
