"""How the stages of a score make one ranking."""

import numpy as np
from vlalign.train.scoring.scores import Shortlist, StageScores


def test_pairs_outside_the_shortlist_come_behind_it_in_their_early_order():
    rng = np.random.default_rng(0)
    early, late = rng.normal(size=(2, 5, 7)).astype(np.float32)
    looked_at = np.zeros((2, 5, 7), dtype=bool)
    for i in range(5):
        looked_at[0, i, np.argsort(-early[i])[:3]] = True
    for j in range(7):
        looked_at[1, np.argsort(-early[:, j])[:2], j] = True
    by_caption, by_clip = StageScores({"sentence": early, "fusion": late}, Shortlist(looked_at[0], looked_at[1])).fused(
        {"sentence": 1, "fusion": 2}
    )
    total = early + 2 * late
    for scores, totals, earlies, seen in (
        (by_caption, total, early, looked_at[0]),
        (by_clip.T, total.T, early.T, looked_at[1].T),
    ):
        for row, whole, first, looked in zip(scores, totals, earlies, seen, strict=True):
            expected = sorted(np.flatnonzero(looked), key=lambda j: -whole[j]) + sorted(
                np.flatnonzero(~looked), key=lambda j: -first[j]
            )
            assert np.argsort(-row).tolist() == expected
