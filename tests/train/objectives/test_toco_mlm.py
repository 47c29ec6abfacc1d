"""ToCo's masked language model: what is masked, and its loss against the same written as loops."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.pair_models import MAX_TEXT, batch_of, encode, make_batch, make_model, plain_fusion, plain_scores
from helpers.toy import make_toy
from helpers.training import at, trainer
from vlalign.storage.common.errors import SettingError
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.models.masked_words import MaskDraws, MaskedTexts, MaskedWordHead, mask_words
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.recipes.train_config import train_config

MASK, NUM_IDS = 39, 40


def masked_batch(model, batch, seed=0):
    """The batch with masked subwords, and its encoded texts."""
    draws = MaskDraws.draw(torch.Generator().manual_seed(seed), len(batch["rows"]), slice(None), MAX_TEXT)
    texts, places = mask_words(batch, draws, mask_id=MASK, num_ids=NUM_IDS)
    return texts, MaskedTexts(model.encode_texts(texts), places)


def test_a_seventh_is_masked_as_berts_section_3_1_says():
    lengths = torch.randint(2, 31, (4000,))
    mask = (torch.arange(30) < lengths[:, None]).long()
    ids = torch.randint(5, 1000, mask.shape) * mask
    draws = MaskDraws.draw(torch.Generator().manual_seed(0), len(ids), slice(None), 30)
    texts, places = mask_words({"input_ids": ids, "attention_mask": mask}, draws, mask_id=3, num_ids=1000)
    shown = texts["input_ids"]
    counts = torch.zeros(len(ids), dtype=torch.int64).index_add(0, places.text_of_K, torch.ones_like(places.text_of_K))
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        assert count == (0 if length == 2 else max(1, round(0.15 * (length - 2)))), length
    assert (places.position_K > 0).all() and (places.position_K < lengths[places.text_of_K] - 1).all()
    assert torch.equal(places.ids_K, ids[places.text_of_K, places.position_K])
    changed = torch.ones_like(ids, dtype=torch.bool)
    changed[places.text_of_K, places.position_K] = False
    assert torch.equal(shown[changed], ids[changed]), "the others stay"
    of_predicted = shown[places.text_of_K, places.position_K]
    is_mask, is_same = (of_predicted == 3), (of_predicted == places.ids_K)
    number = len(of_predicted)
    for share, expected in ((is_mask, 0.8), (is_same, 0.1), (~is_mask & ~is_same, 0.1)):
        assert share.double().mean().item() == pytest.approx(expected, abs=4 * math.sqrt(expected / number))
    positions = places.position_K[lengths[places.text_of_K] == 30]
    assert torch.bincount(positions, minlength=29)[1:29].min() > 0, "any position"


def test_what_is_masked_depends_on_no_padding_and_no_number_of_processes():
    batch = make_batch(6)
    whole = MaskDraws.draw(torch.Generator().manual_seed(1), 6, slice(None), MAX_TEXT)
    expected, _ = mask_words(batch, whole, mask_id=MASK, num_ids=NUM_IDS)
    for rows in (slice(0, 3), slice(3, 6)):
        draws = MaskDraws.draw(torch.Generator().manual_seed(1), 6, rows, MAX_TEXT)
        longest = int(batch["attention_mask"][rows].sum(1).max())
        part = {name: batch[name][rows, :longest] for name in ("input_ids", "attention_mask")}
        found, _ = mask_words(part, draws, mask_id=MASK, num_ids=NUM_IDS)
        assert torch.equal(found["input_ids"], expected["input_ids"][rows, :longest])


def naive_loss(model, batch, masked_ids, places, texts, videos, config) -> torch.Tensor:
    """Eq. 1 over hard videos, the pooled loss that finds them, and the cross entropy of each masked subword."""
    size = len(texts.mask_BN)
    pooled = [
        [
            texts.tokens_BND[i, texts.mask_BN[i]].mean(0) @ videos.tokens_BMD[j, videos.mask_BM[j]].mean(0)
            for j in range(size)
        ]
        for i in range(size)
    ]
    loss = torch.zeros((), dtype=torch.float64)
    for i in range(size):
        loss = loss - torch.log(pooled[i][i].exp() / sum(s.exp() for s in pooled[i])) / size
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -pooled[i][j].item())[: config.num_negatives]
        scored = {j: plain_scores(model, texts, videos, i, j)[0] for j in [i, *hard]}
        loss = loss - torch.log(scored[i].exp() / sum(f.exp() for f in scored.values())) / size
    masked = model.encode_texts({**batch, "input_ids": masked_ids})
    vectors = model.text_encoder.embeddings.word_embeddings.weight
    linear, _, norm = model.masked_words.transform
    for i, p, right in zip(*(x.tolist() for x in (places.text_of_K, places.position_K, places.ids_K)), strict=True):
        z = plain_fusion(model, masked, videos, i, i)[p]
        hidden = norm(torch.nn.functional.gelu(linear(z)))
        logits = torch.stack(
            [hidden @ vector + bias for vector, bias in zip(vectors, model.masked_words.bias, strict=True)]
        )
        loss = loss - config.token_loss_weight * torch.log(logits[right].exp() / logits.exp().sum()) / len(places.ids_K)
    return loss


@pytest.mark.parametrize("num_fusion_layers", [1, 2])
@pytest.mark.parametrize("recompute", [None, 3])
def test_loss_and_gradient_are_the_equations(num_fusion_layers, recompute):
    model, batch = make_model("toco-mlm", num_fusion_layers), make_batch(6)
    torch.nn.init.normal_(model.masked_words.bias)
    settings = OBJECTIVES["toco-mlm"](num_negatives=2)
    found = []
    for ours in (True, False):
        model.zero_grad()
        texts, videos = encode(model, batch)
        masked_texts, masked = masked_batch(model, batch)
        if ours:
            whole = replace(batch_of(texts, videos, recompute=recompute), masked=masked)
            terms = settings.compute_loss(model, whole)
            assert tuple(terms) == settings.loss_names == ("pooled", "fusion", "masked")
            loss = sum(terms.values())
        else:
            loss = naive_loss(model, batch, masked_texts["input_ids"], masked.places, texts, videos, settings)
        loss.backward()
        found.append((loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}))
    (ours, our_gradients), (plain, plain_gradients) = found
    torch.testing.assert_close(ours, plain)
    assert our_gradients.keys() == plain_gradients.keys() and "masked_words.bias" in our_gradients
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, plain_gradients[name], atol=1e-9, rtol=1e-6, msg=name)


def test_a_batch_without_words_has_no_masked_loss():
    model, batch = make_model("toco-mlm"), make_batch(4)
    batch["attention_mask"] = (torch.arange(batch["input_ids"].shape[1]) < 2).long().repeat(4, 1)
    texts, videos = encode(model, batch)
    _, masked = masked_batch(model, batch)
    terms = OBJECTIVES["toco-mlm"](num_negatives=2).compute_loss(model, replace(batch_of(texts, videos), masked=masked))
    assert len(masked.places.ids_K) == 0 and terms["masked"].item() == 0


def test_pair_weights_weigh_masked_subwords():
    model, batch = make_model("toco-mlm"), make_batch(5)
    texts, videos = encode(model, batch)
    _, masked = masked_batch(model, batch)
    objective, values = OBJECTIVES["toco-mlm"](num_negatives=2), []
    for weights in (None, torch.ones(5).double(), torch.tensor([1.0, 0, 0, 0, 0]).double()):
        whole = replace(batch_of(texts, videos), masked=masked, weights_R=weights)
        values.append(objective.compute_loss(model, whole)["masked"].item())
    assert values[0] == pytest.approx(values[1]) and 0 < values[2] < values[0]


def test_each_step_masks_other_subwords_and_the_same_when_repeated(tmp_path):
    dataset = make_toy(tmp_path)
    runs = [trainer(dataset, tmp_path / str(n), objective="toco-mlm", learning_rate=1e-30) for n in range(2)]
    steps = []
    for of in runs:
        inputs = of.make_inputs(0)
        steps.append([of.train_step(inputs)[0]["masked"] for _ in range(2)])
    assert steps[0] == steps[1] and len(set(steps[0])) == 2


def test_an_encoder_that_knows_no_mask_is_refused():
    encoder = make_model("toco-mlm").text_encoder
    head = MaskedWordHead.for_encoder(encoder, SimpleNamespace(mask_token_id=MASK), "a")
    assert (head.mask_id, head.num_ids) == (MASK, NUM_IDS)
    with pytest.raises(SettingError, match=r"^text_encoder a: .*like BERT"):
        MaskedWordHead.for_encoder(encoder, SimpleNamespace(mask_token_id=None), "a")
    encoder.set_input_embeddings(torch.nn.Embedding(NUM_IDS, 3))
    with pytest.raises(SettingError, match=r"^text_encoder a: .*like BERT"):
        MaskedWordHead.for_encoder(encoder, SimpleNamespace(mask_token_id=MASK), "a")


def test_a_run_is_trained_and_evaluated_by_command(tmp_path, capsys):
    dataset = make_toy(tmp_path)
    call = [*at(dataset), "--objective", "toco-mlm", "--features", "s3d", "--num-steps", "2", "--batch-size", "4"]
    assert train_main([*call, "--num-negatives", "2", "--validate-every", "1", "--run-name", "masked"]) == 0
    assert evaluate_main([*at(dataset), "masked"]) == 0
    shown = capsys.readouterr()
    assert "fusion_token" not in shown.out


def test_its_score_is_f_alone_and_it_reads_no_tokens_of_interest():
    config = train_config(dataset="d", features="s3d", objective="toco-mlm")
    assert config.score_weights == {"pooled": 0.0, "fusion": 1.0}
    assert {"tokens_of_interest", "token_score_weight"} <= config.ignored_settings().keys()
    assert "token_loss_weight" not in config.ignored_settings()
    with pytest.raises(SettingError, match=r"losses masked: .*'fusion' among"):
        train_config(dataset="d", features="s3d", objective="toco-mlm", losses="masked")
