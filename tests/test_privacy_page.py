"""docs/privacy.md: its tests exist, and libraries' telemetry is off where it says so."""

import ast
import os
import re
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
TEXT, _, LIST = (TOP / "docs" / "privacy.md").read_text(encoding="utf-8").partition("\n## Tests\n")
NAMED = re.findall(r"`([\w/]+\.py)`:((?:\s*`test_\w+`,?)+)", LIST)


def test_the_numbers_are_those_of_the_list():
    assert set(re.findall(r"\[(\d+)\]", TEXT)) == set(re.findall(r"^(\d+)\. ", LIST, re.MULTILINE)) != set()


@pytest.mark.parametrize(("file", "names"), NAMED)
def test_the_tests_exist(file, names):
    tree = ast.parse((TOP / file).read_text(encoding="utf-8"))
    there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert set(re.findall(r"test_\w+", names)) <= there


def test_usage_statistics_of_ray_are_off_wherever_it_is_started(monkeypatch):
    from vlalign.ray_jobs import cluster

    class Stopped(Exception):
        """Raised in place of starting Ray."""

    def stop(_address):
        raise Stopped

    monkeypatch.setattr(
        os, "environ", {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    )
    monkeypatch.setattr(cluster, "running_cluster", stop)
    with pytest.raises(Stopped):
        cluster.connect()
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    started = [
        line
        for path in sorted((TOP / "ray_jobs").rglob("*"))
        if path.suffix in {".yaml", ".sh", ".sbatch"}
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bray start --", line)
    ]
    assert started and [line for line in started if "--disable-usage-stats" not in line] == []
    assert "RAY_USAGE_STATS_ENABLED=0" in (TOP / "ray_jobs" / "Dockerfile").read_text(encoding="utf-8")
