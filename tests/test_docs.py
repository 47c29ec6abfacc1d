"""What the documentation names exists: pages, sections, files, commands, options, data sets and objectives."""

import ast
import contextlib
import importlib
import io
import re
import shlex
from pathlib import Path

import pytest
from vlalign.storage.cli import all_commands

TOP = Path(__file__).resolve().parents[1]
PAGES = [
    *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(TOP / "tests" / "benchmarks" / name for name in ("README.md", "gpu/README.md")),
    *sorted((TOP / "docs").glob("*.md")),
    *sorted((TOP / "docs" / "tutorials").glob("*.md")),
    *sorted((TOP / "docs" / "guides").glob("*.md")),
]
MOST_BYTES_OF_README, MOST_LINES_OF_PAGE = 6_000, 250
COMMANDS = {f"vlalign-{name}": module for name, (module, _) in all_commands.COMMANDS.items()}


def each_page(function):
    return pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))(function)


def anchors(page: Path) -> set[str]:
    """Return the names of a page's sections, as forges make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_names(page: str, heading: str) -> set[str]:
    """Return the names in backticks in the first column of the table whose first heading is ``heading``."""
    _, _, table = (TOP / "docs" / page).read_text(encoding="utf-8").partition(f"\n| {heading} |")
    rows = table.partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def help_of(command: str, *action: str) -> str:
    """Return what a command prints for ``--help-all``."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        importlib.import_module(COMMANDS[command]).main([*action, "--help-all"])
    return shown.getvalue()


def calls_in(text: str) -> list[list[str]]:
    """Return the calls of our commands in a page's blocks of code, as lists of words."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^|\$ |--no-python )(?:\.venv/bin/)?(vlalign[- ][a-z]+ .*)", line) for line in lines]
    return [shlex.split(match[1].replace("vlalign ", "vlalign-"), comments=True) for match in found if match]


def test_readme_is_short():
    assert len((TOP / "README.md").read_bytes()) <= MOST_BYTES_OF_README


@pytest.mark.parametrize("page", sorted((TOP / "docs").glob("*.md")), ids=lambda page: page.name)
def test_pages_are_short_and_in_the_index(page):
    assert len(page.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_PAGE
    assert page.name == "index.md" or f"({page.name})" in (TOP / "docs" / "index.md").read_text(encoding="utf-8")


@each_page
def test_links_lead_to_files_and_sections(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


@each_page
def test_named_source_files_exist(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    named = re.findall(r"`((?:extract|preprocess|storage|train|ray_jobs|tests|docs)/[\w./-]*)`", text)
    assert [name for name in named if not (TOP / name).exists()] == []


@each_page
def test_calls_use_options_that_exist(page):
    for command, *words in calls_in(page.read_text(encoding="utf-8")):
        action = words[:1] if command == "vlalign-store" else []
        known = set(re.findall(r"--[a-z][a-z-]*", help_of(command, *action)))
        assert {word.split("=")[0] for word in words if word.startswith("--") and word != "--"} <= known, (
            command,
            words,
        )


OF_OTHER_PROGRAMS = {
    "--with",  # uvx
    *("--address", "--config", "--head", "--seconds"),  # ray, and our scripts for it
    *("--cpus-per-worker", "--max-restarts"),  # ray_jobs/train.py
    *("--freeze", "--linear"),  # CLIP4Clip's --freeze_layer_num and --linear_patch
    *("--list", "--python", "--revision"),  # nvidia-smi, uv, hf
    *("--no-", "--tower"),  # beginnings and endings of names
}


def test_messages_name_options_that_exist():
    actions = re.findall(r"^    ([a-z]+) +\S", help_of("vlalign-store"), flags=re.MULTILINE)
    assert {"merge", "export"} <= set(actions)
    shown = [*map(help_of, COMMANDS), *(help_of("vlalign-store", action) for action in actions)]
    known = set(re.findall(r"--[a-z][a-z-]*", " ".join(shown)))
    unknown = {
        (str(path.relative_to(TOP)), option)
        for folder in ("extract", "preprocess", "ray_jobs", "storage", "train")
        for path in (TOP / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", node.value)
        if option not in known | OF_OTHER_PROGRAMS
    }
    assert unknown == set()


@each_page
def test_examples_import_names_that_exist(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    imports = [node for block in blocks for node in ast.walk(ast.parse(block)) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if node.level == 0 and node.module.startswith("vlalign")]
    names = [(node.module, alias.name) for node in ours for alias in node.names]
    assert [(m, name) for m, name in names if not hasattr(importlib.import_module(m), name)] == []


def test_calls_are_found_in_code_blocks():
    text = "`vlalign-no`\n```\n$ vlalign-train --a \\\n    b  # c\nx vlalign-y\n.venv/bin/vlalign-extract d\n```\n"
    assert calls_in(text) == [["vlalign-train", "--a", "b"], ["vlalign-extract", "d"]]


def test_every_data_set_and_objective_is_in_its_table():
    from vlalign.preprocess.datasets import DATASETS
    from vlalign.train.objectives import OBJECTIVES

    assert table_names("captions.md", "`--dataset`") == set(DATASETS)
    assert table_names("objectives.md", "`--objective`") == set(OBJECTIVES)


def test_the_keys_that_sync_prints_are_in_its_table():
    from vlalign.train import SyncResult

    assert table_names("sync.md", "key") >= SyncResult().to_json().keys()
