"""The command vlalign, and how much commands say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from vlalign.storage.cli.all_commands import COMMANDS, main, make_parser

TOP = Path(__file__).resolve().parents[3]
COMMAND = """
import sys, time
from vlalign.storage.cli.command import run_command
from vlalign.storage.common.errors import UserError
from vlalign.storage.cli.parser import command_parser
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.progress import progress
from vlalign.storage.common.terminal import say, show
def command(args):
    say("note: something")
    Problems().add("x.mp4: left out")
    for _ in progress([1], total=1, what="working", unit="things"):
        time.sleep(1)
    show("result")
    raise UserError("something is wrong")
sys.exit(run_command(command, command_parser("vlalign-test", "", ""), sys.argv[1:]))
"""


def said(*options):
    """Return the lines of standard error."""
    done = subprocess.run([sys.executable, "-c", COMMAND, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stdout == "result\n"
    return done.stderr.splitlines()


def test_every_command_is_a_subcommand_and_a_program():
    _, _, rest = (TOP / "pyproject.toml").read_text(encoding="utf-8").partition("\n[project.scripts]\n")
    scripts = dict(re.findall(r'^([\w-]+) = "([\w.:]+)"$', rest.partition("\n[")[0], flags=re.MULTILINE))
    assert scripts.pop("vlalign") == "vlalign.storage.cli.all_commands:main"
    assert scripts == {f"vlalign-{name}": f"{module}:main" for name, (module, _) in COMMANDS.items()}


def test_a_subcommand_gets_the_arguments_that_follow(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["runs", "--help"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("usage: vlalign-runs [")
    assert main(["store", "info"]) == 2
    assert capsys.readouterr().err.startswith("vlalign-store: error: no store given")


def test_without_a_command_all_are_listed(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


def test_an_unknown_command_is_one_line(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["serch", "x"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("vlalign: error: ") and error.count("\n") == 1
    assert all(part in error for part in ("'serch'", "search, serve", "vlalign --help"))


def test_completion_knows_the_options_of_all_commands(capsys):
    known = make_parser(whole=True)._subparsers._group_actions[0].choices
    assert list(known) == list(COMMANDS)
    assert "--num-steps" in known["train"]._option_string_actions
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", "bash"])
    printed = capsys.readouterr().out
    options = re.findall(r"^_shtab_vlalign_(\w+)_option_strings=.* --help ", printed, flags=re.MULTILINE)
    assert ended.value.code in (0, None) and set(COMMANDS) <= set(options)


def test_quiet_commands_show_warnings_and_errors_alone():
    assert said("--quiet") == ["warning: x.mp4: left out", "vlalign-test: error: something is wrong"]


def test_usual_commands_show_notes_and_progress():
    note, warning, progress, error = said()
    assert (note, warning, error) == ("note: something", *said("--quiet"))
    assert progress.startswith("working: 100% 1/1")


def test_verbose_commands_show_times_and_where_an_error_is():
    lines = said("--verbose")
    assert all(line[2] == line[5] == ":" for line in lines[:5])
    assert lines[0][9:].startswith("vlalign ") and lines[1][9:] == "note: something"
    assert any("Traceback" in line for line in lines) and lines[-1].endswith("UserError: something is wrong")
