"""Locks of files."""

import errno
import threading

from vlalign.storage.common.locks import file_lock


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


def raising(error: Exception):
    def call(*_):
        raise error

    return call
