"""Weights and training states from elsewhere: what does not fit the run is one error line."""

import json
import re
import struct

import pytest
import torch
from helpers.runs import change, refused
from helpers.training import TWO_STEPS
from safetensors.torch import load_file, save_file
from vlalign.storage.common.files import read_json
from vlalign.train.cli.train import main as train_main

pytestmark = pytest.mark.portable


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"feature_mean": torch.zeros(3)},
        {"text_encoder.embeddings.word_embeddings.weight": torch.zeros(0, 1 << 40)},
    ],
)
def test_weights_of_another_model_are_one_line(run, tensors, capsys):
    save_file(tensors, run / "model.safetensors")
    assert "train the run again" in refused(run, capsys)


@pytest.mark.parametrize(
    "header", [{"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}, {"a": 1}, [1]]
)
def test_a_header_that_claims_more_than_the_file_has_is_one_line(run, header, capsys):
    text = json.dumps(header).encode()
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "model.safetensors: not a valid file of vlalign-train (" in refused(run, capsys)


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"num_video_layers": 10**9}, r"\bnum_video_layers\b.* 1,000,000,000\b"),
        ({"num_fusion_layers": 10**9}, r"\bnum_fusion_layers\b.* 1,000,000,000\b"),
        ({"query_queue": 10**12, "normalized_loss": True}, r"\bqueries\.pushed: "),
        ({"objective": "cmcm", "codebook_size": 10**15, "encoder": "transformer"}, r"\bcodebook\.\w+.*: "),
        ({"query_queue": 10**30, "normalized_loss": True}, ""),  # torch's own words for it
    ],
)
def test_settings_with_other_sizes_are_refused_before_allocation(run, values, complaint, capsys):
    change(run / "run.json", config=read_json(run / "run.json")["config"] | values)
    assert re.search(rf"{re.escape(str(run / 'model.safetensors'))}: .*{complaint}", line := refused(run, capsys)), line


@pytest.mark.parametrize(
    "about", [None, [], {"config": [], "inputs": {}}, {"step": -1}, {"step": 10**9}, {"step": "1"}, {"best": 5}]
)
def test_an_invalid_training_state_is_one_line(run, about, capsys):
    whole = read_json(run / "run.json")
    (run / "run.json").unlink()
    there = {"config": whole["config"], "inputs": whole["inputs"], "step": 1, "best": None}
    said = {} if about is None else {"run": json.dumps(there | about if isinstance(about, dict) else about)}
    tensors = {f"model.{name}": value for name, value in load_file(run / "model.safetensors").items()}
    save_file(tensors, run / "state.safetensors", said)
    call = ["--root", str(run.parents[2]), "--dataset", "toy", *TWO_STEPS, "--run-name", "run"]
    assert train_main(call) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vlalign-train: error: ") and str(run) in said
    if isinstance(about, dict) and len(about) == 1:
        [(name, value)] = about.items()
        assert re.search(rf"state\.safetensors: .*\b{name}: {re.escape(repr(value))},", said), said
