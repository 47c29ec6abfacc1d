"""A data set from somebody else: each name as a link, a pipe, a device or another odd thing, for each command.

Nothing outside changes, nobody is dialled, no code runs, nothing hangs, and bad input is one line.
"""

import re
import sys
from itertools import islice
from pathlib import Path

import pytest
from helpers.hostile_trees import COMMANDS, Grounds, faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not on this system: pipes, devices and forks of Linux")

NUM_TREES, PARTS, NUM_FAST = 90, 3, 1
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
    assert {call[0] for call in COMMANDS.values()} == {name or "vlalign" for name in names}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_a_few_hostile_trees(grounds, command):
    check(faulty_trees(grounds, command, NUM_FAST), grounds, command)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_in_hostile_trees(grounds, command, part):
    check(faulty_trees(grounds, command, NUM_TREES // PARTS, part, PARTS), grounds, command)
