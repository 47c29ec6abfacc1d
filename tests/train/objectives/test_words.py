"""The default recipe's objective: its scores one pair at a time, its losses, its training, and its stages."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.toy import make_toy
from helpers.training import EIGHT_STEPS, at, check_stopped_run, trainer
from torch.nn.functional import softplus
from vlalign.storage.captions.files import read_captions, write_part
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.files import read_json
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.search import main as search_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.pairs import make_pairs
from vlalign.train.distributed import Workers
from vlalign.train.loop.likelihood import SCALES
from vlalign.train.loop.step import update_ema
from vlalign.train.loop.validation import report_kept
from vlalign.train.models.words import WIDTH, WordPair
from vlalign.train.objectives.batch import Batch
from vlalign.train.objectives.words import SOLVED_SCALE, WordsObjective
from vlalign.train.recipes.train_config import train_config
from vlalign.train.scoring.scorer import stage_scores

WORDS = {"objective": "words", "encoder": "words"}
DEFAULT = ["--features", "s3d", *EIGHT_STEPS]


@pytest.fixture
@torch.no_grad()
def encoded():
    """A model of 20 words with four captions and clips."""
    torch.manual_seed(0)
    model = WordPair(6, 20, idf=np.linspace(0, 3, 20)).double().eval()
    ids = torch.randint(0, 20, (4, 5))
    text_mask = torch.arange(5) < torch.tensor([5, 3, 1, 0])[:, None]
    rows = torch.randn(4, 7, 6, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([7, 1, 3, 4])[:, None]
    texts = model.encode_texts({"input_ids": ids, "attention_mask": text_mask.double()})
    return model, texts, model.encode_videos(rows, mask), (ids, text_mask, rows, mask)


def unit(x):
    return x / x.norm() if x.norm() else x


def plain_scores(model, ids, rows):
    """The bag's and the words' score of one caption and one clip."""
    weights = softplus(model.word_weights[ids])
    vectors = model.words.weight[ids]
    whole = model.clip(torch.cat([rows.mean(0), rows.max(0).values]))
    bag = sum(
        (weight * vector[:WIDTH] for weight, vector in zip(weights, vectors, strict=True)), torch.zeros(WIDTH).double()
    )
    sharpness, fits = model.log_sharpness.exp(), []
    for vector in vectors:
        cosines = torch.stack([unit(vector[WIDTH:]) @ unit(model.rows(row)) for row in rows])
        fits.append(((sharpness * cosines).exp().mean()).log() / sharpness)
    word = sum((weight * fit for weight, fit in zip(unit(weights), fits, strict=True)), torch.zeros(()).double())
    return model.log_bag_scale.exp() * (unit(bag) @ unit(whole)), model.log_word_scale.exp() * word


@torch.no_grad()
def test_scores_are_those_of_each_pair_alone(encoded):
    model, texts, videos, (ids, text_mask, rows, mask) = encoded
    objective = WordsObjective(bag="trained")
    bag = objective.text_vectors(model, texts) @ objective.video_vectors(model, videos).T
    word = objective.early_scores(model, texts, videos)["word"]
    for i in range(4):
        for j in range(4):
            expected = plain_scores(model, ids[i][text_mask[i]], rows[j][mask[j]])
            torch.testing.assert_close((bag[i, j], word[i, j]), expected, atol=1e-9, rtol=0)


@torch.no_grad()
def test_the_loss_contrasts_both_scores_both_ways(encoded):
    model, texts, videos, (ids, text_mask, rows, mask) = encoded
    batch = Batch(texts, videos, Workers(), torch.Generator())
    scores = torch.tensor(
        [[plain_scores(model, ids[i][text_mask[i]], rows[j][mask[j]]) for j in range(4)] for i in range(4)]
    )
    bag, word = scores.unbind(2)
    right = torch.arange(4)

    def both_ways(logits):
        return sum(-logits.log_softmax(dim)[right, right].mean() for dim in (0, 1))

    expected = {"bag": both_ways(bag), "word": both_ways(word)}
    trained = WordsObjective(bag="trained")
    terms = trained.compute_loss(model, batch)
    assert terms.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, atol=1e-9, rtol=0)
    assert replace(trained, losses="word").compute_loss(model, batch).keys() == {"word"}
    assert replace(trained, losses="word").score_weights == {"word": 1.0}


def test_a_solved_bag_has_a_score_and_no_loss():
    objective = WordsObjective()
    assert objective.is_solved
    assert (objective.loss_names, objective.score_weights) == (("word",), {"bag": 1.0, "word": 1.0})
    assert not WordsObjective(losses="word").is_solved
    with pytest.raises(SettingError, match=r"bag"):
        WordsObjective(losses="bag").check()


def test_words_begin_with_their_idf(encoded):
    model, *_ = encoded
    torch.testing.assert_close(
        softplus(model.word_weights.detach()), torch.linspace(0, 3, 20).double().clamp(min=0.3), atol=1e-6, rtol=0
    )


def test_features_are_left_out_in_all_rows_of_a_clip():
    model = WordPair(50, 3, dropout=0.5).train()
    torch.nn.init.eye_(model.rows.weight[:50])
    torch.nn.init.zeros_(model.rows.bias)
    tokens = model.encode_videos(torch.ones(8, 4, 50), torch.ones(8, 4, dtype=torch.bool)).tokens_BMD[..., :50]
    assert (tokens == tokens[:, :1]).all()
    assert set(tokens.unique().tolist()) == {0.0, 2.0}
    assert 0.3 < (tokens[:, 0] == 0).float().mean() < 0.7


def test_an_average_follows_the_weights():
    model, average = WordPair(2, 3), WordPair(2, 3)
    expected = 0.9 * average.rows.weight.detach() + 0.1 * model.rows.weight.detach()
    model.feature_mean += 5
    update_ema(average, model, 0.9)
    torch.testing.assert_close(average.rows.weight, expected)
    assert average.feature_mean.tolist() == [5, 5]


def test_the_average_is_what_is_validated_and_kept(toy, tmp_path):
    training = trainer(toy, tmp_path / "run", **WORDS, ema_decay=0.5, num_steps=4)
    expected = training.model.rows.weight.detach().clone()
    for step, inputs in enumerate(training.prefetched_inputs(0), 1):
        training.train_step(inputs)
        decay = min(0.5, step / (step + 9))
        expected = decay * expected + (1 - decay) * training.model.rows.weight.detach()
    torch.testing.assert_close(training.validated_model.rows.weight, expected)
    assert training.scorer.model is training.validated_model
    assert not torch.equal(training.model.rows.weight, expected)


def test_a_run_by_default_is_this_one_goes_on_is_evaluated_and_searched(toy, capsys):
    call = [*at(toy), *DEFAULT]
    check_stopped_run(toy, call, "words")
    told = capsys.readouterr().err
    about = read_json(toy.runs / "words-whole" / "run.json")
    assert re.search(r"\bbag \d+%, word \d+%", told)
    assert (about["config"]["objective"], about["config"]["recipe"]) == ("words", "default")
    assert evaluate_main([*at(toy), "words-whole"]) == 0
    assert read_json(toy.runs / "words-whole" / "metrics.json")["weights"] == about["result"]["stage_weights"]
    assert search_main([*at(toy), "words-whole", "cut the onion", "--num-results", "3"]) == 0
    assert re.search(r"^'cut the onion' .*\b24\b.*\btoy$", capsys.readouterr().out, re.MULTILINE)


def test_its_scales_are_learned(toy, capsys):
    assert train_main([*at(toy), "--features", "s3d", "--temperature", "0.1"]) == 2
    assert re.search(r"--temperature 0\.1: .*\bwords\b", capsys.readouterr().err)


@pytest.mark.parametrize("settings", [{"objective": "words"}, {"encoder": "words"}])
def test_the_encoder_and_the_objective_belong_together(toy, settings, capsys):
    options = [part for name, value in settings.items() for part in (f"--{name}", value)]
    assert train_main([*at(toy), "--features", "s3d", "--recipe", "taco-small", *options]) == 2
    [(encoder, objective)] = re.findall(r"--encoder (\S+): .*\bobjective (\S+):", capsys.readouterr().err)
    assert (encoder == "words") == (settings == {"encoder": "words"}) == (objective != "words")


def ranks(scores, right):
    """The rank of each row's right column; a tied one counts half."""
    own = [row[column] for row, column in zip(scores, right, strict=True)]
    rivals = [sum(s > r for s in row) + (sum(s == r for s in row) - 1) / 2 for row, r in zip(scores, own, strict=True)]
    return 1 + np.array(rivals)


def choose_stage_weights(training):
    return report_kept(training.scorer, training.examples, 30, {15: 20.0, 30: 40.0})


@pytest.fixture
def trained(toy, tmp_path):
    """A run of 30 steps whose bag was solved."""
    settings = {"num_steps": 30, "batch_size": 6, "learning_rate": 3e-3, "stage_weights": "validation"}
    training = trainer(toy, tmp_path / "run", **WORDS, **settings)
    for inputs in training.prefetched_inputs(0):
        training.train_step(inputs)
    return training


def test_stage_weights_are_the_likeliest_on_validation(trained, capsys):
    valid = trained.examples.pairs["validation"]
    pairs = make_pairs(valid.captions)
    stages = stage_scores(trained.scorer, pairs.captions, pairs.clips).stages
    spread = {name: np.std(scores - scores.mean(axis=1, keepdims=True)) for name, scores in stages.items()}

    def total(bag):
        return bag * stages["bag"] / spread["bag"] + (1 - bag) * stages["word"] / spread["word"]

    def likelihood(scores):
        """The mean logarithm of the softmax, at the best of the scales, one caption at a time."""
        scores = scores / np.std(scores - scores.mean(axis=1, keepdims=True))
        rows = [list(zip(scores, pairs.clip_of_caption, strict=True))] * len(SCALES)
        means = [
            np.mean(
                [
                    math.log(math.exp(t * (row[own] - row.max())) / np.exp(t * (row - row.max())).sum())
                    for row, own in of
                ]
            )
            for t, of in zip(SCALES, rows, strict=True)
        ]
        return max(means)

    shares = [tenth / 10 for tenth in range(11)]
    chosen = choose_stage_weights(trained)
    assert len(chosen.tried) == len(shares)
    for trial, share in zip(chosen.tried, shares, strict=True):
        r = ranks(total(share), pairs.clip_of_caption)
        assert trial["recall"] == pytest.approx(100 * (r < 2).mean())
        assert trial["mean_reciprocal_rank"] == pytest.approx((1 / r).mean())
        assert max(trial["weights"].values()) == 1
    found = [likelihood(total(share)) for share in shares]
    assert found[round(10 * chosen.shares["bag"])] == pytest.approx(max(found), abs=1e-4)
    assert sum(chosen.shares.values()) == pytest.approx(1)
    best = chosen.shares["bag"]
    recalls = [100 * (ranks(total(of), pairs.clip_of_caption) < 2).mean() for of in (best, 1, 0)]
    said = capsys.readouterr().err
    assert re.search(rf"step 30 of 30\b.* of 6 clips: R@1 {recalls[0]:.1f}, ", said)
    assert "R@1 after steps 15: 20.0, 30: 40.0\n" in said
    assert re.search(rf"bag {best:.0%}, word {1 - best:.0%} .*{recalls[1]:.1f}, .*{recalls[2]:.1f}", said)


def test_a_validation_ranks_by_the_weights_that_are_chosen(trained):
    found = trained.validation.compute(trained.scorer, trained.examples)
    chosen = choose_stage_weights(trained)
    [trial] = [trial for trial in chosen.tried if trial["weights"] == chosen.weights]
    assert found["validation_R@1"] == pytest.approx(trial["recall"])


def test_a_stage_that_says_nothing_gets_no_weight(trained):
    solved = trained.scorer.model.solved
    solved.clips.copy_(torch.randn(solved.clips.shape, generator=torch.Generator().manual_seed(1)))
    assert choose_stage_weights(trained).weights == {"bag": 0.0, "word": 1.0}


@torch.no_grad()
def test_a_solved_bag_is_not_trained_and_scores_as_it_was_solved(toy, tmp_path):
    """Each pair alone: TF-IDF words, and a clip's mean and maximum, in float64."""
    training = trainer(toy, tmp_path / "run", **WORDS, num_steps=3)
    before = {name: value.clone() for name, value in training.model.solved.state_dict().items()}
    with torch.enable_grad():
        for inputs in training.prefetched_inputs(0):
            training.train_step(inputs)
    model, solved = training.validated_model, training.validated_model.solved
    for name, value in solved.state_dict().items():
        assert torch.equal(value, before[name])
    pairs = training.examples.pairs["test"]
    scores = stage_scores(training.scorer, pairs.captions, pairs.clips).stages["bag"]
    known = training.scorer.text_inputs.words
    clips = [training.scorer.features.rows([clip], 64)[0].astype(np.float64) for clip in pairs.clips]
    for i, caption in enumerate(pairs.captions):
        numbers = sorted({known.index(word) for word in caption.caption.lower().split() if word in known})
        idf = solved.idf[numbers].double()
        text = unit(idf) @ solved.words[numbers].double() + solved.caption_bias.double()
        for j, rows in enumerate(clips):
            x = torch.from_numpy((rows - model.feature_mean.numpy()) / model.feature_std.numpy())
            whole = torch.cat([x.mean(0), x.max(0).values]) @ solved.clips.double() + solved.clip_bias.double()
            assert scores[i, j] == pytest.approx(SOLVED_SCALE * float(unit(text) @ unit(whole)), abs=1e-4)


TRIAL = {"weights": {"bag": 1.0, "word": 0.0}, "recall": 50.0, "mean_reciprocal_rank": 0.7}


@pytest.fixture(scope="module")
def changed(toy):
    """The folder of a run whose run.json tests change."""
    assert train_main([*at(toy), *DEFAULT, "--run-name", "changed"]) == 0
    return toy.runs / "changed"


@pytest.mark.parametrize(
    "name, value",
    [
        ("stage_weights", [1]),
        ("stage_weights", {"fusion": 1.0}),
        ("stage_weights", {"bag": "1"}),
        ("stage_weights", {"bag": float("nan")}),
        ("stage_weights_tried", {}),
        ("stage_weights_tried", [TRIAL, 1]),
        ("stage_weights_tried", [TRIAL | {"weights": {"bag": 1.0}}]),
        ("stage_weights_tried", [TRIAL | {"recall": "50"}]),
        ("stage_weights_tried", [TRIAL | {"mean_reciprocal_rank": float("inf")}]),
    ],
)
def test_other_stage_weights_are_refused_in_one_line(toy, changed, name, value, capsys):
    folder = changed
    about = read_json(folder / "run.json")
    about["result"] |= {"stage_weights": {}, "stage_weights_tried": []} | {name: value}
    (folder / "run.json").write_text(json.dumps(about))
    capsys.readouterr()
    assert evaluate_main([*at(toy), "changed"]) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert str(folder / "run.json") in line and re.search(rf"\bresult\.{name}\b", line)


def test_training_videos_become_the_validation_split_where_there_is_no_validation_split(toy, tmp_path, capsys):
    assert len(trainer(toy, tmp_path / "a", **WORDS, validation_share=0.25).examples.clips) == 12  # there is one
    assert not re.search(r"\btraining videos\b", capsys.readouterr().err)
    without = make_toy(tmp_path)
    captions = [
        replace(c, split="train" if c.split == "validation" else c.split) for c in read_captions(without.captions)
    ]
    write_part(without.captions, 0, captions, {})
    pairs = trainer(without, tmp_path / "b", **WORDS, validation_share=0.25).examples.pairs
    place = re.escape(str(without.captions))
    assert re.search(rf"^{place}: .*\bvalidation\b.*\b4 of 18\b", capsys.readouterr().err, re.MULTILINE)
    of_split = {name: {caption.video_id for caption in split.captions} for name, split in pairs.items()}
    assert {name: len(videos) for name, videos in of_split.items()} == {"train": 14, "validation": 4, "test": 6}
    assert not of_split["train"] & of_split["validation"]
    again = trainer(without, tmp_path / "c", **WORDS, validation_share=0.25).examples.pairs
    assert {caption.video_id for caption in again["validation"].captions} == of_split["validation"]
    assert len(trainer(without, tmp_path / "d", **WORDS).examples.clips) == 18


def test_the_number_of_steps_follows_from_the_data():
    config = train_config(dataset="d", features="s3d", num_steps=0, batch_size=128)
    assert config.optimization.steps_for(180) == 300
    assert config.optimization.steps_for(12_800) == 3000
    assert config.optimization.steps_for(10**8) == 30_000
    assert train_config(dataset="d", features="s3d", num_steps=7).optimization.steps_for(10**8) == 7
