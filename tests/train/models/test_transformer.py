"""The transformer model's encoders: padding and grouping change nothing; compiled layers; half precision."""

import pytest
import torch
from helpers.pair_models import MAX_TEXT, batch_of, encode, make_batch, make_model, plain_scores
from torch import nn
from vlalign.train.models.gated import GatedPair
from vlalign.train.models.spoken import SpokenPair
from vlalign.train.objectives.taco import TacoObjective
from vlalign.train.settings import ADDITIONS


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_encoders_give_every_sequence_what_it_has_alone(mode):
    model, batch = getattr(make_model("toco"), mode)(), make_batch(9)
    batch["rows"][~batch["mask"]] = 1e6
    texts, videos = encode(model, batch)
    for i in range(9):
        n, m = int(batch["attention_mask"][i].sum()), int(batch["mask"][i].sum())
        bert = model.text_encoder(input_ids=batch["input_ids"][i : i + 1, :n])
        torch.testing.assert_close(texts.tokens_BND[i, :n], bert.last_hidden_state[0] * model.scale)
        torch.testing.assert_close(
            texts.types_BND[i, :n], model.text_encoder.embeddings(batch["input_ids"][i : i + 1, :n])[0]
        )
        x = model.project((batch["rows"][i, :m] - model.feature_mean) / model.feature_std) + model.positions[:m]
        x = nn.TransformerEncoderLayer.forward(model.video_layers[0], x[None])[0]
        torch.testing.assert_close(videos.tokens_BMD[i, :m], x * model.scale)
        assert (texts.tokens_BND[i, n:] == 0).all() and (videos.tokens_BMD[i, m:] == 0).all()


@pytest.mark.parametrize("left_out", [*ADDITIONS, "all"])
def test_the_model_of_the_papers_section_3_adds_nothing(left_out):
    """TACo section 3.1: a linear layer and self-attention; dot products as they are; token, type and position."""
    additions = ADDITIONS.keys() - (ADDITIONS.keys() if left_out == "all" else {left_out})
    model, batch = make_model("taco", dropout=0.1, additions=additions).eval(), make_batch(5)
    if "standardise" in additions:
        model.feature_mean.normal_()
    texts, videos = encode(model, batch)
    for i in range(5):
        m = int(batch["mask"][i].sum())
        rows = batch["rows"][i, :m]
        if "standardise" in additions:
            rows = rows - model.feature_mean
        x = rows @ model.project.weight.T + model.project.bias
        if "positions" in additions:
            x = x + model.positions[:m]
        x = nn.TransformerEncoderLayer.forward(model.video_layers[0], x[None])[0]
        products = videos.tokens_BMD[i, :m] @ texts.sentence_BD[i]
        sentence = model.text_encoder(batch["input_ids"][i : i + 1, : batch["attention_mask"][i].sum()])
        scale = 4 if "scale" in additions else 1  # the square root of the width, 16
        torch.testing.assert_close(products, x @ sentence.last_hidden_state[0, 0] / scale)
        score = model.fusion(model.token_bank(texts, videos, MAX_TEXT), torch.tensor([i]), torch.tensor([i]))
        torch.testing.assert_close(score.pair_P[0], plain_scores(model, texts, videos, i, i)[0])
    names = {"standardise": "feature_mean", "positions": "positions", "norm": "fusion.norm.weight"}
    for name, tensor in names.items():
        assert (tensor in model.state_dict()) == (name in additions)
    model.train().video_layers.eval()  # these have dropout of their own
    once, twice = (model.encode_videos(batch["rows"], batch["mask"]).tokens_BMD for _ in range(2))
    assert torch.equal(once, twice) == ("norm" not in additions)


@pytest.mark.slow  # minutes, most of them the compiler's
def test_compiled_layers_have_the_same_loss_and_gradient():
    model, batch = make_model("taco").float(), make_batch(6)
    batch = {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}
    found = []
    for compiled in (False, True):
        if compiled:
            model.compile_layers()
        model.zero_grad()
        loss = sum(TacoObjective(num_negatives=2).compute_loss(model, batch_of(*encode(model, batch))).values())
        loss.backward()
        found.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_every_model_can_be_converted_with_half():
    model = make_model("taco")
    for module in (model, model.fusion, GatedPair(5, 6, 8), SpokenPair(5)):
        assert not any("half" in name for name in module.state_dict())
        assert {p.dtype for p in module.half().parameters()} == {torch.float16}, type(module).__name__
