"""Programs that run as on macOS or Windows: vlalign's own modules see a Python without what these systems lack.

Libraries keep what they need: they are builds for Linux. So this shows that our code asks for nothing that is missing,
and runs what it does there. It does not show what these systems do themselves.
"""

import os
import subprocess
import sys
from pathlib import Path

MACOS = {
    "sys.platform": "darwin",
    "modules": [],
    "os": """O_PATH O_TMPFILE O_DIRECT memfd_create sched_getaffinity sched_setaffinity posix_fadvise
        posix_fallocate pidfd_open eventfd copy_file_range splice MFD_CLOEXEC MFD_ALLOW_SEALING
        getrandom setns unshare""",
    "signal": "SIGPWR SIGSTKFLT SIGPOLL sigtimedwait sigwaitinfo pidfd_send_signal",
    "fcntl": "F_ADD_SEALS F_GET_SEALS F_SEAL_SHRINK F_SEAL_GROW F_SEAL_SEAL F_SEAL_WRITE F_SETPIPE_SZ F_GETPIPE_SZ",
    "mmap": "MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_DOFORK MADV_REMOVE MAP_POPULATE",
    "resource": "prlimit",
    "select": "epoll",
    "socket": "AF_NETLINK AF_PACKET SO_PEERCRED",
}
WINDOWS = {
    "sys.platform": "win32",
    "modules": ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix", "readline", "curses"],
    "os": MACOS["os"]
    + """ O_NOFOLLOW O_NONBLOCK O_NOCTTY O_CLOEXEC O_DIRECTORY O_SYNC O_DSYNC O_ASYNC O_NDELAY
        fork forkpty register_at_fork getuid geteuid getgid getegid getgroups getpgid getpgrp setpgid setsid getsid
        killpg setuid setgid chown lchown fchown fchmod fchdir chroot mkfifo mknod nice getpriority setpriority
        getloadavg
        pread pwrite preadv pwritev readv writev sendfile posix_spawn posix_spawnp wait wait3 wait4 waitid
        WNOHANG WUNTRACED WIFSIGNALED WTERMSIG WEXITSTATUS WIFEXITED P_PID P_ALL WEXITED WNOWAIT sysconf sysconf_names
        confstr uname ctermid ttyname tcgetpgrp tcsetpgrp statvfs fstatvfs pathconf fpathconf lockf pipe2 sync fdatasync
        sched_yield openpty EX_OK initgroups getlogin_r set_blocking get_blocking""",
    "signal": MACOS["signal"]
    + """ SIGKILL SIGALRM SIGPIPE SIGSTOP SIGXCPU SIGXFSZ SIGCHLD SIGCONT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGTSTP SIGTTIN
        SIGTTOU SIGTRAP SIGBUS SIGSYS SIGURG SIGWINCH SIGIO SIGPROF SIGVTALRM alarm setitimer getitimer ITIMER_REAL
        ITIMER_VIRTUAL ITIMER_PROF pause pthread_kill pthread_sigmask sigpending sigwait siginterrupt
        SIG_BLOCK SIG_UNBLOCK SIG_SETMASK""",
    "mmap": MACOS["mmap"]
    + """ PROT_READ PROT_WRITE PROT_EXEC MAP_SHARED MAP_PRIVATE MAP_ANON MAP_ANONYMOUS MADV_NORMAL MADV_RANDOM
        MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED MADV_FREE""",
    "select": "epoll poll kqueue",
    "socket": MACOS["socket"] + " AF_UNIX SCM_RIGHTS send_fds recv_fds CMSG_LEN CMSG_SPACE",
}
SYSTEMS = {"macOS": MACOS, "Windows": WINDOWS}

STARTUP = '''
import builtins, ctypes, importlib, subprocess, sys, types

LACKS = {lacks!r}
IS_WINDOWS = LACKS["sys.platform"] == "win32"


class Seen(types.ModuleType):
    """A module of Python's as vlalign's modules see it."""

    def __init__(self, real, without, others):
        for name, value in dict(real=real, without=without, others=others).items():
            object.__setattr__(self, "_" + name, value)

    def __getattr__(self, name):
        if name in self._without:
            raise AttributeError(f"module {{self._real.__name__!r}} of this system has no attribute {{name!r}}")
        return self._others[name] if name in self._others else getattr(self._real, name)

    def __setattr__(self, name, value):
        setattr(self._real, name, value)

    def __delattr__(self, name):
        delattr(self._real, name)


class WithoutDescriptors(subprocess.Popen):
    def __init__(self, *args, **options):
        if options.get("pass_fds") or options.get("preexec_fn"):
            raise ValueError("pass_fds and preexec_fn are not supported on this system")
        super().__init__(*args, **options)


def locking(descriptor, mode, num_bytes):
    """msvcrt.locking by another system's locks: the same bytes, and the same error."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


def without_libc(name, *args, **options):
    if name is None:
        raise TypeError("bad argument type for built-in operation" if IS_WINDOWS else "no such library")
    return ctypes.CDLL(name, *args, **options)


def no_limit_of_addresses(what, limits):
    import resource

    if what == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    resource.setrlimit(what, limits)


others = {{"sys": {{"platform": LACKS["sys.platform"]}}, "ctypes": {{"CDLL": without_libc}}}}
if IS_WINDOWS:
    others["os"] = {{"name": "nt"}}
    others["subprocess"] = {{"Popen": WithoutDescriptors}}
else:
    others["resource"] = {{"setrlimit": no_limit_of_addresses}}
names = {{*others, "os", "signal", "fcntl", "mmap", "resource", "select", "socket"}} - {{*LACKS["modules"]}}
seen = {{
    name: Seen(importlib.import_module(name), LACKS.get(name, "").split(), others.get(name, {{}})) for name in names
}}
msvcrt = types.ModuleType("msvcrt")
msvcrt.locking, msvcrt.LK_NBLCK = locking, 2
if IS_WINDOWS:
    seen["msvcrt"] = msvcrt
real_import = builtins.__import__


def of_this_system(name, globals=None, locals=None, fromlist=(), level=0):
    if not level and str((globals or {{}}).get("__name__", "")).startswith("vlalign"):
        top = name.partition(".")[0]
        if top in LACKS["modules"]:
            raise ModuleNotFoundError(f"No module named {{top!r}}", name=top)
        if name in seen or (top in seen and not fromlist):
            return seen[top]
    return real_import(name, globals, locals, fromlist, level)


builtins.__import__ = of_this_system
'''


def environment_of(system: str, folder: Path) -> dict[str, str]:
    """Return variables with which a Python, and those that it starts, run as on another system.

    Args:
        system: One of ``SYSTEMS``.
        folder: Gets the module that Python imports when it starts.
    """
    (folder / "sitecustomize.py").write_text(STARTUP.format(lacks=SYSTEMS[system]), encoding="utf-8")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def run_on(system: str, folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run a Python program as on another system, in ``folder``."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment_of(system, folder),
        capture_output=True,
        text=True,
        check=False,
    )
