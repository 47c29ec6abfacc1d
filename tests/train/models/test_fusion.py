"""The fusion layers: each pair's score is what the layers give for that pair alone; size and cost."""

import pytest
import torch
from helpers.pair_models import MAX_TEXT, batch_of, encode, make_batch, make_model, plain_scores
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel
from vlalign.train.models.fusion import FusionScores
from vlalign.train.models.transformer import VideoTextModel
from vlalign.train.objectives.taco import TacoObjective


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


def test_a_pair_chosen_from_both_sides_is_fused_once(monkeypatch):
    model, batch = make_model("taco"), make_batch(8)
    texts, videos = encode(model, batch)
    seen = []
    whole = model.fusion.forward

    def counted(bank, text_of_P, video_of_P, **more) -> FusionScores:
        seen.extend(zip(text_of_P.tolist(), video_of_P.tolist(), strict=True))
        return whole(bank, text_of_P, video_of_P, **more)

    monkeypatch.setattr(model.fusion, "forward", counted)
    TacoObjective(num_negatives=3).compute_loss(model, batch_of(texts, videos))
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
