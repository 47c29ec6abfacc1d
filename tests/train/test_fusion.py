"""The fusion layers, the cascade and both objectives, against what one would write without a thought for time."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel
from vlalign.train.models.fusion import FusionScores
from vlalign.train.models.gated import GatedPair
from vlalign.train.models.layers import LEAST_FILLED, length_groups
from vlalign.train.models.spoken import SpokenPair
from vlalign.train.models.tokens import TextTokens, VideoTokens
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.objectives import OBJECTIVES
from vlalign.train.objectives.batch import Batch
from vlalign.train.objectives.taco import Taco
from vlalign.train.workers import Workers

MAX_TEXT = 8
BERT = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def make_model(objective: str, num_fusion_layers: int = 2, dropout: float = 0.0) -> VideoTextModel:
    config = BertConfig(**BERT, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    bert = BertModel(config, add_pooling_layer=False)
    token_head = OBJECTIVES[objective].has_token_head
    shape = {
        "num_video_layers": 1,
        "num_fusion_layers": num_fusion_layers,
        "dropout": dropout,
        "token_head": token_head,
    }
    model = VideoTextModel(6, bert, **shape).double()
    for layer in [*model.video_layers, *model.fusion.layers]:  # new ones are zero where a mistake would not be seen
        nn.init.normal_(layer.self_attn.in_proj_bias, std=0.3)
    return model


def make_batch(num_pairs: int) -> dict[str, torch.Tensor]:
    text_lengths = torch.randint(3, MAX_TEXT + 1, (num_pairs,))
    video_lengths = torch.randint(1, 7, (num_pairs,))
    attention_mask = (torch.arange(int(text_lengths.max())) < text_lengths[:, None]).long()
    weights = (
        torch.rand(attention_mask.shape, dtype=torch.float64)
        * (torch.rand(attention_mask.shape) < 0.5)
        * attention_mask
    )
    weights[:, 0] = 0
    return {
        "input_ids": torch.randint(1, 40, attention_mask.shape) * attention_mask,
        "attention_mask": attention_mask,
        "token_weights": weights / weights.sum(1, keepdim=True).clamp(min=1e-9),
        "rows": torch.randn(num_pairs, int(video_lengths.max()), 6, dtype=torch.float64),
        "mask": torch.arange(int(video_lengths.max())) < video_lengths[:, None],
    }


def encode(model: VideoTextModel, batch: dict[str, torch.Tensor]) -> tuple[TextTokens, VideoTokens]:
    texts = model.encode_texts(batch)
    return texts, model.encode_videos(batch["rows"], batch["mask"])


def batch_of(texts: TextTokens, videos: VideoTokens, *, recompute: int | None = None, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(texts, videos, Workers(), generator, recompute, max_text_tokens=MAX_TEXT)


def plain_fusion(model: VideoTextModel, texts: TextTokens, videos: VideoTokens, i: int, j: int) -> torch.Tensor:
    """All outputs z [n + m, D] of the fusion layers for one text and one video: nothing is shared, gathered or left
    out."""
    fusion = model.fusion
    text = texts.tokens_BND[i, texts.mask_BN[i]] / model.scale
    video = videos.tokens_BMD[j, videos.mask_BM[j]] / model.scale
    text = text + fusion.types.weight[0] + fusion.positions.weight[: len(text)]
    video = video + fusion.types.weight[1] + fusion.positions.weight[MAX_TEXT : MAX_TEXT + len(video)]
    x = fusion.norm(torch.cat([text, video]))[None]
    for layer in fusion.layers:
        x = nn.TransformerEncoderLayer.forward(layer, x)
    return x[0]


def plain_scores(
    model: VideoTextModel, texts: TextTokens, videos: VideoTokens, i: int, j: int
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The pair's score, and of each of the text's tokens ToCo's."""
    z = plain_fusion(model, texts, videos, i, j)
    if model.fusion.token_score is None:
        return z[0] @ model.fusion.score.weight[0] + model.fusion.score.bias[0], []
    types = texts.types_BND[i, texts.mask_BN[i]]
    return model.fusion.score(z[0])[0], [
        model.fusion.token_score(torch.cat([z[p], types[p]]))[0] for p in range(len(types))
    ]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 300))
def test_groups_hold_every_sequence_once_and_little_padding(lengths, max_tokens):
    groups = length_groups(lengths, max_tokens)
    assert sorted(number for group in groups for number in group) == list(range(len(lengths)))
    for group in groups:
        longest = lengths[group[0]]
        assert longest == max(lengths[n] for n in group) and min(lengths[n] for n in group) >= LEAST_FILLED * longest
        assert len(group) * longest <= max(max_tokens, longest)


@pytest.mark.parametrize("objective", ["taco", "toco"])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_pairs_score_is_that_of_the_layers_run_on_it_alone(objective, num_layers, mode):
    model = getattr(make_model(objective, num_layers), mode)()
    texts, videos = encode(model, make_batch(7))
    text_of_P, video_of_P = torch.randint(7, (30,)), torch.randint(7, (30,))
    scores = model.fusion(model.token_bank(texts, videos, MAX_TEXT), text_of_P, video_of_P)
    for place, (i, j) in enumerate(zip(text_of_P.tolist(), video_of_P.tolist(), strict=True)):
        pair, tokens = plain_scores(model, texts, videos, i, j)
        torch.testing.assert_close(scores.pair_P[place], pair)
        if objective == "toco":
            padded = torch.zeros(scores.token_PN.shape[1], dtype=torch.float64)
            padded[: len(tokens)] = torch.stack(tokens)
            torch.testing.assert_close(scores.token_PN[place], padded)


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


def naive_taco(model, texts, videos, config) -> torch.Tensor:
    """Eq. 3 to 6 with cascade sampling, pair by pair."""
    size = len(texts.mask_BN)
    sentence = [
        [texts.tokens_BND[i, 0] @ videos.tokens_BMD[j, videos.mask_BM[j]].mean(0) for j in range(size)]
        for i in range(size)
    ]
    best = [
        [
            [(videos.tokens_BMD[j, videos.mask_BM[j]] @ texts.tokens_BND[i, p]).max() for p in _interest(texts, i)]
            for j in range(size)
        ]
        for i in range(size)
    ]
    loss_1 = loss_2 = loss_3 = 0.0
    for i in range(size):
        loss_1 = loss_1 - torch.log(sentence[i][i].exp() / sum(s.exp() for s in sentence[i]))
        for place, p in enumerate(_interest(texts, i)):
            share = best[i][i][place].exp() / sum(best[i][j][place].exp() for j in range(size))
            loss_2 = loss_2 - texts.weights_BN[i, p] * torch.log(share)
    guide = [[(sentence[i][j] + sum(best[i][j])).item() for j in range(size)] for i in range(size)]
    fused = [[plain_scores(model, texts, videos, i, j)[0] for j in range(size)] for i in range(size)]
    for i in range(size):
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -guide[i][j])[: config.num_negatives]
        loss_3 = loss_3 - torch.log(fused[i][i].exp() / sum(fused[i][j].exp() for j in [i, *hard]))
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -guide[j][i])[: config.num_negatives]
        loss_3 = loss_3 - torch.log(fused[i][i].exp() / sum(fused[j][i].exp() for j in [i, *hard]))
    return (loss_1 + config.token_loss_weight * loss_2 + loss_3 / 2) / size


def naive_toco(model, texts, videos, config) -> torch.Tensor:
    """Eq. 1 to 3 of ToCo over hard videos, and the loss of the pooled scores that find them."""
    size = len(texts.mask_BN)
    pooled = [
        [
            texts.tokens_BND[i, texts.mask_BN[i]].mean(0) @ videos.tokens_BMD[j, videos.mask_BM[j]].mean(0)
            for j in range(size)
        ]
        for i in range(size)
    ]
    loss = 0.0
    for i in range(size):
        loss = loss - torch.log(pooled[i][i].exp() / sum(s.exp() for s in pooled[i]))
        hard = sorted((j for j in range(size) if j != i), key=lambda j: -pooled[i][j].item())[: config.num_negatives]
        scored = {j: plain_scores(model, texts, videos, i, j) for j in [i, *hard]}
        loss = loss - torch.log(scored[i][0].exp() / sum(f.exp() for f, _ in scored.values()))
        for p in _interest(texts, i):
            share = scored[i][1][p].exp() / sum(tokens[p].exp() for _, tokens in scored.values())
            loss = loss - config.token_loss_weight * texts.weights_BN[i, p] * torch.log(share)
    return loss / size


def _interest(texts, i: int) -> list[int]:
    return texts.weights_BN[i].nonzero().ravel().tolist()


@pytest.mark.parametrize(("objective", "naive"), [("taco", naive_taco), ("toco", naive_toco)])
@pytest.mark.parametrize("num_pairs", [2, 6])
@pytest.mark.parametrize("recompute", [None, 3])
@pytest.mark.parametrize("no_interest", [False, True])
def test_loss_and_gradient_are_the_papers_equations(objective, naive, num_pairs, recompute, no_interest):
    model, batch = make_model(objective), make_batch(num_pairs)
    if no_interest:
        batch["token_weights"][:] = 0
    settings = OBJECTIVES[objective](num_negatives=2)
    found = []
    for ours in (True, False):
        model.zero_grad()
        texts, videos = encode(model, batch)
        if ours:
            terms = settings.loss_terms(model, batch_of(texts, videos, recompute=recompute))
            assert set(terms) == set(settings.loss_names)
            loss = sum(terms.values())
        else:
            loss = naive(model, texts, videos, settings)
        loss.backward()
        found.append((loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}))
    (ours, our_gradients), (plain, plain_gradients) = found
    torch.testing.assert_close(ours, plain)
    assert plain_gradients.keys() <= our_gradients.keys()
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(
            gradient, plain_gradients.get(name, torch.zeros_like(gradient)), atol=1e-9, rtol=1e-6, msg=name
        )


@pytest.mark.parametrize("losses", ["sentence", "token", "fusion", "sentence+fusion", "token+fusion", "sentence+token"])
def test_terms_are_switched_by_name_and_none_changes_another(losses):
    model, batch = make_model("taco"), make_batch(5)
    texts, videos = encode(model, batch)
    every = Taco(negatives="all").loss_terms(model, batch_of(texts, videos))
    some = Taco(negatives="all", losses=losses).loss_terms(model, batch_of(texts, videos))
    assert list(some) == losses.split("+")
    assert all(torch.equal(some[name], every[name]) for name in some)


def test_each_video_is_picked_as_often_as_the_tokens_that_must_pick_it_count():
    texts, videos = encode(make_model("taco"), make_batch(4))
    batch = batch_of(texts, videos)
    text_of_S, weights_S = (
        torch.tensor([0, 0, 2, 3, 3, 3]),
        torch.tensor([0.1, 0.4, 0.8, 0.5, 0.0, 0.5], dtype=torch.float64),
    )
    similarity_SB = torch.randn(6, 4, dtype=torch.float64)
    bias_B = batch.video_biases(similarity_SB, 2.0, weights_S, text_of_S)
    picked_B = weights_S @ ((similarity_SB + bias_B) / 2.0).softmax(dim=1)
    expected_B = torch.zeros_like(picked_B).index_add(0, text_of_S, weights_S)
    torch.testing.assert_close(picked_B, expected_B, atol=1e-3, rtol=0)
    assert not torch.allclose(weights_S @ (similarity_SB / 2.0).softmax(dim=1), expected_B, atol=0.05)


def test_a_batch_without_tokens_of_interest_has_no_token_loss_with_biases_either():
    model, batch = make_model("taco"), make_batch(4)
    batch["token_weights"][:] = 0
    terms = Taco(num_negatives=2, normalized_loss=True).loss_terms(model, batch_of(*encode(model, batch)))
    assert terms["token"] == 0
    assert all(torch.isfinite(term) for term in terms.values())


def test_the_cascade_takes_the_hardest_and_random_ones_are_drawn_by_seed():
    texts, videos = encode(make_model("taco"), make_batch(6))
    guide = torch.randn(6, 6)
    of_texts, of_videos = Taco(num_negatives=2).choose_negatives(batch_of(texts, videos, seed=1), guide)
    others = guide.masked_fill(torch.eye(6).bool(), -math.inf)
    assert all(
        set(others[i].topk(2).indices.tolist()) | {i} == set(of_texts[i].nonzero().ravel().tolist()) for i in range(6)
    )
    assert all(
        set(others[:, j].topk(2).indices.tolist()) | {j} == set(of_videos[:, j].nonzero().ravel().tolist())
        for j in range(6)
    )
    drawn = [
        Taco(num_negatives=2, negatives="random").choose_negatives(batch_of(texts, videos, seed=s), guide)[0]
        for s in (1, 1, 2)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert (drawn[0].sum(1) == 3).all() and drawn[0].diagonal().all()
    assert Taco(negatives="all").choose_negatives(batch_of(texts, videos), None)[0].all()


def test_a_pair_that_both_sides_want_is_fused_once(monkeypatch):
    model, batch = make_model("taco"), make_batch(8)
    texts, videos = encode(model, batch)
    seen = []
    whole = model.fusion.forward

    def counted(bank, text_of_P, video_of_P, **more) -> FusionScores:
        seen.extend(zip(text_of_P.tolist(), video_of_P.tolist(), strict=True))
        return whole(bank, text_of_P, video_of_P, **more)

    monkeypatch.setattr(model.fusion, "forward", counted)
    Taco(num_negatives=3).loss_terms(model, batch_of(texts, videos))
    assert len(seen) == len(set(seen)) <= 8 * (2 * 3 + 1)


# TACo's Tables 13 and 14: R-152+S3D, BERT-base, two fusion layers

TABLE_13 = {0: (126.5, 3.86), 1: (133.6, 4.11), 2: (140.7, 4.45), 4: (154.9, 5.14)}
"""{video layers: million parameters, billion multiply-adds}"""


@pytest.mark.parametrize("num_video_layers", TABLE_13)
def test_size_and_cost_are_those_of_table_13(num_video_layers):
    expected_parameters, expected_multiply_adds = TABLE_13[num_video_layers]
    with torch.device("meta"):
        bert = BertModel(BertConfig(), add_pooling_layer=False)
        shape = {"num_video_layers": num_video_layers, "num_fusion_layers": 2, "dropout": 0.0}
        model = VideoTextModel(2048 + 1024, bert, **shape).eval()
        parameters = sum(p.numel() for p in model.parameters()) / 1e6
        assert parameters == pytest.approx(expected_parameters, rel=0.005)

        # One text of 30 tokens and one video of 48: what the table counts, with every output of the last layer.
        with FlopCounterMode(display=False) as counter:
            model.text_encoder(input_ids=torch.zeros(1, 30, dtype=torch.long))
            x = model.project(torch.zeros(1, 48, 3072))
            for layer in model.video_layers:
                x = layer(x, None)
            z = torch.zeros(1, 78, 768)
            for layer in model.fusion.layers:
                z = layer(z, None)
            model.fusion.score(z[:, 0])
        assert counter.get_total_flops() / 2e9 == pytest.approx(expected_multiply_adds, rel=0.05)


@pytest.mark.slow  # minutes, most of them the compiler's
def test_compiled_layers_have_the_same_loss_and_gradient():
    model, batch = make_model("taco").float(), make_batch(6)
    batch = {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}
    found = []
    for compiled in (False, True):
        if compiled:
            model.compile_layers()
        model.zero_grad()
        loss = sum(Taco(num_negatives=2).loss_terms(model, batch_of(*encode(model, batch))).values())
        loss.backward()
        found.append((loss.detach(), torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])))
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-4)


def test_half_is_what_torch_calls_it_in_every_model():
    model = make_model("taco")
    for module in (model, model.fusion, GatedPair(5, 6, 8), SpokenPair(5)):
        assert not any("half" in name for name in module.state_dict())
        assert {p.dtype for p in module.half().parameters()} == {torch.float16}, type(module).__name__
