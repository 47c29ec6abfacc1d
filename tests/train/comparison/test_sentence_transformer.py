"""A run's text encoder as a model of sentence-transformers, which gives the run's vectors of texts."""

import json
import subprocess
import sys

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import GATED
from vlalign.storage import UserError
from vlalign.train import export_run, export_sentence_transformer, load_run, train
from vlalign.train.cli.runs import main as runs_main

SHORT = {"features": "s3d", "batch_size": 4, "num_steps": 2, "validate_every": 1}
TEXTS = ["Boil the egg!", "a", "peel and cut the onion, the fish and the bread " * 9, "stir"]
CASES = {
    "taco": {"objective": "taco", "num_negatives": 2},  # the first token, times a factor
    "ncl": {"objective": "ncl", "normalized_loss": True, "query_queue": 20, "temperature": 0.1},  # of length 1
    "toco": {"objective": "toco", "num_negatives": 2},  # the mean of all tokens
}
IN_A_NEW_PROCESS = """
import json, sys
for name in ("vlalign", "vlalign.train"):
    sys.modules[name] = None
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu", local_files_only=True, trust_remote_code=False)
print(json.dumps(model.encode(json.loads(sys.argv[2])).tolist()))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("st") / "root")


@pytest.mark.parametrize("case", CASES)
def test_it_gives_the_runs_vectors_without_this_package(toy, tmp_path, case):
    run = train(toy.path, run_name=case, device="cpu", settings=SHORT | CASES[case]).folder
    loaded = load_run(run, device="cpu")
    folder = export_sentence_transformer(run, tmp_path / "model")
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS, str(folder), json.dumps(TEXTS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    found, expected = np.array(json.loads(done.stdout.splitlines()[-1])), loaded.encode_text(TEXTS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())
    assert not list(folder.rglob("*.py")) and not list(folder.rglob("*.bin"))
    types = [module["type"] for module in json.loads((folder / "modules.json").read_text())]
    assert all(of.startswith("sentence_transformers.") for of in types)


def test_the_command_exports_an_exported_run_too(toy, tmp_path, capsys):
    train(toy.path, run_name="mine", device="cpu", settings=SHORT | CASES["taco"])
    whole = export_run(toy.runs / "mine", tmp_path / "whole")
    at = ["--root", str(toy.root), "--form", "sentence-transformers"]
    assert runs_main(["export", "mine", str(tmp_path / "a"), *at]) == 0
    assert runs_main(["export", str(whole), str(tmp_path / "b"), *at]) == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    assert runs_main(["export", "mine", str(tmp_path / "a"), *at]) == 2
    assert runs_main(["--dataset", "toy", *at]) == 2
    assert "form" in capsys.readouterr().err


def test_a_run_without_a_text_encoder_is_refused(toy, tmp_path, monkeypatch):
    run = train(toy.path, run_name="gated", device="cpu", settings=SHORT | {"objective": "mil-nce"} | GATED).folder
    with pytest.raises(UserError, match="not the output of a text encoder alone"):
        export_sentence_transformer(run, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(UserError, match=r"sentence_transformers is not installed.*sentence-transformers>="):
        export_sentence_transformer(run, tmp_path / "model")
