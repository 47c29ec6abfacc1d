"""Margin losses: SSML's, HowTo100M's, VSE++'s and MMT's, against loops and published programs."""

import pytest
import torch
from helpers.loss_checks import same, similarities
from vlalign.train.losses import (
    answer_margin,
    hardest_margin,
    intra_video_weights,
    max_margin,
    soft_max_margin,
)

pytestmark = pytest.mark.portable


@pytest.mark.parametrize("size", [1, 2, 7])
def test_soft_max_margin_is_equation_4(size):
    s, p = similarities(size, size), torch.rand(size, dtype=torch.float64)
    total = 0.0 * s.sum()
    for i in range(size):
        for j in range(size):
            if j != i:
                total = total + p[i] * (torch.relu(s[i, j] - s[i, i] + 0.2) + torch.relu(s[j, i] - s[i, i] + 0.2))
    same(soft_max_margin(s, p, 0.2), total / size**2, s)
    same(soft_max_margin(s, p, 0.2, reduction="sum"), soft_max_margin(s, p, 0.2) * size**2, s)
    same(max_margin(s, 0.2), soft_max_margin(s, torch.ones(size), 0.2), s)
    same(max_margin(s, 0.2, reduction="sum"), max_margin(s, 0.2) * size**2, s)


def test_weights_of_negatives_count_in_both_directions():
    s, p, weights = similarities(4, 4), torch.rand(4, dtype=torch.float64), torch.rand(4, 4, dtype=torch.float64)
    total = 0.0
    for i in range(4):
        for j in range(4):
            if j != i:
                of_text, of_video = torch.relu(s[i, j] - s[i, i] + 0.3), torch.relu(s[i, j] - s[j, j] + 0.3)
                total = total + weights[i, j] * (p[i] * of_text + p[j] * of_video)
    same(soft_max_margin(s, p, 0.3, negative_weights_BB=weights), total / 16, s)
    ours = max_margin(s, 0.3, negative_weights_BB=weights)
    same(ours, soft_max_margin(s, torch.ones(4), 0.3, negative_weights_BB=weights), s)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_hardest_margin_counts_the_worst_negative_of_each_text_and_video(size):
    s, p = similarities(size, size), torch.rand(size, dtype=torch.float64)

    def plain(weights: torch.Tensor) -> torch.Tensor:
        total = 0.0 * s.sum()
        for i in range(size):
            of_text = [torch.relu(0.4 + s[i, j] - s[i, i]) for j in range(size) if j != i]
            of_video = [torch.relu(0.4 + s[j, i] - s[i, i]) for j in range(size) if j != i]
            total = total + weights[i] * (max(of_text, default=0.0) + max(of_video, default=0.0))
        return total / size

    same(hardest_margin(s, 0.4), plain(torch.ones(size)), s)
    same(hardest_margin(s, 0.4, weights_B=p), plain(p), s)


def test_answer_margin_is_that_of_plain_loops():
    s, right = similarities(5, 3), [2, 0, 1, 1, 2]
    total = 0.0
    for i in range(5):
        for j in range(3):
            if j != right[i]:
                total = total + torch.relu(s[i, j] - s[i, right[i]] + 0.3)
    same(answer_margin(s, torch.tensor(right), 0.3), total / 15, s)


def test_the_margin_is_that_of_the_setting_unless_another_is_given():
    s, ones, right = torch.randn(4, 4), torch.ones(4), torch.arange(4)
    assert max_margin(s) == max_margin(s, 0.1) == soft_max_margin(s, ones)
    assert answer_margin(s, right) == answer_margin(s, right, 0.1)
    assert hardest_margin(s) == hardest_margin(s, 0.2)


def test_max_margin_is_that_of_howto100m_and_mmt(goldens):
    expected, given = goldens
    s, losses = given["loss_sim"], expected["losses"]
    size = len(s)
    for margin in (0.1, 1.0):  # theirs counts each pair as a negative of itself, too
        theirs = losses[f"maxmargin_howto100m_m{margin}(sim incl. diagonal)"]
        assert max_margin(s, margin).item() + 2 * margin / size == pytest.approx(theirs, rel=1e-6)
    for margin in (0.05, 0.2):  # the mean over the negatives
        ours = max_margin(s, margin).item() * size**2 / (2 * size * (size - 1))
        assert ours == pytest.approx(losses[f"maxmargin_mmt_fixnorm_m{margin}"], rel=1e-6)
    weights = intra_video_weights(torch.arange(size) // 2, 0.5)
    own = 2 * 0.1 * weights.diagonal().sum() / size**2
    theirs = losses["maxmargin_howto100m_m0.1_npair2_negweight_hr0.5(batch4)"]
    assert (max_margin(s, 0.1, negative_weights_BB=weights) + own).item() == pytest.approx(theirs, rel=1e-6)


def test_intra_video_negatives_have_their_part_of_the_weight():
    weights = intra_video_weights(torch.tensor([0, 0, 0, 1, 1, 2]), 0.25)
    torch.testing.assert_close(weights[0], torch.tensor([0.5] * 3 + [1.5] * 3))
    torch.testing.assert_close(weights[5], torch.ones(6))  # alone of its video
    torch.testing.assert_close(intra_video_weights(torch.zeros(3), 0.25), torch.ones(3, 3))
