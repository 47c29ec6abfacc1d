"""Workers and machines that are told to go, and drivers that are stopped or repeated with other features.

Each test prints how much was computed twice (``pytest -s``).
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.clusters import (
    APART,
    PORT,
    SCRIPTS,
    Cluster,
    cluster,
    environment,
    job,
    kill_all,
    network,
    rows_computed,
    starts,
    wait_for,
)
from helpers.needs import PROGRAM, SYSTEM, missing_programs, missing_rights, need
from vlalign.extract.videos.selection import render_missing
from vlalign.preprocess.datasets import demo
from vlalign.ray_jobs.drain import main as drain_main
from vlalign.storage import FeatureStore, VideoRecord
from vlalign.storage.dataset.folder import DatasetFolder

__all__ = ["cluster", "environment", "network"]  # fixtures
ADDRESS = f"127.0.0.1:{PORT}"
LIGHT, HEAVIER = "clip_vit_b32", "clip_vit_b32_map"
NUM_VIDEOS, ROWS_OF_ONE = 40, 8
SECONDS = 300.0


class Extraction:
    """A data set of some short videos, and calls that extract it on a cluster of machines with one core each."""

    def __init__(self, folder: Path, machines: Cluster, network: list[str], environment: dict[str, str]) -> None:
        self.folder, self.machines, self.network, self.environment = folder, machines, network, environment
        self.dataset, self.log = DatasetFolder(folder / "root", "demo"), folder / "log.txt"
        records = [record for record in demo.records(demo.plan_scenes(0)) if isinstance(record, VideoRecord)]
        self.dataset.write_videos(records[:NUM_VIDEOS])
        render_missing(self.dataset, self.dataset.read_videos())

    def start(self, features: str = LIGHT, shard_seconds: str = "1000") -> subprocess.Popen:
        options = ["--address", ADDRESS, "--root", str(self.dataset.root), "--dataset", "demo", "--weights", "random"]
        options += ["--features", features, "--cpus-per-worker", "1", "--shard-seconds", shard_seconds]
        return job(self.network, self.environment, "extract_howto100m.py", *options, log=self.log)

    def drain(self, *options: str) -> int:
        command = [*self.network, sys.executable, "-m", "vlalign.ray_jobs.drain", "--address", ADDRESS, *options]
        with self.log.open("ab") as file:
            done = subprocess.run(command, env=self.environment, stdout=file, stderr=file, check=False, cwd="/")
        return done.returncode

    def wait_until(self, reached: Callable[[], object]) -> float:
        """Return the seconds until it is reached."""
        started = time.monotonic()
        while not reached():
            assert time.monotonic() - started < SECONDS, self.log.read_text()[-3000:]
            time.sleep(0.05)
        return time.monotonic() - started

    def num_begun(self) -> int:
        return starts(self.folder).total() if (self.folder / "starts.txt").exists() else 0

    def num_computed(self) -> int:
        return rows_computed(self.folder) if (self.folder / "rows.txt").exists() else 0

    def num_videos(self, features: str = LIGHT) -> int:
        """Number of videos on disk."""
        return len(FeatureStore(self.dataset.features(features)).video_ids()) if self._has(features) else 0

    def num_rows(self, features: str = LIGHT) -> int:
        """Number of rows on disk."""
        stores = [FeatureStore(self.dataset.features(features))] if self._has(features) else []
        return sum(shard.num_rows for store in stores for shard in store.shards)

    def _has(self, features: str) -> bool:
        return any(self.dataset.features(features).glob("*.h5"))

    def workers_have_ended(self) -> bool:
        return not self.machines.workers()


@pytest.fixture
def extraction(tmp_path, network, environment, cluster) -> Extraction:
    return Extraction(tmp_path, cluster(2), network, environment)


STAGES: dict[str, tuple[str, Callable[[Extraction], object]]] = {
    "loading": ("1000", lambda extraction: extraction.machines.workers()),
    "decoding": ("1000", lambda extraction: extraction.num_begun() >= 12),
    "computing": ("1000", lambda extraction: extraction.num_computed() >= 12),
    "writing": ("0", lambda extraction: extraction.num_videos() >= 10),
}
"""For each stage, ``--shard-seconds`` and what is true when it is reached. With 1000, no video is written before the
end."""


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_that_gets_sigterm_loses_only_begun_videos_and_blames_none(extraction, stage):
    shard_seconds, reached = STAGES[stage]
    driver = extraction.start(shard_seconds=shard_seconds)
    extraction.wait_until(lambda: reached(extraction))
    [gone, *_] = extraction.machines.workers()
    os.kill(gone, signal.SIGTERM)
    seconds = extraction.wait_until(lambda: gone not in extraction.machines.workers())
    assert wait_for(driver, extraction.log, 600) == 0, extraction.log.read_text()
    again, rows = extraction.num_begun() - NUM_VIDEOS, extraction.num_computed() - extraction.num_rows()
    print(f"worker, {stage}: ended after {seconds:.1f} s, {again} videos begun again, {rows} rows computed again")
    assert ", 0 ended early" in extraction.log.read_text()
    assert extraction.num_videos() == NUM_VIDEOS
    assert again <= 2 and rows <= ROWS_OF_ONE, "one is decoded, and one is computed"


@pytest.mark.slow
@pytest.mark.parametrize("has_driver", [True, False])
def test_drained_machines_write_what_is_finished_and_end(extraction, has_driver):
    driver = extraction.start()
    extraction.wait_until(lambda: extraction.num_computed() >= 12)
    if not has_driver:
        kill_all([driver.pid])
        driver.wait()
    started = time.monotonic()
    code = extraction.drain("--all")
    seconds, rows = time.monotonic() - started, extraction.num_computed() - extraction.num_rows()
    kill_all([driver.pid])
    print(f"drain, {has_driver=}: {seconds:.1f} s, {extraction.num_videos()} videos on disk, {rows} rows lost")
    assert code == 0 and "drained in" in extraction.log.read_text(), extraction.log.read_text()
    assert rows <= 2 * ROWS_OF_ONE


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_driver_ends_its_workers(extraction, number):
    driver = extraction.start()
    extraction.wait_until(lambda: extraction.num_computed() >= 12)
    driver.send_signal(number)
    assert driver.wait(60) == 128 + number
    reported = re.findall(r"^videos +(\d+) of", extraction.log.read_text(), re.MULTILINE)
    assert reported == [str(extraction.num_videos())] and int(reported[0]) >= 2, extraction.log.read_text()
    seconds = extraction.wait_until(extraction.workers_have_ended)
    rows = extraction.num_computed() - extraction.num_rows()
    print(f"driver, {number}: its workers ended {seconds:.1f} s later, {rows} rows lost")
    assert rows <= 2 * ROWS_OF_ONE


@pytest.mark.slow
def test_workers_of_an_earlier_call_for_other_features_end_first(extraction):
    driver = extraction.start()
    extraction.wait_until(lambda: extraction.num_computed() >= 12)
    kill_all([driver.pid])
    driver.wait()
    earlier = set(extraction.machines.workers())
    again = extraction.start(f"{LIGHT},{HEAVIER}")
    assert wait_for(again, extraction.log, 600) == 0, extraction.log.read_text()
    assert earlier and not earlier & set(extraction.machines.workers())
    assert [extraction.num_videos(features) for features in (LIGHT, HEAVIER)] == [NUM_VIDEOS] * 2


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1"])
def test_a_drain_without_a_cluster_ends_with_one_line(capsys, address):
    assert drain_main(["--address", address]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("python -m vlalign.ray_jobs.drain: error: ") and address in line


METADATA = """
import http.server, sys
class Metadata(http.server.BaseHTTPRequestHandler):
    asked = 0
    def do_PUT(self):
        self.answer(200, b"token")
    def do_GET(self):
        Metadata.asked += 1
        asked = self.path, self.headers["X-aws-ec2-metadata-token"]
        known = asked == ("/latest/meta-data/spot/instance-action", "token")
        self.answer(200 if known and Metadata.asked > 2 else 404, b'{"action": "terminate"}')
    def answer(self, status, body):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)
http.server.HTTPServer(("169.254.169.254", 80), Metadata).serve_forever()
"""


def test_the_notice_of_a_spot_machine_at_aws_drains_it(tmp_path):
    need(SYSTEM, missing_rights())
    need(PROGRAM, missing_programs("unshare", "ip", "curl"))
    python, metadata = tmp_path / "python", tmp_path / "metadata.py"
    python.write_text('#!/bin/sh\necho "called: $*"\n')
    python.chmod(0o755)
    metadata.write_text(METADATA)
    program = (
        f"ip link set lo up; ip address add 169.254.169.254/32 dev lo; {sys.executable} {metadata} & "
        f"until curl -s -o /dev/null http://169.254.169.254; do sleep 0.2; done; "
        f"bash {SCRIPTS / 'aws_spot_notice.sh'} {python}"
    )
    done = subprocess.run([*APART, "sh", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.endswith("called: -m vlalign.ray_jobs.drain --seconds 100\n")
