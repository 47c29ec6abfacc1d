"""What every command does: exit codes, one line for an error, options, full disks."""

import signal
import subprocess
import sys

import pytest
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import command_parser
from vlalign.storage.cli.store import main as store
from vlalign.storage.common.errors import UserError
from vlalign.storage.common.files import (
    atomic_write,
)
from vlalign.train.cli.train import main as train

pytestmark = pytest.mark.portable


def raising(error):
    def command(args):
        if error is not None:
            raise error
        return 0

    return command


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        pytest.param(None, 0, "", id="all done"),
        pytest.param(
            UserError("x.csv: no column caption"),
            2,
            "vlalign-test: error: x.csv: no column caption\n",
            id="mistake in the call",
        ),
        pytest.param(
            OSError(28, "No space left on device", "x.h5"),
            1,
            "vlalign-test: error: [Errno 28] No space left",
            id="full disk",
        ),
        pytest.param(
            PermissionError(13, "Permission denied", "x.h5"),
            1,
            "vlalign-test: error: [Errno 13] Permission",
            id="no right",
        ),
        pytest.param(MemoryError(), 1, "vlalign-test: error: ", id="no memory"),
        pytest.param(KeyboardInterrupt(), 130, "vlalign-test: ", id="stopped"),
    ],
)
def test_exit_codes(capsys, error, code, shown):
    parser = command_parser("vlalign-test", "tests", "vlalign-test")
    assert run_command(raising(error), parser, []) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(shown) and err.count("\n") == bool(shown)
    assert "Traceback" not in err


def test_a_programming_error_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError):
        run_command(raising(ZeroDivisionError()), command_parser("vlalign-test", "tests", "vlalign-test"), [])


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["--help"], 0), (["--no-such-option"], 2), (["--data", "demo"], 2)],
    ids=["help", "unknown option", "abbreviated"],
)
def test_parser_errors_and_help_exit_with_the_right_code(capsys, argv, code):
    with pytest.raises(SystemExit) as ended:
        run_command(raising(None), command_parser("vlalign-test", "tests", "vlalign-test --dataset demo"), argv)
    assert ended.value.code == code
    if code == 0:
        assert "vlalign-test --dataset demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("main", "argv", "says"),
    [
        (train, ["--features", "s3d", "--learning-rte", "3"], "unknown: --learning-rte 3; nearest: --learning-rate"),
        (train, ["--features", "s3d", "--zzz"], "unknown: --zzz; see vlalign-train --help"),
        (train, ["--features", "s3d", "--dropout", "a"], "argument --dropout: invalid float value: 'a'"),
        (store, ["ls", "--jsn"], "unknown: --jsn; nearest: --json"),
    ],
)
def test_a_misspelt_option_is_one_line_with_the_nearest_option(capsys, main, argv, says):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.count("\n") == 1 and says in said and said.endswith("--help\n")


def fill(path) -> None:
    with atomic_write(path) as partial:
        partial.symlink_to("/dev/full")
        partial.write_text("x")


def test_a_full_disk_is_named(tmp_path, capsys):
    assert run_command(lambda _: fill(tmp_path / "videos.jsonl"), command_parser("vlalign-test", "", ""), []) == 1
    error = capsys.readouterr().err
    assert error.startswith("vlalign-test: error: [Errno 28] No space left on device")
    assert error.endswith(f": {str(tmp_path / 'videos.jsonl')!r}\n") and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_behind_standard_output_is_named(tmp_path):
    program = """if True:
        import sys
        from vlalign.storage.cli.command import run_command
        from vlalign.storage.cli.parser import command_parser
        sys.exit(run_command(lambda _: print("x", flush=True), command_parser("t", "", ""), []))
    """
    with open("/dev/full", "w") as full:
        made = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert made.stderr.splitlines()[0].startswith("t: error: No space left on device: standard output, a log file or /")


@pytest.mark.parametrize("num_lines", [1, 100_000])
def test_a_reader_that_has_enough_ends_the_command_quietly(num_lines):
    code = f"""
import sys
from vlalign.storage.cli.command import run_command
from vlalign.storage.cli.parser import command_parser
def command(args):
    sys.stdin.read()  # until the reader is gone
    print("line\\n" * {num_lines})
    return 0
sys.exit(run_command(command, command_parser("vlalign-test", "tests", "vlalign-test"), []))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == "" and process.wait() == 128 + signal.SIGPIPE
