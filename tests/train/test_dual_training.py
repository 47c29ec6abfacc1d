"""SSML, MIL-NCE, NCL and CMCM train, go on, share a batch, are evaluated and searched as TACo is."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.shared import shared
from helpers.toy import make_toy
from helpers.training import PAIR_CASES, at, check_processes, losses_of, options, trainer
from vlalign.storage.files import read_json
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.word_vectors import read_word_vectors
from vlalign.train.checkpoint import load_run
from vlalign.train.cli_evaluate import main as evaluate_main
from vlalign.train.cli_search import main as search_main
from vlalign.train.cli_train import main as train_main
from vlalign.train.data.batches import CandidateBatches, VideoBatches
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.pair_weights import PARTS_SEED
from vlalign.train.data.text import average_words
from vlalign.train.density import nearest_pairs, pair_association_probability
from vlalign.train.models.codebook import IDLE_STEPS, SharedCodebook
from vlalign.train.models.queries import QueryQueue
from vlalign.train.trainer import Trainer
from vlalign.train.workers import Workers


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> DatasetFolder:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.mark.slow
def test_two_processes_have_the_loss_the_gradient_and_the_codebook_of_one(toy, tmp_path):
    check_processes({case: (toy, settings) for case, settings in PAIR_CASES.items()}, tmp_path, 2)


@pytest.mark.parametrize("case", PAIR_CASES)
def test_a_stopped_run_goes_on_is_evaluated_and_searched(toy, case, monkeypatch, capsys):
    call = [
        *at(toy),
        "--features",
        "s3d",
        "--batch-size",
        "6",
        "--num-steps",
        "8",
        "--validate-every",
        "3",
        *options(PAIR_CASES[case]),
    ]
    call += ["--num-negatives", "2"]
    assert train_main([*call, "--run-name", f"{case}-whole"]) == 0
    step = Trainer.train_step

    def stopped(self, inputs):
        if self.step == 5:
            raise KeyboardInterrupt
        return step(self, inputs)

    monkeypatch.setattr(Trainer, "train_step", stopped)
    assert train_main([*call, "--run-name", f"{case}-stopped"]) != 0
    monkeypatch.undo()
    assert train_main([*call, "--run-name", f"{case}-stopped"]) == 0
    assert losses_of(toy.runs / f"{case}-stopped") == losses_of(toy.runs / f"{case}-whole")
    for file in ("model.safetensors", "last.safetensors"):
        assert (toy.runs / f"{case}-stopped" / file).read_bytes() == (toy.runs / f"{case}-whole" / file).read_bytes()

    capsys.readouterr()
    assert evaluate_main([*at(toy), f"{case}-whole"]) == 0
    assert "normalisation error at temperature" in capsys.readouterr().out
    result = read_json(toy.runs / f"{case}-whole" / "metrics.json")
    assert result["metrics"]["text_to_video"]["num_queries"] == 6
    assert search_main([*at(toy), f"{case}-whole", "cut the onion", "--num-results", "3"]) == 0
    assert "among 24 clips" in capsys.readouterr().out


def test_a_batch_has_clips_of_the_same_videos_or_candidates_next_in_time(toy, tmp_path):
    made = trainer(toy, tmp_path, **PAIR_CASES["mil-nce"])
    pairs = made.examples.pairs["train"]
    inputs = made.make_inputs(0)
    assert inputs.texts["vectors"].shape == (12 * 3, 20) and inputs.rows.shape[0] == 12
    clips, captions = CandidateBatches(pairs, 4, 0, 2).at(0)
    assert [pairs.clip_of_caption[own] for own, _ in captions] == clips
    video_clips, _ = VideoBatches(pairs, 6, 0, 3).at(0)
    videos = [pairs.clips[n].video_id for n in video_clips]
    assert len(video_clips) == 6 and videos[0] == videos[1] == videos[2] != videos[3]


def test_the_pairs_weights_are_those_of_the_density_and_are_kept(toy, tmp_path, capsys):
    made = trainer(toy, tmp_path / "one", **PAIR_CASES["ssml"])
    pairs = made.examples.pairs["train"]
    features: ClipFeatures = made.scorer.features
    clips = np.stack([features.rows([clip], 1000)[0].max(axis=0).astype(np.float32) for clip in pairs.clips])
    clips /= np.linalg.norm(clips, axis=1, keepdims=True)
    texts = average_words(read_word_vectors(toy.word_vectors), [c.caption for c in pairs.captions])
    assert clips.any(axis=1).all() and texts.any(axis=1).all()
    expected = pair_association_probability(
        (clips - clips.mean(axis=0))[pairs.clip_of_caption], texts - texts.mean(axis=0), 2
    )
    np.testing.assert_allclose(made.examples.pair_weights, expected, atol=1e-5)
    (kept,) = (toy.path / "pair_weights").glob("*-k2-*.npz")
    with np.load(kept) as arrays:
        about = json.loads(arrays["about"].item())
    assert about["k"] == 2 and about["word_vectors"] == {"file": "toy"} and about["inputs"]["features"]
    capsys.readouterr()
    trainer(toy, tmp_path / "two", **PAIR_CASES["ssml"])
    assert "belong together" not in capsys.readouterr().err, "once is enough"


def test_neighbours_among_more_pairs_than_memory_holds_are_looked_for_in_drawn_parts_of_them(
    toy, tmp_path, capsys, monkeypatch
):
    whole = trainer(toy, tmp_path / "whole", **PAIR_CASES["ssml"]).examples
    pairs = whole.pairs["train"]
    clips = whole.source.features.pooled(pairs.clips)
    texts = average_words(read_word_vectors(toy.word_vectors), [c.caption for c in pairs.captions])
    monkeypatch.setattr("vlalign.train.data.pair_weights.PART_NUMBERS", 6 * (clips.shape[1] + texts.shape[1]))
    monkeypatch.setattr("vlalign.train.data.pair_weights.CLIPS", 5)
    capsys.readouterr()
    found = trainer(toy, tmp_path / "parts", **PAIR_CASES["ssml"]).examples.pair_weights
    assert "12 pairs, neighbours among 6 each" in capsys.readouterr().err
    density = np.full(12, np.nan)
    for part in np.random.default_rng(PARTS_SEED).permutation(12).reshape(2, 6):
        video, text = clips[pairs.clip_of_caption[part]], texts[part]
        density[part] = nearest_pairs(video - video.mean(axis=0), text - text.mean(axis=0), 2).similarity_NK.mean(
            axis=1
        )
    np.testing.assert_allclose(found, (density - density.min()) / (density.max() - density.min()), atol=1e-5)
    assert not np.allclose(found, whole.pair_weights, atol=0.01)


def test_what_cannot_be_done_is_said_in_one_line(toy, capsys, tmp_path):
    def error_of(*call: str, root: Path = toy.root) -> str:
        assert (
            train_main(["--root", str(root), "--dataset", "toy", "--features", "s3d", "--run-name", "wrong", *call])
            == 2
        )
        return capsys.readouterr().err.splitlines()[-1]

    assert "there are 12 training pairs" in error_of("--pair-weights", "density", "--density-neighbors", "12")
    assert "needs tokens" in error_of("--encoder", "gated")
    assert "whole groups of clips" in error_of("--objective", "ssml", "--batch-size", "10", "--clips-per-video", "4")
    assert "has no retrieval probabilities" in error_of("--objective", "ssml", "--normalized-loss")
    assert "contrast among them" in error_of("--objective", "cmcm", "--losses", "codes")
    shutil.copytree(toy.path, tmp_path / "toy")
    (tmp_path / "toy" / "word_vectors.npz").unlink()
    assert "run vlalign-preprocess with --word-vectors" in error_of("--recipe", "ssml-small", root=tmp_path)


def test_a_run_without_queries_says_so_and_others_scores_are_named(toy, capsys):
    call = [*at(toy), "--features", "s3d", "--num-steps", "2", "--batch-size", "6", "--validate-every", "2"]
    assert train_main([*call, "--run-name", "plain", "--objective", "ncl", "--no-normalized-loss"]) == 0
    assert evaluate_main([*at(toy), "plain", "--normalize", "ncl"]) == 2
    assert "kept no training queries" in capsys.readouterr().err
    assert train_main([*call, "--run-name", "taco-ncl", *options(PAIR_CASES["taco-both"]), "--num-negatives", "2"]) == 0
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "qbnorm"]) == 2
    assert "set the weight of token, fusion to 0" in capsys.readouterr().err
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl"]) == 0
    assert "normalised by ncl, inductive" in capsys.readouterr().out
    for way in ("ncl-oracle", "dsl"):
        assert evaluate_main([*at(toy), "taco-ncl", "--normalize", way]) == 0
        assert f"normalised by {way}, transductive" in capsys.readouterr().out
    assert evaluate_main([*at(toy), "taco-ncl", "--normalize", "ncl", "--temperature", "0"]) == 2


def test_cmcm_begins_with_what_its_baseline_has_learned(toy, capsys):
    call = [
        *at(toy),
        "--features",
        "s3d",
        "--num-steps",
        "4",
        "--batch-size",
        "6",
        "--validate-every",
        "4",
        "--objective",
        "cmcm",
    ]
    assert train_main([*call, "--run-name", "baseline", "--codebook-size", "0"]) == 0
    assert (
        train_main(
            [*call, "--run-name", "warm", "--codebook-size", "8", "--init", "baseline", "--learning-rate", "1e-12"]
        )
        == 0
    )
    baseline, warm = (load_run(toy.runs / name).scorer.model for name in ("baseline", "warm"))
    torch.testing.assert_close(warm.codebook.high["text"].weight, baseline.codebook.high["text"].weight)
    torch.testing.assert_close(warm.project.weight, baseline.project.weight)


def test_a_codebook_that_collapses_is_said_with_the_number_of_live_codewords(toy, capsys, monkeypatch):
    monkeypatch.setattr(
        SharedCodebook, "nearest", lambda self, tokens: torch.zeros(tokens.shape[:-1], dtype=torch.int64)
    )
    call = [
        *at(toy),
        "--features",
        "s3d",
        "--num-steps",
        "3",
        "--batch-size",
        "6",
        "--validate-every",
        "2",
        "--recipe",
        "cmcm-small",
    ]
    assert train_main([*call, "--run-name", "collapsed"]) == 0
    assert "step 2: the codebook collapsed: 1 of 128 codewords are in use" in capsys.readouterr().err
    assert [dict(event)["codewords_in_use"] for event in losses_of(toy.runs / "collapsed")] == [1, 1, 1]


def test_the_codebook_moves_as_that_of_a_published_program():
    """ResDAVEnet-VQ's, whose smoothing by 1e-5 CMCM's appendix A does not have."""
    with np.load(shared("data/goldens/inputs.npz")) as arrays:
        given = {name: torch.from_numpy(arrays[name]) for name in arrays if name.startswith("vq_")}
    steps = json.loads(shared("data/goldens/goldens.json").read_text())["vq_ema"]["steps"]
    codebook = SharedCodebook(4, 8)
    codebook.codewords, codebook.sums = given["vq_init"].clone(), given["vq_init"].clone()
    for number, tokens in enumerate(given["vq_inputs"]):
        assert codebook.nearest(tokens).tolist() == steps[number]["codes"]
        codebook.update(tokens, Workers(), torch.Generator())
        torch.testing.assert_close(codebook.codewords, given[f"vq_embed_after_{number}"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(codebook.counts, given[f"vq_cluster_after_{number}"], rtol=1e-4, atol=1e-5)


def test_a_codeword_that_nothing_uses_begins_anew_at_one_that_is_used_and_stays():
    codebook = SharedCodebook(2, 3)
    codebook.codewords = torch.tensor([[0.0, 0], [1, 1], [50, 50]])
    codebook.sums = codebook.codewords.clone()
    tokens = torch.tensor([[0.0, 0.1], [1, 1.1]])
    for _ in range(IDLE_STEPS - 1):
        assert codebook.update(tokens, Workers(), torch.Generator()) == 2
    assert codebook.codewords[2].min() > 20
    codebook.update(tokens, Workers(), torch.Generator())
    assert codebook.codewords[2].max() < 2 and codebook.counts[2] == 1 and codebook.idle[2] == 0
    place = codebook.codewords[2].clone()
    codebook.update(torch.tensor([[-5.0, -5]]), Workers(), torch.Generator())
    torch.testing.assert_close(codebook.codewords[2], place), "what it was before does not draw it back"


def test_a_token_is_replaced_by_the_nearest_codeword_and_passes_its_gradient_on():
    codebook = SharedCodebook(3, 5)
    tokens = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    vector = codebook.vector("text", torch.zeros(2, 3), tokens, mask)
    for row in range(2):
        replaced = []
        for token in tokens[row, mask[row]]:
            distances = [torch.linalg.vector_norm(token - word) for word in codebook.codewords]
            replaced.append(codebook.codewords[int(torch.stack(distances).argmin())])
        expected = codebook.high["text"](torch.zeros(3)) + codebook.code["text"](torch.stack(replaced).mean(0))
        torch.testing.assert_close(vector[row], expected)
    vector.sum().backward()
    of_mean = codebook.code["text"].weight.sum(dim=0)
    torch.testing.assert_close(tokens.grad[0, 0], of_mean / 3)
    assert tokens.grad[~mask].abs().sum() == 0


def test_a_queue_keeps_the_last_queries_in_a_circle():
    queue = QueryQueue(5, 2)
    assert len(queue.kept()[0]) == 0
    rows = torch.arange(14.0).view(7, 2)
    queue.push(rows[:3], -rows[:3])
    assert queue.kept()[0].tolist() == rows[:3].tolist() and queue.kept()[1].tolist() == (-rows[:3]).tolist()
    queue.push(rows[3:6], -rows[3:6])
    assert sorted(queue.kept()[0].tolist()) == sorted(rows[1:6].tolist())
    queue.push(torch.cat([rows, rows]), torch.cat([rows, rows]))
    assert sorted(queue.kept()[0].tolist()) == sorted(rows[2:].tolist())
