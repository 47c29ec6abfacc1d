"""Real Ray clusters on this machine: machines are raylets of their own. They stand in a network of their own, with loopback only, where
that is allowed; Ray listens on every address."""

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from vlalign.extract.cli import main as extract_main
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.files import read_jsonl
from vlalign.storage.layout import DatasetFolder

TOP = Path(__file__).resolve().parents[1]
SCRIPTS = TOP / "ray_jobs"
# Ran by every Python of the cluster before anything else; in decoders, it counts the videos.
IN_DECODERS = """
import sys
if any("decode_child" in word for word in sys.orig_argv):
    from vlalign.extract import decode_child
    answer = decode_child.answer
    def watched(request, answers):
        with open({log!r}, "a") as file:
            file.write(request["path"] + "\\n")
        answer(request, answers)
    decode_child.answer = watched
"""


@pytest.fixture(scope="module")
def network() -> Iterator[list[str]]:
    """Words to put before a command, so that it runs in a network of its own."""
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
    """Of all processes: a secret of this cluster's own, and decoders that are watched."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text(IN_DECODERS.format(log=str(tmp_path / "starts.txt")))
    settings = {"PYTHONPATH": str(hooks), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex, "RAY_USAGE_STATS_ENABLED": "0"}
    return os.environ | settings | {"OMP_NUM_THREADS": "1", "VLALIGN_CACHE": str(tmp_path / "cache")}


def starts(tmp_path: Path) -> Counter[str]:
    """How often a decoder began with each file."""
    return Counter((tmp_path / "starts.txt").read_text().splitlines())


def processes() -> dict[int, tuple[int, str]]:
    """{process: (its parent, its command line)}"""
    lines = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
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


def compare(found: Path, expected: Path) -> None:
    """Two stores, row for row. Networks give the same but for the order in which they add."""
    one, other = FeatureStore(found), FeatureStore(expected)
    assert sorted(one.video_ids()) == sorted(other.video_ids())
    assert (one.profile, one.weights) == (other.profile, other.weights)
    for video_id in other.video_ids():
        a, b = one.get(video_id), other.get(video_id)
        np.testing.assert_array_equal(a.start_seconds, b.start_seconds)
        np.testing.assert_array_equal(a.end_seconds, b.end_seconds)
        np.testing.assert_array_equal(a.valid_frames, b.valid_frames)
        np.testing.assert_allclose(a.features, b.features, rtol=0.01, atol=0.002 * np.abs(b.features).max())
        assert (a.source, a.partial) == (b.source, b.partial)


def without_features(dataset: DatasetFolder, root: Path) -> DatasetFolder:
    """The same videos under another root."""
    copy = DatasetFolder(root, dataset.name)
    copy.write_videos([VideoRecord(video_id=v.video_id, path=str(dataset.video_path(v))) for v in dataset.read_videos()])
    return copy


def test_a_cluster_of_its_own_gives_what_the_plain_loop_gives(small_demo, tmp_path, network, environment):
    dataset = without_features(small_demo, tmp_path / "root")
    (dataset.path / "broken.mp4").write_bytes(b"no video" * 1000)
    dataset.write_videos([*dataset.read_videos(), VideoRecord(video_id="broken", path="broken.mp4")])
    options = ["--root", str(dataset.root), "--dataset", "demo", "--features", "s3d", "--weights", "random"]
    (tmp_path / "options.txt").write_text("\n".join(options[:4]) + "\n# the rest stands in the call\n")
    log = tmp_path / "log.txt"
    environment |= {"TMPDIR": "/tmp"}
    asked = [f"@{tmp_path / 'options.txt'}", *options[4:], "--workers", "1"]
    code = wait_for(job(network, environment, "extract_howto100m.py", *asked, log=log), log, 900)
    printed = log.read_text()
    assert code == 1, printed
    assert "features s3d of 14 of 15 videos are there" in printed and "video 'broken'" in printed
    compare(dataset.features("s3d"), small_demo.features("s3d"))
    assert [failure["kind"] for failure in read_jsonl(dataset.features("s3d") / "failures.jsonl")] == ["unreadable"]
    (events,) = (dataset.path / "jobs").glob("extract-*.jsonl")
    last = [json.loads(line) for line in events.read_text().splitlines()][-1]
    assert (last["videos"], last["videos_left"], last["failures"], last["finished"]) == (15, 0, {"unreadable": 1}, True)
    assert extract_main(options) == 1, "the plain command has nothing left to do but says what failed"
    assert starts(tmp_path).total() == 15
