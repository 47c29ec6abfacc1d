"""vlalign asks macOS and Windows for nothing that they lack (see ``helpers.systems``)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.systems import SYSTEMS, environment_of, run_on

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("extract", "preprocess", "ray_jobs", "storage", "train")
MODULES = sorted(
    ".".join(("vlalign", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__")
    for folder in FOLDERS
    for path in (TOP / folder).rglob("*.py")
)
each_system = pytest.mark.parametrize("system", SYSTEMS)


@pytest.mark.slow
@each_system
def test_every_module_is_imported(system, tmp_path):
    assert len(MODULES) > 250
    done = run_on(system, tmp_path, f"import importlib\nfor name in {MODULES}:\n    importlib.import_module(name)")
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_a_system_lacks_is_missed(tmp_path):
    """The other tests here would see it"""
    folder = tmp_path / "vlalign_other"
    folder.mkdir()
    (folder / "__init__.py").write_text("import os\nimport fcntl\n")
    done = run_on("Windows", tmp_path, "import vlalign_other")
    assert "No module named 'fcntl'" in done.stderr
    (folder / "__init__.py").write_text("import os, sys\nprint(sys.platform)\nos.fork")
    done = run_on("Windows", tmp_path, "import vlalign_other")
    assert done.stdout == "win32\n" and "has no attribute 'fork'" in done.stderr


DECODE = """
import hashlib, sys
import subprocess
import sys
from pathlib import Path
import numpy as np
from vlalign.extract.decoding import sandbox
from vlalign.extract.decoding.decode import FrameSpec
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import LIBSWSCALE
from vlalign.extract.decoding.messages import LAST, Request, SoundFollows, ThumbnailFollows, WindowReady
from vlalign.extract.decoding.process import DecodeProcess

specs = [FrameSpec(24, 1, 48, None, "none", LIBSWSCALE, None), FrameSpec(24, 4, 48, 32, "loop", LIBSWSCALE, None)]
process = DecodeProcess(specs)
for path, without in [(sys.argv[1], ()), (sys.argv[1], ("PyAV",)), (sys.argv[1] + ".missing", ()), (sys.argv[1], ())]:
    process.start(Request(path, specs, sound=True, excluded_decoders=without))
    message, digest, rows = None, hashlib.sha256(), 0
    try:
        while not isinstance(message, LAST):
            message = process.receive()
            if isinstance(message, WindowReady):
                frames = np.empty(message.shape, np.uint8)
                process.take_frames(message, frames)
                digest.update(frames.tobytes())
                rows += 1
            elif isinstance(message, ThumbnailFollows | SoundFollows):
                digest.update(process.receive_bytes())
        print(type(message).__name__, rows, digest.hexdigest())
    except VideoError as error:
        print(error.kind, error)
process.kill()
try:
    process.receive()
except VideoError as error:
    print(error.kind)
process.close()
print(len(sandbox.missing_protections()), file=sys.stderr)
"""


@each_system
def test_a_video_is_decoded_as_on_linux(system, tmp_path, short_video):
    command = [sys.executable, "-c", DECODE, str(short_video)]
    here = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    there = subprocess.run(
        command, cwd=tmp_path, env=environment_of(system, tmp_path), capture_output=True, text=True, check=False
    )
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout and here.stdout.startswith("DecodingFinished "), here.stdout
    assert there.stderr == "1\n"  # one line of what is lacking


CHILDREN = """
import os, subprocess, sys, time
from vlalign.storage.common.child_process import Child, ChildCrashed
from vlalign.storage.common.errors import UserError

child = Child("the toy", "toy_child", {"TOY": "1"})
child.send({"words": ["a", "b"]})
print(child.receive(), child.receive())
print(child.stop(time.monotonic() + 30), child.process.returncode)
gone = Child("the toy", "toy_child")
gone.process.kill()
gone.process.wait()
gone.send("too late")
try:
    gone.receive()
except UserError as error:
    print(error)
gone.stop(time.monotonic())
"""
TOY_CHILD = """
import os
from vlalign.storage.common.child_process import run_child

def main():
    run_child(work)

def work(connection, message):
    connection.send(message)
    connection.send([os.environ["TOY"], "VLALIGN_PARENT" in os.environ])
"""


@each_system
def test_processes_exchange_messages(system, tmp_path):
    (tmp_path / "toy_child.py").write_text(TOY_CHILD)
    done = run_on(system, tmp_path, CHILDREN)
    first, second, third = done.stdout.splitlines()
    assert first == "{'words': ['a', 'b']} ['1', False]", done.stderr
    assert second == " 0" and third.startswith("the toy ") and "(SIG" in third, done.stderr


LOCKS = """
import subprocess
import sys
from pathlib import Path
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import write_text
from vlalign.storage.common.locks import file_lock, folder_lock

place, link = Path("made/here/lock"), Path("link")
with folder_lock(place, "trains"):
    try:
        with folder_lock(place, "trains"):
            print("two")
    except UserError as error:
        print(error)
print(Path("made").exists())
with file_lock(Path("table")):
    write_text(Path("table"), "rows")
link.symlink_to("table")
try:
    with folder_lock(link, "trains"):
        print("through a link")
except UserError as error:
    print(error)
print(Path("table").read_text())
"""


@each_system
def test_folders_are_locked(system, tmp_path):
    done = run_on(system, tmp_path, LOCKS)
    held, left, refused, content = done.stdout.splitlines()
    assert re.match(r"made/here: .*\d+ .* trains ", held), done.stderr
    assert left == "False" and content == "rows"
    assert refused.startswith("link: ")


SHARDS = """
import os
import subprocess
import sys
from pathlib import Path
import numpy as np
from vlalign.storage.common.system import read_at, write_at

with open("file", "x+b", buffering=0) as file:
    parts = [memoryview(b"first "), memoryview(b"second")]
    offset = 2
    while parts:
        done = write_at(file.fileno(), parts, offset)
        offset += done
        while parts and done >= parts[0].nbytes:
            done -= parts.pop(0).nbytes
    print(read_at(file.fileno(), 100, 2), read_at(file.fileno(), 3, 8))
"""


@each_system
def test_files_are_read_and_written_at_offsets(system, tmp_path):
    done = run_on(system, tmp_path, SHARDS)
    assert done.stdout == "b'first second' b'sec'\n", done.stderr
