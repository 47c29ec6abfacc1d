"""The example of a data set of one's own works from the command line, as a user runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from helpers.toy import make_toy
from vlalign.storage import read_captions
from vlalign.storage.captions.files import read_captions_about
from vlalign.storage.common.files import read_json

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SPLITS = {"train": "training", "validation": "validation", "test": "testing"}


def call(folder, command, *args):
    program = f"import sys; from {command} import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, "--root", "data", *args],
        cwd=folder,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def prepare(folder):
    """Write a data set with features, and annotations in the example's format beside it. Return the captions."""
    shutil.copy(EXAMPLES / "own_dataset.py", folder)
    dataset = make_toy(folder / "data", name="kitchens")
    captions = [(c.video_id, c.caption, c.split) for c in read_captions(dataset.captions)]
    shutil.rmtree(dataset.captions)
    videos = {video: {"subset": SPLITS[split], "sentences": [text]} for video, text, split in captions}
    (dataset.path / "annotations").mkdir()
    (dataset.path / "annotations" / "kitchens.json").write_text(json.dumps(videos))
    return dataset, captions


def test_annotations_are_read_by_a_module_of_ones_own_and_trained_on(tmp_path):
    dataset, captions = prepare(tmp_path)
    done = call(tmp_path, "vlalign.preprocess.cli", "--dataset", "own_dataset:KITCHENS", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert "--dataset kitchens" in done.stderr, "the next command takes the data set's own name"
    assert [(c.video_id, c.caption, c.split) for c in read_captions(dataset.captions)] == captions
    about = read_captions_about(dataset.captions)
    assert about is not None and about["plugins"]["dataset"]["name"] == "own_dataset:KITCHENS"
    before = about["plugins"]["dataset"]["sha256"]

    (tmp_path / "own_dataset.py").rename(tmp_path / "elsewhere.py")  # later commands read files of ours only
    few = ["--dataset", "kitchens", "--features", "s3d", "--num-steps", "2", "--batch-size", "4", "--run-name", "r"]
    done = call(tmp_path, "vlalign.train.cli.train", *few)
    assert done.returncode == 0, done.stderr
    done = call(tmp_path, "vlalign.train.cli.evaluate", "--dataset", "kitchens", "r")
    assert done.returncode == 0, done.stderr
    assert read_json(dataset.runs / "r" / "metrics.json")["num_captions"] == 6

    source = (tmp_path / "elsewhere.py").read_text().replace("caption=sentence", "caption=sentence.upper()")
    (tmp_path / "own_dataset.py").write_text(source)
    done = call(tmp_path, "vlalign.preprocess.cli", "--dataset", "own_dataset:KITCHENS", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert {c.caption for c in read_captions(dataset.captions)} == {text.upper() for _, text, _ in captions}
    about = read_captions_about(dataset.captions)
    assert about is not None and about["plugins"]["dataset"]["sha256"] != before
