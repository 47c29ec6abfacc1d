"""Stores of frames: what a network takes, extracted without it, and the same features that it computes of a video."""

import math
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.hub_models import OPTIONS, save_model
from helpers.videos import scene
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli.extract import main
from vlalign.extract.extractor import Extractor
from vlalign.extract.pipeline.dataset import frames_size
from vlalign.extract.pipeline.plan import plan_extraction
from vlalign.extract.pipeline.rows import FrameRows
from vlalign.extract.settings import ExtractionSettings, known_encoders, parse_weights
from vlalign.extract.videos.demo import render_video
from vlalign.storage import FeatureStore, UserError
from vlalign.storage.common.errors import SettingError
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import FRAME_PROFILES, PROFILES


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> Path:
    """Two videos of 3.3 and 1.2 seconds."""
    folder = tmp_path_factory.mktemp("videos")
    render_video(scene(3.3, width=100, height=70), folder / "wide.mp4")
    render_video(scene(1.2, width=60, height=80), folder / "tall.mp4")
    return folder


@contextmanager
def one_thread():
    """Computes as an extraction on a CPU does, whose batches have one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def features_of_frames(extractor: Extractor, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    frames = rows.reshape(-1, *(shape if shape[0] > 1 else shape[1:]))
    with one_thread():
        parts = [extractor.features(part) for part in torch.from_numpy(frames.copy()).split(extractor.batch_size)]
    return torch.cat(parts).numpy()


def assert_frames_give_the_features(root: Path, extractor: Extractor, frames_name: str) -> None:
    dataset = DatasetFolder(root, "mine")
    features, frames = (FeatureStore(dataset.features(name)) for name in (extractor.profile.name, frames_name))
    assert sorted(frames.video_ids()) == ["tall", "wide"] and frames.profile.is_frames
    assert (frames.weights.name, frames.weights.sha256, frames.origin) == ("none", "", "extracted")
    for video_id in frames.video_ids():
        found, expected = frames.get(video_id, dtype=None), features.get(video_id, dtype=None)
        assert found.features.dtype == np.uint8 and found.features.std() > 5
        computed = features_of_frames(extractor, found.features, frames.profile.frame_shape).astype(np.float16)
        assert np.array_equal(computed, expected.features)
        for name in ("start_seconds", "end_seconds", "valid_frames", "duration_seconds", "source", "decoder"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), name


@pytest.mark.parametrize("name", ["clip_vit_b32", "s3d"])
def test_the_network_computes_its_features_of_the_stored_frames(tmp_path, videos, name):
    given = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(videos), "--weights", "random"]
    assert main([*given, "--features", f"{name},{name}_frames", "--device", "cpu"]) == 0
    assert_frames_give_the_features(tmp_path, load_extractor(name, weights="random"), f"{name}_frames")


@pytest.mark.parametrize("name", ["clip", "siglip", "videomae"])
def test_a_model_of_the_hub_computes_its_features_of_the_stored_frames(tmp_path, videos, name):
    folder, rate = save_model(name, tmp_path), OPTIONS.get(name, "")
    given = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(videos), "--device", "cpu"]
    assert main([*given, "--features", f"hf:{folder}{rate},hf:{folder}:frames{rate}"]) == 0
    assert_frames_give_the_features(
        tmp_path, load_extractor(f"hf:{folder}{rate}"), f"{name}--frames{rate.replace(':', '--')}"
    )


def test_the_profile_of_frames_is_that_of_the_features_but_for_what_the_network_does():
    for name, profile in FRAME_PROFILES.items():
        of = PROFILES[name.removesuffix("_frames")]
        for field in ("fps", "window", "stride", "short_side_px", "crop_px", "resize", "tail", "decoding"):
            assert getattr(profile, field) == getattr(of, field), (name, field)
        assert profile.dimension == of.window * of.crop_px**2 * 3 and profile.is_frames and not of.is_frames
    assert FRAME_PROFILES.keys() >= {"clip_vit_b32_frames", "s3d_frames", "slowfast_frames"}
    assert FRAME_PROFILES.keys().isdisjoint({"resnet152_frames", "logmel_frames"}), "no common size, and no frames"


def test_frames_do_not_depend_on_what_networks_compute_in():
    made = load_extractor("clip_vit_b32_frames", weights="random", precision="bf16")
    assert made.profile == FRAME_PROFILES["clip_vit_b32_frames"] and made.network is None


def test_frames_have_no_weights(tmp_path):
    with pytest.raises(UserError, match="clip_vit_b32_frames uses no network"):
        load_extractor("clip_vit_b32_frames", weights=tmp_path / "w.bin")
    both = ["clip_vit_b32", "clip_vit_b32_frames"]
    assert parse_weights(["w.bin"], both) == {"clip_vit_b32": "w.bin", "clip_vit_b32_frames": "pretrained"}
    with pytest.raises(SettingError, match="clip_vit_b32_frames"):
        parse_weights(["clip_vit_b32_frames=w.bin"], both)


@pytest.mark.parametrize("name", ["resnet152_frames", "logmel_frames", "nobody_frames", "siglip2_frames"])
def test_networks_without_frames_of_one_size_have_no_store_of_them(name):
    with pytest.raises(UserError, match=f"'{name}': .*clip_vit_b32.*_frames"):
        load_extractor(name)
    with pytest.raises(SettingError, match=f"'{name}'"):
        known_encoders(name)


def test_a_model_that_does_not_round_its_frames_has_no_store_of_them(tmp_path):
    folder = save_model("dinov3", tmp_path)
    assert load_extractor(f"hf:{folder}").profile.resize.endswith("not rounded")
    with pytest.raises(UserError, match=r"hf:.*:frames: .*does not round its frames") as refused:
        load_extractor(f"hf:{folder}:frames")
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(f"train on its features, hf:{folder}")


def test_the_plan_and_the_run_say_how_much_room_frames_take(tmp_path, videos, capsys):
    assert frames_size(FRAME_PROFILES["clip_vit_b32_frames"]).endswith(
        ": 150,528 bytes a frame, 542 MB an hour of video"
    )
    assert frames_size(FRAME_PROFILES["s3d_frames"]).endswith(": 150,528 bytes a frame, 13,006 MB an hour of video")
    given = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(videos), "--features"]
    dataset = DatasetFolder(tmp_path, "mine")
    plan = plan_extraction(ExtractionSettings(dataset=dataset.path, videos=videos, features="clip_vit_b32_frames"))
    (planned,) = plan.features
    assert main([*given, "clip_vit_b32_frames", "--plan"]) == 0
    assert "542 MB an hour" in capsys.readouterr().out
    assert main([*given, "clip_vit_b32_frames"]) == 0
    assert "542 MB an hour" in capsys.readouterr().err
    store = FeatureStore(dataset.features("clip_vit_b32_frames"))
    assert planned.num_rows == sum(store.about(video_id).num_rows for video_id in store.video_ids()) == 4
    assert planned.megabytes == pytest.approx(sum(shard.num_bytes for shard in store.shards) / 1e6, rel=0.05)
    assert main([*given, "clip_vit_b32_frames"]) == 0, "nothing is left to do"
    assert "542 MB" not in capsys.readouterr().err


def test_frames_are_not_compared_with_features_of_others(tmp_path, videos, capsys):
    (tmp_path / "theirs").mkdir()
    np.save(tmp_path / "theirs" / "wide.npy", np.zeros((3, 512), np.float32))
    given = ["--root", str(tmp_path), "--dataset", "mine", "--videos", str(videos)]
    given += ["--features", "clip_vit_b32_frames", "--verify-against", str(tmp_path / "theirs")]
    assert main(given) == 2
    assert "frames are not compared" in capsys.readouterr().err
    assert not DatasetFolder(tmp_path, "mine").features("clip_vit_b32_frames").exists()


def test_frames_of_one_video_come_without_a_data_set(videos):
    found = extract_video(videos / "wide.mp4", [load_extractor("clip_vit_b32_frames")])["clip_vit_b32_frames"]
    assert found.features.shape == (3, math.prod((1, 224, 224, 3))) and found.features.dtype == np.uint8
    assert not found.features.flags.writeable


def test_rows_that_come_out_of_order_lie_in_order(tmp_path):
    rows, expected = FrameRows(3, tmp_path), np.arange(15, dtype=np.uint8).reshape(5, 3)
    for _ in expected:
        rows.add()
    for first, last in ((3, 5), (0, 1), (1, 3)):
        memory = expected[first:last].copy()
        rows.fill(first, memory)
        memory[:] = 0  # the next batch
    found = rows.stacked()
    del rows  # its file is closed, the rows stay
    assert np.array_equal(found, expected) and not list(tmp_path.iterdir()), "the file has no name"
