"""Child processes of ``worker_processes``."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.needs import SYSTEM, skip_without

pytestmark = pytest.mark.portable

PARENT = """
import sys, time
from vlalign.storage.common.process_pool import worker_processes

if __name__ == "__main__":
    with worker_processes(2) as pool:
        list(pool.map(time.sleep, [0.5, 0.5]))
        print(*pool._processes, flush=True)
        pool.submit(time.sleep, float(sys.argv[1])).result()
        time.sleep(1000)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@skip_without(SYSTEM, [] if Path("/proc").is_dir() else ["/proc"])
@pytest.mark.parametrize("busy", [0, 1000], ids=["idle", "busy"])
def test_child_processes_end_when_their_parent_is_killed(tmp_path, busy):
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(program), str(busy)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    children = [int(pid) for pid in parent.stdout.readline().split()]
    try:
        assert len(children) == 2 and all(map(is_running, children))
        parent.kill()
        parent.wait()
        deadline = time.monotonic() + 20
        while any(map(is_running, children)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_running, children))
    finally:
        parent.kill()
        for pid in filter(is_running, children):
            os.kill(pid, signal.SIGKILL)
