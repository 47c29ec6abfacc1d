"""Processes that this package starts import nothing from the current folder, which may be a stranger's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.videos import scene
from vlalign.extract.render import render_video

pytestmark = pytest.mark.portable

NAMES = (
    *("_weakrefset", "abc", "codecs", "collections", "contextlib", "encodings", "functools", "io"),
    *("linecache", "logging", "multiprocessing", "os", "pickle", "re", "sitecustomize", "signal", "site", "socket"),
    *("struct", "subprocess", "threading", "traceback", "types", "typing", "usercustomize", "warnings"),
    *("av", "numpy", "PIL", "torch", "tqdm", "transformers", "vlalign"),
)
"""Modules that a process imports early, or that Python itself does."""
POOL = """
from vlalign.storage.common.processes import in_processes
import on_purpose

if __name__ == "__main__":
    print(list(in_processes(on_purpose.double, range(4), num_processes=2, doing="doubling")))
"""
CHILD = """
import time
from vlalign.storage.common.children import Child

if __name__ == "__main__":
    child = Child("the process", "on_purpose")
    child.send([0, 2, 4, 6])
    print(child.receive())
    child.stop(time.monotonic() + 60)
"""
DECODER = """
import sys
from vlalign.extract import extract_video, load_extractor

if __name__ == "__main__":
    print(*extract_video(sys.argv[1], [load_extractor("logmel")]))
"""
ON_PURPOSE = """
def double(number):
    return 2 * number

def main():
    from vlalign.storage.common.children import run_child
    run_child(lambda connection, message: connection.send(message))
"""


@pytest.fixture
def planted(tmp_path):
    """A folder with modules that leave their names in the file ``ran`` when they are imported."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    return folder


def run(command, folder, **variables):
    done = subprocess.run(command, cwd=folder, env=os.environ | variables, capture_output=True, text=True, timeout=180)
    ran = folder.parent / "ran"
    assert not ran.exists(), f"these ran: {ran.read_text()}"
    return done


@pytest.mark.parametrize(
    ("program", "printed"),
    [(POOL, "[0, 2, 4, 6]"), (CHILD, "[0, 2, 4, 6]"), (DECODER, "logmel")],
    ids=["pool", "child", "decoder"],
)
def test_a_process_runs_nothing_from_the_current_folder_but_finds_pythonpath(tmp_path, planted, program, printed):
    video, own = tmp_path / "x.mp4", tmp_path / "own"
    render_video(scene(0.6), video)
    own.mkdir()
    (own / "on_purpose.py").write_text(ON_PURPOSE)
    (tmp_path / "program.py").write_text(program)
    path = os.pathsep.join(filter(None, (str(own), os.environ.get("PYTHONPATH"))))
    done = run([sys.executable, str(tmp_path / "program.py"), str(video)], planted, PYTHONPATH=path)
    assert done.stdout.strip() == printed, done.stderr


def test_commands_run_nothing_from_the_current_folder(tmp_path, planted):
    """With two devices, the command starts processes of all kinds."""
    (tmp_path / "videos").mkdir()
    for number in range(4):
        render_video(scene(0.6), tmp_path / "videos" / f"v{number}.mp4")
    at = ["--root", str(tmp_path / "root"), "--dataset", "mine"]
    call = [*at, "--videos", str(tmp_path / "videos"), "--features", "logmel", "--device", "cpu,cpu"]
    done = run([str(Path(sys.executable).with_name("vlalign-extract")), *call], planted)
    assert done.returncode == 0, done.stderr
    assert "4 videos tried" in done.stderr
