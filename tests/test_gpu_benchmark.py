"""The benchmark of a GPU: its short form ends, and its figures are what they say."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    """Return a function that imports a program of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


@pytest.mark.parametrize(
    ("title", "gpu"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100-SXM4-40GB", None),
    ],
)
def test_a_gpu_is_known_by_what_it_calls_itself(benchmark, title, gpu):
    assert benchmark("limits").gpu_of(title) == gpu


def test_a_rate_is_that_of_the_later_half(benchmark):
    rate = benchmark("gpu_rates").rate
    assert rate([0.0, 1.0]) == 1
    slow_at_first = [0.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert rate(slow_at_first) == pytest.approx(1)
    assert rate([0.0, 0.1, 0.2, 10.0]) == pytest.approx(1 / 9.8)


def test_a_measurement_that_takes_long_leaves_less_to_the_others(benchmark, monkeypatch):
    module, now = benchmark("gpu_rates"), 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    shares = module.Shares(end=12.0, number=3)
    assert shares.next() == 4
    now = 10.0
    assert shares.next() == 11
    now = 13.0
    assert shares.next() == 13


@pytest.mark.slow
def test_without_a_gpu_the_short_form_ends_and_says_so(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, str(BENCHMARKS / "gpu.py"), str(tmp_path)]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "gpu-cpu.md").read_text()
    assert written == done.stdout
    assert "**No GPU is here.**" in written and re.search(r"^- [34] passed, 0 failed", written, flags=re.MULTILINE)
    rows = [line.split(" | ") for line in written.splitlines() if line.startswith("| `")]
    assert [row[2] for row in rows] == ["240p", "480p", "1080p"]
    assert all(float(row[column]) > 0 for row in rows for column in (3, 5, 6, 7, 8))
