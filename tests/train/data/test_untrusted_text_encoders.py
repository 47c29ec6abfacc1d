"""Text encoders in a run from elsewhere: code is never executed, wrong sizes are refused before allocation."""

import re
import resource
import sys

import pytest
import torch
from helpers.runs import change, refused, search
from vlalign.storage.common.errors import UserError
from vlalign.train.data.text_encoders import new_text_encoder
from vlalign.train.distributed import Workers
from vlalign.train.runs.load import open_run

CODE = """
import pathlib
from transformers import BertConfig, BertModel
pathlib.Path("{marker}").write_text("it ran")
class Config(BertConfig):
    pass
class Model(BertModel):
    config_class = Config
"""


def test_code_in_a_run_is_never_executed(run, tmp_path, monkeypatch, capsys):
    folder, marker = run / "text_encoder", tmp_path / "marker"
    (folder / "code.py").write_text(CODE.format(marker=marker))
    change(folder / "config.json", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "code.Config"]}, tokenizer_class="Other")
    assert search(run) == 0
    place = re.escape(str(folder / "config.json"))
    assert re.search(rf"^note: {place}: .*: auto_map$", capsys.readouterr().err, re.MULTILINE)
    assert not marker.exists()


def test_an_unknown_encoder_type_is_refused_without_asking_to_run_code(run, tmp_path, monkeypatch, capsys):
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
    place = re.escape(str(folder / "config.json"))
    assert re.search(rf"{place}: .*\bmodel_type\b.*'mine'.*\balbert, bert\b", said), said
    assert not marker.exists()


@pytest.mark.parametrize("where", ["config.json", "tokenizer_config.json"])
def test_code_beside_a_users_encoder_is_not_executed(run, tmp_path, monkeypatch, where):
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
    with answers.open() as file, pytest.raises(UserError, match=re.escape(str(folder))):
        monkeypatch.setattr(sys, "stdin", file)
        new_text_encoder(str(folder), [], Workers())
    assert not marker.exists()


@pytest.mark.parametrize(
    "values, complaint",
    [
        ({"vocab_size": 4_000_000_000}, r"\bvocab_size\b.* 4000000000\b"),
        ({"vocab_size": 2_000_000_000}, r"\bword_embeddings\.weight: .*\[2000000000, 256\].*\["),
        ({"hidden_size": 1 << 30, "num_attention_heads": 1}, rf"\b\w+\.(weight|bias): .*\b{1 << 30}\b.*\["),
        ({"num_hidden_layers": 1 << 30}, rf"\bnum_hidden_layers\b.* {1 << 30}\b"),
        ({"max_position_embeddings": 1 << 30}, rf"\bposition_embeddings\.weight: .*\[{1 << 30}, 256\].*\["),
        ({"hidden_size": 256.5}, r"\bhidden_size\b.* 256\.5\b"),
        ({"hidden_size": 0}, ""),  # the library's own words
        ({"num_attention_heads": 0}, ""),
        ({"hidden_act": "__import__('os')"}, r"\bhidden_act\b.* __import__"),
        ({"hidden_dropout_prob": float("nan")}, r"\bhidden_dropout_prob\b.* nan\b"),
        ({"model_type": "vit"}, r"\bmodel_type\b.* 'vit'"),
        ({"model_type": ["bert"]}, r"\bmodel_type\b.* \['bert'\]"),
        ({"model_type": "albert"}, r"\b\w+\.(weight|bias): .*\["),
    ],
)
def test_an_encoder_with_other_sizes_is_refused_before_allocation(run, values, complaint, capsys):
    """4e9 words: torch asked for 4 TB."""
    change(run / "text_encoder" / "config.json", **values)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    place = re.escape(str(run / "text_encoder" / "config.json"))
    assert re.search(rf"{place}: .*{complaint}", line := refused(run, capsys)), line
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000


@pytest.mark.parametrize(
    "values", [{"_attn_implementation": "org/kernel"}, {"attn_implementation": "flash_attention_2"}]
)
def test_custom_kernels_are_not_loaded(run, values, capsys):
    """Its name reached the loader of kernels."""
    change(
        run / "text_encoder" / "config.json",
        **values,
        quantization_config={"quant_method": "gptq"},
        torch_dtype="float16",
    )
    assert search(run) == 0
    unused = rf"config\.json: .*: {next(iter(values))}, quantization_config$"
    assert re.search(unused, capsys.readouterr().err, re.MULTILINE)
    encoder = open_run(run).scorer.model.text_encoder
    assert encoder.config._attn_implementation in ("sdpa", "eager") and encoder.dtype == torch.float32


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 200_000, b"\xff", b'{"a": ' + b"9" * 5000 + b"}", None])
def test_an_invalid_encoder_file_is_one_line(run, name, content, capsys):
    path = run / "text_encoder" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    assert "text_encoder/" in refused(run, capsys)
