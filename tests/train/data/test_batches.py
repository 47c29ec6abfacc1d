"""Which clips and captions a batch has."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.training import PAIR_CASES, make_trainer, settings_of, trainer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from vlalign.storage import Caption
from vlalign.storage.captions.files import caption_table
from vlalign.train.data.batches import Batches, CandidateBatches, VideoBatches
from vlalign.train.data.order import StoredOrder
from vlalign.train.data.pairs import make_pairs
from vlalign.train.distributed import Workers
from vlalign.train.recipes.train_config import train_config
from vlalign.train.runs.checkpoint import save_state
from vlalign.train.runs.files import STATE_FILE


def test_batches_hold_different_clips_and_pass_over_all_of_them():
    captions = [Caption(video_id=f"v{n // 3}", caption=f"c{n}", split="train") for n in range(30)]
    pairs = make_pairs(caption_table(captions))
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
    pairs = make_pairs(caption_table(Caption(video_id=f"v{n // 2}", caption=f"c{n}", split="train") for n in range(40)))
    batches = [Batches(pairs, 6, seed=0), Batches(pairs, 6, seed=0)]
    forward = [batches[0].at(step) for step in range(12)]
    assert [batches[1].at(step) for step in reversed(range(12))] == forward[::-1]
    assert [Batches(pairs, 6, seed=1).at(step) for step in range(12)] != forward


def test_the_clips_of_a_step_are_known_without_its_captions():
    pairs = make_pairs(
        caption_table(
            Caption(video_id=f"v{n // 4}", caption="x", split="train", start_seconds=n, end_seconds=n + 1)
            for n in range(40)
        )
    )
    for batches in (Batches(pairs, 6, 0), VideoBatches(pairs, 6, 0, 3), CandidateBatches(pairs, 6, 0, 2)):
        assert [batches.clips_at(step) for step in range(9)] == [batches.at(step)[0] for step in range(9)]


def test_a_batch_may_be_larger_than_the_data():
    pairs = make_pairs(caption_table(Caption(video_id=v, caption="x", split="train") for v in "ab"))
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


def test_candidates_are_the_captions_of_the_video_that_are_nearest_in_time():
    rng = random.Random(0)
    captions = [
        Caption(video_id=f"v{n % 3}", caption=f"c{n}", split="train", start_seconds=start, end_seconds=start + 2.0)
        for n, start in enumerate(float(rng.randrange(12)) for _ in range(40))
    ]
    pairs = make_pairs(caption_table(captions))
    batches = CandidateBatches(pairs, 6, seed=0, captions_per_clip=4)
    for step in range(8):
        for own, *others in batches.at(step)[1]:
            video, middle = captions[own].video_id, captions[own].start_seconds
            same = [n for n, c in enumerate(captions) if c.video_id == video and n != own]
            assert (
                others == sorted(same, key=lambda n: abs(captions[n].start_seconds - middle))[:3]
            )  # stable: by number


GATED = {"objective": "ssml", "encoder": "gated", "embedding_size": 16}
DRAWN = {"clips": GATED, "videos": PAIR_CASES["intra-video"], "neighbours": PAIR_CASES["mil-nce"]}


@pytest.mark.parametrize("case", DRAWN)
def test_processes_share_the_batches_of_one(toy, tmp_path, case):
    config = train_config(**settings_of(**DRAWN[case]))

    def parts(size: int, step: int) -> tuple[np.ndarray, list[np.ndarray]]:
        makers = [
            make_trainer(toy, config, tmp_path / f"{size}-{rank}", Workers(rank, size), torch.device("cpu"))
            for rank in range(size)
        ]
        inputs = [maker.make_inputs(step) for maker in makers]
        rows = [rows[mask].numpy() for of in inputs for rows, mask in zip(of.rows, of.mask, strict=True)]
        return torch.cat([of.texts["vectors"] for of in inputs]).numpy(), rows

    for step in (0, 5):
        texts, rows = parts(1, step)
        for size in (2, 3):
            shared_texts, shared_rows = parts(size, step)
            np.testing.assert_array_equal(shared_texts, texts)
            assert all(map(np.array_equal, shared_rows, rows)) and len(shared_rows) == len(rows) == 12


@pytest.mark.parametrize("case", DRAWN)
def test_a_run_goes_on_with_the_same_batches_after_any_step(toy, tmp_path, case):
    whole = trainer(toy, tmp_path / "whole", **DRAWN[case], num_steps=1000)
    for step in random.Random(case).sample(range(1, 990), 20):
        save_state(whole.folder, replace(whole.state, step=step))
        resumed = trainer(toy, whole.folder, **DRAWN[case], num_steps=1000)
        assert resumed.step == step
        for later in range(step, step + 3):
            assert resumed.examples.batches.at(later) == whole.examples.batches.at(later)


def test_a_run_of_an_earlier_version_goes_on_with_its_order(toy, tmp_path, capsys):
    folder = tmp_path / "run"
    made = trainer(toy, folder, **GATED)
    save_state(folder, replace(made.state, step=1))
    path = folder / STATE_FILE
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["run"])
    assert about.pop("order") == 2
    save_file(load_file(path), path, {"run": json.dumps(about)})
    resumed = trainer(toy, folder, **GATED)
    num_clips = len(resumed.examples.clips)
    for epoch in range(3):
        drawn = random.Random(f"0 epoch {epoch}").sample(range(num_clips), num_clips)
        assert resumed.examples.batches.at(epoch)[0] == drawn and num_clips == resumed.examples.batches.size
    assert resumed.state.order == StoredOrder.version
    save_state(folder, resumed.state)  # and stays so
    assert trainer(toy, folder, **GATED).state.order == StoredOrder.version
    assert made.examples.batches.at(0)[0] != random.Random("0 epoch 0").sample(range(num_clips), num_clips)
