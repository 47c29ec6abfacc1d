"""Which clips and captions a batch has."""

from helpers.training import PAIR_CASES, trainer
from vlalign.storage import Caption
from vlalign.storage.captions import CaptionTable
from vlalign.train.data.batches import Batches, CandidateBatches, VideoBatches
from vlalign.train.data.pairs import make_pairs


def test_batches_hold_different_clips_and_pass_over_all_of_them():
    captions = [Caption(video_id=f"v{n // 3}", caption=f"c{n}", split="train") for n in range(30)]
    pairs = make_pairs(CaptionTable.of(captions))
    batches = Batches(pairs, 5, seed=0)
    seen = []
    for step in range(2):
        clips, captions = batches.at(step)
        assert len(set(clips)) == 5
        assert [pairs.clip_of_caption[caption] for (caption,) in captions] == clips
        seen += clips
    assert sorted(seen) == list(range(len(pairs.clips)))
    assert len({caption for step in range(60) for (caption,) in batches.at(step)[1]}) == 30


def test_a_batch_depends_on_seed_and_step_alone():
    pairs = make_pairs(
        CaptionTable.of(Caption(video_id=f"v{n // 2}", caption=f"c{n}", split="train") for n in range(40))
    )
    batches = [Batches(pairs, 6, seed=0), Batches(pairs, 6, seed=0)]
    forward = [batches[0].at(step) for step in range(12)]
    assert [batches[1].at(step) for step in reversed(range(12))] == forward[::-1]
    assert [Batches(pairs, 6, seed=1).at(step) for step in range(12)] != forward


def test_a_batch_may_be_larger_than_the_data():
    pairs = make_pairs(CaptionTable.of(Caption(video_id=v, caption="x", split="train") for v in "ab"))
    clips, _ = Batches(pairs, 64, seed=0).at(0)
    assert len(clips) == 2


def test_a_batch_has_clips_of_the_same_videos_or_candidates_next_in_time(toy, tmp_path):
    made = trainer(toy, tmp_path, **PAIR_CASES["mil-nce"])
    pairs = made.examples.pairs["train"]
    inputs = made.make_inputs(0)
    assert inputs.texts["vectors"].shape == (12 * 3, 20) and inputs.rows.shape[0] == 12
    clips, captions = CandidateBatches(pairs, 4, 0, 2).at(0)
    assert [pairs.clip_of_caption[own] for own, _ in captions] == clips
    video_clips, _ = VideoBatches(pairs, 6, 0, 3).at(0)
    videos = [pairs.clips[n].video_id for n in video_clips]
    assert len(video_clips) == 6 and videos[0] == videos[1] == videos[2] != videos[3]
