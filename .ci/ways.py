#!/usr/bin/env python3
"""Count the files and functions that three ways lead through: video to row, caption to step, query to page.

    python .ci/ways.py ROOT            ROOT has the data set "demo", as `make demo` leaves it in vlalign_data

The vlalign of the Python that runs this is measured. A function counts once, if it is called on the way and stands in
one of the five folders: during a whole `vlalign-extract` of one video, a whole `vlalign-train` of one step, and one
request for /api/search. Decoders run without their sandbox here, since nothing would get out of it.
"""

import argparse
import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
DECODER = """
import sys
sys.path.insert(0, {here!r})
import ways
ways.record({folder!r})
from vlalign.extract.decoding import child, sandbox
for name in ("confine", "close_all_but", "limit_files", "leave_network"):
    setattr(sandbox, name, lambda *args, **settings: None)
child.main()
"""
ADDRESS = "http://127.0.0.1:8765"


def record(folder: str) -> None:
    """Record the functions of ours that this process calls from now on; SIGUSR1 forgets those so far."""
    import vlalign.storage

    top = Path(vlalign.storage.__file__ or "").parents[1]
    ours = tuple(f"{top}/{name}/" for name in FOLDERS)
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    def write() -> None:
        sys.setprofile(None)
        names = {f"{code.co_filename}\t{code.co_qualname}" for code in list(codes) if code.co_name[0] != "<"}
        Path(folder, str(os.getpid())).write_text("\n".join(sorted(n for n in names if n.startswith(ours))) + "\n")

    end = os._exit
    os._exit = lambda code: (write(), end(code))  # type: ignore[assignment, return-value]
    atexit.register(write)
    signal.signal(signal.SIGUSR1, lambda *_: codes.clear())
    sys.setprofile(called)
    threading.setprofile(called)


def run(folder: str, command: str, arguments: list[str]) -> int:
    """Run a command of ours in this process, recorded."""
    [entry] = entry_points(group="console_scripts", name=command)
    main = entry.load()
    from vlalign.extract.decoding import process

    process.COMMAND = DECODER.format(here=str(Path(__file__).resolve().parent), folder=folder)
    record(folder)
    return main(arguments)


def show(name: str, folder: Path) -> None:
    """Print one way."""
    lines = {line for path in folder.iterdir() for line in path.read_text().splitlines() if line}
    files = {line.split("\t")[0] for line in lines}
    print(f"{name:<20}{len(files):>6} files{len(lines):>6} functions", flush=True)


def measure(root: Path, folder: Path) -> None:
    """Measure the three ways, with files in an empty folder."""
    ways = {name: folder / name for name in ("video", "caption", "query", "videos")}
    for path in ways.values():
        path.mkdir()
    video = min((root / "demo" / "videos").glob("*.mp4"))
    (ways["videos"] / video.name).write_bytes(video.read_bytes())
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

    def call(way: str, command: str, *arguments: str) -> list[str]:
        return [sys.executable, str(Path(__file__).resolve()), "run", str(ways[way]), command, *arguments]

    mine = ["--root", str(folder / "root"), "--dataset", "mine", "--videos", str(ways["videos"])]
    subprocess.run(
        call("video", "vlalign-extract", *mine, "--features", "resnet152", "--weights", "random"), check=True, **quiet
    )
    show("video to row", ways["video"])
    demo = ["--root", str(root), "--dataset", "demo"]
    one_step = ["--features", "resnet152+s3d", "--num-steps", "1", "--run-name", f"ways{os.getpid()}"]
    subprocess.run(call("caption", "vlalign-train", *demo, *one_step), check=True, **quiet)
    show("caption to step", ways["caption"])
    served = ["words-resnet152+s3d-seed0", "--port", ADDRESS.rpartition(":")[2], "--no-token"]
    server = subprocess.Popen(call("query", "vlalign-serve", *demo, *served), **quiet)
    try:
        for _ in range(120):
            time.sleep(1)
            try:
                urllib.request.urlopen(f"{ADDRESS}/api/about", timeout=60).read()
                break
            except OSError:
                continue
        server.send_signal(signal.SIGUSR1)
        time.sleep(1)
        urllib.request.urlopen(f"{ADDRESS}/api/search?q=a+blue+cross+grows", timeout=60).read()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    show("query to page", ways["query"])


def main() -> None:
    if len(sys.argv) > 3 and sys.argv[1] == "run":
        sys.exit(run(sys.argv[2], sys.argv[3], sys.argv[4:]))
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("root", type=Path, help="has the data set demo")
    with tempfile.TemporaryDirectory() as folder:
        measure(parser.parse_args().root.resolve(), Path(folder))


if __name__ == "__main__":
    main()
