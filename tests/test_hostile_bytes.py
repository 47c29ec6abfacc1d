"""Whatever a file holds, its reader ends soon, takes little memory, and gives what is there or one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hostile_bytes import READERS

PROGRAM = Path(__file__).with_name("helpers") / "hostile_bytes.py"
NUM_FILES, NUM_ALL_FILES = 6, 206
"""Of each reader: of fourteen, more than 8,000."""


def check(readers: list[str], first: int, last: int, folder: Path) -> None:
    """Check that each reader reads some of the files, refuses the others, and that nothing else happens."""
    command = [sys.executable, str(PROGRAM), str(first), str(last), str(folder / "files"), *readers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [line for line in lines if "error" in line]
    assert not wrong, f"{len(wrong)} files, the first ones: {json.dumps(wrong[:5], indent=1)}"
    assert [line["reader"] for line in lines] == readers
    for line in lines:
        assert line["read"] + line["refused"] == last - first, line
        assert line["refused"] > (last - first) / 10, f"{line}: damage is damage"


@pytest.mark.slow
def test_some_mutated_files_are_read_or_refused_in_one_line(tmp_path):
    """In one process: it imports everything once."""
    check(list(READERS), 0, NUM_FILES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_many_mutated_files_are_read_or_refused_in_one_line(tmp_path, reader):
    check([reader], NUM_FILES, NUM_ALL_FILES, tmp_path)
