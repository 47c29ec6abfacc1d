"""CMCM's encoders for clips and recordings."""

import pytest
import torch
from helpers.spoken import make_spoken
from helpers.training import SPOKEN, gradient, trainer
from vlalign.train.models.spoken import WIDTH, SpokenPair


def test_padding_changes_neither_clip_nor_recording():
    torch.manual_seed(0)
    model = SpokenPair(7).eval()
    rows, lengths = torch.randn(2, 5, 7), [3, 5]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    spoken_rows, spoken_mask = torch.randn(2, 100, 40), torch.arange(100) < torch.tensor([33, 100])[:, None]
    clips, recordings = (
        model.encode_videos(rows, mask),
        model.encode_texts({"rows_BTD": spoken_rows, "mask_BT": spoken_mask}),
    )
    alone, heard = (
        model.encode_videos(rows[:1, :3], mask[:1, :3]),
        model.encode_texts({"rows_BTD": spoken_rows[:1, :33], "mask_BT": spoken_mask[:1, :33]}),
    )
    torch.testing.assert_close(clips.mean_BD[:1], alone.mean_BD)
    torch.testing.assert_close(clips.tokens_BMD[:1, :3], alone.tokens_BMD)
    torch.testing.assert_close(recordings.sentence_BD[:1], heard.sentence_BD, atol=1e-4, rtol=1e-4)
    assert recordings.mask_BN.sum(dim=1).tolist() == [3, 7] and recordings.tokens_BND.shape[-1] == WIDTH


def test_pooling_follows_table_3():
    torch.manual_seed(0)
    model = SpokenPair(6).eval()
    rows = torch.randn(1, 4, 6)
    tokens = model.encode_videos(rows, torch.ones(1, 4, dtype=torch.bool))
    each = torch.stack([model.project(row) for row in rows[0]])
    torch.testing.assert_close(tokens.mean_BD[0], model.seen_summary(each.max(dim=0).values))
    still = SpokenPair(6, still=True).eval()
    tokens = still.encode_videos(rows, torch.ones(1, 4, dtype=torch.bool))
    each = torch.stack([still.project(row) for row in rows[0]])
    torch.testing.assert_close(tokens.tokens_BMD[0], each)
    torch.testing.assert_close(tokens.mean_BD[0], still.seen_summary(each.mean(dim=0)))


def test_gated_linear_units_have_the_width_that_is_set():
    """Table 3 with Dauphin's gates, on the features as they are."""
    torch.manual_seed(0)
    model = SpokenPair(6, glu_size=10).eval()
    assert model.width == 10 and (model.sizes.text, model.sizes.video) == (WIDTH, 6)
    rows, mask = torch.randn(1, 4, 6), torch.ones(1, 4, dtype=torch.bool)
    clips = model.encode_videos(rows, mask)
    torch.testing.assert_close(clips.tokens_BMD, rows)
    pooled, unit = rows[0].max(dim=0).values, model.seen_summary
    expected = (unit.embed.weight @ pooled + unit.embed.bias) / (
        1 + (-(unit.gate.weight @ pooled + unit.gate.bias)).exp()
    )
    torch.testing.assert_close(clips.mean_BD[0], expected)
    heard = model.encode_texts({"rows_BTD": torch.randn(1, 40, 40), "mask_BT": torch.ones(1, 40, dtype=torch.bool)})
    assert heard.tokens_BND.shape == (1, 3, WIDTH) and heard.sentence_BD.shape == (1, 10)


@pytest.mark.slow
def test_a_map_has_a_token_for_each_place(tmp_path):
    dataset = make_spoken(tmp_path, num_clips=16, features="clip_vit_b32_map")
    settings = {"features": "clip_vit_b32_map", "video_grid": "1x7x7", "batch_size": 4}
    made = trainer(dataset, tmp_path / "run", dataset="spoken", **SPOKEN | settings)
    terms, found = gradient(made)
    assert made.model.still and made.model.feature_mean.shape == (512,)
    assert made.make_inputs(0).rows.shape == (4, 49, 512)
    assert set(terms) == {"contrast", "codes"} and torch.isfinite(found).all()
