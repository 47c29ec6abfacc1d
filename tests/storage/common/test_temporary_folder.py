"""Temporary folders: removed at the end, and after a kill by the next process."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest
from vlalign.storage.common.temporary_folder import TemporaryFolder
from vlalign.train.page.browser_clips import ClipCache
from vlalign.train.page.example_pictures import ExamplePictures

MAKE = (
    "import time; from vlalign.storage.common.temporary_folder import TemporaryFolder; "
    "folder = TemporaryFolder('test-'); print(folder.path, flush=True); time.sleep(600)"
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_of_a_killed_process_is_removed_by_the_next(temporary):
    environment = os.environ | {"TMPDIR": str(temporary)}
    process = subprocess.Popen([sys.executable, "-c", MAKE], stdout=subprocess.PIPE, text=True, env=environment)
    with process:
        assert process.stdout is not None
        left = temporary / process.stdout.readline().strip()
        (left / "0.webm").write_bytes(b"part of a video")
        TemporaryFolder("test-").close()
        assert (left / "0.webm").exists(), "its process lives"
        process.send_signal(signal.SIGKILL)
    folder = TemporaryFolder("test-")
    assert os.listdir(temporary) == [folder.path.name]
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.close()
    assert not os.listdir(temporary)


def test_nothing_else_is_removed(temporary, monkeypatch):
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / "lock").touch()
    (temporary / "test-link").symlink_to(temporary / "elsewhere")
    (temporary / "test-file").touch()
    (temporary / "test-no-lock").mkdir()
    (temporary / "other-lock").mkdir()
    (temporary / "other-lock" / "lock").touch()
    TemporaryFolder("test-").close()
    assert len(os.listdir(temporary)) == 5 and (temporary / "elsewhere" / "lock").exists()
    (temporary / "test-of-another-user").mkdir()
    (temporary / "test-of-another-user" / "lock").touch()
    monkeypatch.setattr(os, "geteuid", lambda: (temporary / "elsewhere").stat().st_uid + 1)
    TemporaryFolder("test-").close()
    assert (temporary / "test-of-another-user").exists()


@pytest.mark.parametrize("cache", [ClipCache, ExamplePictures])
def test_clips_and_images_of_a_page_lie_in_such_a_folder(cache, temporary):
    made = cache()
    assert os.path.exists(temporary / os.listdir(temporary)[0] / "lock")
    made.close()
    assert not os.listdir(temporary)
