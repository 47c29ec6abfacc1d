"""docs/examples: an objective, a video aggregator and a text encoder of one's own are trained, evaluated, searched."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.frames import make_frames
from helpers.own_inputs import make_rated
from vlalign.storage.common.files import read_json

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
PARTS = {
    ("objective", "own_objective:RatedSigmoid"): [],
    ("encoder", "own_video_aggregator:AttentionPool"): [],
    ("encoder", "own_text_encoder:TrigramPair"): ["--objective", "mil-nce"],
    ("encoder", "own_frame_encoder:FrameNetwork"): ["--objective", "ncl", "--micro-batch-size", "5"],
}


@pytest.mark.parametrize(
    ("kind", "part"), [next(iter(PARTS)), *(pytest.param(*part, marks=pytest.mark.slow) for part in [*PARTS][1:])]
)
def test_a_part_of_ones_own_is_trained_evaluated_and_searched(kind, part, tmp_path):
    toy, features, query = make_rated(tmp_path / "data"), "s3d", "fry the egg"
    if "frame" in part:
        made = make_frames(tmp_path / "data")
        toy, features, query = made.dataset, made.store, "a red circle"
    module = part.partition(":")[0]
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)

    def run(command: str, *options: str) -> subprocess.CompletedProcess[str]:
        code = f"import sys; from vlalign.train.cli.{command} import main; sys.exit(main(sys.argv[1:]))"
        call = [sys.executable, "-P" if sys.version_info >= (3, 11) else "-I", "-c", code, "--root", str(toy.root)]
        return subprocess.run(
            [*call, "--dataset", toy.name, *options], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    given = ["--features", features, "--num-steps", "40", "--batch-size", "12", "--run-name", "own"]
    trained = run("train", *given, f"--{kind}", part, *PARTS[kind, part])
    assert trained.returncode == 0, trained.stderr
    assert read_json(toy.runs / "own" / "run.json")["inputs"]["plugins"][kind]["name"] == part
    refused = run("evaluate", "own")
    assert refused.returncode == 2
    assert f"--trust {module}" in refused.stderr
    evaluated = run("evaluate", "own", "--split", "train", "--trust", module)
    assert evaluated.returncode == 0, evaluated.stderr
    metrics = read_json(toy.runs / "own" / "evaluations" / "train" / "metrics.json")["metrics"]
    assert metrics["text_to_video"]["R@5"] > 2 * metrics["text_to_video"]["chance"]["R@5"] / 1.5  # it has learned
    found = run("search", str(toy.runs / "own"), query, "--trust", module)
    assert found.returncode == 0, found.stderr
    assert "v0" in found.stdout
