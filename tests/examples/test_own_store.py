"""The example of a store of one's own: it passes the public tests, and extraction, training and search use it."""

import csv
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import PACKAGE, need
from helpers.videos import encode_frames
from vlalign.storage.testing import StoreTests, StoreWriterTests, example_provenance

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "own_store.py"


@pytest.fixture(autouse=True)
def module(monkeypatch):
    need(PACKAGE, [] if importlib.util.find_spec("zarr") else ["zarr"])
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    yield importlib.import_module("own_store")
    sys.modules.pop("own_store", None)


class TestZarrStore(StoreTests, StoreWriterTests):
    @pytest.fixture(autouse=True)
    def _module(self, module):
        self.module = module

    def make_store(self, folder, videos):
        self.module.ZarrStore(folder).write(videos, example_provenance())
        return self.module.ZarrStore(folder)

    def make_writer(self, folder):
        return self.module.ZarrStore(folder)

    def reopen(self, folder, writer):
        return self.module.ZarrStore(folder)


def run(folder, command, *options):
    call = [str(Path(sys.executable).parent / f"vlalign-{command}"), *map(str, options), "--root", "data"]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_extraction_fills_it_and_training_evaluation_and_search_read_it(tmp_path):
    shutil.copy(EXAMPLE, tmp_path / "own_store.py")
    (tmp_path / "clips").mkdir()
    colours = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "grey": (128, 128, 128)}
    with (tmp_path / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["video_id", "caption", "split"])
        for name, colour in colours.items():
            for split in ("train", "test"):
                frames = np.full((16, 64, 64, 3), colour, np.uint8)
                encode_frames(tmp_path / "clips" / f"{name}-{split}.mp4", iter(frames), 8)
                rows.writerow([f"{name}-{split}", f"a {name} wall", split])
    own = ("--dataset", "mine", "--stores", "own_store:ZarrStore")
    run(tmp_path, "extract", *own, "--features", "resnet152", "--weights", "random", "--videos", "clips")
    features = tmp_path / "data" / "mine" / "features" / "resnet152"
    assert (features / "zarr").is_dir() and not list(features.glob("*.h5"))
    again = run(tmp_path, "extract", *own, "--features", "resnet152", "--weights", "random", "--videos", "clips")
    assert "tried" not in again, "all of it is there"
    run(tmp_path, "preprocess", "--dataset", "mine", "--annotations", "captions.csv")
    options = ("--num-steps", "3", "--batch-size", "4", "--run-name", "r", "--device", "cpu")
    assert "--stores own_store:ZarrStore" in run(tmp_path, "train", *own, "--features", "resnet152", *options)
    assert "8 videos" in run(tmp_path, "search", "r", "a red wall", *own)
    assert "R@1" in run(tmp_path, "evaluate", "r", *own, "--device", "cpu")
