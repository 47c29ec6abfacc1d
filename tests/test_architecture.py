"""Every import of the package is one that the table in the README allows, and that table is the design's."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.shared import shared

TOP = Path(__file__).resolve().parents[1]
FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")


def read_table(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """{folder: (folders it may import, libraries that live only there)} from a Markdown table."""
    table = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        name = cells[0].strip("`/")
        if len(cells) == 5 and name in FOLDERS:
            ours = set(FOLDERS) - {name} if cells[3] == "all" else set(re.findall(r"\w+", cells[3])) - {"nothing"}
            table[name] = ours, {library.strip() for library in re.sub(r"\([^)]*\)", "", cells[4]).split(",")}
    return table


TABLE = read_table((TOP / "README.md").read_text(encoding="utf-8"))


def imports_of(path: Path) -> list[tuple[int, str]]:
    """(line, absolute module) of every import in a file, those inside functions included."""
    package = ["vlalign", *path.relative_to(TOP).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *((node.module or "").split(".") if node.module else [])]
            found += [(node.lineno, ".".join([*stem, alias.name])) for alias in node.names]
    return found


EXCEPTIONS = {("extract/models/clip.py", "transformers")}
"""CLIP's features are what transformers' own vision tower gives, and no copy of it here would stay the same for long. It is imported
where a network is made: see the test below."""


def complaints(folder: str, module: str) -> str | None:
    ours, _ = TABLE[folder]
    first, *rest = module.split(".")
    if first == "vlalign":
        return None if rest[0] == folder or rest[0] in ours else f"may not import {rest[0]}"
    for other, (_, libraries) in TABLE.items():
        if other != folder and first in libraries:
            return f"may not import {first}, which lives in {other}"
    return None


FILES = sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_imports_follow_the_table(path):
    name, folder = str(path.relative_to(TOP)), path.relative_to(TOP).parts[0]
    imported = [(line, m) for line, m in imports_of(path) if (name, m.split(".")[0]) not in EXCEPTIONS]
    found = [f"{name}:{line} {why}; see README" for line, m in imported if (why := complaints(folder, m))]
    assert not found, "\n".join(found)


def test_the_check_sees_what_is_forbidden():
    assert complaints("train", "vlalign.extract.decode.probe_video") == "may not import extract"
    assert complaints("train", "h5py") == "may not import h5py, which lives in storage"
    assert complaints("storage", "h5py") is None
    assert complaints("extract", "transformers") == "may not import transformers, which lives in train", (
        "but for the one exception"
    )
    assert complaints("preprocess", "vlalign.storage.records.Caption") is None
    assert set(TABLE) == set(FOLDERS)


def test_the_table_is_the_designs():
    assert read_table(shared("design.md").read_text(encoding="utf-8")) == TABLE


def test_what_only_some_networks_need_is_imported_only_for_those():
    program = "import sys, vlalign.extract.models; sys.exit(bool({'transformers', 'torchvision'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_each_folder_is_installed_under_vlalign():
    import vlalign.extract
    import vlalign.storage

    assert Path(vlalign.storage.__file__).parent == TOP / "storage"
    assert Path(vlalign.extract.__file__).parent == TOP / "extract"


PRINTERS = {"storage/common/terminal.py": {"print"}, "ray_jobs/status.py": {"write"}}
"""Who writes to the terminal: what comes from elsewhere is made harmless there. The table of a job moves the cursor itself."""


@pytest.mark.parametrize("path", [path for folder in FOLDERS for path in sorted((TOP / folder).rglob("*.py"))], ids=str)
def test_one_place_prints(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Name) and node.func.id == "print":
            found.add("print")
        elif (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "write"
            and ast.unparse(node.func.value).startswith("sys.std")
        ):
            found.add("write")
    assert found <= PRINTERS.get(str(path.relative_to(TOP)), set())
