"""What a decoder that a hostile file has taken over can still do."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.decoding import answers, needs_torchcodec
from helpers.mutations import MUTATIONS, mutate
from helpers.needs import PROGRAM, SYSTEM, missing_programs, need, skip_without
from helpers.videos import scene
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding import sandbox
from vlalign.extract.decoding.backends import BACKENDS
from vlalign.extract.decoding.decode import Finished
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW
from vlalign.extract.decoding.messages import RowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.render import render_video

LACKING = sandbox.lacks()


linux = skip_without(SYSTEM, ["seccomp and Landlock"] if LACKING else [])


ATTACK = """
import os, pathlib, signal, socket, subprocess, threading
from vlalign.extract.decoding import child, decode
from vlalign.extract.decoding.errors import VideoError

def attempt(what):
    try:
        what()
    except BaseException as error:
        return type(error).__name__
    return "done"

def attack(decoding, wanted):
    folder = decoding.info.path.parent
    attempts = {{
        "connect": lambda: socket.create_connection(("127.0.0.1", {port})),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "read": lambda: (folder / "secret.txt").read_text(),
        "read of another process": lambda: pathlib.Path(f"/proc/{{os.getppid()}}/environ").read_bytes(),
        "list": lambda: os.listdir(folder),
        "write": lambda: (folder / "written.txt").write_text("x"),
        "write there": lambda: decoding.info.path.open("r+b"),
        "remove": lambda: (folder / "secret.txt").unlink(),
        "rename": lambda: (folder / "secret.txt").rename(folder / "other.txt"),
        "link": lambda: os.symlink(folder / "secret.txt", folder / "link"),
        "signal": lambda: os.kill(os.getppid(), 0),
        "memory of another process": lambda: open(f"/proc/{{os.getppid()}}/mem", "rb"),
    }}
    if {programs}:
        attempts["start"] = lambda: subprocess.run(["/bin/true"])
        attempts["fork"] = lambda: os._exit(0) if os.fork() == 0 else None
    found = {{name: attempt(what) for name, what in attempts.items()}}
    found["environment"] = sorted(os.environ)
    raise VideoError("attacked", repr(found))

decode.BACKENDS[{backend!r}] = attack
child.main()
"""


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("video") / "video.mp4"
    render_video(scene(2.2), path)
    return path


@pytest.fixture
def hostile(tmp_path, video) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    return shutil.copy(video, tmp_path / "hostile.mp4")


def attacked(hostile: Path, monkeypatch: pytest.MonkeyPatch, **how: object) -> dict:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setattr(decode_process, "COMMAND", ATTACK.format(port=9, **how))
    process = DecodeProcess()
    try:
        without = [name for name in BACKENDS if name != how["backend"]]
        resize = PILLOW if how["backend"] == "torchcodec" else LIBSWSCALE
        error = answers(process, hostile, resize, without=without)
    finally:
        process.close()
    return eval(str(error))  # what the test's own command wrote


@linux
@pytest.mark.parametrize(
    "backend, programs", [("PyAV", True), ("decord", False), pytest.param("torchcodec", False, marks=needs_torchcodec)]
)
def test_a_decoder_that_was_taken_over_reaches_nothing(hostile, monkeypatch, backend, programs):
    found = attacked(hostile, monkeypatch, backend=backend, programs=programs)
    assert "AWS_SECRET_ACCESS_KEY" not in found.pop("environment")
    assert found.pop("connect") in ("PermissionError", "OSError")
    assert found == dict.fromkeys(found, "PermissionError")
    assert sorted(path.name for path in hostile.parent.iterdir()) == ["hostile.mp4", "secret.txt"]


@linux
def test_the_program_reads_the_video_and_no_other_file(hostile):
    secret = hostile.parent / "secret.txt"
    script = f"""
        import os, subprocess, sys
        from functools import partial
        from pathlib import Path
        from vlalign.extract.decoding import sandbox
        sandbox.confine(Path({str(hostile)!r}), "/bin/sh")
        read, refused = ["head", "-c", "8", {str(hostile)!r}], ["cat", {str(secret)!r}]
        for command in (read, refused, ["sh", "-c", "cat {secret}; true"]):
            apart = dict(preexec_fn=partial(sandbox.confine_program, os.getpid()), restore_signals=False)
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **apart)
            print(done.returncode == 0, done.stdout.decode(errors="replace").strip().replace(chr(10), "; "))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    read, refused, forked = done.stdout.splitlines()
    assert read.startswith("True") and "ftyp" in read
    assert refused.startswith("False") and "Permission denied" in refused
    assert "fork" in forked and "secret\n" not in done.stdout


def test_decoders_that_open_files_by_path_give_the_same_rows(video, monkeypatch):
    """Those that PyAV leaves a video to."""
    only = "from vlalign.extract.decoding import child, decode\ndef no(d, w):\n    raise decode.NotTrusted\n    yield\n"
    for backend in ("decord", "ffmpeg"):
        without = [name for name in BACKENDS if name != backend]
        lines = "".join(f"decode.BACKENDS[{name!r}] = no\n" for name in without)
        monkeypatch.setattr(decode_process, "COMMAND", f"{only}{lines}child.main()")
        process = DecodeProcess()
        try:
            came = answers(process, video)
        finally:
            process.close()
        if backend == "ffmpeg" and shutil.which("ffmpeg") is None:
            assert isinstance(came, VideoError)
        else:
            num_rows = sum(isinstance(answer, RowReady) for answer in came)
            assert came[-1].decoder.startswith(backend) and num_rows == came[-1].num_frames[0]


def test_missing_sandbox_features_are_reported_and_videos_decoded(video, monkeypatch):
    without = "sandbox._landlock_version = lambda: 0\nsandbox._has_seccomp = lambda: False\n"
    program = f"from vlalign.extract.decoding import child, sandbox\n{without}child.main()"
    monkeypatch.setattr(decode_process, "COMMAND", program)
    process = DecodeProcess()
    try:
        assert isinstance(answers(process, video)[-1], Finished)
    finally:
        process.close()
    monkeypatch.setattr(sandbox, "_landlock_version", lambda: 0)
    monkeypatch.setattr(sandbox, "_has_seccomp", lambda: False)
    assert sandbox.lacks.__wrapped__() == (
        "no seccomp filter: it could reach the network and start programs",
        "no Landlock: it could read what you can read, and write there",
    )
    monkeypatch.setattr(sandbox, "_has_seccomp", lambda: True)
    assert len(sandbox.lacks.__wrapped__()) == 1


def test_a_pipe_in_place_of_a_video_is_refused(tmp_path, video):
    os.mkfifo(tmp_path / "pipe.mp4")
    process = DecodeProcess()
    try:
        error = answers(process, tmp_path / "pipe.mp4")
        assert (error.kind, str(error)) == ("missing", "no such file")
        assert isinstance(answers(process, video)[-1], Finished)
    finally:
        process.close()


# All calls of a process that decodes, as the kernel sees them

NETWORK = {
    "socket",
    "connect",
    "bind",
    "listen",
    "accept",
    "accept4",
    "sendto",
    "sendmsg",
    "sendmmsg",
    "recvmmsg",
    "socketpair",
}


OPENS = {"open", "openat", "openat2", "creat", "open_by_handle_at"}


CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed)")


def calls_when_confined(trace: str) -> list[tuple[str, str]]:
    """(call, line) of each call that a process makes after it has confined itself, and those of its threads and
    programs."""
    confined, found = set(), []
    for line in trace.splitlines():
        if not (match := CALL.match(line)):
            continue
        pid, call = match.groups()
        if pid in confined:
            found.append((call, line))
            if call in ("clone", "clone3", "vfork", "fork") and (child := re.search(r"= (\d+)$", line)):
                confined.add(child[1])
        elif call == "seccomp" and "SECCOMP_SET_MODE_FILTER" in line and line.endswith("= 0"):
            confined.add(pid)
    return found


@pytest.mark.slow
@linux
def test_a_decoder_calls_nothing_that_opens_files_or_reaches_the_network(zoo_folder, tmp_path, monkeypatch):
    need(PROGRAM, missing_programs("strace"))
    paths = [path for path in sorted(zoo_folder.glob("*")) if path.is_file()]
    sources = [
        path for path in paths if path.suffix in (".mp4", ".webm", ".mkv", ".ts") and path.stat().st_size > 20_000
    ]
    for number in range(50):
        source = sources[number % len(sources)]
        paths.append(
            mutate(source, tmp_path / f"{number}{source.suffix}", list(MUTATIONS)[number % len(MUTATIONS)], number)
        )
    trace = tmp_path / "calls"
    under = ["strace", "-f", "-o", str(trace), sys.executable, "-c", decode_process.COMMAND]
    monkeypatch.setattr(decode_process, "COMMAND", f"import os, sys; os.execvp('strace', [*{under!r}, *sys.argv[1:]])")
    handed = by_path = 0
    for path in paths:
        process = DecodeProcess()
        try:
            answers(process, path)
        finally:
            process.close()
        calls = calls_when_confined(trace.read_text())
        assert not [line for call, line in calls if call in NETWORK]
        opened = [line for call, line in calls if call in OPENS]
        if not opened:
            handed += 1
            continue
        by_path += 1
        allowed = [f'"{path}"', *(f'"{folder}' for folder in sandbox.LIBRARIES)]
        # Libraries of the ffmpeg program ask for files that are not there, such as libgcrypt's settings.
        denied = ("EACCES", "ENOENT")
        through = [line for line in opened if not any(error in line for error in denied)]
        assert not [line for line in through if not any(place in line for place in allowed)]
    print(f"{handed} by what they were handed, {by_path} also by path")
    assert handed > len(paths) / 2
