"""Real Ray clusters on this machine, whose machines are raylets.

If possible, they run in a separate network with nothing but a loopback interface, since Ray listens on all addresses.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SCRIPTS = TOP / "ray_jobs"
PORT = 6390
APART = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
"""Begins the command of a program that shall see no network, mount or process but its own."""
STARTS, START_TIMED_OUT = 3, "timed out during startup"
"""How often a machine that did not start in time is started again."""
# Every Python of the cluster runs these first. They count the rows that networks compute. In decoders, they count
# videos, and make some of them crash, hang or fill the memory, by their names.
IMPORT_HOOK = """
import importlib.util, os, signal, sys, time

def count_rows(module):
    features = module.Extractor.features
    def counted(self, frames):
        found = features(self, frames)
        with open({rows!r}, "a") as file:
            file.write(f"{{len(found)}}\\n")
        return found
    module.Extractor.features = counted

PATCHES = {{"vlalign.extract.extractor": count_rows}}

class AfterImport:
    def find_spec(self, name, path=None, target=None):
        if name not in PATCHES:
            return None
        patch = PATCHES.pop(name)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module
        def run_and_patch(module):
            run(module)
            patch(module)
        spec.loader.exec_module = run_and_patch
        return spec

sys.meta_path.insert(0, AfterImport())
"""
HOOKS = (
    IMPORT_HOOK
    + """
if any("decoding.child" in word for word in sys.orig_argv):
    from vlalign.extract.decoding import input_file, request_handler
    open_regular, handle_request = input_file.open_regular, request_handler.handle_request
    def logged(path, folders=None):
        with open({log!r}, "a") as file:
            file.write(f"{{path}}\\n")
        return open_regular(path, folders)
    def watched(request, responder):
        name = os.path.basename(request.path)
        if name.startswith("crash"):
            signal.raise_signal(signal.SIGSEGV)
        if name.startswith("hang"):
            time.sleep(1000)
        if name.startswith("greedy"):
            eaten = []
            while True:
                eaten.append(bytearray(1 << 26))
        handle_request(request, responder)
    request_handler.handle_request, input_file.open_regular = watched, logged
"""
)


@pytest.fixture(scope="module")
def network() -> Iterator[list[str]]:
    """Return a command prefix that runs a command in a separate network; empty if that is not possible."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        yield []
        return
    keeper = subprocess.Popen(
        ["unshare", "-n", "sh", "-c", "ip link set lo up && echo ready && exec sleep infinity"], stdout=subprocess.PIPE
    )
    try:
        yield ["nsenter", "-t", str(keeper.pid), "-n"] if keeper.stdout.readline() == b"ready\n" else []
    finally:
        keeper.kill()
        keeper.wait()


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Return the environment of all processes, with the cluster's secret and the hooks above."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(
        HOOKS.format(log=str(tmp_path / "starts.txt"), rows=str(tmp_path / "rows.txt"))
    )
    settings = {
        "PYTHONPATH": str(hooks),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": uuid.uuid4().hex,
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    return os.environ | settings


def starts(tmp_path: Path) -> Counter[str]:
    """Return how often decoders have begun with each file."""
    return Counter((tmp_path / "starts.txt").read_text().splitlines())


def rows_computed(tmp_path: Path) -> int:
    """Return the number of rows that all processes have computed."""
    return sum(map(int, (tmp_path / "rows.txt").read_text().split()))


def processes() -> dict[int, tuple[int, str]]:
    """Return {process id: (parent id, command line)}."""
    lines = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = (line.split(None, 2) for line in lines)
    return {int(row[0]): (int(row[1]), row[2] if len(row) > 2 else "") for row in rows}


def descendants(pid: int) -> list[int]:
    found, known = [pid], processes()
    for parent in found:
        found += [child for child, (its_parent, _) in known.items() if its_parent == parent]
    return found


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Cluster:
    """A cluster: a head and more machines, with one core each."""

    def __init__(self, network: list[str], environment: dict[str, str]) -> None:
        self.network, self.environment = network, environment
        self.folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets allow no long path
        self.machines: list[int] = []

    def start(self, num_machines: int) -> None:
        about = [
            "--head",
            f"--port={PORT}",
            "--include-dashboard=false",
            f"--temp-dir={self.folder}",
            "--node-ip-address=127.0.0.1",
        ]
        self._start(about)
        for _ in range(num_machines - 1):
            self.add_machine()

    def add_machine(self, prefix: Sequence[str] = (), **environment: str) -> None:
        """Add a machine, whose processes a command begins, with more in their environment."""
        self._start([f"--address=127.0.0.1:{PORT}"], prefix, environment)

    def _raylets(self) -> set[int]:
        known = processes()
        return {pid for pid in self._processes() if pid in known and known[pid][1].split()[0].endswith("/raylet")}

    def _processes(self) -> list[int]:
        """Return all processes of the cluster: those with its secret in their environment, and their descendants."""
        secret = f"RAY_AUTH_TOKEN={self.environment['RAY_AUTH_TOKEN']}\0".encode()
        found = []
        for pid in processes():
            with contextlib.suppress(OSError):
                if secret in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return list({below for pid in found for below in descendants(pid)})

    def _start(self, about: list[str], prefix: Sequence[str] = (), more: Mapping[str, str] | None = None) -> None:
        before, others = self._raylets(), set(self._processes())
        ray = str(Path(sys.executable).with_name("ray"))
        command = [
            *self.network,
            *prefix,
            ray,
            "start",
            *about,
            "--num-cpus=1",
            "--object-store-memory=80000000",
            "--disable-usage-stats",
        ]
        for attempt in range(STARTS):
            done = subprocess.run(
                command, env=self.environment | (more or {}), capture_output=True, text=True, timeout=300, check=False
            )
            if done.returncode == 0 or attempt == STARTS - 1 or START_TIMED_OUT not in done.stderr:
                break
            # A busy machine: Ray waits 30 seconds, which no setting changes. A head also leaves its GCS server behind.
            kill_all(list(set(self._processes()) - others))
        assert done.returncode == 0, done.stdout + done.stderr
        deadline = time.monotonic() + 60
        while not (raylets := self._raylets() - before):
            assert time.monotonic() < deadline, "Ray says that it runs, but there is no raylet"
            time.sleep(0.1)
        self.machines += raylets

    def kill_machine(self, raylet: int) -> None:
        self.machines.remove(raylet)
        kill_all(descendants(raylet))

    def workers(self) -> list[int]:
        """Return the ids of extraction workers."""
        below = {pid for raylet in self.machines for pid in descendants(raylet)}
        return [
            pid for pid, (_, args) in processes().items() if pid in below and args.startswith("ray::ExtractionActor")
        ]

    def stop(self) -> None:
        for _ in range(2):  # some start others as they end
            kill_all(self._processes())
            time.sleep(0.5)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def cluster(network, environment) -> Iterator:
    made = []

    def start(num_machines: int) -> Cluster:
        made.append(Cluster(network, environment))
        made[-1].start(num_machines)
        return made[-1]

    yield start
    for each in made:
        each.stop()


def job(network: list[str], environment: dict[str, str], script: str, *options: str, log: Path) -> subprocess.Popen:
    with log.open("ab") as file:
        command = [*network, sys.executable, str(SCRIPTS / script), *options]
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, cwd="/")


def wait_for(process: subprocess.Popen, log: Path, seconds: float) -> int:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        kill_all(descendants(process.pid))  # a Ray of its own, too
        raise AssertionError(f"not within {seconds} s:\n{log.read_text()[-5000:]}") from None
