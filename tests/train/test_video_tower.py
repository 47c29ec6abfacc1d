"""Fine-tuning from frames: a CLIP that transformers saved, both of whose towers are tuned on made clips."""

import hashlib
import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers.clips_of_text import new_clip, save_clip, word_tokenizer
from helpers.frames import SIDE, Frames, caption_of, make_frames, write_captions
from helpers.hub_models import IMAGE_MODELS, OPTIONS, VIDEO_MODELS, features_of_model, own_pixels, save_model
from helpers.toy import make_toy
from helpers.training import at, check_processes, check_stopped_run, gradient, options, trainer
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resized_crop
from transformers import CLIPModel
from vlalign.extract import load_extractor
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.encoders.hub import HubEncoder
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets import demo
from vlalign.storage import VideoFeatures, write_shard
from vlalign.storage.captions.files import read_captions
from vlalign.storage.common.errors import SettingError, UserError
from vlalign.storage.common.files import read_json
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.hub.names import read_hub_name
from vlalign.storage.profiles import FRAME_PROFILES, PROFILES
from vlalign.storage.stores.memory_store import MemoryStore
from vlalign.storage.stores.opening import open_features
from vlalign.train import export_run, load_run
from vlalign.train.cli.evaluate import main as evaluate_main
from vlalign.train.cli.runs import main as runs_main
from vlalign.train.cli.train import main as train_main
from vlalign.train.data.clip_features import ClipFeatures, pad_rows
from vlalign.train.data.clips import Clip
from vlalign.train.distributed import Workers
from vlalign.train.loop.frame_augmentation import ClipDraw, augmented
from vlalign.train.loop.trainer import Trainer
from vlalign.train.models.video_tower import VideoTower
from vlalign.train.runs.load import open_run
from vlalign.train.scoring.scorer import stage_scores
from vlalign.train.search.encoder import open_store_encoder
from vlalign.train.settings import TowerName

SHORT = {"batch_size": 12, "num_steps": 4, "validate_every": 2, "max_text_tokens": 32}


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> Frames:
    return make_frames(tmp_path_factory.mktemp("frames"))


def made(frames: Frames, folder: Path, **settings: Any) -> Trainer:
    """A trainer of both towers."""
    return trainer(frames.dataset, folder, **{**frames.settings, **SHORT, **settings})


def call(frames: Frames, **settings: Any) -> list[str]:
    """The options of a short training of both towers."""
    given = {**frames.settings, **SHORT, "device": "cpu", **settings}
    del given["dataset"]
    return [*at(frames.dataset), *options(given)]


# Gradients


def own_gradients(frames: Frames, of: Trainer) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of a trainer's first batch and the gradients by transformers' own model, in a plain loop."""
    model = CLIPModel.from_pretrained(frames.clip).train()
    inputs = of.make_inputs(0)
    mean = torch.tensor(of.model.video_tower.saved.profile.mean)
    std = torch.tensor(of.model.video_tower.saved.profile.std)
    videos, texts = [], []
    for rows, mask in zip(inputs.rows, inputs.mask, strict=True):
        vectors = []
        for row in rows[mask]:
            pixels = ((row.reshape(SIDE, SIDE, 3).float() / 255 - mean) / std).permute(2, 0, 1)[None]
            vectors.append(F.normalize(model.get_image_features(pixel_values=pixels).pooler_output[0], dim=-1))
        videos.append(F.normalize(torch.stack(vectors).mean(dim=0), dim=-1))
    for ids, mask in zip(inputs.texts["input_ids"], inputs.texts["attention_mask"].bool(), strict=True):
        found = model.get_text_features(input_ids=ids[mask][None], attention_mask=torch.ones(1, int(mask.sum())))
        texts.append(F.normalize(found.pooler_output[0], dim=-1))
    logits = torch.stack(texts) @ torch.stack(videos).T / of.config.objective.temperature
    right = torch.arange(len(logits))
    loss = (F.cross_entropy(logits, right) + F.cross_entropy(logits.T, right)) / 2
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def same_name(name: str) -> str:
    """The name in transformers' own model of a parameter of ours."""
    if name.startswith("video_tower."):
        return name.removeprefix("video_tower.network.model.")
    name = name.removeprefix("text_encoder.")
    return (
        name.replace("projection.", "text_projection.", 1)
        if name.startswith("projection.")
        else f"text_model.{name.removeprefix('network.')}"
    )


@pytest.mark.parametrize("size", [0, 1, 5])
def test_gradients_are_those_of_transformers_own_loop(frames, tmp_path, size):
    of = made(frames, tmp_path, micro_batch_size=size)
    terms, _ = gradient(of)
    loss, expected = own_gradients(frames, of)
    assert terms["contrast"] == pytest.approx(loss, abs=1e-5)
    ours = {same_name(name): p.grad for name, p in of.model.named_parameters() if p.grad is not None}
    assert {"visual_projection.weight", "text_projection.weight"} < ours.keys()
    assert ours.keys() == expected.keys() - {"logit_scale"}
    for name, of_ours in ours.items():
        torch.testing.assert_close(
            of_ours, expected[name], atol=1e-5, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
        )


KINDS = ["siglip", "vit", "videomae", "xclip"]
OTHER_KINDS = [*sorted(({*IMAGE_MODELS} | {*VIDEO_MODELS}) - {*KINDS, "dinov3"})]  # dinov3 does not round its frames


@pytest.mark.parametrize("name", [*KINDS, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHER_KINDS)])
def test_features_and_gradients_are_those_of_the_librarys_own_model(tmp_path, name):
    """The frames of a store, normalised by the library's own processor, through its own model."""
    folder, rate = save_model(name, tmp_path), OPTIONS.get(name, "")
    of = HubEncoder.find(read_hub_name(f"hf:{folder}:frames{rate.removeprefix(':mean')}")).profile
    tower = VideoTower.new(TowerName(f"hf:{folder}{rate}"), of, None, seed=0).train()
    chance = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (3, of.dimension), dtype=torch.uint8, generator=chance)
    pixels = [own_pixels(folder, [*row.reshape(of.frame_shape)], is_cut=True) for row in rows.numpy()]
    own = transformers.AutoModel.from_pretrained(folder).eval()
    expected, found = features_of_model(own, name, torch.cat(pixels)), tower(rows)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    weights = torch.randn(expected.shape, generator=chance)
    (expected.tanh() * weights).sum().backward()
    (found.tanh() * weights).sum().backward()
    theirs = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    ours = {n.removeprefix("network.model."): p.grad for n, p in tower.named_parameters() if p.grad is not None}
    assert ours.keys() == theirs.keys() and len(ours) > 15
    for n, gradient_of_ours in ours.items():
        torch.testing.assert_close(gradient_of_ours, theirs[n], atol=1e-5, rtol=1e-4)


def test_gradients_of_two_processes_are_those_of_one(frames, tmp_path):
    settings = {k: v for k, v in made(frames, tmp_path / "one").config.flat().items() if k not in OF_OTHERS}
    settings |= {"frame_augmentation": "crop+flip", "learned_temperature": True}
    cases = {"whole": (frames.dataset, settings), "parts": (frames.dataset, settings | {"micro_batch_size": 2})}
    check_processes(cases, tmp_path, 2)


OF_OTHERS = {"dataset", "recipe", "init"}


@pytest.mark.parametrize("size", [0, 5])
def test_a_frozen_tower_gives_the_same_gradients_of_texts(frames, tmp_path, size):
    whole = made(frames, tmp_path / "whole")
    gradient(whole)
    frozen = made(frames, tmp_path / "frozen", parameter_groups="video_tower.*:frozen=true", micro_batch_size=size)
    calls = []
    frozen.model.video_tower.network.register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    gradient(frozen)
    rows = int(frozen.make_inputs(0).mask.sum())
    assert not any(calls) and len(calls) == -(-rows // 8), "each row is computed once, 8 at a time, without a gradient"
    expected = dict(whole.model.named_parameters())
    for name, parameter in frozen.model.named_parameters():
        if name.startswith("video_tower."):
            assert parameter.grad is None
        else:
            torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-6, rtol=1e-4)


# Trainings


def recall(of: Trainer) -> float:
    """Percent of the training captions whose clip is first."""
    captions = [caption for caption in read_captions(of.job.dataset.captions) if caption.split == "train"]
    clips = [Clip(caption.video_id, None, None) for caption in captions]
    scores = stage_scores(of.scorer, captions, clips).fused(of.config.score_weights).by_caption
    return 100 * float((scores.argmax(axis=1) == np.arange(len(scores))).mean())


def test_training_lowers_the_loss_and_finds_the_clips(frames, tmp_path):
    of = made(frames, tmp_path, batch_size=64, num_steps=60, learning_rate=1e-3, warmup_steps=5)
    assert len(of.examples.clips) == 64
    before = recall(of)
    losses = [of.train_step(of.make_inputs(step))[0]["loss"] for step in range(of.num_steps)]
    after = recall(of)
    assert losses[-1] < losses[0] / 2
    assert before < 10 and after > 50


@pytest.mark.parametrize("frozen", ["", "video_tower", "text_encoder"])
def test_both_towers_change_and_each_can_be_frozen(frames, tmp_path, frozen):
    groups = {"parameter_groups": f"{frozen}.*:frozen=true"} if frozen else {}
    of = made(frames, tmp_path, learning_rate=1e-2, warmup_steps=0, **groups)
    before = {name: value.clone() for name, value in of.model.state_dict().items()}
    of.train_step(of.make_inputs(0))
    changed = {
        name.split(".")[0] for name, value in of.model.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed == {"video_tower", "text_encoder"} - {frozen}


def test_documented_parameter_groups_name_parameters_of_clip(frames, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "finetuning.md").read_text()
    groups = re.findall(r'^\| `"(.+:.+)"` \|', page, re.MULTILINE)
    assert len(groups) > 4
    for group in groups:
        of = made(frames, tmp_path, parameter_groups=group.replace(".layers.11.", ".layers.1."))
        trained = {name for name, parameter in of.model.named_parameters() if parameter.requires_grad}
        if ".layers.11." in group:
            assert trained and all(".layers.1." in name for name in trained)
        if "*norm*" in group:
            assert trained and all("norm" in name or name.endswith("bias") for name in trained)


def test_a_stopped_run_goes_on_as_if_it_was_not_stopped(frames):
    settings = {"num_steps": 8, "validate_every": 3, "frame_augmentation": "crop+flip", "ema_decay": 0.5}
    check_stopped_run(frames.dataset, call(frames, **settings, micro_batch_size=5), "augmented")


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, pytest.param({"compile": True}, marks=pytest.mark.slow)])
def test_lower_precision_and_compilation(frames, tmp_path, settings):
    plain, other = made(frames, tmp_path / "plain"), made(frames, tmp_path / "other", **settings)
    (terms, expected), (found_terms, found) = gradient(plain), gradient(other)
    rel = 0.05 if "precision" in settings else 1e-4
    assert found_terms == pytest.approx(terms, rel=rel)
    assert F.cosine_similarity(found, expected, dim=0) > 1 - rel
    if "precision" in settings:
        assert not torch.equal(found, expected)


@pytest.fixture(scope="module")
def run(frames) -> Path:
    """A finished run."""
    assert train_main([*call(frames, learning_rate=1e-3), "--run-name", "tuned"]) == 0
    return frames.dataset.runs / "tuned"


def rows_of(frames: Frames, video_id: str) -> np.ndarray:
    return open_features(frames.dataset, frames.store).get(video_id, dtype=None).features


def test_a_run_is_loaded_evaluated_and_exported(frames, run, tmp_path):
    assert sorted(path.name for path in (run / "video_tower").iterdir() if "config" in path.name)[0] == "config.json"
    assert evaluate_main([*at(frames.dataset), "tuned", "--device", "cpu"]) == 0
    assert read_json(run / "metrics.json")["task"] == "retrieval"
    text, video = "a large red circle", {frames.store: rows_of(frames, "v001")}
    expected = load_run(run, "cpu").similarity([text], [video])
    exported = export_run(run, tmp_path / "exported")
    frames_folder = next(exported.rglob("tower.json")).parent
    assert frames_folder == exported / "video_tower"
    assert str(frames.clip) not in "".join(p.read_text() for p in exported.rglob("*.json"))
    np.testing.assert_array_equal(load_run(exported, "cpu").similarity([text], [video]), expected)
    with pytest.raises(UserError, match=r"uint8.*float32"):
        load_run(run, "cpu").similarity([text], [{frames.store: video[frames.store].astype(np.float32)}])


def test_features_of_the_tuned_network_are_those_of_the_run(frames, run):
    """After training, the tower is an encoder."""
    extractor = load_extractor(f"hf:{run}/video_tower")
    assert extractor.profile.name == "tuned--tower"
    sha256 = hashlib.sha256((run / "model.safetensors").read_bytes()).hexdigest()
    assert (extractor.weights.name, extractor.weights.sha256) == ("tuned/model.safetensors", sha256)
    rows = torch.from_numpy(rows_of(frames, "v001").copy())
    tower = open_run(run, device_name="cpu").scorer.model.video_tower
    with torch.no_grad():
        expected = tower(rows)
    found = extractor.features(rows.reshape(-1, SIDE, SIDE, 3))
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    untuned = load_extractor(f"hf:{frames.clip}").features(rows.reshape(-1, SIDE, SIDE, 3))
    assert (found - untuned).abs().max() > 1e-3


def test_the_store_of_the_tuned_network_is_searched_by_examples(frames, run):
    """It has no text tower; the run encodes its texts."""
    extractor, ids = load_extractor(f"hf:{run}/video_tower"), ("v000", "v001", "v002")
    videos = [
        replace(
            video,
            features=extractor.features(torch.from_numpy(video.features.reshape(-1, SIDE, SIDE, 3).copy())).numpy(),
        )
        for video in (open_features(frames.dataset, frames.store).get(video_id, dtype=None) for video_id in ids)
    ]
    write_shard(frames.dataset.features("tuned--tower"), extractor.profile, extractor.weights, videos, made_with={})
    encoder = open_store_encoder(frames.dataset, "tuned--tower", run / "video_tower")
    assert not encoder.reads_texts
    with pytest.raises(UserError, match=r"tuned by a run, .*: vlalign-search tuned TEXT"):
        encoder.encode_text("a red circle")
    picture = run.parent / "picture.png"
    Image.fromarray(rows_of(frames, "v001")[0].reshape(SIDE, SIDE, 3)).save(picture)
    row = videos[1].features[0] / np.linalg.norm(videos[1].features[0])
    np.testing.assert_allclose(encoder.encode_image(picture), row, atol=1e-5)


def test_from_videos_to_features_of_the_tuned_network(tmp_path):
    """All steps by their commands, with CLIP's own profile."""
    scenes = demo.plan_scenes(2, {"train": 4, "validation": 2, "test": 2})
    captions = [demo.scene_captions(scene)[0] for _, scene in scenes]
    clip, dataset = tmp_path / "clip", DatasetFolder(tmp_path, "mine")
    tokenizer = word_tokenizer(captions)
    save_clip(new_clip(tokenizer), tokenizer, clip)
    for number, (_, scene) in enumerate(scenes):
        render_video(
            scene | {"duration_seconds": 2.0, "width": 64, "height": 48}, tmp_path / "videos" / f"v{number}.mp4"
        )
    extract = [*at(dataset), "--device", "cpu", "--features"]
    assert extract_main([*extract, "clip_vit_b32_frames", "--videos", str(tmp_path / "videos")]) == 0
    made = [caption_of(f"v{n}", text, split) for n, ((split, _), text) in enumerate(zip(scenes, captions, strict=True))]
    write_captions(dataset, made)
    settings = {"video_tower": f"clip_vit_b32={clip}", "num_steps": 2, "batch_size": 4, "learning_rate": 1e-2}
    settings |= {"objective": "ncl", "num_video_layers": 0, "run_name": "tuned", "warmup_steps": 0}
    assert train_main([*at(dataset), "--features", "clip_vit_b32_frames", "--device", "cpu", *options(settings)]) == 0
    assert extract_main([*extract, "clip_vit_b32", "--weights", str(dataset.runs / "tuned")]) == 0
    store, frames = (open_features(dataset, name) for name in ("clip_vit_b32", "clip_vit_b32_frames"))
    sha256 = hashlib.sha256((dataset.runs / "tuned" / "model.safetensors").read_bytes()).hexdigest()
    assert (store.weights.name, store.weights.sha256) == ("tuned/model.safetensors", sha256)
    tower = open_run(dataset.runs / "tuned", device_name="cpu").scorer.model.video_tower
    for video_id in ("v0", "v5"):
        with torch.no_grad():
            expected = tower(torch.from_numpy(frames.get(video_id, dtype=None).features.copy()))
        torch.testing.assert_close(torch.from_numpy(store.get(video_id).features), expected, atol=2e-3, rtol=2e-3)
    again = load_extractor("clip_vit_b32", weights=clip)
    assert again.weights.sha256 != sha256
    with pytest.raises(
        SettingError, match=r"weights .*tuned: a run that tuned clip_vit_b32; expected one that tuned s3d"
    ):
        load_extractor("s3d", weights=dataset.runs / "tuned")


def test_an_encoder_that_reads_frames_takes_no_tower_and_no_features(frames, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "examples")
    own = {"encoder": "own_frame_encoder:FrameNetwork", "text_encoder": "small"}
    assert train_main(call(frames, **own)) == 2
    assert "--video-tower" in (line := capsys.readouterr().err) and "reads frames itself; omit it" in line
    toy = make_toy(tmp_path)
    assert train_main([*at(toy), "--features", "s3d", "--device", "cpu", *options(own | {"objective": "ncl"})]) == 2
    assert "encoder own_frame_encoder:FrameNetwork reads frames; expected a store" in capsys.readouterr().err


def test_the_networks_of_a_run_to_start_from_are_named_where_the_settings_name_others(frames, tmp_path, capsys):
    other = shutil.copytree(frames.clip, tmp_path / "other")
    assert train_main(call(frames, run_name="first", num_steps=1)) == 0
    then = {"init": "first", "num_steps": 1}
    assert train_main(call(frames, run_name="second", **then)) == 0
    assert "is not used" not in capsys.readouterr().err
    named = {"video_tower": f"hf:{other}", "text_encoder": str(other)}
    assert train_main(call(frames, run_name="third", **then, **named)) == 0
    said = capsys.readouterr().err
    for name, ours in named.items():
        assert f"note: {name} {ours} is not used: --init first has its own, {frames.settings[name]}\n" in said


def test_an_encoder_of_frames_may_give_one_vector_for_a_clip(frames, tmp_path, monkeypatch, capsys):
    """It gets all of a clip's frames, not their maximum, in training and in validation."""
    (tmp_path / "one_vector.py").write_text(ONE_VECTOR)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "examples")
    own = {"encoder": "one_vector:OneVector", "objective": "mil-nce", "features": frames.store}
    given = {"num_steps": 2, "batch_size": 8, "run_name": "one", "device": "cpu"}
    assert train_main([*at(frames.dataset), *options(own | given)]) == 0, capsys.readouterr().err
    assert "R@1" in capsys.readouterr().err


ONE_VECTOR = """
from dataclasses import replace

import torch
from own_text_encoder import TrigramPair
from vlalign.train import VideoTokens


class OneVector(TrigramPair):
    traits = replace(TrigramPair.traits, reads_frames=True, gives_tokens=False)

    @classmethod
    def from_settings(cls, settings, plan):
        return super().from_settings(settings, replace(plan, feature_dim=3))

    def rows_of_frames(self, clips):
        assert clips.rows_BMF.dtype == torch.uint8
        return clips._replace(rows_BMF=clips.rows_BMF.unflatten(2, (-1, 3)).float().mean(dim=2) / 255)

    def encode_videos(self, features_BMF, mask_BM, lengths_B=None):
        assert mask_BM.sum(dim=1).max() == 3, "all frames of a clip"
        rows = self.video(self.standardised(features_BMF)) * mask_BM[:, :, None]
        return VideoTokens(rows.sum(dim=1, keepdim=True), mask_BM[:, :1])
"""


# Augmentation


@pytest.mark.parametrize("kind", ["flip", "crop", "crop+flip"])
def test_all_frames_of_a_clip_are_changed_in_the_same_way(frames, tmp_path, kind):
    of = made(frames, tmp_path, frame_augmentation=kind)
    inputs = of.make_inputs(0)
    same = inputs.rows[:, :1].expand_as(inputs.rows).clone()  # a clip whose frames are all the same
    found = augmented(replace(inputs, rows=same), of.config, 0, Workers(), (1, SIDE, SIDE, 3)).rows
    assert found.dtype == torch.uint8 and torch.equal(found, found[:, :1].expand_as(found))
    changed = (found != same).flatten(1).any(dim=1)
    assert changed.any()
    mirrored = same.unflatten(2, (SIDE, SIDE, 3)).flip(3).flatten(2)
    if kind == "flip":
        assert not changed.all() and torch.equal(found[changed], mirrored[changed])
    others = augmented(replace(inputs, rows=same), of.config, 1, Workers(), (1, SIDE, SIDE, 3)).rows
    assert not torch.equal(found, others), "another step has other draws"


def test_a_square_is_scaled_as_by_torchvision():
    frames_NHWC = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = ClipDraw(area=0.3, top=0.9, left=0.2, is_mirrored=True).applied(frames_NHWC, crops=True, flips=True)
    size = round(40 * 0.86**0.5)
    corner = int(0.9 * (41 - size)), int(0.2 * (41 - size))
    cut = resized_crop(
        frames_NHWC.movedim(-1, 1).float(),
        *corner,
        size,
        size,
        [40, 40],
        interpolation=InterpolationMode.BICUBIC,
        antialias=True,
    )
    expected = cut.flip(-1).round().clamp(0, 255).to(torch.uint8).movedim(1, -1)
    assert torch.equal(found, expected)


# Other networks


def test_maps_are_averaged_as_those_of_a_store(tmp_path):
    shape = (224, 224, 3)
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), dtype=np.uint8)
    grid = (2, 2, 2)
    tower = VideoTower.new(TowerName("clip_vit_b32_map", "random"), FRAME_PROFILES["clip_vit_b32_frames"], grid, seed=0)
    extractor = load_extractor("clip_vit_b32_map", weights="random", seed=0)
    of_video = [pixels[:3], pixels[3:]]
    videos = [_video(str(n), extractor.features(torch.from_numpy(p)).numpy()) for n, p in enumerate(of_video)]
    store = MemoryStore(extractor.profile, extractor.weights, videos)
    clips = [Clip(str(number), None, None) for number in range(2)]
    expected, mask = ClipFeatures([store], grid).batch(clips, 48)
    frames_BMK, frames_mask = pad_rows([p.reshape(len(p), -1) for p in of_video], math.prod(shape))
    with torch.no_grad():
        found = tower.rows(frames_BMK, frames_mask, torch.tensor([3, 2]))
    torch.testing.assert_close(found.rows_BMF, expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(found.mask_BM, mask) and found.lengths_B.tolist() == [8, 8]
    whole = load_extractor("clip_vit_b32", weights="random", seed=0)
    means = torch.stack([whole.features(torch.from_numpy(p)).mean(dim=0) for p in of_video])
    torch.testing.assert_close(found.whole_BF, means, atol=1e-4, rtol=1e-4)


def _video(video_id: str, rows: np.ndarray) -> VideoFeatures:
    seconds = np.arange(len(rows), dtype=float)
    return VideoFeatures(
        video_id=video_id,
        features=rows,
        start_seconds=seconds,
        end_seconds=seconds + 1,
        valid_frames=np.ones(len(rows), int),
        duration_seconds=float(len(rows)),
    )


NETWORKS = ["clip_vit_b32", "s3d", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet152_map", "r2plus1d"))]
NETWORKS += [pytest.param(n, marks=pytest.mark.slow) for n in ("i3d_resnext101", "slowfast")]


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_tuned_with_folded_norms(name):
    """What extraction computes, in one call for a convolution and in place, has a gradient here: the slope."""
    frames = FRAME_PROFILES[f"{name}_frames"]
    tower = VideoTower.new(TowerName(name, "random"), frames, None, seed=0)
    rows = torch.randint(0, 256, (2, frames.dimension), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = tower.train()(rows)
    extractor = load_extractor(name, weights="random", seed=0)
    expected = extractor.features(rows.reshape(2, *frames.frame_shape[frames.window == 1 :]))
    torch.testing.assert_close(found, expected, atol=1e-4 * float(expected.abs().max()), rtol=1e-3)
    assert not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in tower.modules())
    found.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in tower.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_the_gradient_of_a_network_is_the_slope_of_what_it_computes(name):
    """In double precision: what extraction computes in place, or in one call for a convolution, has a gradient."""
    profile = PROFILES[name]
    network = load_extractor(name, weights="random", seed=0).network.make_trainable().double()
    side = 224 if name.startswith("clip") or name == "slowfast" else 64
    chance = torch.Generator().manual_seed(0)
    frames = [] if profile.window == 1 else [profile.window]
    pixels = torch.rand(1, 3, *frames, side, side, generator=chance, dtype=torch.float64)
    with torch.no_grad():
        shape = network(pixels).shape  # a map of a small frame is small
    weights = torch.randn(shape, generator=chance, dtype=torch.float64)

    def loss() -> torch.Tensor:
        return (network(pixels) * weights).sum()

    loss().backward()
    parameters = list(network.parameters())
    slope = torch.stack([p.grad.square().sum() for p in parameters]).sum().sqrt()
    step, values = 1e-5 * float(loss().detach().abs() / slope), []
    with torch.no_grad():
        for sign in (1, -2):  # one step up, and two down
            for parameter in parameters:
                parameter += sign * step * parameter.grad / slope
            values.append(float(loss()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(slope), rel=1e-3)


# Mistakes

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another rate": (
        {"video_tower": "hf:{clip}:2fps"},
        r"--features clip--frames: .*fps 1; .*takes fps 2.*clip:frames",
    ),
    "no tower": ({"video_tower": ""}, r"--video-tower is missing: .*clip--frames"),
    "another size": (
        {"video_tower": "clip_vit_b32=random"},
        r"--features clip--frames: .*short_side_px 32.*clip_vit_b32 takes.*224",
    ),
    "an unknown network": ({"video_tower": "clip_vit"}, r"--video-tower clip_vit: expected one of .*clip_vit_b32"),
    "a network of sound": ({"video_tower": "logmel"}, r"--video-tower logmel: expected one of"),
    "frames of any shape": ({"video_tower": "resnet152"}, r"--video-tower resnet152: expected one of"),
    "frames": (
        {"video_tower": "hf:x/y:frames"},
        r"--video-tower hf:x/y:frames: has :frames, but a tower makes features",
    ),
    "weights of the hub's": ({"video_tower": "siglip2=random"}, r"--video-tower siglip2=random: .*own weights"),
    "no weights": ({"video_tower": "s3d="}, r"--video-tower s3d=: .*after ="),
    "rows that are pooled": (
        {"encoder": "gated", "text_encoder": None},
        r"--video-tower .*: encoder gated takes the maximum",
    ),
    "probabilities": ({"pair_weights": "density"}, r"--pair-weights density: .*expected none"),
    "a solved bag": (
        {"objective": "words", "encoder": "words", "temperature": None},
        r"--bag solved: .*expected trained",
    ),
    "several stores": ({"features": "clip--frames+s3d"}, r"--features .*(no store|one store)"),
    "an unknown augmentation": ({"frame_augmentation": "mirror"}, r"--frame-augmentation.*mirror"),
    "texts of another width": (
        {"text_encoder": "small"},
        r"--text-encoder small: its vectors have 256 values, the features 32",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(frames, capsys, case):
    settings, expected = REFUSED[case]
    before = sorted(frames.dataset.runs.rglob("*"))
    given = {name: value for name, value in {**frames.settings, **settings}.items() if value not in (None, "")}
    given |= {"video_tower": str(given.get("video_tower", "")).replace("{clip}", str(frames.clip))}
    given = {name: value for name, value in given.items() if value != "" and name != "dataset"}
    try:
        code = train_main([*at(frames.dataset), *options(given)])
    except SystemExit as error:  # of argparse
        code = error.code
    assert code == 2
    assert re.search(expected, capsys.readouterr().err.strip().splitlines()[-1])
    assert sorted(frames.dataset.runs.rglob("*")) == before


def test_a_tower_needs_frames_and_an_augmentation_needs_a_tower(tmp_path, capsys):
    toy = make_toy(tmp_path)
    given = [*at(toy), "--features", "s3d", "--objective", "ncl"]
    assert train_main([*given, "--video-tower", "s3d=random"]) == 2
    assert re.search(r"--features s3d: video_tower s3d reads .*of s3d_frames; omit", capsys.readouterr().err)
    assert train_main([*given, "--video-tower", "hf:x/y:mean"]) == 2
    assert re.search(r"--features s3d: .* reads .*of hf:x/y:frames; omit video_tower", capsys.readouterr().err)
    assert train_main([*given, "--frame-augmentation", "flip"]) == 2
    assert re.search(r"--frame-augmentation flip: .*video_tower is set", capsys.readouterr().err)


def damaged(about: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**about, **values}


DAMAGE: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "no profile": ("tower.json", lambda about: damaged(about, profile=3), "profile"),
    "a fault in the profile": (
        "tower.json",
        lambda about: damaged(about, profile=about["profile"] | {"window": 0}),
        "window",
    ),
    "a network of no kind": (
        "tower.json",
        lambda about: damaged(about, profile=about["profile"] | {"layer": "x", "name": "y"}),
        "this version has no network",
    ),
    "a pooling of no kind": ("tower.json", lambda about: damaged(about, pooling="all"), "pooling"),
    "no weights": ("tower.json", lambda about: damaged(about, weights={}), "weights"),
    "another network": (
        "tower.json",
        lambda about: damaged(about, profile=json.loads(PROFILES["s3d"].to_json())),
        "expected hf:",
    ),
    "more layers": (
        "config.json",
        lambda about: about | {"vision_config": about["vision_config"] | {"num_hidden_layers": 9}},
        "expected",
    ),
    "many layers": (
        "config.json",
        lambda about: about | {"vision_config": about["vision_config"] | {"num_hidden_layers": 1_000}},
        "num_hidden_layers is 1000",
    ),
    "a wide network": (
        "config.json",
        lambda about: about | {"vision_config": about["vision_config"] | {"hidden_size": 1 << 20}},
        "expected",
    ),
    "code": (
        "config.json",
        lambda about: about | {"vision_config": about["vision_config"] | {"auto_map": {"AutoModel": "x.y"}}},
        "code",
    ),
    "a large tower of texts": (
        "config.json",
        lambda about: about | {"text_config": about["text_config"] | {"vocab_size": 10_000_000}},
        r"its towers have 320,\d{3},\d{3} numbers",
    ),
    "long texts": (
        "config.json",
        lambda about: about | {"text_config": about["text_config"] | {"max_position_embeddings": 10**12}},
        "far more than the weights",
    ),
    "not a number": (
        "config.json",
        lambda about: about | {"vision_config": about["vision_config"] | {"layer_norm_eps": math.nan}},
        "layer_norm_eps is NaN",
    ),
    "no configuration": ("config.json", lambda about: [about], "config.json.*a list, expected an object"),
    "a nested configuration": ("config.json", lambda about: about | {"x": nested(900)}, "config.json.*[Rr]ecursion"),
    "no processor": ("processor_config.json", lambda about: None, "processor_config.json.*expected an object"),
}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_tower_is_refused_in_one_line(run, tmp_path, case):
    name, change, expected = DAMAGE[case]
    exported = export_run(run, tmp_path / "exported")
    path = exported / "video_tower" / name
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=expected):
        load_run(exported, "cpu")


def test_labels_take_no_memory(run, tmp_path):
    """transformers would make a name for each."""
    exported = export_run(run, tmp_path / "exported")
    path = exported / "video_tower" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_labels": 10**12}))
    assert load_run(exported, "cpu").profiles
    assert load_extractor(f"hf:{exported}/video_tower").profile


@pytest.mark.parametrize("name", ["config.json", "processor_config.json", "preprocessor_config.json"])
def test_no_file_of_this_machine_becomes_part_of_an_exported_run(frames, run, tmp_path, capsys, name):
    """A link in a run of somebody else's to a file that only you can read."""
    private = tmp_path / "private.json"
    private.write_text('{"password": "..."}')
    foreign = run.with_name("foreign")
    shutil.copytree(run, foreign)
    (foreign / "video_tower" / name).unlink(missing_ok=True)
    (foreign / "video_tower" / name).symlink_to(private)
    try:
        assert runs_main([*at(frames.dataset), "export", str(foreign), str(tmp_path / "exported")]) == 2
        assert re.search(rf"{name}: a link; expected a file", capsys.readouterr().err)
        assert not (tmp_path / "exported").exists()
    finally:
        shutil.rmtree(foreign)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1j])
def test_weights_that_are_no_numbers_are_refused(run, tmp_path, value):
    exported = export_run(run, tmp_path / "exported")
    path = exported / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.startswith("video_tower."))
    tensors[name] = torch.full_like(tensors[name], value, dtype=torch.complex64 if value == 1j else None)
    save_file(tensors, path)
    with pytest.raises(UserError, match="NaN"):
        load_run(exported, "cpu")
    with pytest.raises(UserError, match="NaN"):
        load_extractor(f"hf:{exported}/video_tower")


def test_scores_that_are_no_numbers_are_one_line(frames, run, capsys):
    """Weights that are finite, but whose products are not."""
    foreign = run.with_name("foreign")
    shutil.copytree(run, foreign)
    try:
        path = foreign / "model.safetensors"
        tensors = load_file(path)
        large = {name: value for name, value in tensors.items() if name.endswith("visual_projection.weight")}
        save_file(tensors | {name: torch.full_like(value, 3e38) for name, value in large.items()}, path)
        assert len(large) == 1 and evaluate_main([*at(frames.dataset), "foreign", "--device", "cpu"]) == 2
        assert re.search(r"foreign: its model gives no scores .*NaN", capsys.readouterr().err.splitlines()[-1])
    finally:
        shutil.rmtree(foreign)
