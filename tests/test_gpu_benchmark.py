"""The kit that measures a GPU: what fails costs nothing else, a rehearsal ends, and its figures are what they say."""

import importlib
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.extractors import stub
from vlalign.extract.decoding.sampling import num_windows
from vlalign.extract.extractor import Extractor
from vlalign.extract.pipeline import engine

KIT = Path(__file__).parent / "benchmarks" / "gpu"


@pytest.fixture
def kit(monkeypatch):
    """Return a function that imports a program of the kit."""
    monkeypatch.syspath_prepend(str(KIT))
    return importlib.import_module


@pytest.fixture
def step_of(kit, tmp_path):
    """Return a function that runs a step, given as the source of its program, and returns its lines and whether all
    went well."""

    def of(source: str, *, seconds: float = 300, prints_rows: bool = True):
        module, program = kit("run"), tmp_path / "program.py"
        program.write_text(source)
        step = module.Step("a step", seconds, [str(program)], prints_rows)
        place = module.Place(tmp_path, dict(os.environ), {})
        return module.lines_of(step, time.monotonic() + seconds, tmp_path / "step.log", place)

    return of


ROWS = """
import os, sys, time
print("columns: case | result")
for case in ["a", "b", "c"][int(sys.argv[-1]):]:
    print(f"begins: {case}", flush=True)
    %s
    print(f"| {case} | measured |", flush=True)
"""


@pytest.mark.parametrize(
    ("broken", "failure"),
    [
        ("if case == 'b': os.kill(os.getpid(), 9)", "failed: its process ended with status -9"),
        ("if case == 'b': os._exit(3)", "failed: its process ended with status 3"),
        ("if case == 'b': sys.exit('out of it')", "failed: its process ended with status 1"),
    ],
)
def test_a_row_that_ends_its_process_costs_that_row_alone(step_of, broken, failure):
    lines, is_well = step_of(ROWS % broken)
    rows = ["| case | result |", "|---|---|", "| a | measured |", f"| b | {failure} |", "| c | measured |"]
    assert lines[:5] == rows and not is_well


def test_a_step_whose_rows_are_all_measured_is_well(step_of):
    lines, is_well = step_of(ROWS % "pass")
    assert lines[2:5] == [f"| {case} | measured |" for case in "abc"] and is_well


@pytest.mark.slow  # it waits for its limit
def test_a_step_that_hangs_keeps_the_rows_before_and_ends_with_all_that_it_started(step_of, tmp_path):
    started = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid"
    hang = f"import subprocess; case == 'b' and (open('pid', 'w').write(str({started})), time.sleep(600))"
    lines, is_well = step_of(ROWS % hang, seconds=60)
    assert lines[:3] == ["| case | result |", "|---|---|", "| a | measured |"] and not is_well
    assert "Not all rows were measured: no time was left." in lines
    pid = int((tmp_path / "pid").read_text())
    status, deadline = Path(f"/proc/{pid}/status"), time.monotonic() + 30  # a killed process ends when it is scheduled
    while is_alive := status.exists() and "zombie" not in status.read_text():
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    assert not is_alive


def test_a_step_that_cannot_begin_is_tried_once(step_of):
    lines, is_well = step_of("import nowhere")
    assert lines[:2] == ["", "Not all rows were measured: its process ended with status 1."] and not is_well


def test_an_error_in_a_row_costs_that_row_alone(kit, capsys):
    def cells(name: str) -> list[str]:
        if name == "b":
            raise ValueError("two | lines\nof words")
        return ["measured"]

    kit("measure").print_rows("case | result", [("0",), ("a",), ("b",), ("c",)], cells, skip=1, seconds=600)
    printed = capsys.readouterr()
    rows = [line for line in printed.out.splitlines() if line.startswith("| ")]
    assert rows == ["| a | measured |", "| b | failed: ValueError: two / lines |", "| c | measured |"]
    assert "Traceback" in printed.err


def test_tests_are_counted_and_those_that_did_not_pass_are_named(step_of):
    source = """
print("tests/test_on_gpu.py::test_a PASSED      [ 25%]")
print("[gw0] [ 50%] PASSED tests/test_on_gpu.py::test_b")
print("[gw1] [ 75%] FAILED tests/test_on_gpu.py::test_c")
print("tests/test_on_gpu.py::test_d SKIPPED (no NVDEC)  [100%]")
print("SKIPPED [1] tests/test_on_gpu.py:70: no NVDEC")
print("FAILED tests/test_on_gpu.py::test_c - assert 1 == 2")
raise SystemExit(1)
"""
    lines, is_well = step_of(source, prints_rows=False)
    assert lines[:3] == [
        "- 2 passed, 1 failed, 1 skipped",
        "- SKIPPED [1] tests/test_on_gpu.py:70: no NVDEC",
        "- FAILED tests/test_on_gpu.py::test_c - assert 1 == 2",
    ]
    assert not is_well


def test_what_travels_is_pinned(kit):
    pinned = re.findall(r"^([a-z0-9-]+)==", (KIT.parents[2] / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert {name for names in kit("prepare").SITES.values() for name in names} <= set(pinned)


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
def test_a_gpu_is_known_by_what_it_calls_itself(kit, title, gpu):
    assert kit("limits").gpu_of(title) == gpu


def test_a_rate_is_that_of_the_later_half(kit):
    rate = kit("rates").rate
    assert rate([0.0, 1.0]) == 1
    slow_at_first = [0.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert rate(slow_at_first) == pytest.approx(1)
    assert rate([0.0, 0.1, 0.2, 10.0]) == pytest.approx(1 / 9.8)


@pytest.mark.parametrize("name", ["s3d", "resnet152", "clip_vit_b32", "r2plus1d", "slowfast"])
def test_videos_of_the_pipeline_are_two_full_batches_and_decoders_begin_apart(kit, name):
    extractor = stub(name, 16)
    profile = extractor.profile
    jobs = itertools.islice(kit("rates").whole_batches(extractor, Path("a.mp4"), 5), 9)
    frames = [round((job.seconds or 0) * profile.fps) for job in jobs]
    assert [num_windows(of, profile.window, profile.stride) for of in frames] == [4, 7, 10, 13, 16, 32, 32, 32, 32]


@pytest.fixture
def pipeline(kit, monkeypatch, tmp_path):
    """Return a function that measures an extraction with two decoders and a network that takes so many seconds for
    each window, and returns both rates and the sizes of the batches."""
    rates = kit("rates")
    monkeypatch.setitem(rates.SIZES, "240p", (64, 48))
    for module in (rates, engine):
        monkeypatch.setattr(module, "num_decode_processes", lambda *_: 2)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # as on a GPU, one batch after the other

    def of(seconds_a_window: float, seconds: float):
        extractor, sizes = stub("s3d", 4), []

        def features(extractor, frames):
            time.sleep(seconds_a_window * len(frames))
            sizes.append(len(frames))
            return torch.zeros(len(frames), extractor.profile.dimension)

        monkeypatch.setattr(Extractor, "features", features)
        path = rates.make_video(tmp_path, "240p", rates.seconds_of(extractor, 8))
        return *rates.decoding_and_together(extractor, path, seconds, 6 * seconds), sizes

    return of


def test_a_slow_network_is_the_rate_of_both_together_in_full_batches(pipeline):
    decoding, together, sizes = pipeline(0.04, 2)
    assert together < decoding
    assert together == pytest.approx(1 / 0.04, rel=0.25)
    assert set(sizes) == {4}


def test_a_fast_network_leaves_the_rate_of_decoding(pipeline):
    decoding, together, _ = pipeline(0, 1)
    assert decoding / 2 < together < 2 * decoding  # other work may slow either


def test_too_few_windows_or_batches_give_no_rate(pipeline):
    with pytest.raises(TimeoutError, match="are too few for a rate"):
        pipeline(0.1, 0.2)


@pytest.mark.slow
def test_a_rehearsal_without_a_gpu_ends_and_says_what_it_is(tmp_path):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    call = [sys.executable, str(KIT / "run.py"), str(tmp_path), "--seconds", "1500"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    written = (tmp_path / "table.md").read_text()
    assert written == done.stdout
    assert "**No GPU is here.**" in written and re.search(r"^- [23] passed", written, flags=re.MULTILINE)
    assert "no GPU on this machine" in written  # NVDEC
    rows = [line.split(" | ")[0] for line in written.splitlines() if line.startswith("| ")]
    networks = ["| features", "| clip_vit_b32", "| resnet152"]
    assert rows == [
        *networks,
        "| precision",
        "| bf16",
        "| features",
        "| clip_vit_b32",
        "| precision",
        *networks,
        "| features",
    ]
    assert "failed: " not in written
