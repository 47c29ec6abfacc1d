"""Metrics of an extraction as Prometheus reads them from a real Ray, their Grafana dashboard, and names of workers."""

import json
import os
import re
import subprocess
import sys

from helpers.clusters import START_TIMED_OUT, STARTS, TOP, network
from vlalign.ray_jobs.metrics import COUNTERS, GAUGES, PREFIX

__all__ = ["network"]  # a fixture

PROGRAM = """
import json, sys, time, urllib.request
from pathlib import Path
import ray
from vlalign.extract.settings import WorkerSettings
from vlalign.extract.pipeline.run_state import MachineState, RunState
from vlalign.ray_jobs.actors import existing_workers, start_worker
from vlalign.ray_jobs.cluster import MachineNames, Share, connect, spread
from vlalign.ray_jobs.metrics import Metrics
from vlalign.storage.dataset.folder import DatasetFolder

connect()
[node] = ray.nodes()
machine = MachineNames().name(node["NodeID"])
metrics = Metrics("mine")
about = dict(time="2026-01-01T00:00:00+00:00", seconds=1.0, hours=1.0, partial=1, workers=1, worker_hours=1.0,
             compute_share=0.5, seconds_left=60, videos_per_second=0.5, ended_workers=2, failures={"missing": 2})
def state(videos, failed):
    here = MachineState(name=machine, state="working", workers=1, videos=videos, partial=1, rows=10 * videos,
                        hours=2.0, compute_share=0.25, failures={"missing": failed})
    return RunState(videos=videos, videos_left=10 - videos, rows=10 * videos, bytes=100, machines=(here,), **about)
metrics.show(state(2, 1))
metrics.show(state(4, 2))
settings = WorkerSettings(dataset=DatasetFolder(Path(sys.argv[1]), "mine"), weights={})
worker = start_worker("extract-mine-s3d-0123-4567", 0, settings, Share(1.0, 0.0, 1), 1.0)
label = ray.get(worker.actor.__ray_call__.remote(repr))
names = existing_workers("extract-mine-s3d-0123-")
ray.kill(worker.actor)

def task_name(_):
    return ray.get_runtime_context().get_task_name()

[task] = spread(task_name, [0], doing="probing")
text, deadline = "", time.monotonic() + 60
while "ray_vlalign_extract_failures" not in text or "ray_vlalign_extract_videos_left" not in text:
    assert time.monotonic() < deadline, text[-2000:]
    time.sleep(1)
    metrics.show(state(4, 2))
    address = f"http://127.0.0.1:{node['MetricsExportPort']}/metrics"
    text = urllib.request.urlopen(address, timeout=10).read().decode()
found = [line for line in text.splitlines() if "vlalign" in line]
print(json.dumps({"metrics": found, "machine": machine, "names": names, "label": label, "task": task}))
"""


def test_prometheus_reads_the_metrics_and_workers_and_tasks_have_names(network, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_TMPDIR": "/tmp", "OMP_NUM_THREADS": "1"}
    for _ in range(STARTS):
        command = [*network, sys.executable, str(tmp_path / "program.py"), str(tmp_path)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        if START_TIMED_OUT not in done.stderr:
            break
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    values = {}
    for line in seen["metrics"]:
        if not line.startswith("#"):
            name, tags, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line).groups()
            tags = dict(re.findall(r'(\w+)="([^"]*)"', tags))
            assert tags["dataset"] == "mine"
            values[name.removeprefix(f"ray_{PREFIX}"), tags.get("machine"), tags.get("kind")] = float(value)
    assert {name for name, _, _ in values} == {*COUNTERS, *GAUGES}
    machine = seen["machine"]
    assert values["videos_done", None, None] == 4 and values["videos_left", None, None] == 6
    assert values["videos_total", machine, None] == 4 and values["rows_total", machine, None] == 40
    assert values["failures_total", machine, "missing"] == 2 and values["compute_ratio", machine, None] == 0.25
    assert values["video_seconds_total", machine, None] == 7200
    types = dict(line.split()[2:4] for line in seen["metrics"] if line.startswith("# TYPE"))
    assert types[f"ray_{PREFIX}videos_total"] == "counter" and types[f"ray_{PREFIX}videos_left"] == "gauge"
    assert seen["names"] == ["extract-mine-s3d-0123-4567"] and seen["task"] == "probing"
    assert seen["label"] == f"extract mine on {os.uname().nodename}"


def test_the_dashboard_asks_for_metrics_that_exist():
    """Its structure is that of Grafana's dashboard JSON: panels on a grid of 24 columns, which do not overlap."""
    board = json.loads((TOP / "ray_jobs" / "grafana.json").read_text(encoding="utf-8"))
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    variables = {each["name"] for each in board["templating"]["list"]}
    ids, cells, asked = set(), set(), set()
    for panel in board["panels"]:
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["id"] not in ids
        ids.add(panel["id"])
        at = panel["gridPos"]
        area = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not area & cells
        cells |= area
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")") and target["refId"]
            assert set(re.findall(r"\$(\w+)", json.dumps(panel))) <= variables
            names = re.findall(r"ray_vlalign_extract_(\w+)", target["expr"])
            assert len(names) == 1
            tags = (COUNTERS | GAUGES)[names[0]][1]
            assert set(re.findall(r"by \((\w+)\)", target["expr"])) <= set(tags)
            assert ("rate(" in target["expr"]) <= (names[0] in COUNTERS)
            asked |= {*names}
    assert asked == {*COUNTERS, *GAUGES}
