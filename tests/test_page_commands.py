"""Slow: every command of every page runs as printed, or a table here names the test that runs it, or what it needs.

Commands are in blocks of code without a language, or with ``console`` or ``bash``. In a block that has lines with "$ ",
these are the commands, and the other lines are their output, which is compared with today's, figures apart. In any
other block each line is a command. A command must end with 0, unless the page shows its error.
"""

import importlib.util
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.page_stage import Home, make_home, write_captions, write_subtitles, write_videos

TOP = Path(__file__).resolve().parents[1]
PAGES = [
    *(TOP / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(TOP / "tests" / "benchmarks" / name for name in ("README.md", "gpu/README.md")),
    *sorted((TOP / "docs").glob("*.md")),
    *sorted((TOP / "docs" / "tutorials").glob("*.md")),
]
BLOCK = re.compile(r"^( *)```(|console|bash|sh)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:vlalign[\w-]*|make|uvx?|pip|python3?|git|cd|docker|ray|torchrun|hf|curl|sed|"
    r"kubectl|aws|gcloud|export|sbatch|for|\w+=)"
)


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, TOP / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


runner = load("run_tutorial")


@dataclass(frozen=True)
class Command:
    """A command of a page."""

    page: str
    line: int
    text: str
    shown: tuple[str, ...] | None
    """The lines below it, which it prints; None if the page shows none."""


def commands_of(page: Path) -> list[Command]:
    """Return the commands of a page in order."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(TOP))
    found = []
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(3)) + 1
        lines = [line.removeprefix(block[1]) for line in block[3].splitlines()]
        shown = any(line.startswith("$ ") for line in lines)
        commands: list[tuple[int, list[str], list[str]]] = []
        for number, line in enumerate(lines, start=first):
            if shown and line.startswith("$ "):
                commands.append((number, [line[2:]], []))
            elif commands and commands[-1][1][-1].endswith("\\") and not commands[-1][2]:
                commands[-1][1].append(line)
            elif shown and line.startswith("> ") and not commands[-1][2]:
                commands[-1][1].append(line[2:])
            elif shown:
                commands[-1][2].append(line)
            elif PROGRAM.match(line):
                commands.append((number, [line], []))
        found += [
            Command(name, number, "\n".join(parts), tuple(printed) if shown else None)
            for number, parts, printed in commands
        ]
    return found


RUN_BY = {
    r"make (?:\.venv/installed|demo|test|audit)": ".ci/run",
    r"uv build|uvx |uv pip install --(?:require-hashes|no-deps)": "tests/test_wheel.py",
    r"ray (?:submit|down)": "tests/test_three_calls.py",
    r"vlalign-serve|vlalign serve": "tests/train/page/test_page_server.py",
    r"vlalign[ -]sync --watch": "tests/train/sync/test_sync.py",
    r"vlalign-mcp": "tests/train/page/test_mcp.py",
}
"""{pattern of a command: the file that runs it}"""
NEEDS = {
    r"git clone ADDRESS|cd vlalign": "the address of a repository",
    r"docker ": "Docker",
    r"kubectl |sed .*kubectl|aws |gcloud |for (?:name|subnet) in|\w+=": "an account of a cloud",
    r"hf (?:auth|upload|download)": "the hub",
}
"""{pattern of a command that is not run: what it needs and these tests do not have}"""
PAGES_RUN_BY = {"docs/tutorials/": "tests/test_tutorials.py", "docs/http.md": "tests/train/page/test_http_page.py"}
"""{page or folder: the file that runs its commands}"""
WORDS = {"FOLDER": "Videos"}
"""{word that stands for a reader's own: what is there}"""
Stage = Callable[[Home, Path], None]


def videos(home: Home, folder: Path) -> None:
    """Make folders of videos, and captions."""
    write_videos(folder / "Videos")
    write_videos(folder / "Phone", 2)
    write_subtitles(folder / "Videos")
    write_captions(folder / "captions.csv")


def mine(*features: str) -> Stage:
    """Return what makes the data set ``mine``, with features."""

    def make(home: Home, folder: Path) -> None:
        videos(home, folder)
        home.call(folder, f"vlalign-extract --dataset mine --videos Videos --features {','.join(features)}")
        home.call(folder, "vlalign-preprocess --dataset mine --annotations captions.csv")

    return make


STAGES: dict[str, Stage] = {
    "docs/sync.md": videos,
    "docs/search.md": mine("s3d"),
    "docs/own-data.md": videos,
    "docs/export.md": mine("clip_vit_b32"),
    "docs/extraction.md": videos,
}


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Home:
    return make_home(tmp_path_factory.mktemp("home"))


def run_by(command: Command) -> str | None:
    """Return which file runs a command, or what it needs; None if it is run here."""
    by_page = [file for page, file in PAGES_RUN_BY.items() if command.page.startswith(page)]
    by_text = [of for pattern, of in (RUN_BY | NEEDS).items() if re.match(pattern, command.text)]
    return next(iter(by_page + by_text), None)


def difference(command: Command, home: Home, folder: Path) -> str | None:
    """Run a command; return what differs from the page, if anything does."""
    text = command.text
    for word, place in WORDS.items():
        text = re.sub(rf"\b{word}\b", place, text)
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    fails = any(": error: " in line for line in command.shown or ())
    lines = done.stdout.splitlines()
    if (done.returncode != 0) == fails and (command.shown is None or runner.matched([*command.shown], lines)):
        return None
    shown = "" if command.shown is None else "\n".join(["\n--- the page", *command.shown])
    return f"{command.page}:{command.line}: $ {text}\nended with {done.returncode}{shown}\n--- printed\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.parametrize("page", STAGES)
def test_commands_of_a_page(home, tmp_path, page):
    STAGES[page](home, tmp_path)
    here = [command for command in commands_of(TOP / page) if run_by(command) is None]
    assert here
    wrong = [line for command in here if (line := difference(command, home, tmp_path))]
    assert wrong == [], "\n\n".join(wrong)


def test_every_page_with_commands_is_run():
    left = {of.page for page in PAGES for of in commands_of(page) if run_by(of) is None}
    assert left - STAGES.keys() == set()
    assert all((TOP / file).is_file() for file in [*RUN_BY.values(), *PAGES_RUN_BY.values()])
