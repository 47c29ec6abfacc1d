#!/usr/bin/env python3
"""Mutation testing: change one operator or constant of a module at a time and see whether its tests fail.

    python .ci/mutate.py                    all modules of the table below (hours on two cores)
    python .ci/mutate.py train/metrics.py storage/shards/read.py   some of them

mutmut does the work. It wants packages where Python finds them without an installation, so that the five folders and
the tests are copied to a temporary folder first. It prints how many mutants the tests killed, and keeps the list of
those that survived in ``mutants.txt``.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("extract", "preprocess", "ray_jobs", "storage", "train")
TESTS = {
    "train/losses/*.py": [
        "tests/train/losses",
        "tests/train/objectives/test_taco.py",
    ],
    "train/metrics.py": ["tests/train/test_metrics.py"],
    "extract/decoding/sampling.py": ["tests/extract/decoding/test_sampling.py"],
    "storage/shards/*.py": [
        "tests/storage/stores/test_feature_store.py",
        "tests/storage/stores/test_maintenance.py",
        "tests/storage/shards/test_format.py",
        "tests/storage/shards/test_damaged_shards.py",
        "tests/storage/shards/test_hostile_shards.py",
    ],
}
"""{module: its fast tests}"""
LEFT_OUT = "not slow", "not killed"
"""Marks and names of tests that take too long for each mutant: those that kill writers, and those that fill disks."""


def copy_to(folder: Path, module: str, tests: list[str]) -> None:
    """Lay out a project that mutmut understands."""
    for name in FOLDERS:
        shutil.copytree(TOP / name, folder / "src" / "vlalign" / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(TOP / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__", "benchmarks"))
    settings = [
        "[tool.pytest.ini_options]",
        'pythonpath = ["tests"]',
        'addopts = "--import-mode=importlib"',
        'markers = ["slow: minutes"]',
        'filterwarnings = ["ignore"]',
        "[tool.mutmut]",
        'source_paths = ["src"]',
        f'only_mutate = ["src/vlalign/{module}"]',
        f'pytest_add_cli_args = ["-q", "-x", "-m", "{LEFT_OUT[0]}", "-k", "{LEFT_OUT[1]}", "-p", "no:cacheprovider"]',
        f"pytest_add_cli_args_test_selection = {tests!r}",
        "use_git_change_detection = false",
        "track_dependencies = false",
    ]
    (folder / "pyproject.toml").write_text("\n".join(settings) + "\n", encoding="utf-8")
    # Real data, if this checkout has some beside it. mutmut runs the tests in a folder of its own inside the project.
    (folder / "shared").symlink_to(TOP.parent / "shared")


def mutate(module: str, tests: list[str]) -> tuple[int, int, list[str]]:
    """Return the number of mutants, the number that the tests killed, and the names of those that survived."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "project"
        folder.mkdir()
        copy_to(folder, module, tests)
        # One thread: a process that was forked after OpenMP started its threads would wait for them for ever.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        mutmut = [str(TOP / ".venv/bin/mutmut")]
        subprocess.run([*mutmut, "run", "--max-children", "2"], cwd=folder, env=environment, check=False)
        listed = subprocess.run(
            [*mutmut, "results", "--all", "true"],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
    results = dict(re.findall(r"^\s*(\S+): (.+)$", listed.stdout, re.MULTILINE))
    killed = [name for name, result in results.items() if result in ("killed", "timeout", "segfault")]
    return (
        len(results),
        len(killed),
        sorted(f"{name}: {result}" for name, result in results.items() if name not in killed),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(TESTS), help=f"such as {', '.join(TESTS)}")
    args = parser.parse_args()
    survivors: list[str] = []
    for module in args.modules:
        tests = next((tests for known, tests in TESTS.items() if fnmatch(module, known)), None)
        if tests is None:
            sys.exit(f"{module}: no tests are named for it; expected a module of {', '.join(TESTS)}")
        total, killed, alive = mutate(module, tests)
        survivors += alive
        print(f"{module}: {killed} of {total} mutants killed ({100 * killed / max(total, 1):.1f} %)", flush=True)
    Path("mutants.txt").write_text("\n".join(survivors) + "\n", encoding="utf-8")
    sys.exit(0)


if __name__ == "__main__":
    main()
