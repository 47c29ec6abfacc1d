"""The frames that are taken are those of the ffmpeg program."""

import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from helpers.decoding import (
    assert_as_program,
    assert_same,
    by_program,
    several_by_program,
    take,
    version_of_program,
    want,
    without_last_repeats,
)
from helpers.needs import needs_program
from helpers.numbered import HEIGHT, WIDTH, constant, numbered_picture, numbers_of, write_video
from helpers.odd_videos import make
from helpers.rates import FPS, LENGTHS_SECONDS, RATES
from helpers.videos import remux
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import LIBSWSCALE_BICUBIC, PILLOW, Size
from vlalign.extract.decoding.probe import probe_video


def test_frame_numbers_can_be_read_from_the_test_pictures():
    numbers = [0, 1, 2, 1365, 2730, 4095]
    assert numbers_of([numbered_picture(n) for n in numbers]) == numbers


# The frames that the ffmpeg program gives


@needs_program
@pytest.mark.parametrize("rate", RATES)
def test_constant_rates_give_the_frames_of_the_ffmpeg_program(tmp_path, rate):
    paths = [
        constant(tmp_path / f"{seconds}.mp4", round(seconds * Fraction(rate)), rate) for seconds in LENGTHS_SECONDS
    ]
    for path, expected in zip(paths, several_by_program(paths, HEIGHT, WIDTH, *FPS), strict=True):
        together = take(path, *(want(fps) for fps in FPS), excluded_decoders=("decord",))
        for fps, theirs, also in zip(FPS, expected, together.rows, strict=True):
            alone = take(path, want(fps))
            assert numbers_of(alone.frames) == numbers_of(theirs) == numbers_of(also), (path, fps)
            assert_same(alone.frames, theirs)
            assert_same(np.stack(also), theirs)


TIMES = {
    "slower at the end": lambda i: i / 24 if i < 40 else 40 / 24 + (i - 40) / 4,
    "faster at the end": lambda i: i / 4 if i < 20 else 5 + (i - 20) / 24,
    "pauses": lambda i: i / 24 + 0.3 * (i // 7),
    "ntsc with pauses": lambda i: i * 1001 / 30000 + 0.2 * (i // 11),
    "one long pause": lambda i: i / 24 + 1.7 * (i > 30),
}


FORMATS = {
    "mp4": {"codec": "libx264", "container": "mp4"},
    "mkv": {"codec": "libx264", "container": "matroska"},
    # Where MPEG-TS has B-frames and pauses, the program of 5.1 takes the pauses for jumps of the clock.
    "ts": {"codec": "libx264", "container": "mpegts", "bf": "0"},
    "webm": {"codec": "libvpx-vp9", "container": "webm"},
    "mpeg4 in mp4": {"codec": "mpeg4", "container": "mp4"},
}


@needs_program
@pytest.mark.parametrize("container", FORMATS)
def test_variable_rates_give_the_frames_of_the_ffmpeg_program(tmp_path, container):
    paths = []
    for times, seconds in TIMES.items():
        ticks = [round(12000 * seconds(i)) for i in range(60)]
        paths.append(write_video(tmp_path / times, ticks, Fraction(1, 12000), **FORMATS[container]))
    assert_as_program(*paths)


@needs_program
@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "mov"])
def test_first_times_other_than_zero_give_the_frames_of_the_ffmpeg_program(tmp_path, container):
    """The video begins after the sound, or before it; MPEG-TS counts from its first frame, whatever the sound does."""
    # Not AAC in Matroska: FFmpeg 9 writes its pre-skip, and FFmpeg 5 begins to count there, before the first sample.
    codec = "flac" if container == "matroska" else "aac"
    source = constant(tmp_path / "sound.mp4", 60, "25", sound_seconds=2.4, sound_codec=codec)
    shifts = [Fraction(shift) for shift in ("1/2", "1/25", "37/10", "-1/5")]
    paths = [remux(source, tmp_path / f"{place}", container, shift) for place, shift in enumerate(shifts)]
    assert_as_program(*paths)
    assert [probe_video(path).pts[0] > 0 for path in paths[:3]] == [container != "mpegts"] * 3


BY_PROGRAM = [
    *(
        "h264 avi b-frames",
        "h264 avi pyramid",
        "h264 avi b-frames and sound",
        "mpeg4 avi",
        "mpeg4 avi b-frames",
        "xvid avi packed b-frames",
    ),
    *(
        "h264 ts and sound",
        "h264 m2ts",
        "mpeg2 mpg and sound",
        "late pictures ts",
        "late pictures avi",
        "late pictures by 5 s",
    ),
    *("no edit list", "late pictures wmv", "anamorphic h264", "mpeg2 mxf", "h264 nut", "dv raw", "apng"),
]


@needs_program
@pytest.mark.parametrize("kind", BY_PROGRAM)
def test_timestamps_of_all_kinds_give_the_frames_of_the_ffmpeg_program(source, tmp_path, kind):
    assert_odd_as_program(kind, make(kind, source, tmp_path))


@needs_program
def test_pictures_keep_the_size_of_the_first_one(source, tmp_path):
    """64x48 pictures, then 100x48 ones, in the same windows."""
    taken = take(
        make("another shape in the middle", source, tmp_path), want(24, window=16, tail="loop"), want(24, resize=PILLOW)
    )
    assert [row.shape for row in taken.rows[0]] == [(16, 48, 64, 3)] * 5
    assert (
        numbers_of(taken.rows[0][-1])[:8] == numbers_of(taken.rows[1][64:]) and numbers_of(taken.rows[0][-1])[7] == 74
    )


def assert_odd_as_program(kind: str, path: Path) -> None:
    taken = take(path, *(want(fps) for fps in FPS))
    height, width = taken.frames.shape[1:3]
    for fps, rows, theirs in zip(FPS, taken.rows, by_program(path, height, width, *FPS), strict=True):
        if not version_of_program().startswith("5."):
            rows, theirs = (without_last_repeats(pictures) for pictures in (rows, theirs))
        assert numbers_of(rows) == numbers_of(theirs), (kind, fps)
        assert_same(np.stack(rows), theirs)


@needs_program
@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts"])
def test_without_sound_a_late_first_frame_begins_the_video(tmp_path, container):
    path = write_video(tmp_path / "late", range(500, 540), Fraction(1, 25), rate=Fraction(25), container=container)
    assert_as_program(path)
    assert probe_video(path).pts[0] == 0


@needs_program
def test_a_video_of_less_than_half_a_slot_gives_its_first_frame_where_the_program_gives_none(tmp_path):
    path = constant(tmp_path / "short.mp4", 10)
    assert [len(pictures) for pictures in by_program(path, HEIGHT, WIDTH, 1, 24)] == [0, 10]
    assert numbers_of(take(path, want(1)).frames) == [0]


@needs_program
def test_libswscales_bicubic_is_that_of_the_ffmpeg_program(recordings):
    """The kernel of features that ffmpeg's default made: nearer to the program's pictures than the bilinear one is."""
    info = probe_video(recordings["25"])
    wanted = np.arange(3)
    sizes = [Size(48, LIBSWSCALE_BICUBIC), Size(48)]
    made = [
        np.stack(same)
        for same in zip(*(p for _, p in backends.decode_with_pyav(DecodePass(info, sizes), wanted)), strict=True)
    ]
    height, width = made[0].shape[1:3]
    command = [
        "ffmpeg",
        "-v",
        "error",
        "-i",
        str(info.path),
        "-vf",
        f"scale={width}:{height}:flags=bicubic",
        "-frames:v",
        "3",
    ]
    raw = subprocess.run([*command, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"], capture_output=True, check=True).stdout
    expected = np.frombuffer(raw, dtype=np.uint8).reshape(made[0].shape).astype(int)
    errors = [np.abs(pictures - expected).mean() for pictures in made]
    assert errors[0] < 0.1 < errors[1], errors
