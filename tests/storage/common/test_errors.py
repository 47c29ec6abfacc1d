"""Errors of settings: what a caller from Python reads, and what a command says."""

import pickle

from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import command_parser
from vlalign.storage.common.errors import SettingError


def test_a_setting_error_names_the_argument_in_python_and_the_option_in_a_command(capsys):
    error = SettingError("num_results", 0, "expected 1 or more")
    assert str(error) == str(pickle.loads(pickle.dumps(error))) == "num_results 0: expected 1 or more"

    def command(_):
        raise error

    assert run_command(command, command_parser("vlalign-test", "A test.", "vlalign-test"), []) == 2
    assert "vlalign-test: error: --num-results 0: expected 1 or more" in capsys.readouterr().err
