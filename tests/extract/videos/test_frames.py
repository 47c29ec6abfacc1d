"""Single frames of videos: they are the frames of rows at that second, and what stops them."""

import io
import time
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers import odd_videos
from helpers.numbered import numbered_picture, numbers_of, write_video
from helpers.zoo import VIDEOS
from PIL import Image
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import Size
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.pyav_backend import decode_with_pyav
from vlalign.extract.decoding.single_frame import jpeg_at
from vlalign.extract.decoding.webm_clip import MAX_SIDE_PX
from vlalign.extract.videos import frames as frames_module
from vlalign.extract.videos.frames import FrameReader

RATE, NUM_FRAMES = 24, 240


@pytest.fixture
def reader():
    reader = FrameReader()
    yield reader
    reader.close()


def frame(reader: FrameReader, path: Path, seconds: float) -> tuple[float, np.ndarray]:
    own_seconds, jpeg = reader.jpeg(path, seconds, wait_seconds=60)
    return own_seconds, np.asarray(Image.open(io.BytesIO(jpeg)))


@pytest.mark.parametrize(
    "container, codec",
    [
        ("mp4", "libx264"),
        ("avi", "mpeg4"),
        ("mpegts", "libx264"),
        ("h264", "libx264"),
        pytest.param("matroska", "libx264", marks=pytest.mark.slow),
        pytest.param("mpeg", "mpeg2video", marks=pytest.mark.slow),
        pytest.param("mp4", "libx265", marks=pytest.mark.slow),
        pytest.param("webm", "libvpx-vp9", marks=pytest.mark.slow),
    ],
)
def test_a_frame_is_the_last_that_is_not_after_the_second(tmp_path, reader, container, codec):
    path = write_video(
        tmp_path / f"v.{container}", range(NUM_FRAMES), Fraction(1, RATE), container=container, codec=codec, g="48"
    )
    for number in (0, 1, 47, 48, 49, 100, 238, 239):
        own_seconds, image = frame(reader, path, (number + 0.5) / RATE)
        assert numbers_of([image]) == [number]
        assert own_seconds == pytest.approx(number / RATE, abs=0.002)
    assert numbers_of([frame(reader, path, 1000.0)[1]]) == [NUM_FRAMES - 1], "after its end"


def test_a_frame_is_shown_until_the_next_one_comes(tmp_path, reader):
    """Frames at 0, 0.5, 5 and 6 s; the first second is before the first frame of the second video."""
    path = write_video(tmp_path / "v.mp4", [0, 12, 120, 144], Fraction(1, RATE))
    for seconds, number, own in ((0.4, 0, 0.0), (4.9, 1, 0.5), (5.0, 2, 5.0), (9.0, 3, 6.0)):
        own_seconds, image = frame(reader, path, seconds)
        assert (numbers_of([image]), own_seconds) == ([number], pytest.approx(own))


def test_a_frame_is_upright_and_small(tmp_path, reader):
    _, image = frame(reader, VIDEOS / "rot90.mp4", 0.5)
    assert image.shape[0] > image.shape[1]
    picture = lambda number: numbered_picture(number).repeat(20, axis=0).repeat(20, axis=1)  # noqa: E731
    path = write_video(tmp_path / "v.mkv", range(12), Fraction(1, RATE), container="matroska", picture=picture)
    assert frame(reader, path, 0.25)[1].shape == (MAX_SIDE_PX * 3 // 4, MAX_SIDE_PX, 3)


def test_an_image_is_its_own_frame(tmp_path, reader):
    Image.new("RGB", (1280, 320), (10, 200, 30)).save(tmp_path / "a.png")
    own_seconds, image = frame(reader, tmp_path / "a.png", 3.0)
    assert own_seconds == 0 and image.shape == (160, 640, 3)
    assert np.abs(image.astype(int) - (10, 200, 30)).max() < 8


@pytest.mark.parametrize(
    "name, kind", [("html.mp4", "unreadable"), ("concat_abs.mp4", "unreadable"), ("audio_only.mp4", "no_video")]
)
def test_what_has_no_frame_is_refused_in_a_line_and_the_next_is_read(zoo_folder, reader, name, kind):
    with pytest.raises(VideoError) as refused:
        reader.jpeg(zoo_folder / name, 1.0, wait_seconds=60)
    assert refused.value.kind == kind and "\n" not in str(refused.value)
    assert frame(reader, zoo_folder / "ok_h264.mp4", 1.0)[1].size


def test_a_file_outside_the_folders_is_not_opened(tmp_path, reader):
    (tmp_path / "root").mkdir()
    video = write_video(tmp_path / "v.mp4", range(3), Fraction(1, RATE))
    (tmp_path / "root" / "v.mp4").symlink_to(video)
    with pytest.raises(VideoError):
        reader.jpeg(tmp_path / "root" / "v.mp4", 0.0, wait_seconds=60, folders=[str(tmp_path / "root")])
    assert reader.jpeg(tmp_path / "root" / "v.mp4", 0.0, wait_seconds=60, folders=[str(tmp_path)])[1]


def test_what_takes_too_long_is_stopped_and_another_process_goes_on(tmp_path, reader):
    path = write_video(tmp_path / "v.mp4", range(3), Fraction(1, RATE))
    with pytest.raises(VideoError, match=r"\b0 s"):
        reader.jpeg(path, 0.0, wait_seconds=0.001)
    assert frame(reader, path, 0.0)[1].size


def test_a_process_ends_when_nothing_is_asked_for_a_while(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(frames_module, "IDLE_SECONDS", 0.05)
    path = write_video(tmp_path / "v.mp4", range(3), Fraction(1, RATE))
    assert frame(reader, path, 0.0)[1].size
    end = time.monotonic() + 10
    while reader._process is not None:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert frame(reader, path, 0.0)[1].size


def test_what_is_no_small_jpeg_is_refused(tmp_path, reader, monkeypatch):
    monkeypatch.setattr(frames_module, "is_jpeg", lambda _: False)
    path = write_video(tmp_path / "v.mp4", range(3), Fraction(1, RATE))
    with pytest.raises(VideoError) as refused:
        reader.jpeg(path, 0.0, wait_seconds=60)
    assert refused.value.kind == "crashed"


CUT = {"h264 open gop cut", "hevc open gop cut"}
"""Near their ends lie packets that cannot be decoded."""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in odd_videos.KINDS if kind not in CUT])
def test_a_frame_of_an_odd_video_is_that_of_its_rows(tmp_path, kind):
    path = odd_videos.make(kind, odd_videos.write_source(tmp_path / "source", numbered_picture), tmp_path)
    info = probe_video(path)
    decoding = DecodePass(info, [Size(48)])
    images = {index: of[0] for index, of in decode_with_pyav(decoding, np.arange(len(info.pts)))}
    indices, known = list(images), np.stack([scaled(image) for image in images.values()])
    ends = np.append(info.pts[1:], info.end)
    for index in [*range(0, len(info.pts), 9), len(info.pts) - 1]:
        middle = float((info.pts[index] + ends[index]) / 2 * float(info.time_base))
        if middle < 0:
            continue
        own_seconds, jpeg = jpeg_at(path, middle)
        found = scaled(np.asarray(Image.open(io.BytesIO(jpeg))))
        assert indices[np.abs(known - found).mean(axis=(1, 2, 3)).argmin()] == index
        assert own_seconds == pytest.approx(float(info.pts[index] * info.time_base), abs=0.002)


def scaled(image: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(image).resize((64, 48))).astype(int)
