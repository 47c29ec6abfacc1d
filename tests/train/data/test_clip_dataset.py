"""The data set for loops of one's own: every usable caption once, with its clip's rows, in any loader."""

import multiprocessing

import numpy as np
import pytest
import torch
from helpers.own_inputs import make_rated
from torch.utils.data import DataLoader
from vlalign.storage import Caption, FeatureStore, UserError, read_captions
from vlalign.train import ClipDataset


def opened(dataset, **options) -> ClipDataset:
    return ClipDataset(FeatureStore(dataset.features("s3d")), read_captions(dataset.captions), **options)


def test_items_are_the_captions_of_a_split_with_their_rows(toy):
    store, captions = FeatureStore(toy.features("s3d")), read_captions(toy.captions)
    clips = opened(toy, split="train")
    expected = [caption for caption in captions if caption.split == "train"]
    assert len(clips) == len(expected) == 12
    for item, caption in zip((clips[i] for i in range(len(clips))), expected, strict=True):
        assert (item["video_id"], item["caption"], item["clip_id"]) == (
            caption.video_id,
            caption.caption,
            caption.clip_id,
        )
        rows = store.get(caption.video_id).features
        assert item["features"].dtype == torch.float32
        np.testing.assert_array_equal(item["features"].numpy(), rows)
    assert len(opened(toy)) == len(captions)
    with pytest.raises(IndexError):
        clips[12]


@pytest.mark.parametrize("start", sorted({"fork", "spawn"} & set(multiprocessing.get_all_start_methods())))
def test_a_shuffling_loader_with_workers_gives_each_item_once(toy, start):
    clips = opened(toy)
    options = {"num_workers": 2, "multiprocessing_context": start}
    loader = DataLoader(clips, 5, shuffle=True, collate_fn=clips.collate, **options)
    found = {}
    for batch in loader:
        assert batch["features"].shape[:2] == batch["mask"].shape
        for index, clip_id in enumerate(batch["clip_id"]):
            mask = batch["mask"][index]
            assert torch.equal(batch["features"][index][~mask], torch.zeros(int((~mask).sum()), 1024))
            assert clip_id not in found
            found[clip_id] = (batch["caption"][index], batch["features"][index][mask])
    assert len(found) == len(clips)
    for item in (clips[i] for i in range(len(clips))):
        caption, rows = found[item["clip_id"]]
        assert caption == item["caption"] and torch.equal(rows, item["features"])


def test_long_clips_keep_rows_that_are_evenly_chosen(toy):
    whole, short = opened(toy), opened(toy, max_rows=3)
    for index in range(len(whole)):
        rows = whole[index]["features"]
        chosen = range(len(rows)) if len(rows) <= 3 else [0, round((len(rows) - 1) / 2), len(rows) - 1]
        torch.testing.assert_close(short[index]["features"], rows[list(chosen)], rtol=0, atol=0)


def test_captions_in_memory_that_cannot_be_used_are_reported_and_skipped(toy, caplog):
    store = FeatureStore(toy.features("s3d"))
    captions = [
        Caption(video_id="v000", caption="a", split="train", start_seconds=0.0, end_seconds=1.0),
        Caption(video_id="elsewhere", caption="b", split="train"),
        Caption(video_id="v001", caption="c", split="train", start_seconds=500.0, end_seconds=501.0),
        Caption(video_id="v001", caption="d", split="test"),
    ]
    clips = ClipDataset(store, captions)
    assert [clips[i]["caption"] for i in range(len(clips))] == ["a", "d"] and clips.num_skipped == 2
    assert "'elsewhere'" in caplog.text and "v001#500.0-501.0" in caplog.text
    np.testing.assert_array_equal(
        clips[0]["features"].numpy(), store.get("v000", start_seconds=0.0, end_seconds=1.0).features
    )
    with pytest.raises(UserError, match="elsewhere"):
        ClipDataset(store, captions[1:2])
    with pytest.raises(UserError, match="validation"):
        ClipDataset(store, captions, split="validation")


def test_numbers_in_columns_of_ones_own_are_in_items_and_batches(tmp_path):
    toy = make_rated(tmp_path, unrated=(1,))
    clips, captions = opened(toy, split="train"), [c for c in read_captions(toy.captions) if c.split == "train"]
    assert [clips[i]["extra"] for i in range(len(clips))] == [dict(caption.extra) for caption in captions]
    [batch] = DataLoader(clips, len(clips), collate_fn=clips.collate)
    expected = [caption.extra.get("rating", np.nan) for caption in captions]
    np.testing.assert_array_equal(batch["extra"]["rating"].numpy(), np.array(expected, np.float32))
    assert np.isnan(expected).sum() == 1
