"""Runs from elsewhere: nothing in one makes code run or more be allocated than its files hold, and what is wrong is one
line."""

import base64
import json
import resource
import shutil
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.any_json import ANY_JSON, places
from helpers.toy import make_toy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from vlalign.storage.common.errors import UserError
from vlalign.storage.files import read_json, write_json
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.word_vectors import read_word_vectors
from vlalign.train.checkpoint import load_run
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_search import main as search_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.data.text import new_text_encoder

TRAIN = ["--features", "s3d", "--batch-size", "6", "--num-steps", "2", "--validate-every", "1", "--num-negatives", "2"]
MOST_SECONDS = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    assert train_main([*at(toy), *TRAIN, "--run-name", "run"]) == 0
    return toy.runs / "run"


def at(dataset: DatasetFolder) -> list[str]:
    return ["--root", str(dataset.root), "--dataset", dataset.name]


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of a run, in a copy of its data set."""
    shutil.copytree(trained.parents[1], tmp_path / "toy")
    return tmp_path / "toy" / "runs" / "run"


def search(run: Path) -> int:
    return search_main(["--root", str(run.parents[2]), str(run), "cut the onion"])


def change(path: Path, **values) -> None:
    write_json(path, read_json(path) | values)


def refused(run: Path, capsys) -> str:
    """The line that a search with it says."""
    signal.alarm(MOST_SECONDS)
    code = search(run)
    signal.alarm(0)
    said = capsys.readouterr().err.strip()
    assert code == 2 and "\n" not in said and said.isprintable(), said
    return said.removeprefix("vlalign-search: error: ")


# The text encoder


CODE = """
import pathlib
from transformers import BertConfig, BertModel
pathlib.Path("{marker}").write_text("it ran")
class Config(BertConfig):
    pass
class Model(BertModel):
    config_class = Config
"""


def test_code_in_a_run_is_not_executed_whatever_is_answered(run, tmp_path, monkeypatch, capsys):
    folder, marker = run / "text_encoder", tmp_path / "marker"
    (folder / "code.py").write_text(CODE.format(marker=marker))
    change(folder / "config.json", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "code.Config"]}, tokenizer_class="Other")
    assert search(run) == 0
    assert f"note: {folder / 'config.json'}: not used: auto_map\n" in capsys.readouterr().err
    assert not marker.exists()


def test_an_encoder_of_a_kind_of_its_own_is_refused_and_nothing_is_asked(run, tmp_path, monkeypatch, capsys):
    """It asked on standard input whether to run the code, and ran it."""
    folder, marker = run / "text_encoder", tmp_path / "marker"
    (folder / "code.py").write_text(CODE.format(marker=marker))
    change(folder / "config.json", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"}, model_type="mine")
    answers = tmp_path / "answers"
    answers.write_text("y\n" * 9)
    with answers.open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        said = refused(run, capsys)
        assert file.read() == "y\n" * 9, "nothing was read before"
    assert "config.json: not as a training writes it (its model_type is 'mine'; expected one of albert, bert" in said
    assert not marker.exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_beside_an_encoder_that_the_user_names_is_not_executed(run, tmp_path, monkeypatch, where):
    folder, marker = run / "text_encoder", tmp_path / "marker"
    (folder / "code.py").write_text(CODE.format(marker=marker))
    change(
        folder / where,
        auto_map={"AutoConfig": "code.Config", "AutoTokenizer": [None, "code.Config"]},
        model_type="mine",
        tokenizer_class="X",
    )
    answers = tmp_path / "answers"
    answers.write_text("y\n" * 9)
    with answers.open() as file, pytest.raises(UserError, match="not loadable"):
        monkeypatch.setattr(sys, "stdin", file)
        new_text_encoder(str(folder), [])
    assert not marker.exists()


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"vocab_size": 4_000_000_000}, "its vocab_size is 4000000000"),
        (
            {"vocab_size": 2_000_000_000},
            "it does not match the run's weights, embeddings.word_embeddings.weight: expected [2000000000, 256], there "
            "[",
        ),
        ({"hidden_size": 1 << 30, "num_attention_heads": 1}, "it does not match the run's weights"),
        ({"num_hidden_layers": 1 << 30}, "it has more layers than the run's weights"),
        ({"max_position_embeddings": 1 << 30}, "it does not match the run's weights"),
        ({"hidden_size": 256.5}, "its hidden_size is 256.5"),
        ({"hidden_size": 0}, "text_encoder/config.json: not as a training writes it"),
        ({"num_attention_heads": 0}, "text_encoder/config.json: not as a training writes it"),
        ({"hidden_act": "__import__('os')"}, "its hidden_act is __import__"),
        ({"hidden_dropout_prob": float("nan")}, "its hidden_dropout_prob is nan"),
        ({"model_type": "vit"}, "its model_type is 'vit'"),
        ({"model_type": ["bert"]}, "its model_type is ['bert']"),
        ({"model_type": "albert"}, "it does not match the run's weights"),
    ],
)
def test_an_encoder_of_other_sizes_is_refused_before_it_is_made(run, values, complaint, capsys):
    """4e9 words: torch asked for 4 TB."""
    change(run / "text_encoder" / "config.json", **values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert complaint in refused(run, capsys)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize(
    "values", [{"_attn_implementation": "org/kernel"}, {"attn_implementation": "flash_attention_2"}]
)
def test_no_kernel_is_loaded(run, values, capsys):
    """Its name reached the loader of kernels."""
    change(
        run / "text_encoder" / "config.json",
        **values,
        quantization_config={"quant_method": "gptq"},
        torch_dtype="float16",
    )
    assert search(run) == 0
    assert f"config.json: not used: {next(iter(values))}, quantization_config\n" in capsys.readouterr().err
    encoder = load_run(run).scorer.model.text_encoder
    assert encoder.config._attn_implementation in ("sdpa", "eager") and encoder.dtype == torch.float32


def replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def table(*letters: bytes) -> dict:
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(struct.pack("<I", 4) + bytes(4) + b"\0".join(letters)).decode(),
    }


WORD_PIECE = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 100}
DOUBLING = {"type": "Sequence", "normalizers": [replaced({"String": "a"}, "aa")] * 7}
TOKENIZERS = {
    "a text that doubles": ({"normalizer": DOUBLING}, "its normalizer replaces {'String': 'a'}"),
    "a slow pattern": (
        {"normalizer": replaced({"Regex": "(a+)+$"}, "")},
        "its normalizer replaces {'Regex': '(a+)+$'}",
    ),
    "a pattern that splits": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": False}},
        "its pre_tokenizer is 'Split'; expected one of BertPreTokenizer",
    ),
    "a letter that is a novel": (
        {"normalizer": table(b"x", b"a" * 5000)},
        "its character table replaces single characters by long texts",
    ),
    "many parts": (
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}] * 500}},
        "its normalizer has more than 8 parts",
    ),
    "a template of many tokens": (
        {"post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]" * 9000, 2]}},
        "its settings have more than 16,384 characters",
    ),
    "another model": ({"model": {"type": "Mine"}}, "its model is 'Mine'; expected one of WordPiece"),
    "no model": ({"model": None}, "tokenizer.json: not as a training writes it"),
    "parts that are none": ({"normalizer": [1]}, "tokenizer.json: not as a training writes it"),
    "too many tokens": (
        {
            "model": {
                "type": "WordLevel",
                "vocab": {"[PAD]": 0, "[UNK]": 99_999, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
                "unk_token": "[UNK]",
            }
        },
        "has more tokens than the encoder",
    ),
    "no unknown token": (
        {"model": {"type": "WordPiece", "vocab": {"[PAD]": 0}, "unk_token": "[UNK]"} | WORD_PIECE, "added_tokens": []},
        "its special token '[UNK]' is not in its vocabulary",
    ),
}


@pytest.mark.parametrize("what", TOKENIZERS)
def test_a_tokenizer_of_other_parts_is_refused(run, what, capsys):
    values, complaint = TOKENIZERS[what]
    change(run / "text_encoder" / "tokenizer.json", **values)
    assert complaint in refused(run, capsys)


def test_padding_that_a_tokenizer_asks_for_is_not_heeded(run):
    padding = {
        "strategy": {"Fixed": 10**9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "[PAD]",
    }
    change(run / "text_encoder" / "tokenizer.json", padding=padding)
    assert search(run) == 0


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 200_000, b"\xff", b'{"a": ' + b"9" * 5000 + b"}", None])
def test_a_file_of_the_encoder_that_is_none_is_a_line(run, name, content, capsys):
    path = run / "text_encoder" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert "text_encoder/" in refused(run, capsys)


# Its weights


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"feature_mean": torch.zeros(3)},
        {"text_encoder.embeddings.word_embeddings.weight": torch.zeros(0, 1 << 40)},
    ],
)
def test_weights_of_another_model_are_a_line(run, tensors, capsys):
    save_file(tensors, run / "model.safetensors")
    assert "train the run again" in refused(run, capsys)


@pytest.mark.parametrize(
    "header", [{"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}, {"a": 1}, [1]]
)
def test_a_header_that_claims_more_than_the_file_has_is_a_line(run, header, capsys):
    text = json.dumps(header).encode()
    (run / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert "model.safetensors: not as a training writes it (" in refused(run, capsys)


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"num_video_layers": 10**9}, "the run's settings have more layers"),
        ({"num_fusion_layers": 10**9}, "the run's settings have more layers"),
        (
            {"query_queue": 10**12, "normalized_loss": True},
            "model.safetensors: not as a training writes it (not the run's model, queries.pushed",
        ),
        (
            {"objective": "cmcm", "codebook_size": 10**15, "encoder": "transformer"},
            "model.safetensors: not as a training writes it (",
        ),
        ({"query_queue": 10**30, "normalized_loss": True}, "model.safetensors: not as a training writes it ("),
    ],
)
def test_settings_of_another_size_are_refused_before_anything_is_made(run, values, complaint, capsys):
    change(run / "run.json", config=read_json(run / "run.json")["config"] | values)
    assert complaint in refused(run, capsys)


# run.json, and what the report is made of


@pytest.mark.parametrize(
    "part, value, complaint",
    [
        ("inputs", {"features": [{}]}, "inputs.features: features is not text"),
        ("inputs", {"features": []}, "inputs.features has 0 stores; config.features s3d"),
        ("inputs", {}, "inputs.features is not a list of objects"),
        ("result", {}, "result.best has no step"),
        ("result", {"best": {"step": 1, "x": 10**400}}, "result.best has values that are not finite numbers"),
        ("result", {"best": {"step": 1, "x": "\x1b[31m"}}, "result.best has values that are not finite numbers"),
        ("software", None, "software is not an object"),
        ("config", [], "config is not an object"),
        ("config", {"dataset": "toy", "features": "s3d", "mine\n": 1}, "config.mine\\n is not known"),
        ("config", {"dataset": "toy", "features": "s3d", "dropout": "0"}, "config.dropout: expected float"),
        ("config", {"dataset": "toy", "features": "../../elsewhere"}, "'../../elsewhere' names no store"),
        ("config", {"dataset": "..", "features": "s3d"}, "data set name '..'"),
        ("note", "\ud800", "surrogates not allowed"),
    ],
)
def test_a_wrong_value_in_run_json_is_named(run, part, value, complaint, capsys):
    (run / "run.json").write_text(json.dumps(read_json(run / "run.json") | {part: value}))
    assert complaint in refused(run, capsys)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_anywhere_in_run_json_is_used_or_refused_in_a_line(run, data, capsys):
    """Such as inputs.features [{}], which was a KeyError."""
    from vlalign.train.runs import features_note, read_run

    about = (
        json.loads((run / "run.json").read_text())
        if not (run / "kept").exists()
        else json.loads((run / "kept").read_text())
    )
    (run / "kept").write_text(json.dumps(about))
    place, value = data.draw(st.sampled_from(places(about)[1:])), data.draw(ANY_JSON)
    target = about
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    (run / "run.json").write_text(json.dumps(about))
    try:
        features_note(read_run(run)["inputs"])
    except UserError as error:
        assert "\n" not in str(error) and str(run / "run.json") in str(error)


@pytest.mark.parametrize(
    "line", ['{"loss": 1}', '{"step": 1, "loss": "a"}', '{"step": 1, "loss": 1e999}', '{"step": 1, "x": []}', "[]", ""]
)
def test_events_that_are_none_are_a_line(run, line, capsys):
    (run / "events.jsonl").write_text(line + "\n")
    assert evaluate_main(["--root", str(run.parents[2]), str(run)]) == 2
    said = capsys.readouterr().err
    assert "events.jsonl" in said and "Traceback" not in said


@pytest.mark.parametrize(
    "change", [{"metrics": {}}, {"stages": 3}, {"task": "x"}, {"note": 5, "left_out": [1], "not_comparable": None}]
)
def test_metrics_that_are_none_are_a_line(run, change, capsys):
    call = ["--root", str(run.parents[2]), str(run)]
    assert evaluate_main(call) == 0
    write_json(run / "metrics.json", read_json(run / "metrics.json") | change)
    assert evaluate_main(call) == 2
    assert (
        "metrics.json: not as an evaluation writes it; remove it and run the evaluation again"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("labels", [{}, [1], ["\ud800"], "x", [[]]])
def test_labels_that_are_none_are_a_line(run, labels, capsys):
    (run / "labels.json").write_text(json.dumps(labels))
    assert "labels.json: expected a list of labels; train the run again" in refused(run, capsys)


# The state of a run that goes on


@pytest.mark.parametrize(
    "about", [None, [], {"config": [], "inputs": {}}, {"step": -1}, {"step": 10**9}, {"step": "1"}, {"best": 5}]
)
def test_a_state_that_is_none_is_a_line(run, about, capsys):
    whole = read_json(run / "run.json")
    (run / "run.json").unlink()
    there = {"config": whole["config"], "inputs": whole["inputs"], "step": 1, "best": None}
    said = {} if about is None else {"run": json.dumps(there | about if isinstance(about, dict) else about)}
    tensors = {f"model.{name}": value for name, value in load_file(run / "model.safetensors").items()}
    save_file(tensors, run / "state.safetensors", said)
    call = ["--root", str(run.parents[2]), "--dataset", "toy", *TRAIN, "--run-name", "run"]
    assert train_main(call) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("vlalign-train: error: ") and str(run) in said
    assert "the run begins anew" in said or "holds an unfinished run with other settings" in said


# Word vectors


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"words": ["a"], "vectors": ["a"], "about": "{}"},
        {"words": [["a"]], "vectors": [[1.0]], "about": "[" * 200_000},
        {"words": ["a"], "vectors": [1.0], "about": "{}"},
        {"words": ["a", "b"], "vectors": [[1.0]], "about": "{}"},
        {"words": ["a"], "vectors": [[1.0]], "about": ["{}", "{}"]},
    ],
)
def test_word_vectors_that_are_none_are_a_line(tmp_path, arrays):
    path = tmp_path / "word_vectors.npz"
    np.savez(path, **arrays)
    with pytest.raises(UserError, match=r"word_vectors\.npz: not readable word vectors \(.*\); run vlalign-preprocess"):
        read_word_vectors(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=r"word_vectors\.npz: not readable word vectors"):
        read_word_vectors(path)
