"""torchcodec gives the pictures of PyAV, or says that it is not to be trusted."""

from pathlib import Path

import numpy as np
import pytest
from helpers.damage import ZEROED, zero_packets
from helpers.decoding import MADE_UP, REAL, any_video, ask, needs_torchcodec, pictures_by, take, want
from helpers.needs import needs_program
from helpers.odd_videos import KINDS, make
from helpers.videos import RECORDINGS
from vlalign.extract.decoding.backends import choose_backends
from vlalign.extract.decoding.errors import DecoderRejected, VideoError
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW, SQUARE, Size
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.torchcodec_backend import torchcodec_reads_well

pytestmark = needs_torchcodec
FROM_RGB = [Size(112, PILLOW), Size(48, f"bilinear, torchvision{SQUARE}")]
OTHERS = ("PyAV", "decord", "ffmpeg")
UNREAD_KINDS = {
    *("h264 ts b-frames", "h264 ts and sound", "h264 m2ts", "h264 open gop ts", "h264 slices", "hevc ts"),
    *("mpeg2 mpg", "mpeg2 mpg and sound", "mpeg2 vob", "mpeg2 ts", "mpeg2 raw", "mpeg1 mpg", "rate 30000/1001 ts"),
    *("late pictures ts", "late pictures mpg", "late pictures by 5 s ts", "late sound ts", "late clock ts"),
    *("clock that wraps", "anamorphic mpeg2", "two programs"),
}
"""Kinds whose packets look well and that torchcodec reads differently: programs and streams without an index, and one
MP4. It counts their frames wrongly, or fails at the last."""


def assert_same_as_pyav(path: Path, every: int = 1) -> None:
    info = probe_video(path)
    wanted = np.arange(0, len(info.pts), every)
    theirs, _ = pictures_by("torchcodec", info, FROM_RGB, wanted)
    for pictures, same in zip(pictures_by("pyav", info, FROM_RGB, wanted)[0], theirs, strict=True):
        np.testing.assert_array_equal(pictures, same)


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_videos_give_pyavs_pictures(name):
    info = probe_video(any_video(name))
    if torchcodec_reads_well(info, FROM_RGB):
        assert_same_as_pyav(info.path, every=20)
    else:
        assert "avi" in info.containers, "AVI has no times to know frames by"


@pytest.mark.parametrize("name", RECORDINGS)
def test_rates_and_rotations_give_pyavs_pictures(recordings, name):
    assert torchcodec_reads_well(probe_video(recordings[name]), FROM_RGB)
    assert_same_as_pyav(recordings[name])


@needs_program
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_odd_videos_give_pyavs_pictures_or_are_refused(source, tmp_path, kind):
    info = probe_video(make(kind, source, tmp_path))
    if not torchcodec_reads_well(info, FROM_RGB):
        return
    try:
        assert_same_as_pyav(info.path)
    except DecoderRejected:
        assert kind in UNREAD_KINDS
    else:
        assert kind not in UNREAD_KINDS


def test_kernels_that_scale_before_the_conversion_are_left_to_others(with_sound):
    info = probe_video(with_sound)
    assert not torchcodec_reads_well(info, [*FROM_RGB, Size(112, LIBSWSCALE)])
    assert choose_backends(info, [Size(112, LIBSWSCALE)])[-1] != "torchcodec"


def test_it_is_tried_last_and_its_videos_are_marked(with_sound):
    info, cropped = probe_video(with_sound), want(2, 64, crop_px=56, resize=f"{PILLOW}{SQUARE}")
    assert choose_backends(info, FROM_RGB)[-1] == "torchcodec"
    taken, expected = take(info, cropped, excluded_decoders=OTHERS), take(info, cropped)
    assert taken.begun == ["torchcodec"] and taken.finished.decoder.startswith("torchcodec 0.")
    assert "torchcodec" in taken.finished.partial
    np.testing.assert_array_equal(taken.frames, expected.frames)
    assert [picture.jpeg for picture in taken.pictures] == [picture.jpeg for picture in expected.pictures]


@pytest.mark.parametrize("numbers", ZEROED.values(), ids=ZEROED)
@pytest.mark.parametrize("name", ["mp4", "webm"])
def test_damaged_files_are_refused_or_shown_as_pyav_shows_them(undamaged, tmp_path, name, numbers):
    info = probe_video(zero_packets(undamaged[name], tmp_path / f"zeroed.{name}", numbers))
    with pytest.raises((DecoderRejected, VideoError)):
        pictures_by("torchcodec", info, FROM_RGB, np.arange(96))


def test_it_runs_in_the_sandbox(with_sound):
    asked = want(1, 64, crop_px=56, resize=PILLOW)
    process = DecodeProcess()
    try:
        ended, expected = (ask(process, with_sound, asked, excluded_decoders=without) for without in (OTHERS, ()))
    finally:
        process.close()
    assert (ended.begun, expected.begun) == (["torchcodec"], ["PyAV"])
    np.testing.assert_array_equal(np.stack(ended.rows), np.stack(expected.rows))


def test_without_ffmpegs_libraries_the_video_is_left(with_sound, monkeypatch, tmp_path):
    """As where the wheel is installed and FFmpeg is not."""
    (tmp_path / "torchcodec").mkdir()
    (tmp_path / "torchcodec" / "__init__.py").write_text("raise RuntimeError('Could not load libtorchcodec')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = DecodeProcess()
    try:
        ended = ask(process, with_sound, want(1, 64, resize=PILLOW), excluded_decoders=OTHERS)
    finally:
        process.close()
    assert ended.failure.kind == "unreadable" and all(name in str(ended.failure) for name in OTHERS)
