"""The fusion layers: each pair's score is what the layers give for that pair alone."""

import pytest
import torch
from helpers.pair_models import MAX_TEXT, batch_of, encode, make_batch, make_model, plain_scores
from vlalign.train.models.fusion import FusionScores
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
