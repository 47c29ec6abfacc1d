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
from vlalign.extract.decoding import ffmpeg_backend, sandbox
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.backends import BACKENDS
from vlalign.extract.decoding.decode import DecodingFinished
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW
from vlalign.extract.decoding.messages import WindowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.videos.demo import render_video

LACKING = sandbox.missing_protections()


linux = skip_without(SYSTEM, ["seccomp and Landlock"] if LACKING else [])


ATTACK = """
import ctypes, errno, fcntl, mmap, os, pathlib, platform, resource, signal, socket, subprocess, sys, threading
from vlalign.extract.decoding import child, decode, sandbox
from vlalign.extract.decoding.errors import VideoError

libc = ctypes.CDLL(None, use_errno=True)
FORK = {{"x86_64": 57, "aarch64": -1}}[platform.machine()]
CLONE = {{"x86_64": 56, "aarch64": 220}}[platform.machine()]
TGKILL = {{"x86_64": 234, "aarch64": 131}}[platform.machine()]
PRLIMIT = {{"x86_64": 302, "aarch64": 261}}[platform.machine()]
REFUSED = errno.EPERM, errno.ENOSYS

def attempt(what):
    try:
        what()
    except BaseException as error:
        return type(error).__name__
    return "done"

def call(number, *arguments):
    if libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments)) == -1:
        raise OSError(ctypes.get_errno(), "refused")

def write_without_end():
    for _ in range(64):
        os.write(2, bytes(1 << 20))

def connect(family, kind, address):
    with socket.socket(family, kind) as line:
        line.connect(address)

def is_open(descriptor):
    try:
        fcntl.fcntl(descriptor, fcntl.F_GETFD)
    except OSError:
        return False
    return True

def attack(decoding, wanted):
    folder, parent = decoding.info.path.parent, os.getppid()
    secret, ends = folder / "secret.txt", os.pipe()
    of_files = {{
        "read": lambda: secret.read_text(),
        "read of another process": lambda: pathlib.Path(f"/proc/{{parent}}/environ").read_bytes(),
        "memory of another process": lambda: open(f"/proc/{{parent}}/mem", "rb"),
    }}
    of_names = {{"stat": lambda: os.stat(secret), "readlink": lambda: os.readlink("/proc/self/cwd")}}
    attempts = {{
        "list": lambda: os.listdir(folder),
        "list descriptors": lambda: os.listdir("/proc/self/fd"),
        "write": lambda: (folder / "written.txt").write_text("x"),
        "write there": lambda: decoding.info.path.open("r+b"),
        "append": lambda: secret.open("a"),
        "truncate": lambda: os.truncate(secret, 0),
        "remove": lambda: secret.unlink(),
        "rename": lambda: secret.rename(folder / "other.txt"),
        "symlink": lambda: os.symlink(secret, folder / "link"),
        "link": lambda: os.link(secret, folder / "link"),
        "folder": lambda: os.mkdir(folder / "folder"),
        "pipe with a name": lambda: os.mkfifo(folder / "pipe"),
        "chmod": lambda: secret.chmod(0o777),
        "times": lambda: os.utime(secret, (0, 0)),
        "extended attribute": lambda: os.setxattr(secret, "user.x", b"x"),
        "unnamed file": lambda: os.open(folder, os.O_TMPFILE | os.O_RDWR),
        "TCP": lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 9)),
        "UDP": lambda: connect(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 9)),
        "IPv6": lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("::1", 9)),
        "UNIX": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "/run/dbus/system_bus_socket"),
        "abstract": lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + "vlalign"),
        "listen": lambda: socket.create_server(("127.0.0.1", 0)),
        "pair": lambda: socket.socketpair(),
        "start": lambda: subprocess.run(["/bin/true"]),
        "become": lambda: os.execv("/bin/true", ["true"]),
        "spawn": lambda: os.posix_spawn("/bin/true", ["true"], {{}}),
        "fork": lambda: os.fork() or os._exit(0),
        "vfork": lambda: call(FORK + 1),
        "clone": lambda: call(CLONE, signal.SIGCHLD, 0, 0, 0, 0) or os._exit(0),
        "clone with a namespace": lambda: call(CLONE, 0x10000 | 0x800 | 0x100 | 0x20000, 0, 0, 0, 0),
        "signal": lambda: os.kill(parent, 0),
        "signal to a thread": lambda: call(TGKILL, parent, parent, 0),
        "signal by a descriptor": lambda: os.pidfd_open(parent) if hasattr(os, "pidfd_open") else call(434, parent, 0),
        "F_SETOWN": lambda: fcntl.fcntl(ends[0], fcntl.F_SETOWN, parent),
        "F_SETSIG": lambda: fcntl.fcntl(ends[0], 10, signal.SIGKILL),
        "F_SETOWN_EX": lambda: fcntl.fcntl(ends[0], 15, bytes(8)),
        "O_ASYNC": lambda: fcntl.fcntl(ends[0], fcntl.F_SETFL, os.O_ASYNC),
        "F_SETPIPE_SZ": lambda: fcntl.fcntl(ends[0], 1031, 1 << 20),
        "F_NOTIFY": lambda: fcntl.fcntl(ends[0], 1026, 1),
        "TIOCSTI": lambda: fcntl.ioctl(1, 0x5412, b"x"),
        "FIOSETOWN": lambda: fcntl.ioctl(ends[0], 0x8901, bytes(4)),
        "raise a limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2),
        "lower a limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1)),
        "limit of another": lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (1, 1)),
        "limit at a high address": lambda: call(PRLIMIT, 0, resource.RLIMIT_NOFILE, 1 << 32, 0),
        "live on": lambda: call({{"x86_64": 157, "aarch64": 167}}[platform.machine()], 1, 0),
        "memory": lambda: mmap.mmap(-1, 6 << 30),
        "disk": write_without_end,
        "many files": lambda: [os.dup(1) for _ in range(300)],
        "shared memory": lambda: os.memfd_create("x"),
    }}
    if {hides_files}:
        attempts |= of_files
    if {hides_names}:
        attempts |= of_names
    attempts["many files"], attempts["disk"] = attempts.pop("many files"), attempts.pop("disk")  # spoil what follows
    found = {{"descriptors": sum(map(is_open, range(1024))) - 2}}
    allowed = sandbox.CALLS + sandbox.CHECKED_CALLS
    if not {hides_names}:
        allowed += "·".join(["", sandbox.OPENING_CALLS, sandbox.PATH_CALLS])
    skipped = {{*sandbox._numbers(allowed).values(), 335, 336}}  # uprobes' own, which the kernel shows to no filter
    found["calls"] = []
    for number in [*range(470), *(0x40000000 + number for number in range(470))]:
        if number not in skipped and (libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6) != -1
                                      or ctypes.get_errno() not in REFUSED):
            found["calls"].append(number)
    limits = {{name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if "RLIMIT_" in name}}
    found["soft limits"] = [name for name, (soft, hard) in limits.items() if soft != hard]
    found |= {{name: attempt(what) for name, what in attempts.items()}}
    found["environment"] = sorted(os.environ)
    raise VideoError("attacked", repr(found))

decode.BACKENDS[{backend!r}] = attack
if {version} is not None:
    sandbox._landlock_version = lambda: {version}
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
    monkeypatch.setattr(decode_process, "COMMAND", ATTACK.format(**how))
    process = DecodeProcess()
    try:
        without = [name for name in BACKENDS if name != how["backend"]]
        resize = PILLOW if how["backend"] == "torchcodec" else LIBSWSCALE
        error = answers(process, hostile, resize, excluded_decoders=without)
    finally:
        process.close()
    return eval(str(error))  # what the test's own command wrote


VERSIONS = [None, *(pytest.param(version, marks=pytest.mark.slow) for version in (1, 3, 5)), 0]
"""Of Landlock; None: this kernel's own."""
REFUSALS = {"PermissionError", "OSError", "ValueError", "BlockingIOError"}


@linux
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "backend", ["PyAV", "decord", pytest.param("torchcodec", marks=[needs_torchcodec, pytest.mark.slow])]
)
def test_a_decoder_that_was_taken_over_reaches_nothing(hostile, monkeypatch, backend, version):
    """Started as every decoder is; what it tries is what ``SECURITY.md`` says that it cannot do."""
    handed = backend == "PyAV"
    hides_files = handed or version != 0
    found = attacked(
        hostile, monkeypatch, backend=backend, version=version, hides_files=hides_files, hides_names=handed
    )
    assert "AWS_SECRET_ACCESS_KEY" not in found.pop("environment")
    assert (found.pop("calls"), found.pop("soft limits")) == ([], [])
    # What it prints to (twice), its two lines, and the pipe of copied frames; perhaps the video.
    assert found.pop("descriptors") == (6 if handed else 5)
    assert {name: how for name, how in found.items() if how not in REFUSALS} == {}
    assert sorted(path.name for path in hostile.parent.iterdir()) == ["hostile.mp4", "secret.txt"]
    assert (hostile.parent / "secret.txt").read_text() == "secret"


PROGRAM_ATTACK = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TRY(name, failed) fprintf(stderr, "%s %s\\n", name, (failed) ? "refused" : "done")
int main(int count, char **arguments) {
    struct rlimit none = {RLIM_INFINITY, RLIM_INFINITY};
    char *start[] = {"true", 0};
    int ends[2] = {0, 0};
    if (count > 1 && !pipe(ends)) {
        TRY("descriptors", fcntl(ends[1] + 1, F_GETFD) < 0 && ends[0] == 3);
        TRY("video", open("VIDEO", O_RDONLY) < 0);
        TRY("read", open("SECRET", O_RDONLY) < 0);
        TRY("environment", open("/proc/PARENT/environ", O_RDONLY) < 0);
        TRY("write", open("SECRET", O_WRONLY) < 0);
        TRY("create", open("SECRET.new", O_CREAT | O_RDONLY, 0600) < 0);
        TRY("library", open("/usr/lib/os-release", O_RDONLY) < 0);
        TRY("remove", unlink("SECRET") < 0);
        TRY("socket", socket(AF_INET, SOCK_STREAM, 0) < 0);
        TRY("UNIX", socket(AF_UNIX, SOCK_STREAM, 0) < 0);
        TRY("fork", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) < 0);
        TRY("clone3", syscall(435, 0, 0) < 0);
        TRY("start", execv("/bin/true", start) < 0);
        TRY("kill", kill(PARENT, 0) < 0);
        TRY("F_SETSIG", fcntl(ends[0], F_SETSIG, SIGKILL) < 0);
        TRY("F_SETOWN", fcntl(ends[0], F_SETOWN, PARENT) < 0);
        TRY("raise", setrlimit(RLIMIT_AS, &none) < 0);
        TRY("ptrace", syscall(SYS_ptrace, 16, PARENT, 0, 0) < 0);
        TRY("process_vm_readv", syscall(SYS_process_vm_readv, PARENT, 0, 0, 0, 0, 0) < 0);
        TRY("io_uring", syscall(425, 1, 0) < 0 && (errno == EPERM || errno == ENOSYS));
        long written = 0, more;
        fflush(stderr);
        while (written < 64 << 20 && (more = write(2, "xxxxxxxxxxxxxxxx", 16)) > 0) written += more;
        return written > MOST;
    }
    return 1;
}
"""


@linux
def test_a_program_that_was_taken_over_reaches_nothing(hostile, monkeypatch, tmp_path):
    """A program of that name, in a folder beside which secrets lie, started as the ffmpeg program is."""
    need(PROGRAM, missing_programs("gcc"))
    (tmp_path / "bin").mkdir()
    secret = hostile.parent / "secret.txt"
    source = PROGRAM_ATTACK.replace("VIDEO", str(hostile)).replace("SECRET", str(secret))
    source = source.replace("PARENT", str(os.getpid())).replace("MOST", str(sandbox.MAX_WRITTEN_BYTES))
    program = tmp_path / "bin" / "ffmpeg"
    subprocess.run(["gcc", "-w", "-x", "c", "-", "-o", program], input=source.encode(), check=True)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    script = f"""
        from pathlib import Path
        from vlalign.extract.decoding import ffmpeg_backend, sandbox
        sandbox.limit_files()
        running = ffmpeg_backend.start(Path({str(hostile)!r}), 0, None, processor_seconds=9)
        print(running.process.wait())
        running.log.seek(0)
        print(running.log.read().decode().rstrip("x"))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    code, *lines = done.stdout.split("\n")
    found = dict(line.split() for line in lines if line)
    assert code == "0" and len(found) == 20
    assert {name for name, how in found.items() if how == "done"} == {"video"}
    assert secret.read_text() == "secret" and not secret.with_name("secret.txt.new").exists()


@linux
def test_only_the_exact_files_of_the_program_are_opened(tmp_path, monkeypatch):
    need(PROGRAM, missing_programs("ffmpeg"))
    starting, libraries = ffmpeg_backend.program_files(Path(shutil.which("ffmpeg")).resolve())
    assert len(starting) == 2 and all(Path(path).is_file() for path in (*starting, *libraries))
    (tmp_path / "ffmpeg").write_text("#!/bin/sh\n")
    (tmp_path / "ffmpeg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(VideoError, match="ELF") as failed:
        ffmpeg_backend.start(tmp_path / "video.mp4", 0, None)
    assert failed.value.kind == "unreadable"


def test_decoders_that_open_files_by_path_give_the_same_rows(video, monkeypatch):
    """Those that PyAV leaves a video to."""
    only = "from vlalign.extract.decoding import child, decode\n"
    only += "def no(d, w):\n    raise decode.DecoderRejected\n    yield\n"
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
            num_rows = sum(isinstance(answer, WindowReady) for answer in came)
            assert came[-1].decoder.startswith(backend) and num_rows == came[-1].num_frames[0]


def test_missing_sandbox_features_are_reported_and_videos_decoded(video, monkeypatch):
    without = "sandbox._landlock_version = lambda: 0\nsandbox._has_seccomp = lambda: False\n"
    program = f"from vlalign.extract.decoding import child, sandbox\n{without}child.main()"
    monkeypatch.setattr(decode_process, "COMMAND", program)
    process = DecodeProcess()
    try:
        assert isinstance(answers(process, video)[-1], DecodingFinished)
    finally:
        process.close()
    monkeypatch.setattr(sandbox, "_landlock_version", lambda: 0)
    monkeypatch.setattr(sandbox, "_has_seccomp", lambda: False)
    seccomp, landlock = sandbox.missing_protections.__wrapped__()
    assert "seccomp" in seccomp and "Landlock" in landlock
    monkeypatch.setattr(sandbox, "_has_seccomp", lambda: True)
    (alone,) = sandbox.missing_protections.__wrapped__()
    assert "Landlock" in alone and len(alone) < len(landlock), "seccomp forbids writing"


def test_a_pipe_in_place_of_a_video_is_refused(tmp_path, video):
    os.mkfifo(tmp_path / "pipe.mp4")
    process = DecodeProcess()
    try:
        error = answers(process, tmp_path / "pipe.mp4")
        assert error.kind == "missing"
        assert isinstance(answers(process, video)[-1], DecodingFinished)
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


UNFINISHED = " <unfinished ...>"
CALL = re.compile(r"^(\d+) +(?:<\.\.\. )?(\w+)(?:\(| resumed)")


def calls_when_confined(trace: str) -> list[tuple[str, str]]:
    """(call, line) of each call that a process makes after it has confined itself, and those of its threads and
    programs."""
    confined, found, begun = set(), [], {}
    for line in trace.splitlines():
        if not (match := CALL.match(line)):
            continue
        pid, call = match.groups()
        if line.endswith(UNFINISHED):  # another process's call came between
            begun[pid] = line.removesuffix(UNFINISHED)
            continue
        if " resumed>" in line:
            line = begun.pop(pid, "") + line.partition(" resumed>")[2]
        if pid in confined:
            found.append((call, line))
            if call in ("clone", "clone3", "vfork", "fork") and (child := re.search(r"= (\d+)$", line)):
                confined.add(child[1])
        elif call == "seccomp" and "SECCOMP_SET_MODE_FILTER" in line and line.endswith("= 0"):
            confined.add(pid)
    return found


def program_files() -> tuple[list[str], list[str]]:
    program = ffmpeg_backend.ffmpeg_program()
    return ffmpeg_backend.program_files(Path(program).resolve()) if program else ([], [])


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
        allowed = [f'"{path}"', *(f'"{file}"' for files in program_files() for file in files)]
        # Libraries of the ffmpeg program ask for files that are not there, such as libgcrypt's settings.
        denied = ("EACCES", "ENOENT", "EPERM")
        through = [line for line in opened if not any(error in line for error in denied)]
        assert not [line for line in through if not any(place in line for place in allowed)]
    print(f"{handed} by what they were handed, {by_path} also by path")
    assert handed > len(paths) / 2
