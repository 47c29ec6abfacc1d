"""A GPU in 8 minutes: ``python3 tests/benchmarks/gpu/run.py FOLDER``. See README.md beside this file.

FOLDER gets ``table.md`` and a log of each step. Needs Python's standard library alone; what else is needed comes from
``.gpu/packages.tar.gz`` (``prepare.py``), if that is there, or is installed.
"""

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[2]
PACKAGES = TOP / ".gpu" / "packages.tar.gz"
CODE = ("extract", "preprocess", "ray_jobs", "storage", "train")
DRIVER_LIBRARIES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib")
"""Where NVIDIA's containers have the driver's libraries; the loader does not always look there."""
TOTAL_SECONDS = 480
FACTS_SECONDS = 60
MIN_SECONDS = 5
"""With less time left, a step is not begun."""
SHORT_TESTS = "(golden and resnet152) or (an_extractor and s3d-fp32)"
"""Of the tests, those that run on the pretended GPU here."""
FACTS = """
import json, os, platform, torch, torchvision, transformers, numpy
from vlalign.extract.decoding import sandbox
on_gpu = torch.cuda.is_available()
print(json.dumps({
    "on_gpu": on_gpu,
    "device": torch.cuda.get_device_name() if on_gpu else "cpu",
    "GPU memory, GiB": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if on_gpu else "-",
    "cores": len(os.sched_getaffinity(0)),
    "python": platform.python_version(),
    "torch": torch.__version__,
    "cuDNN": torch.backends.cudnn.version() if on_gpu else "-",
    "torchvision": torchvision.__version__,
    "transformers": transformers.__version__,
    "numpy": numpy.__version__,
    "the decoders' sandbox lacks": str(sandbox.missing_protections() or "nothing"),
}))
"""


@dataclass(frozen=True)
class Step:
    """One part of the table: a process of its own, with a limit."""

    title: str
    max_seconds: float
    call: list[str]
    """A program and its arguments, for Python."""
    prints_rows: bool = True
    """It prints rows (``measure.py``). Otherwise it is a run of pytest."""
    more_environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where the steps run."""

    code: Path
    environment: dict[str, str]
    torchcodec: dict[str, str]
    """What is set besides for torchcodec, in a step that needs it."""


def set_up(work: Path) -> Place:
    """Unpack what was packed. Without it, everything is installed, and the code runs where it is."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "GOMP_SPINCOUNT": "10000"}
    environment["PYTHONDONTWRITEBYTECODE"] = ""  # processes that tests start would compile everything again
    if not PACKAGES.exists():
        return Place(TOP, environment, {})
    with tarfile.open(PACKAGES) as packed:
        packed.extractall(work, filter="data")
    code, site = work / "vlalign", work / "site"
    code.mkdir()
    for name in (*CODE, "tests"):
        shutil.copytree(TOP / name, code / name)
    shutil.copy(TOP / "pyproject.toml", code)
    (site / "vlalign").mkdir()
    for name in CODE:
        (site / "vlalign" / name).symlink_to(code / name)
    version = re.search(r'^version = "(.*)"', (code / "pyproject.toml").read_text(), flags=re.MULTILINE)
    about = site / "vlalign.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(f"Metadata-Version: 2.1\nName: vlalign\nVersion: {version[1] if version else 0}\n")
    environment["PYTHONPATH"] = str(site)
    libraries = work / "ffmpeg"
    libraries.mkdir()
    for path in [*(site / "av.libs").glob("libav*.so*"), *(site / "av.libs").glob("libsw*.so*")]:
        # libavcodec-1a2b3c4d.so.62.1.100 as libavcodec.so.62
        (libraries / re.sub(r"-[0-9a-f]{6,}(\.so\.\d+).*", r"\1", path.name)).symlink_to(path)
    subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-j", "0", str(site), str(code)], check=False, capture_output=True
    )
    paths = {"PYTHONPATH": f"{site}{os.pathsep}{work / 'torchcodec-site'}"}
    folders = [str(libraries), str(site / "av.libs"), os.environ.get("LD_LIBRARY_PATH"), *DRIVER_LIBRARIES]
    paths["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, folders))
    return Place(code, environment, paths)


def run(call: list[str], seconds: float, log: Path, place: Place, more: Mapping[str, str]) -> tuple[int | None, str]:
    """Run a program of Python; end it and all that it started when its time is up.

    Its output goes straight into a file: what it started and what outlives it cannot hold this process up.

    Returns:
        Its exit status, None if its time was up, and what it printed.
    """
    with log.open("ab") as file:
        began = file.tell()
        process = subprocess.Popen(
            [sys.executable, *call],
            cwd=place.code,
            env=place.environment | more,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_bytes()[began:].decode(errors="replace")


def rows_of(step: Step, end: float, log: Path, place: Place) -> tuple[list[str], bool]:
    """Run a step that prints rows. If its process dies at a row, another one goes on after that row.

    A program prints "columns: A | B", for each row "begins: NAME" and then "| ... |", and skips the first N rows with
    "--skip N".

    Returns:
        Lines of a table, and whether all rows were measured.
    """
    columns, rows = "", []
    while True:
        left = end - time.monotonic()
        code, printed = run([*step.call, "--skip", str(len(rows))], left, log, place, step.more_environment)
        lines = printed.splitlines()
        begun = [line.removeprefix("begins: ") for line in lines if line.startswith("begins: ")]
        found = [line for line in lines if line.startswith("| ")]
        columns = next((line.removeprefix("columns: ") for line in lines if line.startswith("columns: ")), columns)
        rows += found
        why = "no time was left" if code is None else f"its process ended with status {code}"
        if code and len(begun) > len(found):
            rows.append(f"| {begun[-1]} | failed: {why} |")
        if not code or not begun:
            break
    is_whole = code == 0 and not any("| failed: " in row for row in rows)
    titles = [f"| {columns} |", "|---" * (columns.count(" | ") + 1) + "|"] if columns else []
    rest = [] if code == 0 else ["", f"Not all rows were measured: {why}."]
    return [*titles, *rows, *rest], is_whole


def tests_of(step: Step, end: float, log: Path, place: Place) -> tuple[list[str], bool]:
    """Run pytest; return lines that say how it went, and whether it passed."""
    code, printed = run(step.call, end - time.monotonic(), log, place, step.more_environment)
    words = ("PASSED", "FAILED", "SKIPPED", "ERROR")
    counts = {word: len(re.findall(rf"^.*(?:\b{word}\b.*%|%.*\b{word}\b)", printed, re.MULTILINE)) for word in words}
    told = ", ".join(f"{number} {word.lower()}" for word, number in counts.items() if number or word == "PASSED")
    if code is None:
        told += "; no time was left for the others"
    lines = [f"- {told}"]
    lines += [f"- {line[:300]}" for line in re.findall(r"^(?:FAILED|ERROR|SKIPPED) .*", printed, re.MULTILINE)]
    if code not in (None, 0, 1):
        lines += [f"- {line[:300]}" for line in printed.splitlines()[-5:]]
    return lines, code == 0


def steps(on_gpu: bool, place: Place, videos: Path) -> list[Step]:
    """Return the steps, the most valuable first."""
    folder = place.code / HERE.relative_to(TOP)

    def measure(what: str, precision: str) -> list[str]:
        call = [str(folder / "measure.py"), what, precision, "--videos", str(videos)]
        return call if on_gpu else [*call, "--pretend"]

    def test(chosen: str, workers: int) -> list[str]:
        call = "-m pytest -v --tb=short -ra -p no:cacheprovider tests/test_on_gpu.py --numprocesses"
        return [*call.split(), str(workers), "-k", chosen]

    tests = test("not video_engine and not slowfast_r101", 8) if on_gpu else test(SHORT_TESTS, 0)
    threads = {"OMP_NUM_THREADS": "2" if on_gpu else "1"}
    return [
        Step("Networks alone, bf16", 110, measure("alone", "bf16")),
        Step(f"Tests on {'this GPU' if on_gpu else 'a pretended GPU, a few of them'}", 160, tests, False, threads),
        Step("Training", 60, measure("training", "bf16")),
        Step("Whole pipeline, bf16", 110, measure("pipeline", "bf16")),
        Step("Training, compiled", 130, measure("compiled", "bf16")),
        Step("NVDEC", 60, test("video_engine", 0), False, place.torchcodec),
        Step("Networks alone, fp32", 60, measure("alone", "fp32")),
        Step("S3D: launches and copies", 30, measure("launches", "bf16")),
    ]


def lines_of(step: Step, end: float, log: Path, place: Place) -> tuple[list[str], bool]:
    """Run a step; return the lines of its part of the table, and whether all went well."""
    end = min(end, time.monotonic() + step.max_seconds)
    if end - time.monotonic() < MIN_SECONDS:
        return ["No time was left."], False
    began = time.monotonic()
    lines, is_well = (rows_of if step.prints_rows else tests_of)(step, end, log, place)
    return [*lines, "", f"In {time.monotonic() - began:.0f} s."], is_well


def heading(place: Place, log: Path) -> tuple[list[str], bool, bool]:
    """Return lines that say what the machine has, whether there is a GPU, and whether all of that is known."""
    code, printed = run(["-c", FACTS], FACTS_SECONDS, log, place, {})
    printed_lines = printed.splitlines()
    if code == 0:
        facts = json.loads(printed_lines[-1])
        on_gpu = facts.pop("on_gpu")
        title, known = facts.pop("device"), ", ".join(f"{name} {value}" for name, value in facts.items())
    else:
        on_gpu = shutil.which("nvidia-smi") is not None
        why = f"no answer in {FACTS_SECONDS} s" if code is None else (printed_lines or [f"status {code}"])[-1]
        title, known = "Unknown device", f"PyTorch and vlalign cannot be imported here: {why}"
    lines = [f"# {title}", "", f"{datetime.date.today()}: {known}."]
    if not on_gpu:
        lines += ["", "**No GPU is here.** A rehearsal on a pretended GPU: its figures say nothing."]
    return lines, on_gpu, code == 0


def parts(folder: Path, seconds: float) -> Iterator[tuple[list[str], bool]]:
    """Yield the parts of the table as they are made, and whether all went well in each."""
    began = time.monotonic()
    end = began + seconds
    with tempfile.TemporaryDirectory(dir=folder) as work:
        place = set_up(Path(work))
        lines, on_gpu, is_known = heading(place, folder / "machine.log")
        yield [*lines, "", f"Ready after {time.monotonic() - began:.0f} s."], is_known
        for number, step in enumerate(steps(on_gpu, place, Path(work)), start=1):
            log = folder / f"{number}-{re.sub(r'[^a-z0-9]+', '-', step.title.lower())}.log"
            lines, is_well = lines_of(step, end, log, place)
            yield ["", f"## {step.title}", "", *lines], is_well
    yield ["", f"All in {time.monotonic() - began:.0f} s."], True


def main() -> int:
    """Run all steps, and print and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=TOTAL_SECONDS, help="limit of all steps (default: %(default)s)"
    )
    args = parser.parse_args()
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for log in folder.glob("*.log"):
        log.unlink()
    all_well = True
    with (folder / "table.md").open("w", encoding="utf-8") as file:
        for lines, is_well in parts(folder, args.seconds):
            all_well &= is_well
            for to in (sys.stdout, file):
                print(*lines, sep="\n", file=to, flush=True)
    return int(not all_well)


if __name__ == "__main__":
    sys.exit(main())
