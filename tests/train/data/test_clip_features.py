"""The feature rows of clips: from one store, from several joined in time, and as grids of maps."""

import numpy as np
import pytest
import torch
from vlalign.storage import Caption, FeatureStore, VideoFeatures, Weights, write_shard
from vlalign.storage.captions.files import caption_table
from vlalign.storage.profiles import PROFILES
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.clips import Clip
from vlalign.train.data.pairs import make_pairs
from vlalign.train.data.text_encoders import small_bert
from vlalign.train.loop.trainer import set_feature_statistics
from vlalign.train.models.transformer import VideoTextModel


def make_store(folder, features: str, rows_of_video: dict[str, np.ndarray], seconds_per_row: float) -> FeatureStore:
    videos = []
    for video_id, rows in rows_of_video.items():
        starts = seconds_per_row * np.arange(len(rows))
        videos.append(
            VideoFeatures(
                video_id=video_id,
                features=rows,
                start_seconds=starts,
                end_seconds=starts + seconds_per_row,
                valid_frames=np.ones(len(rows), dtype=int),
                duration_seconds=seconds_per_row * len(rows),
            )
        )
    write_shard(folder / features, PROFILES[features], Weights(name="w", sha256="0"), videos, made_with={})
    return FeatureStore(folder / features)


@pytest.fixture
def clip_features(tmp_path) -> ClipFeatures:
    rng = np.random.default_rng(0)
    fine = make_store(tmp_path, "s3d", {"a": rng.normal(size=(12, 1024)), "b": rng.normal(size=(3, 1024))}, 0.5)
    coarse = make_store(tmp_path, "resnet152", {"a": rng.normal(size=(6, 2048)), "b": rng.normal(size=(2, 2048))}, 1.0)
    return ClipFeatures([coarse, fine])


def test_two_stores_are_aligned_in_time(clip_features):
    coarse, fine = (store.get("a") for store in clip_features.stores)
    joined = clip_features.rows([Clip("a", None, None)], max_rows=48)[0]
    assert joined.shape == (12, 3072)
    for row in range(12):
        np.testing.assert_array_equal(joined[row], np.concatenate([coarse.features[row // 2], fine.features[row]]))


def test_clips_of_one_store_are_its_rows_in_the_order_asked_for(clip_features):
    [_, fine] = clip_features.stores
    clips = [Clip("b", 0.5, 0.9), Clip("a", None, None), Clip("a", 9.0, 10.0)]
    rows = ClipFeatures([fine]).rows(clips, max_rows=48)
    for clip, found in zip(clips, rows, strict=True):
        expected = fine.get(clip.video_id, start_seconds=clip.start_seconds, end_seconds=clip.end_seconds).features
        np.testing.assert_array_equal(found, expected)
    features, mask = ClipFeatures([fine]).batch(clips, max_rows=48)
    assert features.shape == (3, 12, 1024) and features.dtype == torch.float16
    assert mask.sum(1).tolist() == [1, 12, 1], "a clip without rows has one of zeros"
    assert (features[~mask] == 0).all() and (features[2] == 0).all()


def test_a_clip_has_its_rows_up_to_the_maximum(clip_features):
    whole = clip_features.rows([Clip("a", None, None)], max_rows=48)[0]
    np.testing.assert_array_equal(clip_features.rows([Clip("a", 1.0, 2.2)], 48)[0], whole[2:5])
    np.testing.assert_array_equal(clip_features.rows([Clip("a", None, None)], 3)[0], whole[[0, 6, 11]])
    assert clip_features.rows([Clip("a", 7.0, 9.0)], 48)[0].shape == (0, 3072)


@pytest.fixture
def maps(tmp_path) -> FeatureStore:
    rng = np.random.default_rng(0)
    maps = {
        video_id: rng.normal(size=(length, 7 * 7 * 512)).astype(np.float16) for video_id, length in (("a", 5), ("b", 1))
    }
    return make_store(tmp_path, "clip_vit_b32_map", maps, 1.0)


@pytest.mark.parametrize("grid", [(2, 2, 2), (3, 3, 3), (1, 7, 7)])
def test_grid_tokens_are_means_of_map_parts(maps, grid):
    """In plain loops: part i of n of what is N long is from i N / n, rounded down, to (i + 1) N / n, rounded up."""

    def part(number: int, parts: int, size: int) -> slice:
        return slice(number * size // parts, -(-(number + 1) * size // parts))

    clips = [Clip("a", None, None), Clip("b", None, None), Clip("a", 2.0, 4.0), Clip("a", 7.0, 9.0)]
    features = ClipFeatures([maps], grid)
    found = features.timed_rows(clips, max_rows=4)
    assert features.dim == 512 and found[-1][0].shape == (0, 512)
    for clip, (rows, times) in zip(clips[:-1], found, strict=False):
        whole = maps.get(clip.video_id, start_seconds=clip.start_seconds, end_seconds=clip.end_seconds)
        chosen = [0, 1, 3, 4] if len(whole.features) == 5 else list(range(len(whole.features)))
        map_THWC = whole.features[chosen].reshape(-1, 7, 7, 512).astype(float)
        expected, spans = [], []
        for time, y, x in np.ndindex(grid):
            seconds = part(time, grid[0], len(chosen))
            inside = map_THWC[seconds, part(y, grid[1], 7), part(x, grid[2], 7)]
            expected.append(inside.mean(axis=(0, 1, 2)))
            spans.append((whole.start_seconds[chosen][seconds][0], whole.end_seconds[chosen][seconds][-1]))
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        np.testing.assert_array_equal(times, spans)


def test_the_cells_of_two_maps_are_joined(maps, tmp_path):
    """A store with other rates of frames: each map is averaged on its own."""
    rows = {name: np.random.default_rng(1).normal(size=(length, 7 * 7 * 2048)) for name, length in (("a", 9), ("b", 2))}
    fine = make_store(tmp_path, "resnet152_map", rows, 0.5)
    clips = [Clip("a", None, None), Clip("b", None, None), Clip("a", 1.0, 3.0), Clip("a", 4.6, 5.0)]
    joined = ClipFeatures([maps, fine], (3, 2, 2))
    assert joined.dim == 512 + 2048
    alone = [ClipFeatures([store], (3, 2, 2)).timed_rows(clips, 4) for store in (maps, fine)]
    for (cells, times), (first, spans), (second, _) in zip(joined.timed_rows(clips, 4), *alone, strict=True):
        if len(first) and len(second):
            np.testing.assert_array_equal(cells, np.concatenate([first, second], axis=1))
            np.testing.assert_array_equal(times, spans)
        else:
            assert cells.shape == (0, 2560) and len(times) == 0
    assert not len(alone[1][3][0]), "the second store has no rows of the last clip"


def test_pooled_maps_are_the_largest_value_of_any_place(maps):
    [pooled] = ClipFeatures([maps]).pooled([Clip("a", None, None)])
    largest = maps.get("a").features.reshape(-1, 512).max(axis=0)
    np.testing.assert_allclose(pooled, largest / np.linalg.norm(largest), atol=1e-6)


def test_features_are_standardised_over_the_training_clips(clip_features):
    model = VideoTextModel(3072, small_bert(50), num_video_layers=1, num_fusion_layers=None, dropout=0.1)
    pairs = make_pairs(caption_table(Caption(video_id=v, caption="x", split="train") for v in ("a", "b")))
    set_feature_statistics(model, clip_features, pairs.clips, max_rows=48, seed=0)
    rows = np.concatenate(clip_features.rows(pairs.clips, 48))
    standardised = (torch.from_numpy(rows) - model.feature_mean) / model.feature_std
    torch.testing.assert_close(standardised.mean(0), torch.zeros(3072), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardised.std(0, correction=0), torch.ones(3072), atol=1e-3, rtol=0)
