"""Only one training at a time writes to a run's folder; what a killed one left is removed."""

import os
import re
import socket
import subprocess
import sys

from helpers.training import TRAIN, at
from vlalign.storage.common.files import read_json
from vlalign.train.cli.train import main as train_main
from vlalign.train.runs.folder import lock_for_training

LOCK = """
import sys, time
from pathlib import Path
from vlalign.train.runs.folder import lock_for_training
with lock_for_training(Path(sys.argv[1])):
    print("has it", flush=True)
    time.sleep(600)
"""


def test_a_second_training_in_the_same_folder_is_refused_and_names_the_process(toy, capsys):
    """Both wrote, and each lost half of its events to the other."""
    folder = toy.runs / "two at once"
    other = subprocess.Popen([sys.executable, "-c", LOCK, str(folder)], stdout=subprocess.PIPE)
    try:
        assert other.stdout.readline() == b"has it\n"
        assert train_main([*at(toy), *TRAIN, "--run-name", folder.name]) == 2
        where = rf"error: {re.escape(str(folder))}: .*\b{other.pid}\b.*{re.escape(socket.gethostname())}"
        assert re.search(rf"{where}\b.* --run-name\b", capsys.readouterr().err)
    finally:
        other.kill()
        other.wait()
    assert (folder / "train.lock").exists(), "it was killed"
    with lock_for_training(folder):
        assert read_json(folder / "train.lock")["pid"] == os.getpid()
    assert not folder.exists(), "nothing else was in it"


def test_half_written_files_of_a_killed_training_are_removed(toy, capsys):
    folder = toy.runs / "half written"
    left = [
        folder / f".{name}.99-abcdef01.partial"
        for name in ("state.safetensors", "state.safetensors", "model.safetensors", "run.json")
    ]
    others = [folder / "mine.partial", folder / ".metrics.json.99-abcdef01.partial"]
    folder.mkdir(parents=True)
    for path in (*left, *others):
        path.write_bytes(bytes(1000))
    assert train_main([*at(toy), *TRAIN, "--run-name", folder.name]) == 0
    assert re.search(rf"^{re.escape(str(folder))}: \w+ 3\b", capsys.readouterr().err, re.MULTILINE)
    assert [path for path in (*left, *others) if path.exists()] == others
    assert not (folder / "train.lock").exists()
