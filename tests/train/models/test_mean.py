"""CLIP4Clip's similarity without parameters, beside transformers' own CLIP and plain numpy."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.clips_of_text import save_wide_clip, word_tokenizer
from helpers.toy import make_toy
from helpers.training import at
from transformers import CLIPModel
from vlalign.storage.captions.files import read_captions
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.clips import Clip
from vlalign.train.models.mean import MeanPair
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import clip_vectors, text_vectors

WIDTH = 1024
"""That of the features of ``toy``."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def clip(toy, tmp_path_factory) -> Path:
    """A CLIP whose texts are as wide as the features of ``toy``."""
    texts = (caption.caption for caption in read_captions(toy.captions))
    return save_wide_clip(texts, tmp_path_factory.mktemp("clip"), WIDTH)


def train(toy: DatasetFolder, clip: Path, name: str, *settings: str) -> int:
    given = ["--encoder", "mean", "--text-encoder", str(clip), "--objective", "ncl", "--features", "s3d"]
    common = ["--batch-size", "6", "--num-steps", "2", "--validate-every", "2", "--learning-rate", "1e-7"]
    return train_main([*at(toy), *given, *common, "--run-name", name, *settings])


def test_scores_are_clips_of_texts_and_means_of_rows(toy, clip):
    assert train(toy, clip, "r") == 0
    run = open_run(toy.runs / "r")
    assert isinstance(run.scorer.model, MeanPair)
    assert {name.split(".")[0] for name, _ in run.scorer.model.named_parameters()} == {"text_encoder"}
    captions = list(read_captions(toy.captions))[:5]
    # Two steps with a learning rate of 1e-7 change values of about 0.03 by 0.0002 at most.
    model, tokenizer = CLIPModel.from_pretrained(clip), word_tokenizer(c.caption for c in read_captions(toy.captions))
    for caption, ours in zip(captions, text_vectors(run.scorer, captions), strict=True):
        ids = torch.tensor([tokenizer(caption.caption)["input_ids"]])
        with torch.no_grad():
            text = model.text_projection(model.text_model(input_ids=ids).last_hidden_state[0, -1]).numpy()
        np.testing.assert_allclose(ours, text / np.linalg.norm(text), atol=5e-4)
    clips = [Clip(video_id, None, None) for video_id in sorted(run.features.video_ids())[:4]]
    for video, ours in zip(clips, clip_vectors(run.scorer, clips), strict=True):
        rows = np.asarray(run.features.stores[0].get(video.video_id).features, dtype=np.float32)
        mean = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0)
        np.testing.assert_allclose(ours, mean / np.linalg.norm(mean), atol=1e-5)


def test_values_at_padding_have_no_influence(toy, clip):
    model = open_run(toy.runs / "r").scorer.model
    rows, mask = torch.randn(2, 3, WIDTH), torch.tensor([[True, True, False], [True, True, True]])
    expected = model.encode_videos(rows, mask).mean_BD
    rows[0, 2] = torch.nan
    torch.testing.assert_close(model.encode_videos(rows, mask).mean_BD, expected)


def test_text_encoders_of_another_width_and_objectives_that_need_layers_are_refused(toy, clip, capsys):
    assert train(toy, Path("small"), "small") == 2
    expected = r"--text-encoder small: its vectors have \d+ values, the features 1,024; .*clip-vit-base-patch32"
    assert re.search(expected, capsys.readouterr().err)
    assert train(toy, clip, "t", "--objective", "taco") == 2
    assert "--encoder mean: has no fusion layers" in capsys.readouterr().err


def test_a_run_is_evaluated_with_biases(toy, clip):
    assert train(toy, clip, "n", "--normalized-loss", "--temperature", "0.01", "--optimizer", "adam") == 0
    assert evaluate_main([*at(toy), "n"]) == 0
    assert read_json(toy.runs / "n" / "metrics.json")["normalization"]["num_queries"] == 12


def test_the_encoder_transformer_begins_in_the_space_that_both_towers_share(toy, clip):
    """CMCM section 4.1: "Both encoders are initialized from the CLIP model"."""
    own = ["--encoder", "transformer", "--num-video-layers", "0", "--additions", "none"]
    assert train(toy, clip, "t", *own) == 0
    model = open_run(toy.runs / "t").scorer.model
    rows = torch.randn(2, 3, WIDTH)
    tokens = model.encode_videos(rows, torch.ones(2, 3, dtype=torch.bool)).tokens_BMD
    torch.testing.assert_close(tokens, rows, atol=1e-3, rtol=1e-3)  # two steps of 1e-7
