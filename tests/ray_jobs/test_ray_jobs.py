"""The steps on real Ray clusters, compared with the plain commands."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers.annotation_files import howto_video
from helpers.captions import tables
from helpers.clusters import (
    APART,
    PORT,
    SCRIPTS,
    TOP,
    cluster,
    descendants,
    environment,
    job,
    kill_all,
    network,
    rows_computed,
    starts,
    wait_for,
)
from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need
from helpers.sounds import sound_of_one_second
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.videos.selection import render_missing
from vlalign.preprocess.cli import main as preprocess_main
from vlalign.preprocess.datasets import demo
from vlalign.storage import FeatureStore, VideoFeatures, VideoRecord, Weights, write_shard
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.dataset.trusted_folders import allow_folder
from vlalign.storage.profiles import PROFILES
from vlalign.storage.shards.read import read_shard
from vlalign.storage.stores.failure_log import read_failures
from vlalign.train.cli.index import main as index_main
from vlalign.train.search.index import open_index_shards

__all__ = ["cluster", "environment", "network"]  # fixtures
NUM_KILLS = 12
LIGHT = ("clip_vit_b32", "clip_vit_b32_map")
"""Features that are soon computed: what is tried is how work is lost and done again."""


def compare(found: Path, expected: Path, video_ids: list[str] | None = None) -> None:
    """Compare a store with all or some videos of another, row by row.

    Networks can add in another order, which changes the last digits.
    """
    one, other = FeatureStore(found), FeatureStore(expected)
    assert sorted(one.video_ids()) == sorted(video_ids or other.video_ids())
    assert (one.profile, one.weights) == (other.profile, other.weights)
    for video_id in one.video_ids():
        a, b = one.get(video_id), other.get(video_id)
        np.testing.assert_array_equal(a.start_seconds, b.start_seconds)
        np.testing.assert_array_equal(a.end_seconds, b.end_seconds)
        np.testing.assert_array_equal(a.valid_frames, b.valid_frames)
        np.testing.assert_allclose(a.features, b.features, rtol=0.01, atol=0.002 * np.abs(b.features).max())
        assert (a.source, a.partial) == (b.source, b.partial)


def kinds_in(failures: Path) -> dict[str, str]:
    return {video_id: failure.kind for video_id, failure in read_failures(failures).items()}


def without_features(dataset: DatasetFolder, root: Path) -> DatasetFolder:
    """Return a data set with the same videos under another root."""
    copy = DatasetFolder(root, dataset.name)
    copy.write_videos(
        [VideoRecord(video_id=v.video_id, path=str(dataset.video_path(v))) for v in dataset.read_videos()]
    )
    allow_folder(copy, dataset.path)
    return copy


def test_a_new_cluster_extracts_the_same_as_the_plain_command(small_demo, tmp_path, network, environment):
    dataset = without_features(small_demo, tmp_path / "root")
    (dataset.path / "broken.mp4").write_bytes(b"no video" * 1000)
    whole = dataset.read_videos()[:3]
    dataset.write_videos([*whole, VideoRecord(video_id="broken", path="broken.mp4")])
    options = ["--root", str(dataset.root), "--dataset", "demo", "--features", "s3d", "--weights", "random"]
    (tmp_path / "options.txt").write_text("\n".join(options[:4]) + "\n# the rest stands in the call\n")
    log = tmp_path / "log.txt"
    environment |= {"TMPDIR": "/tmp"}
    asked = [f"@{tmp_path / 'options.txt'}", *options[4:], "--workers", "1"]
    code = wait_for(job(network, environment, "extract_howto100m.py", *asked, log=log), log, 900)
    printed = log.read_text()
    assert code == 1, printed
    assert re.search(r"\b3 of 4 videos .*\bs3d", printed) and "video 'broken'" in printed
    compare(dataset.features("s3d"), small_demo.features("s3d"), [video.video_id for video in whole])
    assert [failure["kind"] for failure in read_jsonl(dataset.features("s3d") / "failures.jsonl")] == ["unreadable"]
    (events,) = (dataset.path / "jobs").glob("extract-*.jsonl")
    last = [json.loads(line) for line in events.read_text().splitlines()][-1]
    assert (last["videos"], last["videos_left"], last["failures"], last["finished"]) == (4, 0, {"unreadable": 1}, True)
    assert extract_main(options) == 1, "the plain command has nothing left to do but says what failed"
    assert starts(tmp_path).total() == 4


@pytest.mark.slow
def test_killed_workers_machines_and_drivers_lose_nothing(tmp_path, network, environment, cluster):
    rng = random.Random(0)
    dataset = DatasetFolder(tmp_path / "root", "demo")
    scenes = demo.plan_scenes(0)
    dataset.write_videos([record for record in demo.records(scenes) if isinstance(record, VideoRecord)])
    render_missing(dataset, dataset.read_videos())
    plain = without_features(dataset, tmp_path / "plain")
    features = ["--features", ",".join(LIGHT), "--weights", "random"]
    assert extract_main(["--root", str(plain.root), "--dataset", "demo", *features]) == 0
    num_videos = len(dataset.read_videos())

    machines, log = cluster(3), tmp_path / "log.txt"
    options = ["--address", f"127.0.0.1:{PORT}", "--root", str(dataset.root), "--dataset", "demo", *features]
    options += ["--cpus-per-worker", "1", "--shard-seconds", "1"]

    def start() -> subprocess.Popen:
        return job(network, environment, "extract_howto100m.py", *options, log=log)

    def num_written() -> int:
        return sum(len(read_shard(path).videos) for path in dataset.features(LIGHT[0]).glob("*.h5"))

    driver, kills = start(), []
    while True:
        # By progress, not by the clock: a fast machine would be done before it was killed often enough.
        next_kill = (len(kills) + 1) * num_videos / (NUM_KILLS + 2)
        while driver.poll() is None and num_written() < next_kill:
            time.sleep(0.5)
        if driver.poll() is not None:
            break
        what = ("worker", "machine", "driver")[len(kills) % 3]
        if what == "worker":
            there = machines.workers()
            kill_all([rng.choice(there)] if there else [])
            what = what if there else "worker, but none was there"
        elif what == "machine":
            machines.kill_machine(rng.choice(machines.machines[1:]))  # the first one is the head
            machines.add_machine()
        else:
            kill_all(descendants(driver.pid))
            driver.wait()
            driver = start()
        kills.append(what)
    counted = starts(tmp_path)
    needed = sum(shard.num_rows for name in LIGHT for shard in FeatureStore(plain.features(name)).shards)
    again = rows_computed(tmp_path) / needed - 1
    twice = sum(len(shard.videos) for shard in FeatureStore(dataset.features(LIGHT[0])).shards) - num_videos
    begun = counted.total() / num_videos - 1
    print(
        f"{Counter(kills)}; {again:.1%} of the rows computed again, {begun:.1%} of the videos begun again, "
        f"{twice} written twice"
    )
    print(log.read_text()[-3000:])
    assert driver.returncode == 0, log.read_text()[-5000:]
    assert len(kills) >= NUM_KILLS
    for name in LIGHT:
        compare(dataset.features(name), plain.features(name))
        assert store_main(["verify", str(dataset.features(name))]) == 0
        assert len(FeatureStore(dataset.features(name)).video_ids()) == num_videos
    assert set(counted) == {str(dataset.video_path(video)) for video in dataset.read_videos()}
    # A worker that is believed lost may end its shard of a second while its videos are assigned again.
    assert twice <= len(kills), "videos on disk are not assigned again"
    assert again <= 0.15


@pytest.mark.slow
def test_videos_that_crash_hang_or_fill_memory_fail_and_a_hundred_others_are_done(
    tmp_path, network, environment, cluster, short_video
):
    dataset = DatasetFolder(tmp_path / "root", "mine")
    names = [f"good{i:03d}" for i in range(100)] + ["crash", "hang", "greedy"]
    dataset.path.mkdir(parents=True)
    for name in names:
        os.link(short_video, dataset.path / f"{name}.mp4")
    dataset.write_videos([VideoRecord(video_id=name, path=f"{name}.mp4") for name in names])
    cluster(1)
    log = tmp_path / "log.txt"
    options = [
        "--address",
        f"127.0.0.1:{PORT}",
        "--root",
        str(dataset.root),
        "--dataset",
        "mine",
        "--weights",
        "random",
    ]
    code = wait_for(job(network, environment, "extract_howto100m.py", *options, log=log), log, 900)
    assert code == 1, log.read_text()
    assert sorted(FeatureStore(dataset.features("s3d")).video_ids()) == names[:100]
    kinds = kinds_in(dataset.features("s3d") / "failures.jsonl")
    assert kinds == {"crash": "crashed", "hang": "timeout", "greedy": "out_of_memory"}


@pytest.mark.slow
def test_videos_that_could_not_be_reached_are_extracted_by_the_same_call(tmp_path, network, environment, cluster):
    films, server = tmp_path / "films", f"127.0.0.1:{PORT + 1}"
    films.mkdir()
    for number in range(3):
        (films / f"{number}.wav").write_bytes(sound_of_one_second())
    dataset = DatasetFolder(tmp_path / "root", "mine")
    dataset.write_videos([VideoRecord(video_id=f"v{n}", path=f"http://{server}/{n}.wav") for n in range(4)])
    cluster(1)
    options = ["--address", f"127.0.0.1:{PORT}", "--root", str(dataset.root), "--dataset", "mine"]
    options += ["--features", "logmel", "--allow-host", "127.0.0.1"]

    def call(log: Path) -> tuple[str, dict[str, str], dict[str, int]]:
        """What it printed, the listed failures, and the figures of its log."""
        code = wait_for(job(network, environment, "extract_howto100m.py", *options, log=log), log, 900)
        assert code == 1, log.read_text()
        *_, events = sorted((dataset.path / "jobs").glob("extract-*.jsonl"))
        kinds = kinds_in(dataset.features("logmel") / "failures.jsonl")
        return log.read_text(), kinds, read_jsonl(events)[-1]

    printed, kinds, last = call(tmp_path / "first.txt")
    assert kinds == dict.fromkeys(["v0", "v1", "v2", "v3"], "unreachable")
    assert "(unreachable 4;" in printed
    assert (last["videos"], last["videos_left"], last["failures"]) == (4, 0, {"unreachable": 4})

    command = [*network, sys.executable, "-m", "http.server", str(PORT + 1), "--bind", "127.0.0.1"]
    with subprocess.Popen(command, cwd=films, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            printed, kinds, last = call(tmp_path / "second.txt")
        finally:
            process.kill()
    assert sorted(FeatureStore(dataset.features("logmel")).video_ids()) == ["v0", "v1", "v2"]
    assert kinds == {"v3": "missing"}, "the server says so"
    assert re.search(r"\b1 video\b", printed) and "(unreachable" not in printed
    assert (last["videos"], last["videos_left"], last["failures"]) == (4, 0, {"missing": 1})


@pytest.mark.slow
def test_an_index_made_on_a_cluster_equals_that_of_one_machine(tmp_path, network, environment, cluster):
    """Twelve videos of two hours: two parts."""
    here, there = (DatasetFolder(tmp_path / name, "mine") for name in ("here", "there"))
    seconds = np.arange(7200.0)
    times = {"start_seconds": seconds, "end_seconds": seconds + 1, "valid_frames": np.ones(7200, int)}
    rng = np.random.default_rng(0)
    videos = [
        VideoFeatures(video_id=f"v{n}", features=rng.normal(size=(7200, 1024)), duration_seconds=7200.0, **times)
        for n in range(12)
    ]
    write_shard(here.features("s3d"), PROFILES["s3d"], Weights(name="none", sha256="0" * 64), videos, made_with={})
    shutil.copytree(here.path, there.path)
    call = ["--dataset", "mine", "--features", "s3d"]
    assert index_main(["--root", str(here.root), *call]) == 0
    cluster(2)
    log = tmp_path / "log.txt"
    options = ["--address", f"127.0.0.1:{PORT}", "--root", str(there.root), *call]
    assert wait_for(job(network, environment, "index.py", *options, log=log), log, 400) == 0, log.read_text()
    assert "windows of 12 videos" in log.read_text()
    one, other = (
        sorted(open_index_shards(dataset.path / "index" / "s3d"), key=lambda shard: shard.video_ids)
        for dataset in (here, there)
    )
    assert len(one) == 2
    for of_one, of_other in zip(one, other, strict=True):
        assert (of_one.key, of_one.video_ids) == (of_other.key, of_other.video_ids)
        np.testing.assert_array_equal(of_one.spans, of_other.spans)
        np.testing.assert_array_equal(of_one.vectors, of_other.vectors)
    again = wait_for(job(network, environment, "index.py", *options, log=log), log, 400)
    assert again == 0 and "videos added: 0" in log.read_text()


@pytest.mark.slow
def test_tagging_and_plans_equal_those_of_one_machine(small_demo, tmp_path, network, environment, cluster, capsys):
    call = ["--dataset", "demo", "--seed", "3"]
    here, there, log = tmp_path / "here", tmp_path / "there", tmp_path / "log.txt"
    assert preprocess_main(["--root", str(here), *call]) == 0
    cluster(2)
    job_call = job(
        network, environment, "preprocess.py", "--address", f"127.0.0.1:{PORT}", "--root", str(there), *call, log=log
    )
    assert wait_for(job_call, log, 400) == 0, log.read_text()
    names = sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())
    assert sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file()) == names and len(names) >= 5
    assert tables(here) == tables(there)

    dataset = without_features(small_demo, tmp_path / "planned")
    (dataset.path / "broken.mp4").write_bytes(b"no video" * 1000)
    dataset.write_videos([*dataset.read_videos(), VideoRecord(video_id="broken", path="broken.mp4")])
    call = [
        "--root",
        str(dataset.root),
        "--dataset",
        "demo",
        "--features",
        "resnet152,s3d",
        "--weights",
        "random",
        "--plan",
    ]
    capsys.readouterr()
    assert extract_main(call) == 1
    table = capsys.readouterr().out.splitlines()[:4]
    job_call = job(network, environment, "extract_howto100m.py", "--address", f"127.0.0.1:{PORT}", *call, log=log)
    assert wait_for(job_call, log, 400) == 1, log.read_text()
    assert "\n".join(table) in log.read_text() and table[3].startswith("1 of 15 videos ")
    assert re.search(r"\b2 workers\b", log.read_text())
    assert not dataset.features("s3d").exists()


@pytest.mark.slow
def test_a_large_file_of_captions_is_read_and_tagged_as_on_one_machine(tmp_path, network, environment, cluster):
    """Ten pieces and five parts. A driver that is killed in the middle is followed by another one."""
    videos = {
        f"v{n:04d}": howto_video(*[(4.0 * m, 4.0 * m + 3, f"cut the onion in {m} pieces") for m in range(100)])
        for n in range(220)
    }
    folder = tmp_path / "annotations"
    folder.mkdir()
    (folder / "caption.json").write_text(json.dumps(videos))
    here, there, log = tmp_path / "here", tmp_path / "there", tmp_path / "log.txt"
    call = ["--dataset", "howto100m", "--annotations", str(folder)]
    assert preprocess_main(["--root", str(here), *call, "--workers", "2"]) == 0
    cluster(2)
    options = ["--address", f"127.0.0.1:{PORT}", "--root", str(there), *call]
    killed = job(network, environment, "preprocess.py", *options, log=log)
    parts = DatasetFolder(there, "howto100m").captions
    while not list(parts.glob("part-*.parquet")):
        assert killed.poll() is None, log.read_text()
        time.sleep(0.05)
    kill_all(descendants(killed.pid))
    killed.wait()
    made = {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}
    assert wait_for(job(network, environment, "preprocess.py", *options, log=log), log, 400) == 0, log.read_text()
    names = sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file())
    assert sorted(path.relative_to(there) for path in there.rglob("*") if path.is_file()) == names
    assert tables(here) == tables(there)
    assert made.items() <= {path.name: path.stat().st_mtime_ns for path in parts.glob("part-*.parquet")}.items()


@pytest.mark.slow
def test_two_workers_of_ray_train_equal_two_processes_of_torchrun(small_demo, tmp_path, network, environment, cluster):
    root = tmp_path / "root"
    shutil.copytree(small_demo.root, root)
    call = [
        "--root",
        str(root),
        "--dataset",
        "demo",
        "--features",
        "s3d",
        "--num-steps",
        "7",
        "--batch-size",
        "8",
        "--validate-every",
        "3",
    ]
    torchrun = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2", "--no-python"]
    command = [
        *network,
        *torchrun,
        str(Path(sys.executable).with_name("vlalign-train")),
        *call,
        "--run-name",
        "torchrun",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cluster(2)
    log = tmp_path / "log.txt"
    options = ["--address", f"127.0.0.1:{PORT}", "--workers", "2", *call, "--run-name", "ray"]
    assert wait_for(job(network, environment, "train.py", *options, log=log), log, 400) == 0, log.read_text()
    torchrun_events, ray_events = (
        read_jsonl(root / "demo" / "runs" / name / "events.jsonl") for name in ("torchrun", "ray")
    )
    assert ray_events == torchrun_events and len(ray_events) == 7
    # A mistake in the call is said once and not tried again.
    assert wait_for(job(network, environment, "train.py", *options, "--objective", "taca", log=log), log, 200) == 2
    assert "taca" in log.read_text()


SSHD_CONFIG = """
Port 22
ListenAddress 127.0.0.1
HostKey {folder}/hostkey
PidFile {folder}/sshd.pid
AuthorizedKeysFile {folder}/id.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
SetEnv UV_OFFLINE=1 UV_CACHE_DIR={cache} PIP_NO_INDEX=1 PIP_FIND_LINKS={folder}/wheels
"""
# For the cluster launcher, this is another machine, with its own processes, network, users, home and Ray folder. Its
# package index is the cache of uv.
MACHINE = """
set -e
ip link set lo up
mount --bind {folder}/passwd /etc/passwd
mkdir -p /tmp/ray /run/sshd
mount --bind {folder}/ray /tmp/ray
/usr/sbin/sshd -f {folder}/sshd_config
export HOME={folder}/client PATH={bin}:$PATH
unset RAY_AUTH_TOKEN RAY_AUTH_MODE
cd {top}
ray get-auth-token --generate > /dev/null
run() {{ echo "\\$ $*"; "$@" 2>&1; echo "exit code $?"; }}
set +e
cluster={folder}/one_machine.yaml
extract="ray_jobs/extract_howto100m.py --dataset demo --features s3d,resnet152"
run ray submit --start --disable-usage-stats --no-config-cache $cluster ray_jobs/preprocess.py --dataset demo
run ray submit --no-config-cache $cluster $extract
run ray submit --no-config-cache $cluster $extract
run ray down --yes {folder}/one_machine.yaml
"""


@pytest.mark.slow
def test_ray_submit_installs_vlalign_on_a_machine_by_ssh_and_extracts_the_demo_set_there(tmp_path):
    needed = ["/usr/sbin/sshd", "ssh", "ssh-keygen", "rsync", "unshare", "ip"]
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs(*needed))
    folder = tmp_path / "m"
    for name in ("home", "client", "ray", "wheels"):
        (folder / name).mkdir(parents=True)
    uv = str(Path(sys.executable).with_name("uv"))
    about = {"folder": folder, "bin": Path(sys.executable).parent, "top": TOP}
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    uv_alone = folder / "uv.txt"  # as the cluster file and the Makefile do; a file with hashes is no constraint for pip
    uv_alone.write_text(re.search(r"^uv==(.*\\\n)*.*\n", (TOP / "constraints.txt").read_text(), re.MULTILINE)[0])
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    subprocess.run([*pip, "--dest", str(folder / "wheels"), "--requirement", str(uv_alone)], check=True)
    for name in ("id", "hostkey"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(**about, cache=cache))
    users = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(f"{users}vlray:*:0:0::{folder}/home:/bin/bash\n")
    (folder / "home" / ".profile").write_text(f"export PATH={Path(sys.base_prefix) / 'bin'}:$PATH\n. ~/.bashrc\n")
    told = (SCRIPTS / "one_machine.yaml").read_text().replace("MACHINE\n", "127.0.0.1\n").replace("USER\n", "vlray\n")
    (folder / "one_machine.yaml").write_text(told.replace("~/.ssh/id_ed25519", str(folder / "id")))
    (folder / "machine.sh").write_text(MACHINE.format(**about))
    with (tmp_path / "log.txt").open("wb") as log:
        subprocess.run([*APART, "bash", str(folder / "machine.sh")], stdout=log, stderr=log, timeout=1500, check=False)
    printed = (tmp_path / "log.txt").read_text(errors="replace")
    assert printed.count("exit code 0") == 4, printed[-20000:]
    data = folder / "home" / "vlalign_data"
    dataset = DatasetFolder(data, "demo")
    assert len(re.findall(r"\b310 of 310 videos .*\bs3d,resnet152", printed)) == 2
    assert len(read_jsonl(dataset.videos_file)) == 310
    for features in ("s3d", "resnet152"):
        assert len(FeatureStore(dataset.features(features)).video_ids()) == 310
