"""Slow: every command of every page runs as it is printed, or a table here names the test that runs it or what it needs.

Commands stand in blocks of code without a language, of ``console`` or of ``bash``. In a block with lines that begin with
"$ ", those are the commands, and the other lines are what they print, which is compared with what is printed now,
figures apart; in any other block, each line is a command, which must end with 0.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.page_stage import Home, make_home, write_captions, write_videos
from helpers.small_demo import make_small_demo

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


NEEDS = {
    r"git clone ADDRESS": "the address of a repository",
    r"docker ": "Docker",
    r"kubectl |sed .*kubectl|aws |gcloud |for (?:name|subnet) in|\w+=": "an account of a cloud",
    r"hf (?:auth|upload|download)": "the hub",
}
"""{pattern of a command that is not run: what it needs and these tests do not have}"""
ELSEWHERE = {
    "docs/tutorials/": "tests/test_tutorials.py",
    "docs/http.md": "tests/train/page/test_http_page.py",
}
"""{page or folder: the test that runs its commands}"""
WORDS = {"FOLDER": "Videos"}
"""{word that stands for a reader's own: what is there}"""


def nothing(home: Home, folder: Path) -> None:
    """The page begins in an empty folder."""


def videos(home: Home, folder: Path) -> None:
    """Folders of videos, and captions."""
    write_videos(folder / "Videos")
    write_videos(folder / "Phone", 2)
    write_captions(folder / "captions.csv")


STAGES: dict[str, Callable[[Home, Path], None]] = {"docs/sync.md": videos}


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Home:
    return make_home(tmp_path_factory.mktemp("home"))


def test_stage(home, tmp_path):
    videos(home, tmp_path)
    home.call(tmp_path, "vlalign sync Videos --features clip_vit_b32")
    home.call(tmp_path, "vlalign search 'a dog catches a frisbee' --dataset mine --features clip_vit_b32")
