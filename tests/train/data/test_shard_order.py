"""Shuffling some shards at a time: every item once, those of few shards at a time, the next shards read before."""

import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from helpers.toy import make_toy
from helpers.training import TRAIN, at, check_stopped_run, trainer
from hypothesis import given, settings
from hypothesis import strategies as st
from vlalign.storage import Caption, FeatureStore, MemoryStore, write_shard
from vlalign.storage.captions.files import caption_table
from vlalign.storage.common.errors import UserError
from vlalign.storage.remote import store
from vlalign.storage.remote.store import is_stub, link_store
from vlalign.storage.stores.maintenance import compact
from vlalign.train.data.batches import Batches, VideoBatches
from vlalign.train.data.clip_features import ClipFeatures
from vlalign.train.data.examples import ExampleSource, PairExamples
from vlalign.train.data.order import ShardOrder, clips_in_shards, group_by_shard, videos_in_shards
from vlalign.train.data.pairs import Pairs, make_pairs
from vlalign.train.recipes.train_config import train_config
from vlalign.train.runs.checkpoint import save_state

SHARD_SIZES = [5, 1, 40, 17, 8, 29]
"""Videos in each shard."""


def made_pairs(num_videos: int, seed: int = 0) -> Pairs:
    """Return pairs of videos with one to four clips."""
    rng = np.random.default_rng(seed)
    clips = [(f"v{video}", start) for video in range(num_videos) for start in range(rng.integers(1, 5))]
    captions = (
        Caption(video_id=video_id, caption="x", split="train", start_seconds=start, end_seconds=start + 1)
        for video_id, start in rng.permutation(np.array(clips, dtype=object)).tolist()
    )
    return make_pairs(caption_table(captions))


def shards_of(pairs: Pairs) -> np.ndarray:
    """Return the shard of each video; videos of all shards are mixed in the table."""
    videos = [int(video_id[1:]) for video_id in pairs.clips.video_ids]
    return np.repeat(np.arange(len(SHARD_SIZES)), SHARD_SIZES)[videos]


@settings(deadline=None, max_examples=60)
@given(at_once=st.integers(1, 8), seed=st.integers(0, 3), epoch=st.integers(0, 5), parts=st.integers(1, 30))
def test_every_clip_comes_once_an_epoch_whatever_parts_are_asked_for(at_once, seed, epoch, parts):
    pairs = made_pairs(sum(SHARD_SIZES))
    order = ShardOrder(seed, clips_in_shards(group_by_shard(shards_of(pairs)), pairs.clips_of_videos), at_once)
    num_clips = len(pairs.clips)
    borders = np.linspace(0, num_clips, parts + 1).astype(int).tolist()
    clips = [clip for first, last in pairwise(borders) for clip in order.items(epoch, first, last, num_clips)]
    assert sorted(clips) == list(range(num_clips))
    assert clips == order.items(epoch, 0, num_clips, num_clips)


def test_clips_of_few_shards_come_at_a_time_in_another_order_each_epoch():
    pairs = made_pairs(sum(SHARD_SIZES))
    shard_of_clip = shards_of(pairs)[pairs.clips.video]
    order = ShardOrder(0, clips_in_shards(group_by_shard(shards_of(pairs)), pairs.clips_of_videos), 2)
    first_shards = set()
    for epoch in range(12):
        shards = shard_of_clip[order.items(epoch, 0, len(pairs.clips), len(pairs.clips))]
        for shard in range(len(SHARD_SIZES)):  # between a shard's first and last clip come those of one other shard
            places = np.flatnonzero(shards == shard)
            assert len(set(shards[places[0] : places[-1] + 1].tolist()) - {shard}) <= 1
        first_shards.add(int(shards[0]))
    assert len(first_shards) > 2


def test_clips_of_a_block_come_in_all_of_its_places_equally_often():
    order = ShardOrder(1, videos_in_shards(group_by_shard(np.repeat([0, 1], [30, 10]))), 2)
    counts = np.zeros((40, 40))
    for epoch in range(2000):
        counts[np.arange(40), order.items(epoch, 0, 40, 40)] += 1
    chi_square = ((counts - 50) ** 2 / 50).sum()
    degrees = 39 * 39
    assert chi_square == pytest.approx(degrees, abs=5 * np.sqrt(2 * degrees))


@pytest.mark.parametrize("num_each", [0, 3])
def test_shards_of_the_next_block_are_asked_for_once_each_before_they_are_needed(num_each):
    pairs = made_pairs(sum(SHARD_SIZES))
    shards, videos = shards_of(pairs), pairs.clips.video
    batches = VideoBatches(pairs, 6, 0, num_each) if num_each else Batches(pairs, 4, 0)
    batches.shuffle_by_shard(group_by_shard(shards), 2)
    read, needed, late = [], set(), 0
    for step in range(200):
        now = set(shards[videos[batches.at(step)[0]]].tolist())
        late += len(now - needed - set(read[-4:]))
        needed = now
        for of_shard in batches.videos_to_prefetch(step):
            (shard,) = set(shards[of_shard].tolist())
            assert sorted(of_shard) == np.flatnonzero(shards == shard).tolist()
            read.append(shard)
    # Late are shards of the first block, and of those whose last steps an epoch leaves out.
    assert len(read) > 12 and late <= 2 + len(read) // 6


def test_one_block_reads_nothing_ahead():
    pairs = made_pairs(sum(SHARD_SIZES))
    batches = Batches(pairs, 4, 0)
    batches.shuffle_by_shard(group_by_shard(shards_of(pairs)), 6)
    assert all(batches.videos_to_prefetch(step) == [] for step in range(100))


@pytest.fixture
def sharded(tmp_path):
    """The toy data set with its features in shards of four videos."""
    dataset = make_toy(tmp_path)
    folder = dataset.features("s3d")
    whole = FeatureStore(folder)
    videos = [whole.get(video_id, dtype=None) for video_id in whole.video_ids()]
    whole.shards[0].path.unlink()
    for part in range(6):
        write_shard(folder, whole.profile, whole.weights, videos[part::6], made_with={})
    return dataset


def test_a_store_says_which_shard_a_video_is_read_from(sharded):
    sharded_store = FeatureStore(sharded.features("s3d"))
    ids = sharded_store.video_ids()
    shards = [sharded_store.shards[number] for number in sharded_store.shard_of(ids)]
    assert shards == [sharded_store.locate(video_id)[0] for video_id in ids]
    assert MemoryStore(sharded_store.profile, sharded_store.weights, []).shard_of(["a", "b"]).tolist() == [0, 0]


def test_a_run_takes_the_clips_of_some_shards_at_a_time(sharded, tmp_path):
    examples = trainer(sharded, tmp_path, batch_size=2, shuffle_shards=1).examples
    shards = examples.source.features.shard_of(examples.clips.video_ids)[examples.clips.video]
    assert [len(set(shards[examples.batches.at(step)[0]])) for step in range(12)] == [1] * 12
    assert len({shards[examples.batches.at(step)[0][0]] for step in range(6)}) == 6


def test_shards_elsewhere_are_fetched_before_their_turn_and_not_all_at_once(sharded, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FREE_SHARE", 0.0)  # however full this disk is
    folder = sharded.features("s3d")
    (there := tmp_path / "there").mkdir()
    link_store(folder, f"file://{there}").send()
    config = train_config(dataset="toy", features="s3d", batch_size=2, shuffle_shards=1)
    features = ClipFeatures([FeatureStore(folder)])
    make_batches = partial(config.objective.make_batches, data=config.data, optimization=config.optimization)
    examples = PairExamples(ExampleSource(sharded, features, None, config.data, config.optimization, make_batches))
    shard_of_clip = features.shard_of(examples.clips.video_ids)[examples.clips.video]
    shards = FeatureStore(folder).shards
    for step in range(5):
        examples.prefetch(step, slice(None))
        here = {number for number, shard in enumerate(shards) if not is_stub(shard.path)}
        assert {*shard_of_clip[examples.batches.at(step)[0] + examples.batches.at(step + 1)[0]]} <= here
        assert len(here) == step + 2


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_same_shards(sharded):
    check_stopped_run(sharded, [*at(sharded), *TRAIN, "--shuffle-shards", "1"], "blocks")


def test_a_run_whose_shards_were_compacted_is_not_continued_in_another_order(sharded, tmp_path):
    folder, cases = tmp_path / "run", {"some": 2, "all": 0}
    for name, shards in cases.items():
        made = trainer(sharded, folder / name, batch_size=2, shuffle_shards=shards)
        save_state(folder / name, replace(made.state, step=1))
    compact(sharded.features("s3d"))
    assert trainer(sharded, folder / "all", batch_size=2, shuffle_shards=0).step == 1
    with pytest.raises(UserError, match=rf"^{re.escape(str(folder / 'some'))}: .*--shuffle-shards\b.*--run-name\b"):
        trainer(sharded, folder / "some", batch_size=2, shuffle_shards=2)
