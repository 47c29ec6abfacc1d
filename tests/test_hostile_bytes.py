"""Whatever a file holds, its reader ends soon, takes little memory, and gives what is there or one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.hostile_bytes import READERS

PROGRAM = Path(__file__).with_name("helpers") / "hostile_bytes.py"
NUM_FILES, NUM_ALL_FILES = 40, 640
"""Of each reader: of thirteen, more than 8,000."""


def tried(reader: str, first: int, last: int, folder: Path) -> dict[str, int]:
    """How many files were read and how many refused; nothing else has happened."""
    command = [sys.executable, str(PROGRAM), reader, str(first), str(last), str(folder / "files")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *wrong, counts = map(json.loads, done.stdout.splitlines())
    assert not wrong, f"{len(wrong)} of {last - first}, the first ones: {json.dumps(wrong[:5], indent=1)}"
    assert counts["refused"] > (last - first) / 10  # damage is damage
    return counts


@pytest.mark.parametrize("reader", READERS)
def test_some_mutated_files_are_read_or_refused_in_one_line(tmp_path, reader):
    tried(reader, 0, NUM_FILES, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_five_thousand_mutated_files_are_read_or_refused_in_one_line(tmp_path, reader):
    counts = tried(reader, NUM_FILES, NUM_ALL_FILES, tmp_path)
    assert sum(counts.values()) == NUM_ALL_FILES - NUM_FILES
