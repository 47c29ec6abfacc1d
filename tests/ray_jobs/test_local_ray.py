"""A Ray that a step starts on this machine: other users can neither reach it, nor read it, nor lend it their code."""

import json
import os
import re
import stat
import subprocess
import sys

import pytest
from helpers.clusters import START_TIMED_OUT, STARTS, TOP, network
from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need
from vlalign.ray_jobs.cluster import connect
from vlalign.storage.common.errors import UserError

__all__ = ["network"]  # a fixture

OTHER_ADDRESS = "10.9.9.9"
# With another address than loopback, which Ray prefers.
AS_IN_A_NETWORK = (
    f"ip address replace {OTHER_ADDRESS}/32 dev lo && ip route replace default dev lo src {OTHER_ADDRESS} && exec "
)
STRANGER = """
import json, sys, urllib.error, urllib.request
import grpc

SERVICES = {
    "cluster": "InternalKVGcsService/InternalKVGet",
    "machine": "NodeManagerService/RequestWorkerLease",
    "objects": "ObjectManagerService/Pull",
    "process": "CoreWorkerService/PushTask",
    "agent": "LogService/ListLogs",
}
token, ports = sys.argv[1], sys.argv[2:]
said = {}
for port in ports:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name, method in SERVICES.items():
            try:
                channel.unary_unary(f"/ray.rpc.{method}")(b"", timeout=5, metadata=[("authorization", token)])
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            if code != "UNIMPLEMENTED":
                said.setdefault(name, []).append(code)
            if code == "UNAVAILABLE":  # it speaks HTTP
                break
    try:
        answer = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/jobs/", timeout=5)
        said.setdefault("http", []).append([answer.status, answer.read(40).decode()])
    except urllib.error.HTTPError as error:
        said.setdefault("http", []).append([error.code, ""])
    except OSError:
        pass
    except Exception:  # it speaks gRPC
        pass
print(json.dumps(said))
"""
PROGRAM_OF_A_USER = """
import json, os, socket, subprocess, sys
from pathlib import Path
import ray
from vlalign.ray_jobs.cluster import connect

def ports():
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"})

def reachable(port):
    with socket.socket() as other:
        return other.connect_ex((sys.argv[1], port)) == 0

connect()

@ray.remote
def imported():
    import numpy
    return os.getcwd()

worked_in = ray.get(imported.remote())
token, stranger = os.environ["RAY_AUTH_TOKEN"], Path(sys.argv[2])
environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
def ask(token):
    command = [sys.executable, str(stranger), f"Bearer {token}", *map(str, ports())]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
folder = Path(ray._private.worker._global_node.get_temp_dir_path()).parent
commands = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
print(json.dumps({
    "worked_in": worked_in,
    "folder": str(folder),
    "mode": folder.stat().st_mode,
    "num_ports": len(ports()),
    "reachable": [port for port in ports() if reachable(port)],
    "without": ask("x" * 32),
    "with": ask(token),
    "token_is_seen": token.encode() in commands,
    "token_length": len(token),
}))
"""


def test_nobody_else_reaches_reads_or_lends_code_to_a_local_ray(network, tmp_path):
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs("unshare", "nsenter", "ip"))
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "numpy", "signal", "pickle", "logging", "vlalign", "ray", "sitecustomize"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r} + ' ')\n")
    (tmp_path / "stranger.py").write_text(STRANGER)
    (tmp_path / "program.py").write_text(PROGRAM_OF_A_USER)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, str(tmp_path / "program.py"), OTHER_ADDRESS, str(tmp_path / "stranger.py")]
    for _ in range(STARTS):
        done = subprocess.run(
            [*network, "sh", "-c", AS_IN_A_NETWORK + '"$@"', "sh", *command],
            cwd=here,
            env=environment | {"RAY_TMPDIR": "/tmp", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if START_TIMED_OUT not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["num_ports"] >= 5 and seen["reachable"] == []
    assert stat.S_IMODE(seen["mode"]) == 0o700 and not os.path.exists(seen["folder"])
    assert not (tmp_path / ".ray").exists() and seen["token_length"] == 64 and not seen["token_is_seen"]
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()
    assert seen["worked_in"] == str(here)
    services = {"cluster", "machine", "objects", "process", "agent"}
    assert services <= seen["without"].keys()
    for name in services:
        assert set(seen["without"][name]) <= {"UNAUTHENTICATED", "UNAVAILABLE"}, seen["without"]
        assert "UNAUTHENTICATED" in seen["without"][name] and "UNAUTHENTICATED" not in seen["with"][name]
    answered = [text for code, text in seen["without"]["http"] if code != 401]
    assert all(text.startswith("# HELP") for text in answered), "only counters are shown to everybody"
    assert [401, ""] in seen["without"]["http"]


@pytest.mark.slow
def test_the_ray_of_a_benchmark_listens_on_loopback_only(network):
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs("unshare", "nsenter", "ip"))
    program = (
        f"import os, sys; from pathlib import Path; sys.path.append({str(TOP / 'tests')!r})\n"
        "from benchmarks.howto100m.local_ray import LocalRay\n"
        "ray = LocalRay(1, os.environ)\n"
        "try:\n"
        "    ray.start()\n"
        "    rows = [x.split() for n in ('tcp', 'tcp6') for x in Path('/proc/net', n).read_text().splitlines()[1:]]\n"
        "    listening = [row[1] for row in rows if row[3] == '0A']\n"
        "    print(oct(os.stat(ray._folder).st_mode & 0o777), *{x.partition(':')[0] for x in listening})\n"
        "finally:\n"
        "    ray.stop()\n"
    )
    done = subprocess.run(
        [*network, "sh", "-c", AS_IN_A_NETWORK + '"$@"', "sh", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    mode, *addresses = done.stdout.split()
    assert mode == "0o700", done.stderr
    assert set(addresses) == {"0100007F", "0000000000000000FFFF00000100007F"}


# Ray's note of the address of a running cluster


@pytest.fixture
def note(tmp_path, monkeypatch):
    """Return the file in which ``ray start`` notes its address, and make connecting fail soon."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "ray").mkdir()
    asked = []

    def init(**settings):
        asked.append(settings["address"])
        raise ConnectionError("on purpose")

    monkeypatch.setattr("ray.init", init)
    return tmp_path / "ray" / "ray_current_cluster", asked


def test_a_running_ray_of_this_user_is_used(note):
    path, asked = note
    path.write_text("127.0.0.1:6379")
    with pytest.raises(UserError, match=re.escape(" 127.0.0.1:6379")):
        connect()
    assert asked == ["127.0.0.1:6379"]


@pytest.mark.parametrize("plant", ["another user's", "open to all", "a link", "a linked folder", "a pipe"])
def test_an_address_that_another_user_left_is_not_used(note, plant, tmp_path, capsys):
    path, asked = note
    if plant == "a pipe":
        os.mkfifo(path)
    elif plant == "a link":
        (tmp_path / "other").write_text("10.9.9.9:6379")
        path.symlink_to(tmp_path / "other")
    elif plant == "a linked folder":
        need(SYSTEM, missing_rights())
        path.parent.rename(tmp_path / "mine")
        path.parent.symlink_to(tmp_path / "mine")
        os.lchown(path.parent, 12345, 12345)
        path.write_text("10.9.9.9:6379")
    else:
        path.write_text("10.9.9.9:6379")
        if plant == "open to all":
            path.chmod(0o666)
        else:
            need(SYSTEM, missing_rights())
            os.chown(path, 12345, 12345)
    with pytest.raises(UserError, match="--head"):
        connect("auto")
    assert asked == [] and str(path) in capsys.readouterr().err
