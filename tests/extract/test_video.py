"""Rendered videos, and whole videos on their way to features."""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.videos import all_frames, scene
from PIL import Image
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding.decode import MAX_DENSE_BYTES, MAX_DENSE_THUMBNAILS
from vlalign.extract.decoding.kernels import centre_crop
from vlalign.extract.decoding.messages import InvalidMessage
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.sampling import sample_frames, window_times
from vlalign.extract.pipeline.engine import extract_videos
from vlalign.extract.pipeline.video_jobs import VideoInProgress, VideoJob
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets.demo import plan_scenes
from vlalign.storage import VideoFeatures
from vlalign.storage.common.files import file_identity
from vlalign.storage.profiles import PROFILES
from vlalign.storage.stores.thumbnails import MAX_JPEG_BYTES

# Rendering


def test_a_planned_scene_gives_the_same_pixels_every_time(tmp_path):
    planned = plan_scenes(3, {"train": 1, "test": 1})[1][1] | {"duration_seconds": 0.8}
    for name, noise_seed in (("one", 5), ("same", 5), ("other", 6)):
        render_video(planned | {"noise_seed": noise_seed}, tmp_path / f"{name}.mp4")
    one, same, other = (all_frames(tmp_path / f"{name}.mp4") for name in ("one", "same", "other"))
    assert np.array_equal(one, same)
    assert one.shape != other.shape or not np.array_equal(one, other)
    assert sorted(p.name for p in tmp_path.glob("*")) == ["one.mp4", "other.mp4", "same.mp4"], (
        "nothing unfinished is left"
    )


@pytest.mark.parametrize("name", ["25", "variable rate", "rotated 90"])
def test_a_rendered_file_is_h264_video_and_aac_sound(recordings, name):
    with av.open(str(recordings[name])) as container:
        assert "mp4" in container.format.name.split(",")
        assert [(s.type, s.codec_context.name) for s in container.streams] == [("video", "h264"), ("audio", "aac")]
        sound = np.concatenate([frame.to_ndarray() for frame in container.decode(audio=0)], axis=1)
        assert sound.shape[1] / container.streams.audio[0].rate == pytest.approx(0.8, abs=0.1)
        assert sound.std() > 0.05


def test_scenes_move(recordings):
    frames = all_frames(recordings["25"]).astype(int)
    assert np.abs(frames[-1] - frames[0]).mean() > 2 * np.abs(frames[1] - frames[0]).mean() > 0


# Whole videos


def assert_rows_follow_the_plan(made: VideoFeatures, info: VideoInfo, name: str) -> None:
    profile = PROFILES[name]
    indices = sample_frames(info.pts, info.end, info.time_base, profile.fps)
    starts, ends, valid = window_times(
        len(indices), 0, profile.window, profile.fps, info.duration_seconds, stride=profile.stride
    )
    assert made.features.shape == (len(starts), profile.dimension) and np.isfinite(made.features).all()
    np.testing.assert_array_equal(made.start_seconds, starts)
    np.testing.assert_array_equal(made.end_seconds, ends)
    np.testing.assert_array_equal(made.valid_frames, valid)
    assert made.duration_seconds == info.duration_seconds


def sampled_at_24_fps(path: Path) -> np.ndarray:
    info = probe_video(path)
    return sample_frames(info.pts, info.end, info.time_base, 24)


def middles(path: Path, indices: np.ndarray) -> np.ndarray:
    """The frames that S3D wants, at its size: uint8 [T, 224, 224, 3]."""
    pictures = all_frames(path, short_side_px=224)[indices]
    top, left = centre_crop(*pictures.shape[1:3], 224)
    return pictures[:, top : top + 224, left : left + 224]


def assert_close(features: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_rows_times_and_tail_of_a_short_video(recordings, s3d):
    """0.8 s at 24 fps: 19 frames, one full window and one of 3 frames that is filled up with black."""
    path = recordings["25"]
    made = extract_video(path, [s3d])["s3d"]
    assert_rows_follow_the_plan(made, probe_video(path), "s3d")
    np.testing.assert_allclose(made.start_seconds, [0, 16 / 24])
    np.testing.assert_allclose(made.end_seconds, [16 / 24, 0.8])
    assert made.valid_frames.tolist() == [16, 3]
    assert (made.video_id, made.source, made.partial) == ("25", file_identity(path), "")
    windows = np.zeros((2, 16, 224, 224, 3), dtype=np.uint8)
    windows.reshape(32, 224, 224, 3)[:19] = middles(path, sampled_at_24_fps(path))
    assert_close(made.features, s3d.features(windows).numpy())


@pytest.mark.slow
def test_a_looping_tail_repeats_the_windows_own_frames(recordings):
    extractor = load_extractor("i3d_resnet152", weights="random")
    path = recordings["25"]
    made = extract_video(path, [extractor])["i3d_resnet152"]
    pictures = all_frames(path)[sampled_at_24_fps(path)]
    top, left = centre_crop(*pictures.shape[1:3], 112)
    tail = pictures[[16, 17, 18] * 5 + [16], top : top + 112, left : left + 112]
    assert made.valid_frames.tolist() == [16, 3]
    assert_close(made.features[1:], extractor.features(tail[None]).numpy())


def test_a_slow_videos_frames_come_several_times(tmp_path, s3d):
    path = tmp_path / "slow.mp4"
    render_video(scene(0.6, fps="10"), path)
    indices = sampled_at_24_fps(path)
    assert indices.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5]
    window = np.zeros((1, 16, 224, 224, 3), dtype=np.uint8)
    window[0, :14] = middles(path, indices)
    made = extract_video(path, [s3d])["s3d"]
    assert made.valid_frames.tolist() == [14]
    assert_close(made.features, s3d.features(window).numpy())


@pytest.mark.slow
def test_two_extractors_in_one_call_change_nothing(short_video, s3d, resnet152):
    alone = extract_video(short_video, [s3d]) | extract_video(short_video, [resnet152])
    together = extract_video(str(short_video), [resnet152, s3d], video_id="mine")
    assert sorted(together) == ["resnet152", "s3d"]
    for name, made in together.items():
        assert_rows_follow_the_plan(made, probe_video(short_video), name)
        assert made.video_id == "mine"
        assert_close(made.features, alone[name].features)
        np.testing.assert_array_equal(made.valid_frames, alone[name].valid_frames)


@pytest.mark.slow
def test_clip_its_maps_and_r2plus1d_share_a_call_in_any_order(recordings, resnet152):
    path = recordings["rotated 90"]
    extractors = [
        resnet152,
        *(load_extractor(name, weights="random") for name in ("clip_vit_b32", "clip_vit_b32_map", "r2plus1d")),
    ]
    together, backwards = extract_video(path, extractors), extract_video(path, extractors[::-1])
    assert together["r2plus1d"].valid_frames.tolist() == [24] and len(together) == len(extractors)
    for extractor in extractors:
        name = extractor.profile.name
        assert_rows_follow_the_plan(together[name], probe_video(path), name)
        for other in (backwards, extract_video(path, [extractor])):
            assert_close(other[name].features, together[name].features)


def test_one_frame_is_one_row(tmp_path, s3d):
    render_video(scene(0.04), tmp_path / "one.mp4")
    assert len(probe_video(tmp_path / "one.mp4").pts) == 1
    made = extract_video(tmp_path / "one.mp4", [s3d])["s3d"]
    assert made.features.shape == (1, 1024) and made.features.std() > 0
    assert made.valid_frames.tolist() == [1] and made.start_seconds.tolist() == [0.0]
    assert made.end_seconds.tolist() == pytest.approx([1 / 24])


def test_thumbnails_come_with_the_features(short_video, s3d):
    ((_, made),) = extract_videos([VideoJob("id", short_video, [s3d])], [s3d])
    assert [t.video_id for t in made.thumbnails] == ["id"] * 3
    assert [t.seconds for t in made.thumbnails] == pytest.approx([0.04, 0.28, 0.52])
    assert {Image.open(io.BytesIO(t.jpeg)).size for t in made.thumbnails} == {(120, 90)}
    assert all(t.jpeg[:3] == b"\xff\xd8\xff" for t in made.thumbnails)


def test_dense_thumbnails_are_taken_up_to_what_was_asked_for(short_video, s3d):
    job = VideoJob("id", short_video, [s3d], thumbnails_every=1.0)
    ((_, made),) = extract_videos([job], [s3d])
    assert [t.seconds for t in made.thumbnails] == pytest.approx([0.0, 0.56], abs=0.04), "the first and the last frame"
    video = VideoInProgress(job, "source")
    for second in range(MAX_DENSE_THUMBNAILS):
        video.add_thumbnail(float(second), b"")
    with pytest.raises(InvalidMessage):
        video.add_thumbnail(0.0, b"")
    video.begin("PyAV")
    with pytest.raises(InvalidMessage):
        for _ in range(MAX_DENSE_BYTES // MAX_JPEG_BYTES + 1):
            video.add_thumbnail(0.0, bytes(MAX_JPEG_BYTES))
