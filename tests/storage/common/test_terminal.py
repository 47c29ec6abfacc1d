"""Control characters in text from files are escaped before they reach a terminal; counts in messages."""

import os
import subprocess
import sys

import numpy as np
import pytest
from vlalign.storage import VideoFeatures, Weights, write_shard
from vlalign.storage.cli.store import main as store_main
from vlalign.storage.common.problems import Problems
from vlalign.storage.common.progress import progress
from vlalign.storage.common.terminal import escape_controls, number_of, say
from vlalign.storage.profiles import PROFILES

OBEYED = {
    "clears the screen": ("a\x1b[2Jb", "a\\x1b[2Jb"),
    "sets the title": ("\x1b]0;x\x07", "\\x1b]0;x\\x07"),
    "is one byte": ("\x9b31m", "\\x9b31m"),
    "goes back in the line": ("yes\rno\x08", "yes\\rno\\x08"),
    "turns the direction": ("\u202egpj.exe\u2066", "\\u202egpj.exe\\u2066"),
    "is no character": ("\ud800", "\\ud800"),
    "is seen": ("naïve 東京\u3000👩\u200d🍳 a\u00a0b", "naïve 東京\u3000👩\u200d🍳 a\u00a0b"),
    "is a line": ("a\tb\nc", "a\\tb\\nc"),
}


@pytest.mark.parametrize("text, shown", OBEYED.values(), ids=OBEYED)
def test_control_characters_are_escaped(text, shown):
    assert escape_controls(text) == shown
    shown.encode()
    assert escape_controls("a\tb\n\x1b", kept="\n\t") == "a\tb\n\\x1b"


def test_messages_have_no_control_characters(tmp_path, capsys):
    say("\x1b[2J\nwarning: forged")
    with Problems(file=tmp_path / "problems.txt") as problems:
        for number in range(30):
            problems.add(f"video '\x1b]0;{number}\x07': broken\nwarning: forged")
    err = capsys.readouterr().err
    assert (
        err.startswith("\\x1b[2J\\nwarning: forged\n") and "video '\\x1b]0;3\\x07': broken" in err and "\x1b" not in err
    )
    listed = (tmp_path / "problems.txt").read_text()
    assert "\x1b" not in listed and len(listed.splitlines()) == 30
    assert "\x1b" not in err and "\nwarning: forged" not in err


def test_a_progress_bar_has_no_control_characters(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress(range(2), total=2, what="at \x1b]0;x\x07", unit="videos")) == [0, 1]
    assert "\x1b]0" not in capsys.readouterr().err


def test_the_store_command_prints_no_control_characters(tmp_path, capsys):
    times = {
        "start_seconds": np.zeros(1),
        "end_seconds": np.ones(1),
        "valid_frames": np.ones(1, int),
        "duration_seconds": 1.0,
    }
    texts = {"decoder": "\x1b[31mPyAV", "partial": "cut\x1b[2J\tat"}
    video = VideoFeatures(video_id="v\x1b[2J\u202e1", features=np.zeros((1, 1024)), **times, **texts)
    write_shard(
        tmp_path, PROFILES["s3d"], Weights(name="\x1b]0;x\x07", sha256="0" * 64), [video], made_with={"tool": "\x9b"}
    )
    for call in (["ls"], ["info"], ["info", "--json"], ["verify"]):
        assert store_main([call[0], str(tmp_path), *call[1:]]) == 0
    out, err = capsys.readouterr()
    assert "v\\x1b[2J\\u202e1\t1\t1.00\t\\x1b[31mPyAV\tcut\\x1b[2J\\tat\n" in out
    assert all(c.isprintable() or c in "\n\t" for c in out + err)


def test_a_child_killed_while_it_writes_does_not_stop_its_parent():
    """tqdm's own lock is shared with forked children, and stays taken when one of them is killed."""
    program = """
import os, signal
from vlalign.storage.common.terminal import ProgressBar, say, show_messages
show_messages()
say("before")
child = os.fork()
if not child:
    ProgressBar.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
say("after")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "before\nafter\n")


@pytest.mark.parametrize(
    ("count", "things", "shown"),
    [
        (0, "videos", "0 videos"),
        (1, "videos", "1 video"),
        (1, "training clips", "1 training clip"),
        (2345, "rows", "2,345 rows"),
        (1, "copies", "1 copy"),
        (2, "copies", "2 copies"),
    ],
)
def test_one_thing_is_said_as_one(count, things, shown):
    assert number_of(count, things) == shown


def test_a_result_in_a_pipe_is_there_before_the_program_ends():
    """Such as the URL of a server, which a service's log or the program that started it reads."""
    program = "import os; from vlalign.storage.common.terminal import show; show('a result'); os._exit(0)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment)
    assert (ended.returncode, ended.stdout) == (0, b"a result\n")
