"""The three calls of README.md, word for word, as a person types them into a shell.

The words of the calls are a promise. Only the folder in which they are typed is prepared: files of annotations in the
official format, or the demo's features and captions.
"""

import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml
from helpers.annotation_files import GOOD_FILES, write
from ray.autoscaler._private.util import prepare_config, validate_config
from vlalign.storage import read_captions
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder

TOP = Path(__file__).resolve().parents[1]
FIRST_STEPS_SECONDS = 500.0


def test_the_readme_has_the_calls_word_for_word():
    readme = (TOP / "README.md").read_text(encoding="utf-8")
    lines = readme.splitlines()
    assert "`ray submit extract_howto100m.yaml`" in readme and "Ray wants a script after the file" in readme
    assert "vlalign-preprocess --dataset youcook2" in lines and "vlalign-train --features s3d" in lines
    assert lines.count("make demo") == lines.count("make test") == 1


def typed(call: str) -> list[str]:
    """Return a call's words, with the command of this environment."""
    name, *words = shlex.split(call)
    return [str(Path(sys.executable).with_name(name)), *words]


def run(call: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(typed(call), cwd=folder, capture_output=True, text=True, timeout=600, check=False)


def test_ray_submit(tmp_path):
    """``ray submit extract_howto100m.yaml``. Ray itself wants the script after the file, and takes nothing else."""
    incomplete = run("ray submit extract_howto100m.yaml", TOP / "ray_jobs")
    assert incomplete.returncode == 2 and "SCRIPT" in incomplete.stderr, incomplete.stderr

    # The whole call goes to a cloud. Here it ends where Ray has read both files and looks for the cluster's machines.
    validate_config(prepare_config(yaml.safe_load((TOP / "ray_jobs" / "extract_howto100m.yaml").read_text())))
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    nobody = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", "RAY_USAGE_STATS_ENABLED": "0"}
    script = "ray submit extract_howto100m.yaml extract_howto100m.py"
    done = subprocess.run(
        typed(script), cwd=TOP / "ray_jobs", env=own | nobody, capture_output=True, text=True, timeout=300, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0 and "Usage:" not in said and "ValidationError" not in said, said[-3000:]
    assert "redentials" in said or "auth_token" in said, said[-3000:]

    # What Ray does on the head: it copies this one file into the home folder, and runs it there.
    alone = tmp_path / "extract_howto100m.py"
    alone.write_bytes((TOP / "ray_jobs" / "extract_howto100m.py").read_bytes())
    done = subprocess.run(
        [sys.executable, str(alone), "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and "--cpus-per-worker" in done.stdout, done.stderr


def test_preprocess(tmp_path):
    """``vlalign-preprocess --dataset youcook2`` reads the official files from where they belong."""
    dataset = DatasetFolder(tmp_path / "vlalign_data", "youcook2")
    write(dataset.path / "annotations", GOOD_FILES["youcook2"])
    done = run("vlalign-preprocess --dataset youcook2", tmp_path)
    assert done.returncode == 0, done.stderr
    assert {caption.caption for caption in read_captions(dataset.captions)} == {"cut it", "stir it"}


def test_train(small_demo, tmp_path):
    """``vlalign-train --features s3d`` takes the one prepared data set."""
    dataset = DatasetFolder(tmp_path / "vlalign_data", "demo")
    shutil.copytree(small_demo.path, dataset.path)
    command = subprocess.Popen(
        typed("vlalign-train --features s3d"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until = time.monotonic() + FIRST_STEPS_SECONDS
    try:
        while command.poll() is None and time.monotonic() < until and len(losses(dataset)) < 2:
            time.sleep(0.5)
        command.send_signal(signal.SIGINT)  # its default number of steps takes longer than a test may
        said, _ = command.communicate(timeout=300)
    finally:
        command.kill()
    assert command.returncode in (0, 128 + signal.SIGINT), said[-3000:]
    found = losses(dataset)
    assert len(found) >= 2 and all(map(math.isfinite, found)), said[-3000:]


def losses(dataset: DatasetFolder) -> list[float]:
    """Return the losses of the first run so far."""
    logs = sorted(dataset.runs.glob("*/events.jsonl"))
    try:
        return [event["loss"] for event in read_jsonl(logs[0]) if "loss" in event] if logs else []
    except ValueError:  # a line that is being written
        return []
