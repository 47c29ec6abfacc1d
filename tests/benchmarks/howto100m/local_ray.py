"""A Ray of the benchmark's own on this machine, and the processes that belong to it."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ray._private.ray_constants import ENABLE_RAY_CLUSTERS_ENV_VAR
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.programs import without_current_folder

SECRET = "RAY_AUTH_TOKEN"
START_SECONDS = 300
OBJECT_STORE_BYTES = 200_000_000
SAMPLE_SECONDS = 2.0
NOT_AT_WORK = "ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"
"""Other processes of Ray. The agents end with the whole machine."""
STARTS = 8
"""How often Ray is started again: on a busy machine it gives up after 30 seconds."""


@dataclass(frozen=True)
class Process:
    """A running process."""

    pid: int
    parent: int
    command: str


def processes() -> dict[int, Process]:
    """Return all running processes, by id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if state != "Z":
                found[int(folder.name)] = Process(int(folder.name), int(parent), command)
    return found


def below(roots: set[int], known: Mapping[int, Process]) -> set[int]:
    """Return processes with everything that they started."""
    found = roots & known.keys()
    while more := {pid for pid, process in known.items() if process.parent in found} - found:
        found |= more
    return found


class LocalRay:
    """Ray on the loopback interface, with a secret of its own. Its processes outlive the drivers that use it."""

    def __init__(self, num_cores: int, environment: Mapping[str, str]) -> None:
        """Choose a port and a secret.

        Args:
            num_cores: Cores that Ray may use.
            environment: Of all processes.
        """
        self.num_cores = num_cores
        own = {SECRET: secrets.token_hex(32), "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
        own[ENABLE_RAY_CLUSTERS_ENV_VAR] = "0"  # else it listens everywhere
        self.environment = {**without_current_folder(environment), **own}
        self._folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets allow no long path
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment["RAY_ADDRESS"] = self.address  # Ray Train's own processes look for it where others run, too

    def start(self) -> None:
        """Start it. Raises ``UserError`` if it does not start."""
        program = str(Path(sys.executable).with_name("ray"))
        options = ["--head", f"--port={self.address.partition(':')[2]}", "--node-ip-address=127.0.0.1"]
        options += [f"--num-cpus={self.num_cores}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
        options += [
            f"--temp-dir={self._folder}/ray",
            "--include-dashboard=false",
            "--disable-usage-stats",
        ]  # Ray opens its own folder to all
        problem = ""
        for _ in range(STARTS):
            try:
                command = [program, "start", *options]
                started = subprocess.run(
                    command, env=self.environment, capture_output=True, text=True, timeout=START_SECONDS, check=False
                )
            except subprocess.TimeoutExpired:
                problem = f"not within {START_SECONDS} s"
            else:
                if started.returncode == 0:
                    return
                problem = (started.stderr.strip().splitlines() or ["no reason given"])[-1][:300]
            self.kill_all()
        raise UserError(f"Ray did not start: {problem}")

    def stop(self) -> None:
        """Kill all of its processes and remove its files."""
        for _ in range(2):  # some start others as they end
            self.kill_all()
            time.sleep(0.5)
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_all(self) -> None:
        """Kill everything that has the secret."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids(self) -> set[int]:
        """Return all processes with the secret in their environment, and those that they started."""
        secret, found, known = f"{SECRET}={self.environment[SECRET]}\0".encode(), set(), processes()
        for pid in known:
            with contextlib.suppress(OSError):
                if secret in Path(f"/proc/{pid}/environ").read_bytes():
                    found.add(pid)
        return below(found, known)

    def workers(self) -> list[int]:
        """Return Ray's workers that are at work: actors and tasks."""
        known = processes()
        own = [known[pid] for pid in sorted(self.pids()) if pid in known]
        return [p.pid for p in own if p.command.startswith("ray::") and not p.command.startswith(NOT_AT_WORK)]


class Usage:
    """Memory and processor time of some processes together, sampled while a block runs."""

    def __init__(self, ray: LocalRay) -> None:
        """Watch the processes of ``ray``."""
        self._ray, self._over = ray, threading.Event()
        self._seconds: dict[tuple[int, str], float] = {}
        self.memory_bytes = 0
        """The most at once."""

    @property
    def processor_seconds(self) -> float:
        """Processor time of all processes. What one takes after its last sample is missing."""
        return sum(self._seconds.values())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch until the block ends."""
        before = {process: seconds for pid in self._ray.pids() for process, seconds in processor_seconds(pid).items()}
        watching = threading.Thread(target=self._watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            self._over.set()
            watching.join()
            self._sample()
            self._seconds = {process: seconds - before.get(process, 0.0) for process, seconds in self._seconds.items()}

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self._sample()

    def _sample(self) -> None:
        pids = self._ray.pids()
        self.memory_bytes = max(self.memory_bytes, sum(map(proportional_bytes, pids)))
        for pid in pids:
            self._seconds.update(processor_seconds(pid))


def processor_seconds(pid: int) -> dict[tuple[int, str], float]:
    """Return {id and start of a process: its processor time}; nothing if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return {}
    return {(pid, fields[19]): (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")}


def proportional_bytes(pid: int) -> int:
    """Return a process's memory, with its share of what it has in common with others; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def disk_bytes(folder: Path) -> int:
    """Return the size of all files in a folder on the disk."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += 512 * os.lstat(os.path.join(at, name)).st_blocks
    return total
