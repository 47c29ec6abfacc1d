"""Imports follow the tables in docs/architecture.md, and nothing but the terminal module prints."""

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[1]
PAGE = (TOP / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = ("storage", "extract", "preprocess", "train", "ray_jobs")
FILES = sorted(path for folder in FOLDERS for path in (TOP / folder).rglob("*.py"))


def load_structure():
    """Load the script that measures the structure; it knows how to follow imports."""
    spec = importlib.util.spec_from_file_location("structure", TOP / ".ci" / "structure.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


structure = load_structure()


@cache
def modules():
    """Return {name: module}. Read when a test asks: each process of the tests imports this file."""
    return structure.read_modules(TOP)


@cache
def arrows() -> dict:
    """Return {module: our modules that it imports}, without imports for type checkers."""
    return {name: structure.imports_of(module, modules()) for name, module in modules().items()}


def table_rows(text: str, num_cells: int) -> list[list[str]]:
    """Return the cells of all Markdown table rows with that many cells."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if "|" in line]
    return [cells for cells in rows if len(cells) == num_cells]


# Between the folders


def read_folder_table(text: str) -> dict[str, tuple[set[str], set[str]]]:
    """Read {folder: (folders that it may import, libraries that only it imports)} from the page."""
    table = {}
    for name, _, _, ours, libraries in table_rows(text, 5):
        folder = name.strip("`/")
        if folder in FOLDERS:
            allowed = set(FOLDERS) - {folder} if ours == "all" else set(re.findall(r"\w+", ours)) - {"nothing"}
            table[folder] = allowed, {name.strip() for name in re.sub(r"\([^)]*\)", "", libraries).split(",")}
    return table


TABLE = read_folder_table(PAGE)
EXCEPTIONS = {
    ("extract/models/clip.py", "transformers"),
    ("storage/hub/loading.py", "transformers"),
    ("extract/encoders/hub.py", "transformers"),
    ("train/benchmarks/mteb_model.py", "vlalign.extract"),
    ("train/benchmarks/task_videos.py", "vlalign.extract"),
    ("train/models/video_tower.py", "vlalign.extract"),
    ("train/search/encoder.py", "vlalign.extract"),
    ("train/export/clips.py", "vlalign.extract"),
    ("train/export/source_videos.py", "vlalign.extract"),
    ("train/export/timelines.py", "vlalign.extract"),
    ("train/page/browser_clips.py", "vlalign.extract"),
    ("train/page/example_pictures.py", "vlalign.extract"),
    ("train/page/pictures.py", "vlalign.extract"),
    ("train/sync/settings.py", "vlalign.extract"),
    ("train/sync/sync.py", "vlalign.extract"),
    ("train/sync/sync.py", "vlalign.preprocess"),
}
"""CLIP's features, and those of all hf: encoders, are defined by transformers' own networks; a copy of them here would
soon differ. A query is
encoded by the model that made the features. A clip, a frame or a picture for the page or an export is decoded by
the confined decoder. A sync calls the steps of the other folders, for a server that brings its data set up to date."""


def absolute_imports(path: Path) -> list[tuple[int, str]]:
    """Return (line, absolute module name) of every import in a file, including those inside functions."""
    package = ["vlalign", *path.relative_to(TOP).parts[:-1]]
    imports = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imports += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *((node.module or "").split(".") if node.module else [])]
            imports += [(node.lineno, ".".join([*stem, alias.name])) for alias in node.names]
    return imports


def violation(folder: str, module: str) -> str | None:
    """Say why ``folder`` may not import ``module``; None if it may."""
    allowed, _ = TABLE[folder]
    first, *rest = module.split(".")
    if first == "vlalign":
        return None if rest[0] == folder or rest[0] in allowed else f"may not import {rest[0]}"
    for other, (_, libraries) in TABLE.items():
        if other != folder and first in libraries:
            return f"may not import {first}, which only {other} imports"
    return None


def is_excepted(name: str, module: str) -> bool:
    """Return whether a file may import a module although its folder may not."""
    return any(name == file and f"{module}.".startswith(f"{allowed}.") for file, allowed in EXCEPTIONS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_imports_follow_the_table_of_folders(path):
    name, folder = str(path.relative_to(TOP)), path.relative_to(TOP).parts[0]
    imports = [(line, m) for line, m in absolute_imports(path) if not is_excepted(name, m)]
    violations = [
        f"{name}:{line} {why}; see docs/architecture.md" for line, m in imports if (why := violation(folder, m))
    ]
    assert not violations, "\n".join(violations)


def test_forbidden_imports_between_folders_are_noticed():
    assert set(TABLE) == set(FOLDERS)
    assert violation("train", "vlalign.extract.decode.probe_video") == "may not import extract"
    assert violation("train", "h5py") == "may not import h5py, which only storage imports"
    assert violation("extract", "transformers") == "may not import transformers, which only train imports"
    assert violation("storage", "h5py") is None
    assert violation("preprocess", "vlalign.storage.records.Caption") is None


def top_modules(package: str) -> set[str]:
    """Return the first parts of what a package has installed; packages_distributions looks at each file of all."""
    record = distribution(package).read_text("RECORD") or ""
    return {found[0] for line in record.splitlines() if (found := re.match(r"\w+", line))}


def test_every_dependency_is_imported():
    """By the folder that the table names, if it names one; tensorboard by torch's writer of its events, and
    snowballstemmer by ``import_module``."""
    by_folder = {
        folder: {m.split(".")[0] for path in (TOP / folder).rglob("*.py") for _, m in absolute_imports(path)}
        for folder in FOLDERS
    }
    for folder, (_, libraries) in TABLE.items():
        assert libraries <= by_folder[folder] | {"decord"}, folder
    imported = set().union(*by_folder.values()) | {"tensorboard", "snowballstemmer"}
    _, _, listed = (TOP / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [\n")
    names = re.findall(r'^    "([\w-]+)', listed.partition("\n]")[0], re.MULTILINE)
    assert {"torch", "pytorchvideo"} < set(names)
    unused = [name for name in names if name != "decord" and not imported & top_modules(name)]
    assert not unused


def test_libraries_that_only_some_networks_need_are_imported_with_those():
    some = {"transformers", "torchvision", "pytorchvideo"}
    program = f"import sys, vlalign.extract.models; sys.exit(bool({some} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_folders_are_installed_under_vlalign():
    import vlalign.extract
    import vlalign.storage

    assert Path(vlalign.storage.__file__).parent == TOP / "storage"
    assert Path(vlalign.extract.__file__).parent == TOP / "extract"


def test_every_folder_with_code_is_installed():
    """An editable installation finds the others, too."""
    listed = set(re.findall(r'^    "vlalign\.([\w.]+)",$', (TOP / "pyproject.toml").read_text(encoding="utf-8"), re.M))
    assert listed == {".".join(path.relative_to(TOP).parts[:-1]) for path in FILES}


# Inside the folders


def read_levels(text: str) -> dict[str, list[set[str]]]:
    """Read {folder: levels from top to bottom} from the page. A level is a set of modules and rooms (``tasks/``)."""
    tables = re.findall(r"### `(\w+)/`\n(.*?)(?=\n#)", text, re.DOTALL)
    return {
        folder: [set(re.findall(r"`([\w/]+)`", what)) for n, _, what in table_rows(table, 3) if n.isdecimal()]
        for folder, table in tables
    }


def place_of(module: str) -> str:
    """Return the room of a module, such as "tasks/" of ``train.tasks.steps``, or the name of one that is in none."""
    folder, first, *rest = module.split(".")
    top = modules().get(f"{folder}.{first}")
    return f"{first}/" if rest or (top is not None and top.path.name == "__init__.py") else first


def wrong_imports(arrows: dict[str, set[str]], folder: str, levels: list[set[str]]) -> list[str]:
    """Return the imports of a folder that lead to another room which does not stand on a lower level."""
    level = {place: number for number, places in enumerate(levels) for place in places}
    return [
        f"{name} imports {target}, which does not stand below it in docs/architecture.md"
        for name, targets in sorted(arrows.items())
        for target in sorted(targets)
        if name.startswith(f"{folder}.")
        and target.startswith(f"{folder}.")
        and place_of(name) != place_of(target)
        and level[place_of(target)] <= level[place_of(name)]
    ]


LEVELS = read_levels(PAGE)


@pytest.mark.parametrize("folder", LEVELS)
def test_every_module_stands_on_one_level(folder):
    listed = [place for places in LEVELS[folder] for place in places]
    assert len(listed) == len(set(listed))
    assert set(listed) == {place_of(name) for name in modules() if name.startswith(f"{folder}.")}


@pytest.mark.parametrize("folder", LEVELS)
def test_imports_inside_a_folder_run_downward(folder):
    assert wrong_imports(arrows(), folder, LEVELS[folder]) == []


def test_the_levels_of_four_folders_are_on_the_page():
    assert set(LEVELS) == {"train", "extract", "storage", "preprocess"}


def test_upward_and_sideways_imports_are_noticed():
    levels = [{"trainer"}, {"tasks/"}, {"settings", "metrics"}]
    down = {"train.trainer": {"train.tasks.steps"}, "train.tasks.steps": {"train.settings", "train.tasks.vqa"}}
    assert wrong_imports(down, "train", levels) == []
    for name, target in [("train.settings", "train.tasks.steps"), ("train.settings", "train.metrics")]:
        [line] = wrong_imports({name: {target}}, "train", levels)
        assert line.startswith(f"{name} imports {target}")


def test_no_modules_import_each_other_in_a_circle():
    assert structure.circles(arrows()) == []


def test_circles_are_noticed(tmp_path):
    for folder in FOLDERS:
        (tmp_path / folder).mkdir()
    lines = {
        "a": "from .b import x",
        "b": "def f():\n    from . import c",
        "c": "from .a import y",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .e import z",
        "e": "from .d import w",
    }
    for name, text in lines.items():
        (tmp_path / "train" / f"{name}.py").write_text(text, encoding="utf-8")
    made = structure.read_modules(tmp_path)
    assert structure.circles({name: structure.imports_of(module, made) for name, module in made.items()}) == [
        ["train.a", "train.b", "train.c"]
    ]


# Printing

PRINTERS = {"storage/common/terminal.py": {"print"}, "ray_jobs/status.py": {"write"}}
"""The only modules that write to the terminal. The first escapes control characters; the second moves the cursor."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_only_the_terminal_module_prints(path):
    calls = [node.func for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    prints = {"print" for call in calls if isinstance(call, ast.Name) and call.id == "print"}
    writes = {
        "write"
        for call in calls
        if isinstance(call, ast.Attribute) and call.attr == "write" and ast.unparse(call.value).startswith("sys.std")
    }
    assert prints | writes <= PRINTERS.get(str(path.relative_to(TOP)), set())


# Other systems

OF_SOME_SYSTEMS = {"fcntl", "grp", "msvcrt", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty", "winreg"}
"""Modules of Python that Windows or Linux lacks; only ``storage/common/system.py`` imports any."""


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(TOP)))
def test_only_one_module_imports_what_some_systems_lack(path):
    imported = {module.partition(".")[0] for _, module in absolute_imports(path)} & OF_SOME_SYSTEMS
    assert not imported or path == TOP / "storage" / "common" / "system.py"
