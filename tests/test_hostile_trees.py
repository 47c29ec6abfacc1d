"""A data set from somebody else: each name as a link, a pipe, a device or another odd thing, for each command.

Nothing outside changes, nobody is dialled, no code runs, nothing hangs, and bad input is one line.
"""

import mmap
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import pytest
from helpers import hostile_trees
from helpers.hostile_trees import COMMANDS, MOST_BYTES, Grounds, Tree, faults
from helpers.needs import SYSTEM, skip_without

pytestmark = skip_without(SYSTEM, [] if sys.platform == "linux" else ["pipes, devices and forks of Linux"])

NUM_TREES, PARTS = 36, 3
FAST = {"extract": 2, "train": 2, "evaluate again": 3, "search like": 2, "index": 1, "serve": 1}
FAST |= {"runs list": 3, "runs delete": 3, "store verify": 3, "store compact": 3, "doctor": 1, "vlalign": 2, "sync": 2}
FAST |= {"convert": 3, "transcribe": 2, "mcp": 1, "benchmark": 2}
"""{command: number of trees that are tried each time}. Loading what vlalign-preprocess tags with takes seconds."""
KNOWN: dict[str, str] = {}
"""{tree: what goes wrong there}. Whoever mends one removes it here."""


@pytest.fixture(scope="session")
def grounds(tmp_path_factory) -> Grounds:
    return Grounds(tmp_path_factory.mktemp("trees"))


def faulty_trees(grounds: Grounds, command: str, num: int, part: int = 0, parts: int = 1) -> dict[str, list[str]]:
    """Return {tree: faults} of so many trees that could be made."""
    found, num_tried = {}, 0
    for tree in islice(grounds.trees(command), part, None, parts):
        outcome = grounds.run(tree)
        if outcome is None:
            continue
        if these := faults(grounds.clean_run(command), outcome, command):
            found[str(tree)] = these
        num_tried += 1
        if num_tried == num:
            break
    assert num_tried == num
    return found


def check(found: dict[str, list[str]], tried: Grounds, command: str) -> None:
    unknown = {tree: these for tree, these in found.items() if tree not in KNOWN}
    assert not unknown, "\n".join(f"{tree}: {these}" for tree, these in unknown.items())
    mended = [tree for tree in KNOWN if tree in tried.tried and tree not in found]
    assert not mended, f"{mended}: remove these from KNOWN"


def test_each_command_of_the_package_is_tried():
    scripts = Path(__file__).parents[1].joinpath("pyproject.toml").read_text().split("[project.scripts]")[1]
    names = re.findall(r"^vlalign-?(\w*) =", scripts.split("\n[")[0], re.MULTILINE)
    expected = {name or "vlalign" for name in names}
    assert {call[0] for call in COMMANDS.values()} == expected
    assert {COMMANDS[command][0] for command in FAST} == expected - {"preprocess"}


def dial() -> None:
    with socket.socket() as one:
        one.setblocking(False)
        one.connect_ex(("192.0.2.1", 80))


def take_memory() -> None:
    bytearray(MOST_BYTES + (64 << 20))[:: mmap.PAGESIZE] = bytes(-(-(MOST_BYTES + (64 << 20)) // mmap.PAGESIZE))


WRONG = {
    "changed outside: home/.bashrc": lambda root: root.parent.joinpath("home", ".bashrc").chmod(0o600),
    "changed outside: home/new": lambda root: root.parent.joinpath("home", "new").mkdir(),
    "changed outside: home/documents/letter.txt": lambda root: os.remove(root.parent / "home/documents/letter.txt"),
    "changed outside: tmp/x": lambda root: Path(tempfile.gettempdir(), "x").touch(),
    "changed inside: toy/x": lambda root: Path(root, "toy", "x").touch(),
    "dialled": lambda root: dial(),
    "started": lambda root: subprocess.run(["true"], check=True),
    "ran": lambda root: exec(compile("1", str(root / "toy" / "module.py"), "exec")),
    "took": lambda root: take_memory(),
    "traceback": lambda root: 1 / 0,
    "exit code 9": lambda root: sys.exit(9),
    "exit code -6": lambda root: os.abort(),
    "control characters": lambda root: print("\x1b[2J"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_command_does_wrong_is_seen(grounds, monkeypatch, wrong):
    clean = grounds.clean_run("store info")
    monkeypatch.setattr(hostile_trees, "main_of", lambda command: lambda call: (WRONG[wrong](grounds.root) and 0) or 0)
    outcome = grounds.run(Tree("store info", "toy/videos.jsonl", "empty"))
    assert any(wrong in fault for fault in faults(clean, outcome, "store info")), outcome


def test_a_command_that_waits_is_seen(grounds, monkeypatch):
    clean = grounds.clean_run("store info")
    monkeypatch.setattr(hostile_trees, "SECONDS", 0)
    monkeypatch.setattr(hostile_trees, "WAITING", 1)
    monkeypatch.setattr(hostile_trees, "main_of", lambda command: lambda call: time.sleep(100))
    outcome = grounds.run(Tree("store info", "toy/videos.jsonl", "empty"))
    assert "went on" in faults(clean, outcome, "store info")[0] and "<lambda>" in outcome.shown


@pytest.mark.parametrize("command", FAST)
def test_a_command_in_a_few_hostile_trees(grounds, command):
    check(faulty_trees(grounds, command, FAST[command]), grounds, command)


ONCE_WRONG = [
    Tree("train", "toy/captions/about.json", "sparse"),  # was read as a whole
    Tree("train from", "toy/runs/new/state.safetensors", "pipe"),  # was waited for
    Tree("evaluate again", "toy/runs/taco/model.safetensors", "huge"),  # was hashed for hours
    Tree("runs list", "toy/runs/gated/run.json", "huge"),  # MemoryError
    Tree("extract", "toy/videos.jsonl", "huge"),  # a line without an end
]
"""Trees in which a command did wrong before."""


@pytest.mark.parametrize("tree", ONCE_WRONG, ids=str)
def test_a_tree_in_which_a_command_did_wrong(grounds, tree):
    outcome = grounds.run(tree)
    assert faults(grounds.clean_run(tree.command), outcome, tree.command) == []
    assert outcome.code in (1, 2) and str(grounds.place(tree.name)) in outcome.shown


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_hostile_trees(grounds, command, part):
    check(faulty_trees(grounds, command, NUM_TREES // PARTS, part, PARTS), grounds, command)
