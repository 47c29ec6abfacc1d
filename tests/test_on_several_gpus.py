"""Several processes, each with a pretended GPU, train as one on a CPU. Not every machine has two real ones."""

import json
from pathlib import Path

import pytest
from helpers.fake_cuda import pretended
from helpers.labelled import make_questions, make_segments
from helpers.step_cases import WHOLE
from helpers.toy import make_toy
from helpers.training import at, check_processes, torchrun
from vlalign.storage.common.files import read_jsonl
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.train import main as train_main

TRAIN = ["--batch-size", "6", "--num-steps", "2", "--validate-every", "2", "--warmup-steps", "0"]


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.mark.slow
def test_two_processes_with_a_gpu_each_have_the_loss_and_gradient_of_one_on_a_cpu(toy, tmp_path):
    datasets = {"toy": toy, "asked": make_questions(toy.root), "segmented": make_segments(toy.root)}
    cases = {}
    for case, settings in WHOLE.items():
        dataset, features = datasets.get(case, datasets["toy"]), "resnet152" if case in datasets else "s3d"
        for size in (0, 4):
            cases[f"{case}-{size}"] = (dataset, settings | {"features": features, "micro_batch_size": size})
    for negatives in ("random", "all"):
        cases[negatives] = (datasets["toy"], {"objective": "taco", "negatives": negatives})
    check_processes(cases, tmp_path, 2, kind="cuda")


ONE_OF_TWO = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from helpers.fake_cuda import pretended
from vlalign.train.cli.train import main

with pretended(num_gpus=2) as gpu:
    status = main(sys.argv[3:])
with open(f"{sys.argv[2]}.{os.environ['RANK']}", "w") as file:
    json.dump({"status": status, "touched": gpu.touched}, file)
"""


@pytest.mark.slow
def test_each_of_two_processes_uses_its_own_gpu_alone_and_they_train_as_one_on_a_cpu(toy, tmp_path):
    """A GPU that a process touches holds some hundred MiB for it, whatever the process goes on with."""
    script, out = tmp_path / "one_of_two.py", tmp_path / "out"
    script.write_text(ONE_OF_TWO)
    call = [*at(toy), "--features", "s3d", *TRAIN, "--objective", "ncl", "--encoder", "gated", "--embedding-size", "16"]
    call += ["--normalized-loss", "--query-queue", "20", "--temperature", "0.1"]
    done = torchrun(
        2, str(script), str(Path(__file__).parent), str(out), *call, "--device", "cuda", "--run-name", "two-gpus"
    )
    assert done.returncode == 0, done.stderr[-3000:]
    of_ranks = [json.loads((tmp_path / f"out.{rank}").read_text()) for rank in range(2)]
    assert of_ranks == [{"status": 0, "touched": [0]}, {"status": 0, "touched": [1]}]
    assert train_main([*call, "--run-name", "cpu"]) == 0
    found, expected = (read_jsonl(toy.runs / name / "events.jsonl") for name in ("two-gpus", "cpu"))
    assert len(found) == 2
    for event, alone in zip(found, expected, strict=True):
        assert event == pytest.approx(alone, rel=1e-3)


def test_a_process_without_its_own_gpu_is_refused(toy, monkeypatch, capsys):
    for name, value in {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "29571",
    }.items():
        monkeypatch.setenv(name, value)
    with pretended(num_gpus=1):
        assert train_main([*at(toy), "--features", "s3d", *TRAIN, "--device", "cuda"]) == 2
    said = capsys.readouterr().err
    last = said.splitlines()[-1]
    assert "--device cuda:1: " in last and "(CUDA error: invalid device ordinal)" in last
    assert "Traceback" not in said


def test_a_missing_process_group_is_one_line(toy, monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert train_main([*at(toy), "--features", "s3d", *TRAIN]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert all(name in last for name in ("WORLD_SIZE", "LOCAL_RANK, MASTER_ADDR, MASTER_PORT", "torchrun"))
