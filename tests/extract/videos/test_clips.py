"""Parts of videos cut out for the page: which frames and sound they have, and what stops them."""

import io
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.needs import shared
from helpers.numbered import SOUND_RATE_HZ, numbered_picture, numbers_of, write_video
from helpers.zoo import VIDEOS
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.webm_clip import MAX_CLIP_SECONDS, MAX_FPS, MAX_SIDE_PX
from vlalign.extract.videos.clips import cut_clip

RATE = 24
NUM_FRAMES = 240


def cut(path: Path, start: float, end: float) -> tuple[list[float], list[np.ndarray]]:
    """The times and pictures of a clip."""
    with av.open(io.BytesIO(cut_clip(path, start, end, wait_seconds=60))) as clip:
        frames = list(clip.decode(video=0))
    return [float(frame.time or 0) for frame in frames], [frame.to_ndarray(format="rgb24") for frame in frames]


def numbered(path: Path, container: str, codec: str, **options) -> Path:
    options = {"g": "48"} | options
    return write_video(path, range(NUM_FRAMES), Fraction(1, RATE), container=container, codec=codec, **options)


@pytest.mark.parametrize(
    "container, codec",
    [
        ("avi", "mpeg4"),
        pytest.param("matroska", "libx264", marks=pytest.mark.slow),
        pytest.param("mpegts", "libx264", marks=pytest.mark.slow),
        pytest.param("mpeg", "mpeg2video", marks=pytest.mark.slow),
        ("mp4", "libx265"),
    ],
)
def test_a_clip_has_the_frames_between_its_times(tmp_path, container, codec):
    path = numbered(tmp_path / f"v.{container}", container, codec)
    for start in (0.0, 0.5, 2.0, 3.25, 8.0):
        times, pictures = cut(path, start, start + 1.5)
        expected = [number for number in range(NUM_FRAMES) if start <= number / RATE + 1e-9 < start + 1.5]
        assert numbers_of(pictures) == expected
        np.testing.assert_allclose(times, np.array(expected) / RATE - start, atol=0.002)


def test_a_clip_is_slow_and_small(tmp_path):
    picture = lambda number: numbered_picture(number % 4096).repeat(20, axis=0).repeat(20, axis=1)  # noqa: E731
    path = write_video(tmp_path / "v.mkv", range(60), Fraction(1, 60), container="matroska", picture=picture)
    times, pictures = cut(path, 0.0, 1.0)
    assert np.diff(times).min() > 0.9 / MAX_FPS
    assert pictures[0].shape == (MAX_SIDE_PX * 3 // 4, MAX_SIDE_PX, 3)


def test_a_clip_is_short(tmp_path):
    path = write_video(tmp_path / "v.mkv", range(40), Fraction(1), container="matroska", rate=Fraction(1))
    times, _ = cut(path, 2.0, 1000.0)
    assert times[-1] == MAX_CLIP_SECONDS - 1


def test_a_clip_stands_upright():
    _, pictures = cut(VIDEOS / "rot90.mp4", 0, 0.5)
    with av.open(str(VIDEOS / "rot90.mp4")) as container:
        frame = next(container.decode(video=0))
    expected = np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90 % 4).astype(int)
    assert frame.rotation and pictures[0].shape == expected.shape
    assert np.abs(pictures[0].astype(int) - expected).mean() < 8


def wide_pixels(path: Path) -> Path:
    """A video of 320 by 240 pixels that are shown a third wider than high."""
    with av.open(str(path), "w") as written:
        stream = written.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        for number in range(RATE):
            frame = np.full((240, 320, 3), 8 * number, np.uint8)
            written.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        written.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("name", ["made up", "data/msrvtt/videos/video7010.mp4"])
def test_a_clip_has_square_pixels(tmp_path, name):
    path = shared(name) if name.startswith("data/") else wide_pixels(tmp_path / "wide.mp4")
    with av.open(str(path)) as container:
        aspect = container.streams.video[0].sample_aspect_ratio
    _, pictures = cut(path, 0, 0.5)
    assert aspect not in (None, 1) and pictures[0].shape == (240, round(320 * float(aspect) / 2) * 2, 3)


def test_a_clip_has_the_sound_between_its_times(tmp_path):
    """A beep from 3.0 to 3.5 s."""
    path = tmp_path / "v.mkv"
    samples = np.zeros(SOUND_RATE_HZ * 6, np.float32)
    at = np.arange(SOUND_RATE_HZ // 2) / SOUND_RATE_HZ
    samples[3 * SOUND_RATE_HZ :][: len(at)] = 0.5 * np.sin(2 * np.pi * 440 * at)
    with av.open(str(path), "w") as written:
        stream = written.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        sound = written.add_stream("pcm_s16le", rate=SOUND_RATE_HZ, layout="mono")
        for number in range(6 * RATE):
            written.mux(stream.encode(av.VideoFrame.from_ndarray(numbered_picture(number), format="rgb24")))
        written.mux(stream.encode(None))
        for first in range(0, len(samples), 1024):
            whole = (samples[None, first : first + 1024] * 32767).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(whole, format="s16", layout="mono")
            frame.rate, frame.pts, frame.time_base = SOUND_RATE_HZ, first, Fraction(1, SOUND_RATE_HZ)
            written.mux(sound.encode(frame))
        written.mux(sound.encode(None))
    with av.open(io.BytesIO(cut_clip(path, 2.2, 5.0, wait_seconds=60))) as clip:
        heard = [(float(frame.time or 0), frame.to_ndarray()) for frame in clip.decode(audio=0)]
    loud = [time for time, values in heard if np.abs(values).max() > 0.1]
    assert abs(loud[0] - 0.8) < 0.05 and abs(loud[-1] - 1.3) < 0.05, (loud[0], loud[-1])


@pytest.mark.parametrize(
    "name, kind",
    [
        ("html.mp4", "unreadable"),
        ("m3u8_http.mp4", "unreadable"),
        ("concat_abs.mp4", "unreadable"),
        ("audio_only.mp4", "no_video"),
        ("missing.mp4", "missing"),
        ("ok_h264.mp4", "no_video"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_a_line(zoo_folder, name, kind):
    path = zoo_folder / name
    with pytest.raises(VideoError) as refused:
        cut_clip(path, 1000.0, 1001.0, wait_seconds=60)
    assert refused.value.kind == kind and "\n" not in str(refused.value)


def test_what_takes_too_long_is_stopped(tmp_path):
    """Decoding starts at the only key frame."""
    path = numbered(tmp_path / "v.avi", "avi", "mpeg4")
    began = time.monotonic()
    with pytest.raises(VideoError, match=r"\b0 s"):
        cut_clip(path, 9.0, 9.5, wait_seconds=0.01)
    assert time.monotonic() - began < 20
