"""Shots: made videos with known cuts, variable frame rates, and PySceneDetect on the same files."""

import shutil
import sys
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.videos import encode_frames
from PIL import Image
from scenedetect import AdaptiveDetector, detect
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli.extract import main
from vlalign.extract.decoding.messages import InvalidMessage
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.shot_finder import ShotFinder
from vlalign.extract.decoding.shots import ROW
from vlalign.extract.pipeline.video_jobs import MAX_SHOTS, VideoInProgress, VideoJob
from vlalign.storage import FeatureStore, UserError, VideoFeatures
from vlalign.storage.common.errors import SettingError
from vlalign.storage.common.packages import EXTRAS, install_command
from vlalign.storage.dataset.folder import DatasetFolder
from vlalign.storage.profiles import PROFILES
from vlalign.train.data.stores import only_features

FPS = 25
HEIGHT, WIDTH = 90, 160


def background(seed: int) -> np.ndarray:
    """Return a wide image of large and small patches of colour."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 24, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((4 * WIDTH, HEIGHT), Image.Resampling.BICUBIC))


def shot(seed: int, num_frames: int, pan_px: int = 0) -> Iterable[np.ndarray]:
    """Yield frames of one background, with a moving square, or seen by a camera that pans."""
    scenery, noise = background(seed), np.random.default_rng(seed)
    for number in range(num_frames):
        frame = scenery[:, pan_px * number :][:, :WIDTH].astype(np.int16)
        frame = np.clip(frame + noise.integers(-4, 5, frame.shape), 0, 255).astype(np.uint8)
        frame[30:50, 2 * number % WIDTH :][:, :20] = 255 - seed
        yield frame


def shots_of(path: Path) -> VideoFeatures:
    return extract_video(path, [load_extractor("shots")])["shots"]


def library_starts(path: Path) -> list[float]:
    """Return when PySceneDetect's shots start, which reads the file itself."""
    return [start.seconds for start, _ in detect(str(path), AdaptiveDetector())] or [0.0]


@pytest.mark.parametrize("pan_px", [0, 3])
def test_cuts_are_found_within_a_frame_and_as_by_the_library_itself(tmp_path, pan_px):
    lengths = [40, 22, 61, 33, 80]
    frames = (frame for seed, length in enumerate(lengths) for frame in shot(seed, length, pan_px))
    encode_frames(tmp_path / "cuts.mp4", frames, FPS)
    found = shots_of(tmp_path / "cuts.mp4")
    expected = np.cumsum([0, *lengths]) / FPS
    assert found.start_seconds == pytest.approx(expected[:-1]) and found.end_seconds == pytest.approx(expected[1:])
    assert found.start_seconds.tolist() == library_starts(tmp_path / "cuts.mp4")
    assert found.valid_frames.tolist() == lengths
    assert not found.features[0].any() and (found.features[1:] > (15, 3)).all() and (found.features <= 255).all()
    assert "PySceneDetect 0.7" in found.decoder


def test_pans_and_stills_are_one_shot_and_fades_and_flashes_as_by_the_library(tmp_path):
    before, after = list(shot(1, 60)), list(shot(2, 60))
    fall = [(before[-1] * (1 - k / 12)).astype(np.uint8) for k in range(13)]
    rise = [(after[0] * (k / 12)).astype(np.uint8) for k in range(13)]
    encode_frames(tmp_path / "fade.mp4", [*before, *fall, *rise, *after], FPS)
    assert shots_of(tmp_path / "fade.mp4").start_seconds.tolist() == library_starts(tmp_path / "fade.mp4")
    flashed = list(shot(3, 100))
    flashed[50] = np.clip(flashed[50].astype(np.int16) + 150, 0, 255).astype(np.uint8)
    encode_frames(tmp_path / "flash.mp4", flashed, FPS)
    assert shots_of(tmp_path / "flash.mp4").start_seconds.tolist() == library_starts(tmp_path / "flash.mp4")
    one_shot = {"pan": shot(4, 120, pan_px=4), "still": [before[0]] * 100}
    for name, frames in one_shot.items():
        encode_frames(tmp_path / f"{name}.mp4", frames, FPS)
        found = shots_of(tmp_path / f"{name}.mp4")
        assert (found.start_seconds.tolist(), found.end_seconds.tolist()) == ([0.0], [found.duration_seconds]), name
        assert library_starts(tmp_path / f"{name}.mp4") == [0.0], name


def test_cuts_of_a_variable_frame_rate_have_their_own_times(tmp_path):
    """Frames last 20 to 120 ms; the first one is shown before 0.3 s, too."""
    noise, tick = np.random.default_rng(0), 0.3
    times, frames, cuts = [], [], []
    for seed in range(4):
        cuts.append(tick)
        for frame in shot(seed, 40):
            times.append(tick)
            frames.append(frame)
            tick = round(tick + noise.choice([0.02, 0.04, 0.12]), 2)
    with av.open(str(tmp_path / "variable.mkv"), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"bf": "0"})
        stream.width, stream.height, stream.time_base = WIDTH, HEIGHT, Fraction(1, 1000)
        stream.codec_context.time_base = Fraction(1, 1000)
        for seconds, pixels in zip(times, frames, strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = round(1000 * (seconds - 0.3)), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    found = shots_of(tmp_path / "variable.mkv")
    assert found.start_seconds == pytest.approx([cut - 0.3 for cut in cuts])
    assert found.valid_frames.tolist() == [40] * 4
    assert library_starts(tmp_path / "variable.mkv") == pytest.approx(found.start_seconds.tolist())


def test_an_image_is_one_shot(tmp_path):
    Image.fromarray(background(0)).save(tmp_path / "image.png")
    found = shots_of(tmp_path / "image.png")
    assert (found.start_seconds.tolist(), found.valid_frames.tolist()) == ([0.0], [1])
    assert found.end_seconds.tolist() == [found.duration_seconds]


def test_memory_does_not_grow_with_the_length(tmp_path):
    encode_frames(tmp_path / "short.mp4", shot(0, 30), FPS)
    info = probe_video(tmp_path / "short.mp4")
    finder, image = ShotFinder(info), np.full((16, 16, 3), 90, np.uint8)
    for tick in range(100):
        finder.add(tick, image)
    tracemalloc.start()
    for tick in range(100, 5000):
        finder.add(tick, image)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 50_000  # ten bytes a frame


def test_frames_that_go_back_in_time_are_skipped(tmp_path):
    encode_frames(tmp_path / "short.mp4", shot(0, 100), FPS)
    info: VideoInfo = probe_video(tmp_path / "short.mp4")
    finder, images = ShotFinder(info), [background(0)[:, :WIDTH], background(1)[:, :WIDTH]]
    for index, tick in enumerate(info.pts.tolist()):
        finder.add(tick, images[index >= 50])
        finder.add(int(info.pts[0]), images[1])
    assert finder.finish().rows["num_frames"].tolist() == [50, 50]


def test_shots_are_extracted_beside_other_features(tmp_path, capsys):
    (tmp_path / "videos").mkdir()
    frames = (frame for seed in range(3) for frame in shot(seed, 30))
    encode_frames(tmp_path / "videos" / "v.mp4", frames, FPS)
    encode_frames(tmp_path / "videos" / "w.mp4", shot(7, 30), FPS)
    argv = ["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    assert main([*argv, "--features", "shots", "--plan"]) == 0
    assert "shots: counted as one a video" in capsys.readouterr().out
    assert main([*argv, "--features", "shots,clip_vit_b32_frames,logmel", "--accept-failures", "no_sound"]) == 0
    dataset = DatasetFolder(tmp_path / "root", "mine")
    store = FeatureStore(dataset.features("shots"))
    assert store.profile == PROFILES["shots"] and store.weights.name == "none"
    assert store.get("v").start_seconds == pytest.approx([0, 1.2, 2.4]) and len(store.get("w").features) == 1
    alone = shots_of(tmp_path / "videos" / "v.mp4")
    assert store.get("v").features == pytest.approx(alone.features, rel=1e-3)
    assert only_features(dataset) == "clip_vit_b32_frames"
    frame_store = FeatureStore(dataset.features("clip_vit_b32_frames"))
    assert len(frame_store.get("v", dtype=None).features) == 4
    shutil.copytree(dataset.features("shots"), dataset.features("logmel"), dirs_exist_ok=True)
    assert only_features(dataset) == "clip_vit_b32_frames"
    shutil.rmtree(dataset.features("clip_vit_b32_frames"))
    assert only_features(dataset) == "logmel"
    shutil.rmtree(dataset.features("logmel"))
    with pytest.raises(SettingError, match="has only shots"):
        only_features(dataset)


def rows(*spans: tuple[float, float], features: float = 1.0) -> bytes:
    made = np.zeros(len(spans), ROW)
    made["start_seconds"], made["end_seconds"] = np.array(spans).T
    made["features"], made["num_frames"] = features, 1
    return made.tobytes()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        rows((0, 1))[:-1],
        rows((1, 2)),
        rows((0, 2), (1, 3)),
        rows((0, 1), (1, 1)),
        rows((0, float("nan"))),
        rows((0, 1), features=float("inf")),
        rows(*((k, k + 1) for k in range(MAX_SHOTS + 1))),
    ],
)
def test_impossible_shots_are_refused(tmp_path, content):
    video = VideoInProgress(VideoJob("v", tmp_path / "v.mp4", [load_extractor("shots")]), "")
    with pytest.raises(InvalidMessage):
        video.take_shots(rows((0, 1)), "PySceneDetect")  # before a decoder began
    video.begin("PyAV")
    video.take_shots(rows((0, 1), (1, 2)), "PySceneDetect")
    with pytest.raises(InvalidMessage):
        video.take_shots(content, "PySceneDetect")
    other = VideoInProgress(VideoJob("v", tmp_path / "v.mp4", [load_extractor("logmel")]), "")
    other.begin("PyAV")
    with pytest.raises(InvalidMessage):
        other.take_shots(rows((0, 1)), "PySceneDetect")


def test_without_the_library_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "scenedetect", None)
    with pytest.raises(UserError) as caught:
        load_extractor("shots")
    assert install_command(*EXTRAS["shots"]) in str(caught.value)


def test_shots_are_no_features_of_a_network(tmp_path):
    extractor = load_extractor("shots")
    with pytest.raises(ValueError, match="extract_video"):
        extractor.features(np.zeros((1, 144, 144, 3), np.uint8))
    with pytest.raises(SettingError):
        load_extractor("shots", weights="w.pth")
    with pytest.raises(ValueError, match="layer"):
        replace(extractor, profile=replace(extractor.profile, layer="another"))
    with pytest.raises(ValueError, match="layer"):
        replace(extractor, profile=replace(extractor.profile, name="mine"))
