"""Confine a process that reads an untrusted file: it can read this file and send answers, nothing else.

Landlock hides every other file and forbids writing. A seccomp filter lists the permitted system calls, none of which
reaches the network or starts a program. Both are part of the Linux kernel (Landlock since 5.13), and the confined
process cannot undo them. ``missing_protections`` lists the features that this kernel lacks.
"""

import contextlib
import ctypes
import errno
import os
import platform
import signal
import struct
import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path

from ...storage.common.system import IS_LINUX, limit, make_limits_final

MAX_WRITTEN_BYTES = 1 << 20
"""Size limit of a file that is already open, such as the file that receives a program's messages."""
MAX_OPEN_FILES = 256
KEPT_VARIABLES = {"PATH", "LANG", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR"}
KEPT_VARIABLES |= {"SYSTEMROOT", "TEMP", "TMP"}  # Windows opens no socket without the first
NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime, which recognisers of speech and text use, otherwise sends usage data to Microsoft and keeps a device ID
in the user's cache: its Privacy.md."""

# System calls: name, number on x86_64, number on aarch64 ("-": does not exist).
CALLS = """
recvmsg 47 212 · read 0 63 · write 1 64
readv 19 65 · writev 20 66 · pread64 17 67 · lseek 8 62 · close 3 57 · fstat 5 80 · dup 32 23
dup2 33 - · dup3 292 24 · fadvise64 221 223 · pipe 22 - · pipe2 293 59 · poll 7 - · ppoll 271 73 · select 23 -
pselect6 270 72 · mmap 9 222 · munmap 11 215 · mprotect 10 226 · mremap 25 216 · madvise 28 233 · brk 12 214
futex 202 98 · set_robust_list 273 99 · rseq 334 293 · membarrier 324 283 · set_tid_address 218 96 · arch_prctl 158 -
sched_yield 24 124 · sched_getaffinity 204 123 · exit 60 93 · exit_group 231 94 · rt_sigaction 13 134
rt_sigprocmask 14 135 · rt_sigreturn 15 139 · sigaltstack 131 132 · restart_syscall 219 128 · nanosleep 35 101
clock_nanosleep 230 115 · clock_gettime 228 113 · clock_getres 229 114 · gettimeofday 96 169 · time 201 -
times 100 153 · getrusage 98 165 · getrlimit 97 163 · getpid 39 172 · getppid 110 173 · gettid 186 178 · getuid 102 174
geteuid 107 175 · getgid 104 176 · getegid 108 177 · getrandom 318 278 · uname 63 160 · sysinfo 99 179
"""
PATH_CALLS = """
newfstatat 262 79 · statx 332 291 · stat 4 - · lstat 6 - · access 21 - · faccessat 269 48 · readlink 89 -
readlinkat 267 78 · getcwd 79 17
"""
"""Calls that show whether a file exists, and its size; Landlock does not hide this."""
OPENING_CALLS = "open 2 - · openat 257 56"
"""Calls that open files for reading; ``_only_these`` refuses flags that would write."""
CHECKED_CALLS = "clone 56 220 · fcntl 72 25 · tgkill 234 131 · prctl 157 167 · prlimit64 302 261 · ioctl 16 29"
STARTING_CALLS = "execve 59 221"
NEWER_CALLS = 403
"""Calls from this number on fail with "no such call", as on an older kernel; libraries then use the calls above."""

AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP, SECCOMP_SET_FILTER, SECCOMP_IS_AVAILABLE = {"x86_64": 317, "aarch64": 277}, 1, 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, ARGUMENTS_AT = 0, 4, 16
O_TMPFILE = 0o20000000  # Python does not define it everywhere
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | O_TMPFILE
CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWNET = 0x10000, 0x10000000, 0x40000000
NEW_NAMESPACES = 0x7E020080
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_NO_NEW_PRIVS = 1, 15, 38
HARMLESS_FCNTL = [0, 1, 2, 3, 1030]
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. Others send signals, lock files or grow pipes."""
CAPABILITIES_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 1 << 2
TCGETS, FIOCLEX = 0x5401, 0x5451

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EXECUTE, READ_FILE = 1, 4
ALL_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
"""{Landlock version: number of file rights that it knows}; 16 in later versions."""

Instruction = tuple[int, int, int, int]
"""Operation, instructions to skip if it is true, instructions to skip if not, value."""


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``given`` that a confined process needs, and ``NO_TELEMETRY``.

    These are library paths and the language, but no keys or passwords.
    """
    kept = {name: value for name, value in given.items() if name in KEPT_VARIABLES or name.startswith("LC_")}
    return kept | NO_TELEMETRY


@cache
def missing_protections() -> tuple[str, ...]:
    """Return the protections that this system lacks, each with what a decoder could do without it."""
    if not IS_LINUX:
        return ("no sandbox for them: a video that takes over its decoder could do everything that you can",)
    lacking = []
    if not _has_seccomp():
        lacking.append("no seccomp filter: it could reach the network and start programs")
    if not _landlock_version():
        lacking.append(
            "no Landlock: it could read everything that you can" + ("" if _has_seccomp() else ", and write there")
        )
    return tuple(lacking)


def leave_network() -> None:
    """Move this process to an empty network namespace, if the system permits it.

    ``confine`` forbids network calls in any case.
    """
    if IS_LINUX:
        _libc().unshare(CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWUSER | CLONE_NEWNET)


def end_with_parent(parent: int) -> None:
    """Make the kernel kill this process when ``parent``, which started it, ends."""
    if IS_LINUX:
        _check(_libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def limit_files() -> None:
    """Limit the size of written files and the number of open files; write no core files."""
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", MAX_WRITTEN_BYTES)
    limit("RLIMIT_NOFILE", MAX_OPEN_FILES)


def close_all_but(spared: Collection[int]) -> None:
    """Close all descriptors of this process except ``spared``."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor not in spared:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


def confine(file: Path | None = None) -> None:
    """Confine this single-threaded process to files that are already open. Its limits become final.

    Args:
        file: A file that it may open for reading.

    Raises:
        OSError: There is no such file.
    """
    limit("RLIMIT_FSIZE", 0)
    _give_up_rights(opening=file is not None)
    if _landlock_version():
        _hide_files([str(file)] if file else [])
    if _has_seccomp():
        _set_filter(_only_these(opening=file is not None))


def confine_program(parent: int, file: Path, starting: Iterable[str], libraries: Iterable[str]) -> None:
    """Confine a program that ``parent`` starts: it can start no other program, read one file only, and gain no rights.

    Called in the new process before the program is loaded.

    Args:
        parent: Process id of the parent; the program ends with it.
        file: The file.
        starting: Files that the kernel runs: the program and its loader.
        libraries: Files that the loader reads.

    Raises:
        OSError: One of the files does not exist.
    """
    end_with_parent(parent)
    _give_up_rights(opening=True)
    if _landlock_version():
        _hide_files([str(file), *libraries], starting)
    if _has_seccomp():
        _set_filter(_only_these(opening=True, starting=True))


def _give_up_rights(*, opening: bool) -> None:
    """Make the limits of this process final and give up a superuser's rights; started programs gain no rights.

    The kernel requires "no new rights" before it accepts rules. With ``opening``, a superuser may still read files of
    other users.
    """
    if IS_LINUX:
        make_limits_final()
        _check(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        capabilities = CAP_DAC_READ_SEARCH if opening and os.geteuid() == 0 else 0
        header = struct.pack("<Ii", CAPABILITIES_VERSION, 0)
        rights = struct.pack("<6I", capabilities, capabilities, 0, 0, 0, 0)
        _check(_libc().capset(header, rights), "capset")


# Landlock


@cache
def _landlock_version() -> int:
    return max(_syscall(LANDLOCK_CREATE, None, 0, 1), 0) if IS_LINUX else 0


def _hide_files(but: Iterable[str], starting: Iterable[str] = ()) -> None:
    """Hide all files except ``but``, which can be read, and ``starting``, which can also be run.

    Also forbid TCP, and signals to other processes, if this version of Landlock can.
    """
    version = _landlock_version()
    rights = (1 << ALL_RIGHTS.get(version, 16)) - 1
    rules = struct.pack("<QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _check(_syscall(LANDLOCK_CREATE, rules, len(rules), 0), "Landlock")
    try:
        rights_of = dict.fromkeys(but, READ_FILE) | dict.fromkeys(starting, READ_FILE | EXECUTE)
        for path, allowed in rights_of.items():
            descriptor = os.open(path, os.O_PATH)
            try:
                _check(_syscall(LANDLOCK_ADD, ruleset, 1, struct.pack("<Qi", allowed, descriptor), 0), "Landlock")
            finally:
                os.close(descriptor)
        _check(_syscall(LANDLOCK_RESTRICT, ruleset, 0), "Landlock")
    finally:
        os.close(ruleset)


# seccomp


@cache
def _has_seccomp() -> bool:
    machine = platform.machine()
    if not IS_LINUX or machine not in SECCOMP or sys.maxsize < 1 << 32:
        return False
    return _syscall(SECCOMP[machine], SECCOMP_IS_AVAILABLE, 0, struct.pack("<I", REFUSE)) == 0


def _numbers(calls: str) -> dict[str, int]:
    """Return {name: number} of the calls that exist on this machine."""
    column = 1 + list(SECCOMP).index(platform.machine())
    rows = [entry.split() for line in calls.splitlines() for entry in line.split("·") if entry.split()]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _only_these(*, opening: bool, starting: bool = False) -> list[Instruction]:
    """Allow ``CALLS`` with any arguments, and some other calls with harmless arguments."""
    me = os.getpid()
    calls = _numbers(CALLS + (PATH_CALLS if opening else "") + (STARTING_CALLS if starting else ""))
    rules = [instruction for call in calls.values() for instruction in ((EQUAL, 0, 1, call), (RETURN, 0, 0, ALLOW))]
    if opening:
        for name, number in _numbers(OPENING_CALLS).items():
            for_writing = [(ANY_BIT, 0, 1, WRITES), (RETURN, 0, 0, REFUSE | errno.EACCES)]
            rules += _checked(number, 1 if name == "open" else 2, for_writing, ALLOW)
    refuse = RETURN, 0, 0, REFUSE | errno.EPERM
    threads = [(ANY_BIT, 0, 1, NEW_NAMESPACES), refuse, (ANY_BIT, 0, 1, CLONE_THREAD), (RETURN, 0, 0, ALLOW)]
    new_limit = ARGUMENTS_AT + 8 * 2  # a pointer: both halves must be zero
    reading = [step for half in (0, 4) for step in ((LOAD, 0, 0, new_limit + half), (EQUAL, 1, 0, 0), refuse)]
    checks = {
        "clone": (0, threads),
        "fcntl": (1, _any_of(HARMLESS_FCNTL)),
        "tgkill": (0, _any_of([me])),
        "prctl": (0, _any_of([PR_SET_NAME])),
        "prlimit64": (0, [*reading, (LOAD, 0, 0, ARGUMENTS_AT), *_any_of([0, me])]),
        "ioctl": (1, _any_of([TCGETS, FIOCLEX])),
    }
    for name, number in _numbers(CHECKED_CALLS).items():
        argument, tests = checks[name]
        rules += _checked(number, argument, tests, REFUSE | errno.EPERM)
    return [(LOAD, 0, 0, NUMBER_AT), (AT_LEAST, 0, 1, NEWER_CALLS), (RETURN, 0, 0, REFUSE | errno.ENOSYS), *rules]


def _any_of(values: Iterable[int]) -> list[Instruction]:
    """Allow the call if the loaded argument is one of ``values``."""
    return [step for value in values for step in ((EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW))]


def _checked(number: int, argument: int, tests: list[Instruction], otherwise: int) -> list[Instruction]:
    """Decide call ``number`` by ``tests`` on the lower half of an argument, else return ``otherwise``."""
    steps = [(LOAD, 0, 0, ARGUMENTS_AT + 8 * argument), *tests, (RETURN, 0, 0, otherwise)]
    return [(EQUAL, 0, len(steps), number), *steps]


def _set_filter(rules: list[Instruction]) -> None:
    machine = platform.machine()
    architecture = [
        (LOAD, 0, 0, ARCHITECTURE_AT),
        (EQUAL, 1, 0, AUDIT_ARCHITECTURES[machine]),
        (RETURN, 0, 0, REFUSE | errno.EPERM),
    ]
    steps = [*architecture, *rules, (RETURN, 0, 0, REFUSE | errno.EPERM)]
    packed = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(packed))
    _check(_syscall(SECCOMP[machine], SECCOMP_SET_FILTER, 0, program), "seccomp")


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _syscall(number: int, *arguments: int | bytes | None) -> int:
    """Call the kernel; -1 means that it failed, with the reason in ``ctypes.get_errno()``."""
    return _libc().syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result
