"""What a search imports: a query on the command line must not wait for libraries that it does not use."""

import subprocess
import sys

import numpy as np
import pytest
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.toy import make_toy
from vlalign.storage import VideoFeatures, Weights, write_shard
from vlalign.storage.common.files import sha256_of
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.cli.train import main as train_main

HEAVY = {
    "fastapi",
    "jinja2",
    "matplotlib",
    "pandas",
    "pytorchvideo",
    "ray",
    "scipy",
    "spacy",
    "sympy",
    "tensorboard",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "torchvision",
    "transformers",
    "uvicorn",
}
"""Each costs from a third of a second to several. torch itself costs more than all that a search does."""


def heavy_modules(call):
    """Search in a new process; return which heavy modules it imported."""
    program = (
        "import sys\nfrom vlalign.train.cli.search import main\nassert main(sys.argv[1:]) == 0\n"
        f"print('imported:', *sorted({HEAVY!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program, *call], check=True, text=True, capture_output=True)
    return done.stdout.splitlines()[-1].removeprefix("imported:").split()


@pytest.mark.slow
def test_a_search_with_a_run_imports_nothing_heavy(tmp_path):
    toy = make_toy(tmp_path)
    at = ["--root", str(toy.root), "--dataset", "toy"]
    assert train_main([*at, "--features", "s3d", "--num-steps", "2", "--run-name", "r"]) == 0
    assert heavy_modules([*at, "r", "cut the onion"]) == [], "the index is made now"
    assert heavy_modules([*at, "r", "cut the onion"]) == []


def test_a_search_without_a_run_imports_nothing_heavy(tmp_path):
    tokenizer = word_tokenizer(["red ball"])
    clip = save_clip(new_clip(tokenizer), tokenizer, tmp_path / "small-clip")
    weights = Weights(name="small-clip", sha256=sha256_of(clip / "model.safetensors"))
    video = VideoFeatures(
        video_id="v",
        features=np.eye(9, 512),
        start_seconds=np.arange(9.0),
        end_seconds=np.arange(9.0) + 1,
        valid_frames=np.ones(9, int),
        duration_seconds=9.0,
    )
    features = DatasetFolder(tmp_path, "mine").features("clip_vit_b32")
    write_shard(features, PROFILES["clip_vit_b32"], weights, [video], made_with={})
    call = ["--root", str(tmp_path), "--dataset", "mine", "red ball", "--features", "clip_vit_b32"]
    assert heavy_modules([*call, "--weights", str(clip)]) == []
