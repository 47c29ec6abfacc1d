"""How threads wait, as the commands set it before torch is loaded."""

import os
import subprocess
import sys

import pytest

COMMAND = """
import os, sys
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import command_parser
{before}
def show(_):
    print(os.environ.get("GOMP_SPINCOUNT"))
    return 0
sys.exit(run_command(show, command_parser("vlalign-show", "", ""), []))
"""


@pytest.mark.parametrize(
    ("before", "environment", "expected"),
    [
        ("", {}, "10000"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "active"}, "None"),
        pytest.param("import torch", {}, "None", marks=pytest.mark.slow),
    ],
)
def test_commands_limit_spinning_unless_the_user_chose_or_torch_is_loaded(before, environment, expected):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    call = [sys.executable, "-c", COMMAND.format(before=before)]
    done = subprocess.run(call, env=kept | environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize(
    "module",
    [
        "extract.cli.extract",
        "preprocess.cli",
        "train.cli.train",
        "train.cli.evaluate",
        "train.cli.search",
        "storage.cli.store",
    ],
)
def test_no_command_loads_torch_before_it_runs(module):
    """A command that did would set how threads wait too late."""
    subprocess.run(
        [sys.executable, "-c", f"import sys, vlalign.{module}; sys.exit('torch' in sys.modules)"], check=True
    )
