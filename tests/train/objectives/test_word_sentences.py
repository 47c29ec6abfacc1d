"""The default recipe with a text encoder, whose sentence vectors are solved for."""

import json
import re

import numpy as np
import pytest
import torch
from helpers.text_encoders import KINDS
from helpers.training import EIGHT_STEPS, at, check_stopped_run
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer
from vlalign.storage.common.files import read_json
from vlalign.storage.common.problems import Problems
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import read_pairs
from vlalign.train.objectives.words import SOLVED_SCALE
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A model as sentence-transformers lays it out, which pools the mean."""
    folder = tmp_path_factory.mktemp("encoder")
    config, tokenizer = KINDS["bert"]()
    torch.manual_seed(0)
    AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling")
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


@pytest.fixture(scope="module")
def run(toy, encoder):
    """The folder of a run, and the call that trained it."""
    call = [*at(toy), "--features", "s3d", *EIGHT_STEPS, "--text-encoder", str(encoder)]
    assert train_main([*call, "--run-name", "sentences"]) == 0
    return toy.runs / "sentences", call


def unit(x):
    return x / np.linalg.norm(x)


@torch.no_grad()
def test_scores_are_those_of_words_and_of_the_librarys_sentence_vectors(toy, run, encoder):
    opened = open_run(run[0])
    solved, features = opened.scorer.model.solved, opened.features
    with Problems() as problems:
        pairs = read_pairs(toy, features, problems)["test"]
    solved.sentence_share.fill_(0.4)
    scores = stage_scores(opened.scorer, pairs.captions, pairs.clips).stages["bag"]
    network, tokenizer = AutoModel.from_pretrained(encoder).eval(), AutoTokenizer.from_pretrained(encoder)
    share = 0.4  # this encoder says nothing, so its own share is 0
    for i, caption in enumerate(pairs.captions):
        tokens = network(**tokenizer(caption.caption, return_tensors="pt")).last_hidden_state[0]
        sentence = unit((tokens.mean(dim=0) + solved.sentence_bias).numpy())
        inputs = opened.scorer.text_inputs([caption])
        words = solved.of_captions(inputs["input_ids"], inputs["attention_mask"].bool())[0].numpy()
        for j, clip in enumerate(pairs.clips):
            [rows] = features.rows([clip], 64)
            x = opened.scorer.model.whole_clips(torch.tensor(rows)[None], torch.ones(1, len(rows)).bool())
            of_clip = normalize(x @ solved.clips + solved.clip_bias)[0].numpy()
            predicted = unit((x @ solved.sentence_clips + solved.sentence_clip_bias)[0].numpy())
            expected = (1 - share) * (words @ of_clip) + share * (sentence @ predicted)
            assert scores[i, j] == pytest.approx(SOLVED_SCALE * expected, abs=1e-3)


def test_the_text_encoder_is_not_trained(run, encoder):
    before = AutoModel.from_pretrained(encoder).state_dict()
    after = open_run(run[0]).scorer.model.text_encoder.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_a_stopped_run_goes_on_and_is_evaluated_and_searched(toy, run, capsys):
    check_stopped_run(toy, run[1], "sentences-stopped")
    assert evaluate_main([*at(toy), "sentences"]) == 0
    assert read_json(run[0] / "metrics.json")["stages"].keys() == {"bag", "word"}
    assert search_main([*at(toy), "sentences", "zebra xylophone", "--num-results", "1"]) == 0
    assert re.search(r"\btoy$", capsys.readouterr().out, re.MULTILINE)


def test_a_bag_that_is_trained_reads_no_text_encoder(toy, encoder, capsys):
    options = ["--features", "s3d", *EIGHT_STEPS, "--bag", "trained", "--text-encoder", str(encoder)]
    assert train_main([*at(toy), *options]) == 2
    assert re.search(r"--text-encoder .*\bbag is solved\b", capsys.readouterr().err)
