"""vlalign asks macOS and Windows for nothing that they lack (see ``helpers.systems``)."""

from pathlib import Path

import pytest
from helpers.systems import SYSTEMS, run_on

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("extract", "preprocess", "ray_jobs", "storage", "train")
MODULES = sorted(
    ".".join(("vlalign", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__")
    for folder in FOLDERS
    for path in (TOP / folder).rglob("*.py")
)
SCRIPTS = {"vlalign.ray_jobs.rehearse", "vlalign.ray_jobs.rehearsal.stubs"}
each_system = pytest.mark.parametrize("system", SYSTEMS)


@each_system
def test_every_module_is_imported(system, tmp_path):
    names = [name for name in MODULES if name not in SCRIPTS]
    assert len(names) > 300
    done = run_on(system, tmp_path, f"import importlib\nfor name in {names}:\n    importlib.import_module(name)")
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_a_system_lacks_is_missed(tmp_path):
    """The other tests here would see it"""
    folder = tmp_path / "vlalign_other"
    folder.mkdir()
    (folder / "__init__.py").write_text("import os\nimport fcntl\n")
    done = run_on("Windows", tmp_path, "import vlalign_other")
    assert "No module named 'fcntl'" in done.stderr
    (folder / "__init__.py").write_text("import os, sys\nprint(sys.platform)\nos.fork")
    done = run_on("Windows", tmp_path, "import vlalign_other")
    assert done.stdout == "win32\n" and "has no attribute 'fork'" in done.stderr
