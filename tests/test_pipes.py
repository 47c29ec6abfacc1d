"""A pipe or a device where a file should be: whoever opens one may wait for ever, or read without end."""

import os
import re
import signal
from pathlib import Path

import pytest
from helpers.hostile_bytes import READERS, make_originals, originals
from vlalign.storage.common.errors import UserError

SECONDS = 20


def pipe(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [pipe, link_to_a_device])
@pytest.mark.parametrize("reader", ["store", "thumbnails", "prepared", "videos", "import", "words", "run"])
def test_pipes_and_devices_are_refused_in_one_line_without_blocking(tmp_path, reader, make):
    folder = make_originals(reader, tmp_path / "whole")
    for path in originals(reader, folder):
        kept = path.with_suffix(".kept")
        path.rename(kept)
        make(path)
        signal.alarm(SECONDS)  # ends the tests: a reader that waits for a pipe does not come back
        try:
            with pytest.raises(UserError, match=re.escape(path.name)) as refused:
                READERS[reader](folder, path)
            assert "\n" not in str(refused.value)
        finally:
            signal.alarm(0)
        path.unlink()
        kept.rename(path)
