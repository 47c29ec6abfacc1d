"""A real Slurm of two nodes on this machine: each node has its own name, network and temporary Ray folder.

Everything runs in namespaces that end with the call, and all files of the daemons are in one folder.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need

from .clusters import APART

DAEMONS = ("munged", "slurmctld", "slurmd")
NEEDED = (*DAEMONS, "sbatch", "unshare", "ip")
SBIN = "/usr/sbin:/sbin"
CONFIGURATION = """
ClusterName=test
SlurmctldHost=n1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
NodeName=n[1-2] CPUs={cores} CoresPerSocket={cores} RealMemory=4000
PartitionName=all Nodes=ALL Default=YES
"""
START = """
set -e
cd {folder}
export SLURM_CONF={folder}/slurm.conf
hostname n1
printf '127.0.0.1 localhost\\n10.77.0.1 n1\\n10.77.0.2 n2\\n' > hosts
mount --bind hosts /etc/hosts
mkdir -p n1 n2 ray1 ray2 /tmp/ray
mount --bind ray1 /tmp/ray
export TMPDIR=/tmp/ray
ip link set lo up
head -c 1024 /dev/urandom > munge.key
chmod 400 munge.key
munged --force --key-file=$PWD/munge.key --socket=$PWD/munge.socket --pid-file=$PWD/munged.pid \
    --log-file=$PWD/munged.log --seed-file=$PWD/munge.seed
cat > n2.sh <<'END'
hostname n2
mount --bind ray2 /tmp/ray
ip link set lo up
echo $$ > n2.started
while [ ! -e n2.linked ]; do sleep 0.1; done
ip addr add 10.77.0.2/24 dev link2
ip link set link2 up
exec unshare --pid --fork --kill-child --mount-proc slurmd -D
END
unshare --net --uts --mount bash n2.sh > n2.log 2>&1 &
while [ ! -s n2.started ]; do sleep 0.1; done
ip link add link1 type veth peer name link2 netns $(cat n2.started)
ip addr add 10.77.0.1/24 dev link1
ip link set link1 up
touch n2.linked
slurmctld -D > slurmctld.log 2>&1 &
slurmd -D > n1.log 2>&1 &
for _ in $(seq 600); do
    [ "$(sinfo --noheader --Node --format=%T 2>/dev/null | sort --unique)" = idle ] && break
    sleep 0.1
done
sinfo --Node
set +e
cd {top}
"""


class Slurm:
    """Runs commands in a Slurm of their own."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment

    def run(self, commands: str, top: Path, timeout_seconds: float) -> str:
        """Start the nodes, run a shell program on the first one in the folder ``top``, and return what it printed."""
        about = {"folder": self.folder, "top": top, "cores": os.cpu_count()}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**about))
        program = START.replace("{folder}", str(self.folder)).replace("{top}", str(top)) + commands
        done = subprocess.run(
            [*APART, "--uts", "bash", "-c", program],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        logs = [f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log"))]
        assert "n2" in done.stdout, "\n".join([done.stdout, *logs])
        return done.stdout


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """Return a Slurm; skip the test where it is not installed or cannot run."""
    path = f"{os.environ['PATH']}:{SBIN}"
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs(*NEEDED, path=path))
    folder = Path(tempfile.mkdtemp(prefix="slurm", dir="/tmp"))  # sockets allow no long path
    yield Slurm(folder, os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"})
    shutil.rmtree(folder)
