"""Video files -> pictures: against the ffmpeg program, between decoders, on damaged files, and on files that want to harm."""

import ctypes
import io
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
import pytest
from helpers.odd_videos import make, write_source
from helpers.shared import shared
from helpers.videos import RECORDINGS, UPRIGHT, all_frames, remux, scene
from PIL import Image
from test_sampling import FPS, LENGTHS_SECONDS, RATES
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from vlalign.extract.decoding import backends
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.backends import choose_backends
from vlalign.extract.decoding.container import MAX_PIXELS, MAX_SIDE_RATIO
from vlalign.extract.decoding.decode import Finished, Picture, Started, Wanted, cut, decode_video
from vlalign.extract.decoding.decord_backend import NotTrusted, decord_reads_well
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.frames import Decoding
from vlalign.extract.decoding.messages import PictureFollows, PicturesProbed, RowFollows
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.sampling import sample_frames, scaled_size
from vlalign.extract.decoding.scaling import LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW, Size
from vlalign.extract.decoding.windows import Row
from vlalign.extract.jobs import wanted_of
from vlalign.extract.render import frame_times, render_video
from vlalign.storage.profiles import LOGMEL, PROFILES

needs_decord = pytest.mark.skipif(backends.decord is None, reason="decord is not built for this processor")
needs_program = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="the ffmpeg program is not installed")
BACKENDS = [pytest.param("decord", marks=needs_decord), "pyav", pytest.param("ffmpeg", marks=needs_program)]
MOST_DIFFERENCE = 0.5
"""Mean absolute difference, of 255, that two versions of FFmpeg may show in one picture. Measured: 0."""


def want(
    fps: int,
    short_side_px: int = 48,
    window: int = 1,
    crop_px: int | None = None,
    tail: str = "none",
    resize: str = LIBSWSCALE,
) -> Wanted:
    return Wanted(fps=fps, window=window, short_side_px=short_side_px, crop_px=crop_px, tail=tail, resize=resize)


@dataclass
class Taken:
    """What came of a video."""

    rows: list[list[np.ndarray]]
    """For each profile."""
    finished: Finished
    pictures: list[Picture]
    begun: list[str]
    """The decoders that began, the one that finished last."""

    @property
    def frames(self) -> np.ndarray:
        return np.stack(self.rows[0])


def take(source: Path | VideoInfo, *wanted: Wanted, without: tuple[str, ...] = ()) -> Taken:
    info = source if isinstance(source, VideoInfo) else probe_video(source)
    begun = []
    for part in decode_video(info, list(wanted), without=without):
        if isinstance(part, Started):
            rows, pictures = [[] for _ in wanted], []
            begun.append(part.decoder)
        elif isinstance(part, Row):
            rows[part.wanted].append(part.frames.copy())
        elif isinstance(part, Picture):
            pictures.append(part)
    return Taken(rows, part, pictures, begun)


def by_program(path: Path, height: int, width: int, *rates: int | None) -> list[np.ndarray]:
    """The pictures that the ffmpeg program gives to published extractors, [T, H, W, 3], for each of ``rates`` in frames a second; None:
    every frame, once."""
    return several_by_program([path], height, width, *rates)[0]


def several_by_program(paths: Sequence[Path], height: int, width: int, *rates: int | None) -> list[list[np.ndarray]]:
    """As ``by_program``, for each of ``paths``; the program takes long to start. It is called as ffmpeg-python calls it."""
    with ExitStack() as stack:
        files = [[stack.enter_context(tempfile.TemporaryFile()) for _ in rates] for _ in paths]
        command = ["ffmpeg", "-v", "fatal", "-nostdin"]
        for path in paths:
            command += ["-threads", "1", "-i", f"file:{path}"]
        for place, outputs in enumerate(files):
            for rate, output in zip(rates, outputs, strict=True):
                name = f"s{place}x{rate}"
                filters = f"fps={rate}[{name}f];[{name}f]" if rate else ""
                command += [
                    "-filter_complex",
                    f"[{place}]{filters}scale={width}:{height}:flags=bilinear[{name}]",
                    "-map",
                    f"[{name}]",
                ]
                command += ["-f", "rawvideo", "-pix_fmt", "rgb24", *([] if rate else ["-fps_mode", "passthrough"])]
                command += [f"pipe:{output.fileno()}"]
        subprocess.run(command, check=True, pass_fds=[output.fileno() for outputs in files for output in outputs])
        return [[read_pictures(output, height, width) for output in outputs] for outputs in files]


def read_pictures(file: BinaryIO, height: int, width: int) -> np.ndarray:
    file.seek(0)
    return np.frombuffer(file.read(), dtype=np.uint8).reshape(-1, height, width, 3)


def differences(pictures: np.ndarray, others: np.ndarray) -> np.ndarray:
    """[T] mean absolute difference of each picture, of 255."""
    assert pictures.shape == others.shape
    return np.stack([np.abs(a.astype(np.int16) - b).mean() for a, b in zip(pictures, others, strict=True)])


def assert_same(pictures: np.ndarray, others: np.ndarray) -> None:
    assert differences(pictures, others).max() <= MOST_DIFFERENCE


# Videos whose frames say which they are

HEIGHT, WIDTH, ROWS, COLUMNS = 48, 64, 3, 4
SOUND_RATE_HZ = 22050
ONE, NOUGHT = (230, 190, 40), (20, 50, 160)


def numbered_picture(number: int) -> np.ndarray:
    """uint8 [48, 64, 3]: the number's twelve bits, as flat blocks of two colours."""
    bits = (number >> np.arange(ROWS * COLUMNS) & 1).reshape(ROWS, COLUMNS, 1)
    blocks = np.where(bits, np.array(ONE), np.array(NOUGHT)).astype(np.uint8)
    return blocks.repeat(HEIGHT // ROWS, axis=0).repeat(WIDTH // COLUMNS, axis=1)


def numbers_of(pictures: Sequence[np.ndarray]) -> list[int]:
    """Which frames these are, of whatever size they were made."""
    pictures = np.stack(pictures).astype(int)
    _, height, width, _ = pictures.shape
    rows = (np.arange(ROWS) * 2 + 1) * height // (2 * ROWS)
    columns = (np.arange(COLUMNS) * 2 + 1) * width // (2 * COLUMNS)
    blocks = pictures[:, rows][:, :, columns]
    bits = (blocks[..., 0] > blocks[..., 2]).reshape(len(pictures), -1)
    return (bits << np.arange(ROWS * COLUMNS)).sum(axis=1).tolist()


def busy_picture(number: int, height: int = 120, width: int = 160) -> np.ndarray:
    """A different one for each number, with much in it: its packet is large."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)


def write_video(
    path: Path,
    ticks: Sequence[int],
    time_base: Fraction,
    *,
    picture=numbered_picture,
    rate: Fraction = Fraction(24),
    codec: str = "libx264",
    container: str = "mp4",
    container_options: dict[str, str] | None = None,
    sound_seconds: float = 0,
    **options: str,
) -> Path:
    """A frame at each of ``ticks``; the last one lasts ``1 / rate`` s."""
    # force-cfr: times may vary, but the rate that H.264 itself states is the given one.
    quick = {
        "libx264": {"preset": "ultrafast", "bf": "2", "x264-params": "force-cfr=1"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    }
    first = picture(0)
    with av.open(str(path), "w", format=container, container_options=container_options or {}) as written:
        stream = written.add_stream(codec, rate=rate, options={"threads": "1", **quick.get(codec, {}), **options})
        stream.height, stream.width = first.shape[:2]
        stream.pix_fmt = {"gif": "rgb8"}.get(codec, "yuv420p")
        stream.codec_context.time_base = stream.time_base = time_base
        if sound_seconds:
            sound = written.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        for number, tick in enumerate(ticks):
            frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
            frame.pts, frame.time_base = tick, time_base
            written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
        if sound_seconds:
            written.mux(sound.encode(tone(sound_seconds)))
            written.mux(sound.encode(None))
    return path


def tone(seconds: float) -> av.AudioFrame:
    samples = (8000 * np.sin(np.arange(int(seconds * SOUND_RATE_HZ)) / 20)).astype(np.int16)[None]
    sound = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
    sound.rate, sound.pts, sound.time_base = SOUND_RATE_HZ, 0, Fraction(1, SOUND_RATE_HZ)
    return sound


def constant(path: Path, num_frames: int, rate: str | int = 24, **how) -> Path:
    return write_video(path, range(num_frames), 1 / Fraction(rate), rate=Fraction(rate), **how)


def test_numbers_can_be_read_off_the_pictures():
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
        together = take(path, *(want(fps) for fps in FPS), without=("decord",))
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


def assert_as_program(*paths: Path) -> None:
    for path, expected in zip(paths, several_by_program(paths, HEIGHT, WIDTH, *FPS), strict=True):
        for fps, rows, theirs in zip(FPS, take(path, *(want(fps) for fps in FPS)).rows, expected, strict=True):
            if not version_of_program().startswith("5."):
                # Versions differ about how long the last frame lasts.
                rows, theirs = (without_last_repeats(pictures) for pictures in (rows, theirs))
            assert numbers_of(rows) == numbers_of(theirs), (path, fps)
            assert_same(np.stack(rows), theirs)


@cache
def version_of_program() -> str:
    return backends.ffmpeg_version()


def without_last_repeats(pictures: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    numbers = numbers_of(pictures)
    return pictures[: numbers.index(numbers[-1]) + 1]


@pytest.fixture(scope="module")
def with_sound(tmp_path_factory) -> Path:
    return constant(tmp_path_factory.mktemp("sound") / "sound.mp4", 60, "25", sound_seconds=2.4)


@needs_program
@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "mov"])
def test_first_times_other_than_zero_give_the_frames_of_the_ffmpeg_program(with_sound, tmp_path, container):
    """The picture begins after the sound, or before it; MPEG-TS counts from its first picture, whatever the sound does."""
    shifts = [Fraction(shift) for shift in ("1/2", "1/25", "37/10", "-1/5")]
    paths = [remux(with_sound, tmp_path / f"{place}", container, shift) for place, shift in enumerate(shifts)]
    assert_as_program(*paths)
    assert [probe_video(path).pts[0] > 0 for path in paths[:3]] == [container != "mpegts"] * 3


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "source.rgb", numbered_picture)


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
def test_clocks_of_all_kinds_give_the_frames_of_the_ffmpeg_program(source, tmp_path, kind):
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


# Decoders agree


REAL = {
    f"{folder}/{name}": f"data/{folder}/{name}"
    for folder, names in {
        "msrvtt/videos": [f"video{i}.mp4" for i in range(7010, 7015)],
        "msvd/videos": ["3qqEKTPxLNs_1_15.avi", "WTf5EgVY5uU_124_128.avi", "j2Dhf-xFUxU_13_20.avi"],
        "features/bmt": ["women_long_jump.mp4"],
    }.items()
    for name in names
}


def pictures_by(
    backend: str, info: VideoInfo, short_sides: list[int], wanted: np.ndarray
) -> tuple[list[np.ndarray], Decoding]:
    """The pictures of ``wanted``, in each size, and how the pass went."""
    decoding = Decoding(info, [Size(side) for side in short_sides])
    indices, pictures = zip(*getattr(backends, f"{backend}_pictures")(decoding, wanted), strict=True)
    assert list(indices) == wanted.tolist()
    return [np.stack([sizes[place] for sizes in pictures]) for place in range(len(short_sides))], decoding


@pytest.mark.parametrize("name", REAL)
def test_decoders_give_the_same_pictures_of_real_videos(name):
    info = probe_video(shared(REAL[name]))
    wanted = np.unique([*range(5), *range(5, min(len(info.pts), 150), 20)])
    pyav, decoding = pictures_by("pyav", info, [224, 112], wanted)
    assert [pictures.shape[1:3] for pictures in pyav] == [
        scaled_size(info.height, info.width, side) for side in (224, 112)
    ]
    assert decoding.num_damaged == 0
    others = []
    if backends.ffmpeg_program():
        others.append(pictures_by("ffmpeg", info, [224, 112], wanted)[0])
    if decord_reads_well(info, [Size(224)]):
        others.append([pictures_by("decord", info, [side], wanted)[0][0] for side in (224, 112)])
    elif backends.decord is not None:
        assert "avi" in info.containers
    if not others:
        pytest.skip("only one decoder reads it here")
    for other in others:
        for pictures, same in zip(pyav, other, strict=True):
            assert_same(pictures, same)


@needs_program
@pytest.mark.parametrize("name", [*list(REAL)[:1], *list(REAL)[-4:]])
def test_real_videos_give_the_frames_of_the_ffmpeg_program(name):
    path = shared(REAL[name])
    taken = take(path, want(1), want(24))
    height, width = taken.frames.shape[1:3]
    for rows, theirs in zip(taken.rows, by_program(path, height, width, 1, 24), strict=True):
        assert_same(np.stack(rows), theirs)


def chosen(path: Path, fps: int) -> np.ndarray:
    info = probe_video(path)
    return sample_frames(info.pts, info.end, info.time_base, fps)


COLOURS = {
    "untagged": {},
    "bt709": {"colorspace": 1, "color_primaries": 1, "color_trc": 1, "color_range": 1},
    "smpte170m": {"colorspace": 6, "color_range": 1},
    "full range": {"color_range": 2},
    "full range bt709": {"colorspace": 1, "color_range": 2},
    "bt2020": {"colorspace": 9, "color_range": 1},
}


def coloured_video(path: Path, tags: dict[str, int], pix_fmt: str = "yuv420p") -> Path:
    """The same samples whatever the tags: those say which colours are meant."""
    with av.open(str(path), "w", format="mp4") as written:
        stream = written.add_stream("libx264", rate=24, options={"preset": "ultrafast", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = 120, 160, pix_fmt
        for tag, value in tags.items():
            setattr(stream.codec_context, tag, value)
        for number in range(12):
            frame = av.VideoFrame(160, 120, "yuv420p")
            for plane, samples in zip(
                frame.planes, np.random.default_rng(number).integers(20, 230, (3, 15, 20), dtype=np.uint8), strict=True
            ):
                large = samples.repeat(plane.height // 15, axis=0).repeat(plane.width // 20, axis=1)
                padded = np.zeros((plane.height, plane.line_size), dtype=np.uint8)
                padded[:, : plane.width] = large
                plane.update(padded)
            if pix_fmt == "yuvj420p":
                frame = frame.reformat(format="yuvj420p", src_color_range=2, dst_color_range=2)
            for tag, value in tags.items():
                setattr(frame, tag, value)
            frame.pts, frame.time_base = number, Fraction(1, 24)
            written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
    return path


@needs_program
@pytest.mark.parametrize(
    "tags, pix_fmt", [*((tags, "yuv420p") for tags in COLOURS), ("untagged", "yuvj420p"), ("bt709", "yuvj420p")]
)
def test_colours_are_those_of_the_ffmpeg_program(tmp_path, tags, pix_fmt):
    path = coloured_video(tmp_path / "coloured.mp4", COLOURS[tags], pix_fmt)
    info, every = probe_video(path), np.arange(12)
    (theirs,) = by_program(path, 80, 106, None)
    for backend in ("pyav", "ffmpeg", *(["decord"] if decord_reads_well(info, [Size(80)]) else [])):
        ((pictures,), _) = pictures_by(backend, info, [80], every)
        assert differences(pictures, theirs).max() <= MOST_DIFFERENCE, backend


def test_tags_of_colour_are_heeded(tmp_path):
    """So that the test above has something to compare."""
    made = {
        tags: all_frames(coloured_video(tmp_path / f"{place}.mp4", COLOURS[tags])) for place, tags in enumerate(COLOURS)
    }
    assert differences(made["bt709"], made["smpte170m"]).min() > 2
    assert differences(made["full range"], made["untagged"]).min() > 2
    assert differences(made["smpte170m"], made["untagged"]).max() <= MOST_DIFFERENCE


# Through the child process


@dataclass
class Ended:
    """How a video ended that a child process decoded."""

    rows: list[np.ndarray]
    begun: list[str]
    finished: Finished | PicturesProbed | None = None
    failure: VideoError | None = None


def ask(process: DecodeProcess, path: Path, *wanted: Wanted, **how) -> Ended:
    process.start(path, list(wanted), **how)
    return listen(process)


def listen(process: DecodeProcess) -> Ended:
    ended = Ended([], [])
    try:
        while ended.finished is None:
            assert process.connection.poll(120), "it hangs"
            message = process.receive()
            if isinstance(message, Started):
                ended.rows, ended.begun = [], [*ended.begun, message.decoder]
            elif isinstance(message, RowFollows):
                ended.rows.append(np.empty(message.shape, dtype=np.uint8))
                process.receive_into(ended.rows[-1])
            elif isinstance(message, PictureFollows):
                assert process.receive_bytes()[:2] == b"\xff\xd8"
            elif isinstance(message, Finished | PicturesProbed):
                ended.finished = message
    except VideoError as error:
        ended.failure = error
    return ended


@pytest.fixture(scope="module")
def process() -> Iterator[DecodeProcess]:
    """One for many tests: none of them may end it, and what went before must not matter."""
    process = DecodeProcess()
    yield process
    assert process.usable
    process.close()


# The zoo: files that other programs made, or broke

WHOLE = dict.fromkeys(
    [
        *("ok_h264.mp4", "ok_faststart.mp4", "frag.mp4", "-dash id.mp4", "co:lon.mp4", "pct%03d.mp4"),
        *("av1.mp4", "hevc10.mp4", "vp9.webm", "raw_es.mp4", "interl.mpg", "flip_mid.mp4", "rot90.mp4"),
    ],
    (120, 120),
) | {
    "h264.mkv": (121, 120),  # its first picture is 23 ms late: the program shows it twice
    "cut_editlist.mp4": (88, 88),
    "odd_444.mp4": (48, 48),
    "odd_vp9.webm": (48, 48),
    "gif.mp4": (24, 24),
    "vfr.mp4": (115, 60),
    "oneframe.mp4": (1, 1),
    "huge_8k.mp4": (6, 6),
}
"""Pictures at 24 a second, and how many of them differ."""
PARTIAL = {
    "trunc_tail.mp4": (
        range(70, 73),
        r"73 of the 120 frames that it should have are in it; 72 of 73 frames could be decoded",
    ),
    "flip_index.mp4": (range(2, 3), r"2 of the 120 frames that it should have are in it"),
}
"""How many different pictures, and what is said to be missing."""
FAILED = {
    "trunc_nomoov.mp4": "unreadable",
    "zero.mp4": "unreadable",
    "random.mp4": "unreadable",
    "ftyp_random.mp4": "unreadable",
    "html.mp4": "unreadable",
    "audio_only.mp4": "no_video",
    "audio_coverart.mp4": "no_video",
    "m3u8_local.mp4": "unreadable",
    "m3u8_local.m3u8": "unreadable",
    "m3u8_http.mp4": "unreadable",
    "concat_rel.mp4": "unreadable",
    "concat_abs.mp4": "unreadable",
    "timescale0.mp4": "bad_times",
    "dup_ts.ts": "bad_times",
}
NOT_FOR_DECORD = {
    *(
        "av1.mp4",
        "hevc10.mp4",
        "raw_es.mp4",
        "interl.mpg",
        "cut_editlist.mp4",
        "odd_444.mp4",
        "gif.mp4",
        "vfr.mp4",
        "rot90.mp4",
    ),
    *PARTIAL,
}
COPIES = ("ok_faststart.mp4", "-dash id.mp4", "co:lon.mp4", "pct%03d.mp4")
HIDDEN = ("flip_mid.mp4",)
"""Damage that each version of FFmpeg paints over in its own way."""
ZOO_SIDE = 32


@pytest.fixture(scope="module")
def zoo(process) -> Callable[[str], Ended]:
    """What came of a file of the zoo. One child decodes all of them, one after the other."""
    ended = {}

    def look_up(name: str) -> Ended:
        folder = shared("zoo")
        if not ended:
            for path in sorted(p for p in folder.iterdir() if p.is_file()):
                ended[path.name] = ask(process, path, want(24, ZOO_SIDE))
                assert process.usable, f"{path.name} ended the child"
        return ended[name]

    return look_up


def test_no_file_of_the_zoo_ends_the_child(zoo, process):
    assert zoo("README.md").failure.kind == "unreadable"
    assert {p.name for p in shared("zoo").iterdir() if p.is_file()} - {"README.md"} == set(WHOLE) | set(PARTIAL) | set(
        FAILED
    )
    assert process.usable


@pytest.mark.parametrize("name", WHOLE)
def test_zoo_files_that_are_whole(zoo, name):
    ended = zoo(name)
    num_sampled, num_distinct = WHOLE[name]
    assert ended.failure is None
    assert (len(ended.rows), len({row.tobytes() for row in ended.rows})) == (num_sampled, num_distinct)
    assert ended.finished.num_frames == [num_sampled]
    assert (ended.finished.partial == "") == (name not in HIDDEN)
    if name in NOT_FOR_DECORD:
        assert ended.finished.decoder.startswith("PyAV") and ended.begun == ["PyAV"]


@pytest.mark.parametrize("name", PARTIAL)
def test_zoo_files_of_which_a_part_is_missing(zoo, name):
    ended = zoo(name)
    num_distinct, words = PARTIAL[name]
    assert ended.failure is None
    assert len({row.tobytes() for row in ended.rows}) in num_distinct
    assert len(ended.rows) < 76
    assert re.match(words, ended.finished.partial)
    assert ended.finished.decoder.startswith("PyAV")


@pytest.mark.parametrize("name", FAILED)
def test_zoo_files_that_fail(zoo, name):
    failure = zoo(name).failure
    assert failure.kind == FAILED[name]
    assert str(failure) and "\n" not in str(failure)
    assert zoo(name).rows == []


@needs_program
@pytest.mark.parametrize("name", [*(name for name in WHOLE if name not in {*COPIES, *HIDDEN}), "trunc_tail.mp4"])
def test_zoo_files_give_the_frames_of_the_ffmpeg_program(zoo, name):
    rows = np.stack(zoo(name).rows)
    (theirs,) = by_program(shared(f"zoo/{name}"), *rows.shape[1:3], 24)
    assert_same(rows, theirs)


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in {*COPIES, *HIDDEN, "huge_8k.mp4"}])
def test_zoo_files_give_the_same_pictures_with_any_decoder(name):
    info = probe_video(shared(f"zoo/{name}"))
    every = np.arange(min(len(info.pts), 40))
    ((pictures,), _) = pictures_by("pyav", info, [ZOO_SIDE], every)
    assert len({picture.tobytes() for picture in pictures}) == len(every)
    if decord_reads_well(info, [Size(ZOO_SIDE)]):
        assert_same(pictures_by("decord", info, [ZOO_SIDE], every)[0][0], pictures)
    else:
        assert name in NOT_FOR_DECORD or backends.decord is None
        if backends.ffmpeg_program():
            assert_same(pictures_by("ffmpeg", info, [ZOO_SIDE], every)[0][0], pictures)


def test_zoo_rotation_is_honoured(zoo):
    assert {row.shape for row in zoo("rot90.mp4").rows} == {(42, 32, 3)}


def test_zoo_damage_in_pictures_is_noted_whichever_decoders_there_are(zoo):
    ended = zoo("flip_mid.mp4")
    assert re.fullmatch(r"\d+ frames or packets are damaged, says the decoder", ended.finished.partial)
    assert len(ended.rows) == 120


# What is read from a file, and how


@pytest.mark.parametrize("name", RECORDINGS)
def test_probed_times_are_the_planned_ones(recordings, name):
    info = probe_video(recordings[name])
    ticks, tick_seconds = frame_times(scene(**RECORDINGS[name]))
    assert [time * info.time_base for time in info.pts.tolist()] == [tick * tick_seconds for tick in ticks]
    assert info.end * info.time_base == (ticks[-1] + 1) * tick_seconds
    assert info.duration_seconds == pytest.approx(float((ticks[-1] + 1) * tick_seconds))
    assert (info.codec, info.offset, info.timed, info.plain, info.missing) == ("h264", 0, True, True, "")
    assert (info.packet_bytes > 0).all() and len(info.packet_bytes) == len(info.pts)


def test_variable_rate_leaves_frames_out(recordings):
    assert len(probe_video(recordings["variable rate"]).pts) < 24 == round(0.8 * 30)


def test_probing_says_that_it_goes_on(recordings):
    beats = []
    info = probe_video(recordings["25"], lambda: beats.append(1))
    assert len(beats) >= len(info.pts) == 20
    beats.clear()
    list(decode_video(info, [want(25)], beat=lambda: beats.append(1)))
    assert len(beats) == 20


@needs_decord
@pytest.mark.parametrize("name", RECORDINGS)
def test_decord_and_pyav_give_the_same_pixels(recordings, name):
    info = probe_video(recordings[name])
    if decord_reads_well(info, [Size(112)]):
        np.testing.assert_array_equal(all_frames(recordings[name], "decord"), all_frames(recordings[name], "pyav"))
    else:
        assert "rotated" in name or "variable" in name


@pytest.mark.parametrize("backend", ["pyav", pytest.param("ffmpeg", marks=needs_program)])
@pytest.mark.parametrize("name", UPRIGHT)
def test_rotated_recordings_are_upright(recordings, name, backend):
    rotated, upright = (all_frames(recordings[which], backend, 180) for which in (name, UPRIGHT[name]))
    assert rotated.shape == upright.shape == (20, 180, 240, 3)
    upside_down = np.abs(upright.astype(int) - upright[:, ::-1, ::-1]).mean()
    assert np.abs(rotated.astype(int) - upright).mean() < 4 < upside_down


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "wanted", [[0], [59], [3, 4, 11], list(range(1, 60, 2))], ids=["first", "last", "some", "every other"]
)
def test_only_wanted_frames_are_read_and_they_are_the_right_ones(with_sound, wanted, backend):
    ((pictures,), _) = pictures_by(backend, probe_video(with_sound), [HEIGHT], np.array(wanted))
    assert numbers_of(pictures) == wanted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift_seconds", [0, 0.48])
@pytest.mark.parametrize("container", ["matroska", "mpegts", "mov"])
def test_other_containers_give_the_same_frames_at_the_same_times(
    with_sound, tmp_path, container, shift_seconds, backend
):
    """MPEG-TS begins its clock at 1.4 s: times are counted from the file's start. Matroska rounds times to milliseconds."""
    path = remux(with_sound, tmp_path / "other", container, Fraction(shift_seconds), sound=False)
    info, expected = probe_video(path), probe_video(with_sound)
    seconds, expected_seconds = (i.pts.astype(float) * float(i.time_base) for i in (info, expected))
    np.testing.assert_allclose(seconds - seconds[0], expected_seconds - expected_seconds[0], atol=0.0011)
    if backend == "decord" and container == "mpegts":
        assert not decord_reads_well(info, [Size(HEIGHT)])
        return
    ((pictures,), _) = pictures_by(backend, info, [HEIGHT], np.arange(60))
    assert numbers_of(pictures) == list(range(60))


def test_a_picture_later_than_the_sound_stays_later(with_sound, tmp_path):
    path = remux(with_sound, tmp_path / "late.mp4", "mp4", shift_seconds=Fraction(1, 2))
    late, before = (probe_video(p) for p in (path, with_sound))
    assert late.pts[0] * late.time_base == pytest.approx(before.pts[0] * before.time_base + 0.5, abs=0.001)
    assert late.duration_seconds == pytest.approx(before.duration_seconds + 0.5, abs=0.001)
    repeats = [numbers_of(take(p, want(24)).frames).count(0) for p in (path, with_sound)]
    assert repeats == [repeats[1] + 12, repeats[1]], "the first picture is shown until the second one comes"


def test_a_picture_much_later_than_the_sound_is_refused(with_sound, tmp_path):
    with pytest.raises(VideoError, match=r"its pictures begin 301 s after its start \(limit: 300 s\)") as failed:
        probe_video(remux(with_sound, tmp_path / "late.mp4", "mp4", shift_seconds=Fraction(301)))
    assert failed.value.kind == "bad_times"


def test_a_cover_picture_is_no_video(tmp_path):
    """Neither alone nor before a video."""
    with av.open(str(tmp_path / "cover.mp4"), "w") as written:
        cover = written.add_stream("mjpeg", rate=1)
        cover.height, cover.width, cover.pix_fmt, cover.disposition = (
            64,
            64,
            "yuvj420p",
            av.stream.Disposition.attached_pic,
        )
        sound = written.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), dtype=np.uint8), format="rgb24").reformat(
            format="yuvj420p"
        )
        written.mux(cover.encode(frame))
        written.mux(sound.encode(tone(1)))
        written.mux(sound.encode(None))
    with pytest.raises(VideoError) as failed:
        probe_video(tmp_path / "cover.mp4")
    assert failed.value.kind == "no_video"


def make_audio_only(path: Path) -> None:
    with av.open(str(path), "w", format="mp4") as written:
        sound = written.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        written.mux(sound.encode(tone(1)))
        written.mux(sound.encode(None))


def make_cut_without_index(path: Path) -> None:
    constant(path, 20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])


def make_emptied(path: Path) -> None:
    """Index and all packets there, every picture overwritten with zeros."""
    constant(path, 20)
    content = path.read_bytes()
    first, last = content.index(b"mdat") + 4, content.index(b"moov") - 4
    path.write_bytes(content[:first] + bytes(last - first) + content[last:])


@pytest.mark.parametrize(
    "make, kind",
    [
        (make_audio_only, "no_video"),
        (lambda path: path.write_bytes(b""), "unreadable"),
        (lambda path: path.write_bytes(np.random.default_rng(0).bytes(100_000)), "unreadable"),
        (
            lambda path: path.write_text("<!DOCTYPE html><html><body>Sign in to confirm your age</body></html>\n" * 30),
            "unreadable",
        ),
        (make_cut_without_index, "unreadable"),
        (make_emptied, "unreadable"),
        (lambda path: None, "missing"),
        (lambda path: path.mkdir(), "missing"),
        (lambda path: path.symlink_to(path.with_name("nowhere.mp4")), "missing"),
        (os.mkfifo, "missing"),
    ],
    ids=[
        "audio only",
        "empty",
        "random bytes",
        "html",
        "no index",
        "pictures zeroed",
        "missing",
        "folder",
        "dangling link",
        "pipe",
    ],
)
@pytest.mark.parametrize("without", [(), ("decord",), ("decord", "PyAV")], ids=["", "no decord", "no PyAV"])
def test_files_without_pictures_fail_with_a_kind_and_a_reason(tmp_path, make, kind, without):
    path = tmp_path / "broken.mp4"
    make(path)
    with pytest.raises(VideoError) as failed:
        take(path, want(24), without=without)
    assert failed.value.kind == kind
    assert str(failed.value) and "\n" not in str(failed.value)


@pytest.mark.parametrize("backend, name", [("decord", "decord"), ("pyav", "PyAV"), ("ffmpeg", "ffmpeg")])
def test_decoders_that_are_not_wanted_are_not_used(with_sound, backend, name):
    without = tuple({"decord", "PyAV", "ffmpeg"} - {name})
    info = probe_video(with_sound)
    if name not in choose_backends(info, [Size(HEIGHT)]):
        with pytest.raises(VideoError, match="no decoder is left to try"):
            take(info, want(24), without=without)
        return
    taken = take(info, want(24), without=without)
    assert taken.begun == [name]
    assert ("decord decoded it, which does not say what is damaged" in taken.finished.partial) == (name == "decord")
    version = {
        "decord": lambda: backends.decord.__version__,
        "PyAV": lambda: av.__version__,
        "ffmpeg": version_of_program,
    }[name]()
    assert taken.finished.decoder == f"{name} {version}"


def test_pictures_of_the_beginning_the_middle_and_the_end(with_sound):
    pictures = take(with_sound, want(24, 96)).pictures
    assert [picture.seconds for picture in pictures] == pytest.approx([0.24, 1.2, 2.16], abs=0.08)
    from_jpeg = [np.asarray(Image.open(io.BytesIO(picture.jpeg))) for picture in pictures]
    assert {picture.shape for picture in from_jpeg} == {(90, 120, 3)}
    assert numbers_of(from_jpeg) == [round(25 * picture.seconds) for picture in pictures]


def test_the_first_seconds_alone_are_the_same_frames(with_sound):
    info = probe_video(with_sound)
    whole, beginning = take(info, want(24)), take(cut(info, 1.0), want(24))
    assert len(beginning.rows[0]) == 24
    assert numbers_of(beginning.frames) == numbers_of(whole.frames[:24])
    assert beginning.finished.duration_seconds == pytest.approx(1.0)
    assert len(take(cut(info, 0.0), want(24)).rows[0]) == 1
    assert cut(info, 100) is info


@pytest.mark.parametrize("tail, last", [("loop", [58, 59, 58, 59]), ("black frames", [58, 59, 0, 0])])
def test_windows_and_crops_of_several_profiles_in_one_pass(with_sound, tail, last):
    info = replace(probe_video(with_sound))
    every, windows, sparse = want(25), want(25, 2 * HEIGHT, 29, 2 * HEIGHT, tail), want(1)
    taken = take(info, every, windows, sparse)
    assert numbers_of(taken.rows[0]) == list(range(60))
    assert [row.shape for row in taken.rows[1]] == [(29, 96, 96, 3)] * 3
    # the middle 96 of 128 columns: half of the outer blocks is cut away, the inner two are whole
    assert [frame.tobytes() for frame in taken.rows[1][0][:, ::4, ::4]] == [
        frame.tobytes() for frame in squares(info)[:29]
    ]
    shown = squares(info)
    expected = [shown[58], shown[59], *([shown[58], shown[59]] if tail == "loop" else [np.zeros_like(shown[0])] * 2)]
    np.testing.assert_array_equal(taken.rows[1][2][:4, ::4, ::4], expected)
    assert numbers_of(taken.rows[2]) == chosen(with_sound, 1).tolist()
    assert taken.finished.num_frames == [60, 60, len(taken.rows[2])]


@pytest.mark.parametrize("name", ["data/msrvtt/videos/video7010.mp4", "zoo/rot90.mp4", "zoo/odd_444.mp4"])
def test_all_profiles_in_one_pass_get_the_frames_that_each_gets_alone(name):
    """Every frame is decoded once, whatever is wanted of it."""
    info = cut(probe_video(shared(name)), 4.0)
    wanted, beats = [wanted_of(profile) for name, profile in PROFILES.items() if name != LOGMEL], []
    together = take(info, *wanted)
    assert len(together.begun) == 1
    for _ in decode_video(info, wanted, beat=lambda: beats.append(1)):
        pass
    assert 0 < len(beats) <= len(info.pts)
    for place, one in enumerate(wanted):
        assert_same(np.stack(together.rows[place]), take(info, one).frames)


@pytest.mark.parametrize("size", [(320, 240), (250, 180), (180, 250), (200, 90)], ids="{0[0]}x{0[1]}".format)
def test_clips_frames_are_those_of_transformers_own_processor(tmp_path, size):
    """To the last bit, from the frames in RGB at their own size: resized smaller and larger, cut where one pixel is left over."""
    width, height = size
    render_video(scene(2.0, width=width, height=height), tmp_path / "x.mp4")
    with av.open(str(tmp_path / "x.mp4")) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
    processor = CLIPImageProcessorPil(do_rescale=False, do_normalize=False)
    expected = processor([frames[12], frames[37]], return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(take(tmp_path / "x.mp4", wanted_of(PROFILES["clip_vit_b32"])).frames, expected)


def test_a_size_may_be_wanted_in_both_kernels(with_sound):
    wanted = [want(1, HEIGHT // 2), want(1, HEIGHT // 2, resize=PILLOW)]
    bilinear, bicubic = (np.stack(rows).astype(int) for rows in take(with_sound, *wanted).rows)
    assert bilinear.shape == bicubic.shape and np.abs(bilinear - bicubic).max() > 0
    for pictures, one in zip((bilinear, bicubic), wanted, strict=True):
        np.testing.assert_array_equal(take(with_sound, one).frames, pictures)
    with pytest.raises(ValueError, match="resize 'nearest' is not known"):
        take(with_sound, want(1, resize="nearest"))


def squares(info: VideoInfo) -> np.ndarray:
    ((pictures,), _) = pictures_by("pyav", info, [2 * HEIGHT], np.arange(len(info.pts)))
    return pictures[:, ::4, 16:-16:4]


# Frames that need not be decoded

REFERENCES = {
    "two B-frames": {"bf": "2", "x264-params": "force-cfr=1:b-adapt=0:b-pyramid=none"},
    "three B-frames, pyramid": {"bf": "3", "x264-params": "force-cfr=1:b-pyramid=normal:b-adapt=0"},
    "no B-frames": {"bf": "0"},
    "mpeg4": {"codec": "mpeg4", "bf": "2"},
    "mpeg2": {"codec": "mpeg2video", "container": "mpegts", "bf": "2"},
    "vp9": {"codec": "libvpx-vp9", "container": "webm"},
}


def skipping(info: VideoInfo, short_side_px: int) -> tuple[np.ndarray, int, np.ndarray, int]:
    """Pictures at 1 fps and the number of frames decoded for them, with skipping and without."""
    indices = np.unique(sample_frames(info.pts, info.end, info.time_base, 1))
    ((some,), decoding) = pictures_by("pyav", info, [short_side_px], indices)
    ((every,), whole) = pictures_by("pyav", info, [short_side_px], np.arange(len(info.pts)))
    # without skipping, the pass would end with the last frame that is wanted
    return (
        some,
        len(decoding.delivered),
        every[indices],
        int(np.searchsorted(whole.delivered, info.pts[indices[-1]])) + 1,
    )


@pytest.mark.parametrize("how", REFERENCES)
def test_skipping_frames_that_nothing_refers_to_changes_no_picture(tmp_path, how):
    def picture(number: int) -> np.ndarray:
        return np.roll(busy_picture(0), number, axis=1)

    info = probe_video(constant(tmp_path / "references", 100, 24, picture=picture, **REFERENCES[how]))
    some, num_some, same, num_whole = skipping(info, 120)
    np.testing.assert_array_equal(some, same)
    assert len({p.tobytes() for p in some}) == len(some) == 4
    if how in ("no B-frames", "vp9"):
        assert num_some == num_whole
    else:
        assert num_some < 0.7 * num_whole


@pytest.mark.parametrize("name", [*list(REAL)[:5], "msvd/videos/j2Dhf-xFUxU_13_20.avi"])
def test_skipping_changes_no_picture_of_real_videos(name):
    info = probe_video(shared(REAL[name]))
    some, num_some, same, num_whole = skipping(info, 112)
    np.testing.assert_array_equal(some, same)
    assert num_some <= num_whole
    if "msrvtt" in name:  # AVI has no times to know frames by
        assert num_some < 0.7 * num_whole


@pytest.mark.parametrize(
    "name", ["ok_h264.mp4", "frag.mp4", "h264.mkv", "hevc10.mp4", "interl.mpg", "cut_editlist.mp4", "rot90.mp4"]
)
def test_skipping_changes_no_picture_of_the_zoo(name):
    some, num_some, same, num_whole = skipping(probe_video(shared(f"zoo/{name}")), 112)
    np.testing.assert_array_equal(some, same)
    assert num_some < 0.65 * num_whole or name == "interl.mpg"


# Damaged files


def moving_picture(number: int) -> np.ndarray:
    """Much in it, and different in each frame."""
    return np.roll(busy_picture(0), 3 * number, axis=1)


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("undamaged")
    how = {
        "mp4": {"container_options": {"movflags": "faststart"}},
        "mkv": {"container": "matroska"},
        "ts": {"container": "mpegts"},
        "webm": {"container": "webm", "codec": "libvpx-vp9"},
        "m4v": {"codec": "mpeg4"},
    }
    return {
        name: constant(folder / f"whole.{name}", 96, 24, picture=moving_picture, g="24", **how[name]) for name in how
    }


def cut_off(source: Path, target: Path, share: float) -> Path:
    target.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])
    return target


def zero_bytes(source: Path, target: Path, first: int, last: int) -> Path:
    content = bytearray(source.read_bytes())
    content[first:last] = bytes(last - first)
    target.write_bytes(content)
    return target


def zero_packets(source: Path, target: Path, numbers: Sequence[int]) -> Path:
    """Of the frames of these numbers only the packets' first bytes are left."""
    content = bytearray(source.read_bytes())
    with av.open(str(source)) as container:
        packets = sorted((packet.pts, packet.pos, packet.size) for packet in container.demux(video=0) if packet.size)
    for _, position, size in (packets[n] for n in numbers):
        content[position + 8 : position + size] = bytes(size - 8)
    target.write_bytes(content)
    return target


def assert_only_frames_that_exist(path: Path, taken: Taken, num_frames: int) -> None:
    """Pictures that FFmpeg decodes, all of them, in order; repeated only where one is missing."""
    assert taken.finished.decoder.startswith("PyAV"), "decord says nothing of what it could not decode"
    # Where many frames are damaged, a decoder may show the one before and call it decoded.
    assert num_frames - 2 <= len({row.tobytes() for row in taken.rows[0]}) <= num_frames
    if backends.ffmpeg_program() is None:
        return
    (theirs,) = by_program(path, *taken.frames.shape[1:3], None)
    first_of = {picture.tobytes(): place for place, picture in reversed(list(enumerate(theirs)))}
    nearest = [first_of.get(row.tobytes(), -1) for row in taken.rows[0]]
    for place, row in enumerate(taken.rows[0]):
        if nearest[place] < 0:
            nearest[place] = int(np.argmin([np.abs(row.astype(int) - picture).mean() for picture in theirs]))
    assert nearest == sorted(nearest)
    assert len(set(first_of.values()) - set(nearest)) <= 2
    assert_same(taken.frames, theirs[nearest])


@pytest.mark.parametrize("share", [0.5, 0.6])
def test_mp4_cut_in_the_middle_gives_the_frames_that_are_left(undamaged, tmp_path, share):
    path = cut_off(undamaged["mp4"], tmp_path / "cut.mp4", share)
    taken = take(path, want(24))
    num_there, num_decoded = (int(n) for n in re.match(CUT_WORDS, taken.finished.partial).groups())
    assert 40 < num_decoded < num_there < 60
    assert_only_frames_that_exist(path, taken, num_decoded)
    assert len(taken.rows[0]) - num_decoded <= 2, "frames that are missing at the end are not made up"


CUT_WORDS = r"(\d+) of the 96 frames that it should have are in it; (\d+) of \d+ frames could be decoded; 1 frames or packets are damaged"


@pytest.mark.parametrize("name", ["mkv", "webm"])
def test_matroska_cut_in_the_middle_is_noted(undamaged, tmp_path, name):
    path = cut_off(undamaged[name], tmp_path / f"cut.{name}", 0.6)
    taken = take(path, want(24))
    reached = float(re.match(r"it ends at ([\d.]+) s of the 4.00 that it should have", taken.finished.partial)[1])
    assert len(taken.rows[0]) / 24 == pytest.approx(reached, abs=0.15) and 2 < reached < 3
    assert_only_frames_that_exist(path, taken, len({row.tobytes() for row in taken.rows[0]}))


ZEROED = {"three frames": range(31, 34), "most of a group": range(26, 44), "one frame": [49]}


@pytest.mark.parametrize("which", ZEROED)
@pytest.mark.parametrize("name", ["mp4", "mkv", "webm"])
def test_zeroed_packets_are_noted_and_no_other_frame_takes_their_place(undamaged, tmp_path, name, which):
    path = zero_packets(undamaged[name], tmp_path / f"zeroed.{name}", ZEROED[which])
    taken = take(path, want(24))
    num_decoded, num_damaged = (int(n) for n in re.search(LOST_WORDS + "$", taken.finished.partial).groups())
    assert num_decoded <= 96 - len(ZEROED[which]) and num_damaged >= len(ZEROED[which])
    assert len(taken.rows[0]) == 96
    assert_only_frames_that_exist(path, taken, num_decoded)


LOST_WORDS = r"(\d+) of 96 frames could be decoded; (\d+) frames or packets are damaged, says the decoder"


@pytest.mark.parametrize("num_bytes", [2000, 8000])
def test_a_zeroed_run_in_the_middle_of_a_file(undamaged, tmp_path, num_bytes):
    middle = undamaged["mp4"].stat().st_size // 2
    path = zero_bytes(undamaged["mp4"], tmp_path / "zeroed.mp4", middle, middle + num_bytes)
    taken = take(path, want(24))
    num_decoded, _ = (int(n) for n in re.search(LOST_WORDS + "$", taken.finished.partial).groups())
    assert_only_frames_that_exist(path, taken, num_decoded)
    if backends.decord:
        with pytest.raises(NotTrusted):
            pictures_by("decord", probe_video(path), [48], np.arange(96))


def test_a_zeroed_run_in_the_middle_of_webm_is_noted(undamaged, tmp_path):
    middle = undamaged["webm"].stat().st_size // 2
    taken = take(zero_bytes(undamaged["webm"], tmp_path / "zeroed.webm", middle, middle + 8000), want(24))
    assert len({row.tobytes() for row in taken.rows[0]}) < 80
    assert re.search(r"it has no frames between \d+\.\d\d and \d+\.\d\d s", taken.finished.partial)


@pytest.mark.parametrize("num_packets", [20, 100])
def test_a_lost_start_gives_the_frames_from_the_next_key_frame_on(undamaged, tmp_path, num_packets):
    path = tmp_path / "lost.ts"
    path.write_bytes(undamaged["ts"].read_bytes()[188 * num_packets :])
    info = probe_video(path)
    assert not info.plain and not decord_reads_well(info, [Size(48)])
    taken = take(info, want(24))
    assert taken.finished.partial == f"72 of {len(info.pts)} frames could be decoded"
    assert_only_frames_that_exist(path, taken, 72)


@needs_decord
@pytest.mark.parametrize("numbers", ZEROED.values(), ids=ZEROED)
@pytest.mark.parametrize("name", ["mp4", "webm"])
def test_decord_is_not_believed_when_frames_are_lost(undamaged, tmp_path, name, numbers):
    info = probe_video(zero_packets(undamaged[name], tmp_path / f"zeroed.{name}", numbers))
    assert decord_reads_well(info, [Size(48)]), "its packets look well"
    with pytest.raises(NotTrusted, match="decord"):
        pictures_by("decord", info, [48], np.arange(96))


@needs_decord
def test_a_picture_that_stands_still_is_no_reason_to_mistrust_decord(tmp_path):
    path = constant(tmp_path / "still.mp4", 60, picture=lambda number: busy_picture(number // 20))
    taken = take(path, want(24), without=("PyAV",))
    assert taken.begun == ["decord"]
    assert len({row.tobytes() for row in taken.rows[0]}) >= 3


# What a decoder's process may take, and how it ends


def repeated(path: Path, num_frames: int, picture: np.ndarray) -> Path:
    """One picture's packet over and over: long to decode, and quick to write."""
    with av.open(str(path), "w", format="mp4") as written:
        stream = written.add_stream("libx264", rate=24, options={"preset": "ultrafast", "threads": "1", "bf": "0"})
        stream.height, stream.width = picture.shape[:2]
        stream.pix_fmt = "yuv420p"
        content = b"".join(
            bytes(p)
            for p in [*stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")), *stream.encode(None)]
        )
        for number in range(num_frames):
            packet = av.Packet(content)
            packet.stream, packet.time_base = stream, Fraction(1, 24)
            packet.pts = packet.dts = number
            packet.duration, packet.is_keyframe = 1, True
            written.mux(packet)
    return path


@pytest.fixture(scope="module")
def laborious(tmp_path_factory) -> Path:
    """Minutes of work in a small file."""
    return repeated(
        tmp_path_factory.mktemp("long") / "long.mp4", 6000, numbered_picture(0).repeat(20, axis=0).repeat(20, axis=1)
    )


@contextmanager
def child(monkeypatch, **constants: int) -> Iterator[DecodeProcess]:
    """The real child process, with other limits."""
    settings = [
        f"{'child' if name == 'MEMORY_BYTES' else 'answer'}.{name} = {value}" for name, value in constants.items()
    ]
    command = "; ".join(["from vlalign.extract.decoding import answer, child", *settings, "child.main()"])
    monkeypatch.setattr(decode_process, "COMMAND", command)
    process = DecodeProcess()
    try:
        yield process
    finally:
        process.close()


@pytest.mark.parametrize("without", [[], ["decord"]], ids=["", "no decord"])
def test_a_video_that_takes_too_much_processor_time_is_ended(laborious, monkeypatch, without):
    with child(monkeypatch, CPU_SECONDS=0, CPU_SECONDS_PER_SECOND=0) as process:
        ended = ask(process, laborious, want(24), without=without)
        assert ended.failure.kind == "timeout" and "processor time" in str(ended.failure)
        assert len(ended.rows) < 6000
        assert not process.usable


def test_processor_time_is_counted_for_each_video_anew(with_sound, monkeypatch):
    with child(monkeypatch, CPU_SECONDS=30, CPU_SECONDS_PER_SECOND=10) as process:
        limits = []
        for _ in range(2):
            assert ask(process, with_sound, want(24, 480)).failure is None
            (decoder,) = Path(f"/proc/{process._process.pid}/task/{process._process.pid}/children").read_text().split()
            limits.append(resource.prlimit(int(decoder), resource.RLIMIT_CPU)[0])
        used = sum(
            os.sysconf("SC_CLK_TCK") ** -1 * int(n) for n in Path(f"/proc/{decoder}/stat").read_text().split()[13:15]
        )
        assert all(30 + 24 <= limit <= 30 + 24 + used + 1 for limit in limits)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    return repeated(tmp_path_factory.mktemp("large") / "large.mp4", 6, np.zeros((4096, 6144, 3), dtype=np.uint8))


def test_pictures_that_take_too_much_memory_fail_and_do_not_hang(large, monkeypatch):
    with child(monkeypatch, MEMORY_BYTES=800 << 20) as process:
        ended = ask(process, large, want(1, 8000))
        assert (ended.failure.kind, ended.rows) == ("out_of_memory", [])
        assert len(ask(process, large, want(1, 48)).rows) == 1, "when small it is an ordinary one"


@pytest.mark.xfail(strict=True, reason="FFmpeg's decoder calls packets damaged for which it has no memory")
def test_frames_that_take_too_much_memory_are_not_called_damaged(large, monkeypatch):
    with child(monkeypatch, MEMORY_BYTES=400 << 20) as process:
        assert ask(process, large, want(24)).failure.kind == "out_of_memory"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def run_parent(lines: str, *arguments: object) -> subprocess.Popen:
    """A Python process of its own that has a DecodeProcess."""
    start = (
        "import os, signal, sys, time\nfrom pathlib import Path\nfrom vlalign.extract.decoding.decode import Wanted\n"
        "from vlalign.extract.decoding.process import DecodeProcess\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # where tests run in the background, it is ignored
        "def answer(process):\n"
        "    while (answer := type(process.receive()).__name__) == 'Beat': pass\n"
        "    return answer\n"
    )
    command = [sys.executable, "-c", start + textwrap.dedent(lines), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


HANGING = """
import time
from vlalign.extract.decoding import child
from vlalign.extract.decoding.decode import Started
def answer(request, answers):
    answers.send(Started("PyAV"))
    time.sleep(1000)
child.answer = answer
child.main()
"""


@pytest.mark.parametrize("hangs", [False, True], ids=["while it decodes", "while it hangs"])
def test_the_child_does_not_outlive_its_parent(laborious, hangs):
    parent = run_parent(
        """
        from vlalign.extract.decoding import process as decode_process
        decode_process.COMMAND = sys.argv[2] or decode_process.COMMAND
        process = DecodeProcess()
        process.start(Path(sys.argv[1]), [Wanted(24, 1, 48, None, "none")])
        answer(process)
        print(process._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        laborious,
        HANGING if hangs else "",
    )
    out, _ = parent.communicate(timeout=120)
    pid = int(out)
    deadline = time.monotonic() + 60
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    try:
        assert not alive(pid)
    finally:
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_does_not_disturb_the_child(with_sound):
    parent = run_parent(
        """
        process = DecodeProcess()
        process.start(Path(sys.argv[1]), [Wanted(24, 1, 480, None, "none")])
        what = answer(process)
        try:
            print(what, flush=True)
            while True:  # signal.pause() would wait for ever for a signal that came just before it
                time.sleep(0.01)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        while (what := answer(process)) != "Finished":
            process.receive_bytes()
        process._complaints.seek(0)
        print(what, process._complaints.read())
        process.close()
        """,
        with_sound,
    )
    assert parent.stdout.readline() == "Started\n"
    os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=120)
    assert (out, err) == ("interrupted\nFinished b''\n", "")


def test_ctrl_c_while_the_child_starts_prints_nothing_of_it():
    parent = run_parent(
        """
        process = DecodeProcess()
        try:
            print("ready", flush=True)
            while True:  # signal.pause() would wait for ever for a signal that came just before it
                time.sleep(0.01)
        except KeyboardInterrupt:
            process.close()
        """
    )
    assert parent.stdout.readline() == "ready\n"
    os.killpg(parent.pid, signal.SIGINT)
    _, err = parent.communicate(timeout=120)
    assert (parent.returncode, err) == (0, "")


def test_limits_that_the_machine_sets_itself_are_no_hindrance(with_sound):
    """As under a batch system. A superuser may lift them: that right is given up first."""
    parent = run_parent(
        """
        import ctypes, resource
        ctypes.CDLL(None).prctl(24, 24, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_SYS_RESOURCE: gone in the child
        resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        process = DecodeProcess()
        process.start(Path(sys.argv[1]), [Wanted(24, 1, 48, None, "none")], only_probe=True)
        print(answer(process))
        process.close()
        """,
        with_sound,
    )
    out, err = parent.communicate(timeout=120)
    assert (out, err) == ("PicturesProbed\n", "")


def test_a_child_is_replaced_after_many_videos(with_sound, monkeypatch):
    monkeypatch.setattr(decode_process, "VIDEOS_OF_A_CHILD", 2)
    with child(monkeypatch) as process:
        assert ask(process, with_sound, want(24), only_probe=True).finished.num_frames == [58] and process.usable
        assert ask(process, with_sound, want(1), only_probe=True).finished.num_frames == [2] and not process.usable


def test_only_probing_decodes_nothing(with_sound, process):
    probed = ask(process, with_sound, want(24), want(1), only_probe=True)
    assert (probed.begun, probed.rows) == ([], [])
    info = probe_video(with_sound)
    expected = {
        "codec": "h264",
        "width": WIDTH,
        "height": HEIGHT,
        "duration_seconds": info.duration_seconds,
        "missing": "",
    }
    assert {name: getattr(probed.finished, name) for name in expected} == expected


# Files that want to harm

SECRETS = ("secret.mp4", "secret.ts")
PLAYLISTS = {
    "m3u8": ("m3u8", "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, absolute": ("m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\n{folder}/secret.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, file address": (
        "m3u8",
        "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\nfile://{folder}/secret.ts\n#EXT-X-ENDLIST\n",
    ),
    "m3u8, address": ("m3u8", "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.6,\n{address}/a.ts\n#EXT-X-ENDLIST\n"),
    "m3u8, key": (
        "m3u8",
        '#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-KEY:METHOD=AES-128,URI="{address}/key"\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n',
    ),
    "m3u8, map": (
        "m3u8",
        '#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXT-X-MAP:URI="secret.mp4"\n#EXTINF:0.6,\nsecret.ts\n#EXT-X-ENDLIST\n',
    ),
    "m3u8, master": ("m3u8", "#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1000\n{address}/list.m3u8\n"),
    "ffconcat": ("ffconcat", "ffconcat version 1.0\nfile secret.mp4\n"),
    "ffconcat, absolute": ("ffconcat", "ffconcat version 1.0\nfile {folder}/secret.mp4\n"),
    "ffconcat, address": ("ffconcat", "ffconcat version 1.0\nfile {address}/a.mp4\n"),
    "sdp": ("sdp", "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 33\n"),
    "dash": (
        "mpd",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>{address}/a.mp4</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>",
    ),
    "dash, file": (
        "mpd",
        '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" mediaPresentationDuration="PT1S"><Period>'
        '<AdaptationSet mimeType="video/mp4"><Representation id="1" bandwidth="1"><BaseURL>secret.mp4</BaseURL>'
        "</Representation></AdaptationSet></Period></MPD>",
    ),
}


class Openings:
    """Which of some files are opened, by any process (inotify)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK)
        self._names = {self._libc.inotify_add_watch(self._file, os.fsencode(path), 0x20): path.name for path in paths}
        assert self._file >= 0 and -1 not in self._names, os.strerror(ctypes.get_errno())

    def since_last(self) -> set[str]:
        try:
            events = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return set()
        return {self._names[watch] for watch, _, _, _ in struct.iter_unpack("iIII", events)}

    def close(self) -> None:
        os.close(self._file)


class Listener:
    """Something on this machine that a playlist may name by its address."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._num_calls = 0
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            call, _ = self._socket.accept()
            with call:
                said = call.recv(4)
                if said == b"stop":
                    return
                self._num_calls += said != b"sync"

    def _say(self, what: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as call:
            call.sendall(what)
            call.recv(1)

    def num_calls(self) -> int:
        self._say(b"sync")  # calls are answered in turn: all earlier ones are counted by then
        return self._num_calls

    def close(self) -> None:
        self._say(b"stop")
        self._thread.join()
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def bait(with_sound, tmp_path) -> Path:
    """A folder with videos that nobody asked for."""
    shutil.copy(with_sound, tmp_path / "secret.mp4")
    remux(with_sound, tmp_path / "secret.ts", "mpegts", sound=False)
    return tmp_path


@pytest.fixture
def openings(bait) -> Iterator[Openings]:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells which files are opened")
    openings = Openings([bait / name for name in SECRETS])
    yield openings
    openings.close()


def write_playlist(folder: Path, listener: Listener, which: str, named: str = "") -> Path:
    ending, content = PLAYLISTS[which]
    path = folder / f"list.{named or ending}"
    values = {"folder": folder, "address": f"http://127.0.0.1:{listener.port}", "port": listener.port}
    path.write_text(content.format(**values))
    return path


@pytest.mark.parametrize("named", ["", "mp4"], ids=["by its name", "as mp4"])
@pytest.mark.parametrize("which", PLAYLISTS)
def test_playlists_are_refused_and_nothing_that_they_name_is_touched(
    bait, openings, listener, monkeypatch, with_sound, which, named
):
    path = write_playlist(bait, listener, which, named)
    monkeypatch.chdir(bait)
    # Each decoder too refuses it, had something else than the playlist been probed.
    info = replace(probe_video(with_sound), path=path)
    attempts = [
        lambda: probe_video(path),
        lambda: list(backends.pyav_pictures(Decoding(info, [Size(48)]), np.arange(60))),
        *(
            [lambda: list(backends.ffmpeg_pictures(Decoding(info, [Size(48)]), np.arange(60)))]
            if backends.ffmpeg_program()
            else []
        ),
        *([lambda: decord_reads_well(info, [Size(48)])] if backends.decord else []),
    ]
    for attempt in attempts:
        with pytest.raises(VideoError) as refused:
            attempt()
        assert refused.value.kind == "unreadable"
    assert openings.since_last() == set()
    assert listener.num_calls() == 0


def test_playlists_are_refused_by_the_child_process(bait, openings, listener, process):
    for which in PLAYLISTS:
        ended = ask(process, write_playlist(bait, listener, which, "mp4"), want(1))
        assert ended.failure.kind == "unreadable", which
    assert openings.since_last() == set() and listener.num_calls() == 0


def test_the_zoos_playlists_open_no_secret(process):
    folder = shared("zoo")
    openings, num_refused = Openings(sorted((folder / "secret").iterdir())), 0
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.read_bytes()[:7] in (b"#EXTM3U", b"ffconca"):
            assert ask(process, path, want(1)).failure.kind == "unreadable"
            num_refused += 1
    assert num_refused == 5
    assert openings.since_last() == set()
    openings.close()


def test_ffmpeg_left_to_itself_opens_what_a_playlist_names(bait, openings, listener):
    """So that the tests above have something to refuse, and see it."""
    for which, secret in (("ffconcat", "secret.mp4"), ("m3u8", "secret.ts")):
        with av.open(str(write_playlist(bait, listener, which))) as container:
            assert sum(1 for _ in container.decode(video=0)) >= 1
        assert openings.since_last() == {secret}
    assert listener.num_calls() == 0
    with pytest.raises(av.FFmpegError):
        av.open(
            str(write_playlist(bait, listener, "m3u8, address")), options={"protocol_whitelist": "file,http,tcp,crypto"}
        )
    assert listener.num_calls() > 0


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_trace_shows_that_only_the_file_itself_is_opened(bait, listener, tmp_path):
    if subprocess.run(["strace", "-o", tmp_path / "x", "true"], capture_output=True).returncode:
        pytest.skip("strace may not trace here")
    lists = [write_playlist(bait, listener, which, f"{place}.mp4") for place, which in enumerate(PLAYLISTS)]
    good = bait / "good.mp4"
    shutil.copy(bait / "secret.mp4", good)
    asked = [*lists, good]
    program = (
        "import sys\nfrom pathlib import Path\nfrom vlalign.extract.decoding.decode import Wanted, decode_video\n"
        "from vlalign.extract.decoding.probe import VideoError, probe_video\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        for _ in decode_video(probe_video(Path(path)), [Wanted(24, 1, 48, None, 'none')]): pass\n"
        "        print('played')\n"
        "    except VideoError as error: print(error.kind)\n"
    )
    trace = ["strace", "-f", "-y", "-e", "trace=open,openat,connect,socket", "-o", tmp_path / "trace"]
    done = subprocess.run(
        [*trace, sys.executable, "-c", program, *asked], capture_output=True, text=True, cwd=bait, check=True
    )
    assert done.stdout.split() == ["unreadable"] * len(lists) + ["played"]
    lines = (tmp_path / "trace").read_text().splitlines()
    opened = {
        name for line in lines if " = -1 " not in line for name in re.findall(r'open(?:at)?\([^"]*"([^"]*)"', line)
    }
    mine = {str(bait / name) for name in opened if (bait / name).is_relative_to(bait) and (bait / name).is_file()}
    assert mine == {str(path) for path in asked}
    assert not [line for line in lines if "AF_INET" in line]


@pytest.fixture(scope="module")
def other_video(tmp_path_factory) -> Path:
    return constant(
        tmp_path_factory.mktemp("other") / "other.mp4", 60, "25", picture=lambda number: numbered_picture(1000 + number)
    )


AWKWARD_NAMES = [
    *(
        "co:lon.mp4",
        "-dash id.mp4",
        "pct%03d.mp4",
        "with spaces .mp4",
        "ünï 视频.mp4",
        "qu'ote\".mp4",
        "new\nline.mp4",
        "back\\slash.mp4",
    ),
    *(
        "glob*[a]?.mp4",
        "-",
        "pipe:0",
        "concat:other.mp4",
        "file:other.mp4",
        "subfile,,start,0,end,0,,:other.mp4",
        "http:",
        "no ending",
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_awkward_names_mean_the_file_of_that_name(with_sound, other_video, tmp_path, monkeypatch, name, backend):
    shutil.copy(with_sound, tmp_path / name)
    shutil.copy(other_video, tmp_path / "other.mp4")
    monkeypatch.chdir(tmp_path)
    ((pictures,), _) = pictures_by(backend, probe_video(Path(name)), [HEIGHT], np.array([0, 1, 30]))
    assert numbers_of(pictures) == [0, 1, 30]


def test_names_that_are_no_text_do_not_end_the_child(with_sound, tmp_path, process):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.mp4"))
    shutil.copy(with_sound, path)
    ended = ask(process, path, want(24))
    assert ended.failure is None or ended.failure.kind == "unreadable"
    assert process.usable


def test_links_mean_what_they_point_to(with_sound, tmp_path):
    (tmp_path / "link.mp4").symlink_to(with_sound)
    assert numbers_of(take(tmp_path / "link.mp4", want(1)).frames) == numbers_of(take(with_sound, want(1)).frames)


# Limits


def declared(path: Path, height: int, width: int) -> Path:
    """A file that says that its frames are so large, and has next to nothing in it."""
    with av.open(str(path), "w", format="avi") as written:
        stream = written.add_stream("rawvideo", rate=24)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        packet = av.Packet(bytes(1000))
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 24)
        written.mux(packet)
    return path


def at_seconds(path: Path, *seconds: float) -> Path:
    return write_video(path, [round(1000 * s) for s in seconds], Fraction(1, 1000), container="matroska", bf="0")


def twice(path: Path) -> Path:
    constant(path, 60, container="mpegts")
    path.write_bytes(2 * path.read_bytes())
    return path


LIMITS = {
    "frames too large": (lambda path: declared(path, 6400, 8000), "too_large", "8000x6400"),
    "frames too wide": (lambda path: declared(path, 16, 16 * MAX_SIDE_RATIO + 2), "too_large", "162x16"),
    "frames too high": (lambda path: declared(path, 16 * MAX_SIDE_RATIO + 2, 16), "too_large", "16x162"),
    "one frame too long": (
        lambda path: at_seconds(path, 0, 1, 302, 303),
        "bad_times",
        "one of its 4 frames would be shown for 301 s",
    ),
    "all too long": (lambda path: at_seconds(path, *range(0, 43600, 200)), "too_long", "12.1 h; at most 12 h"),
    "times that jump back": (twice, "bad_times", "its clock jumps back by [23] s"),
}


@pytest.mark.parametrize("make, kind, words", LIMITS.values(), ids=LIMITS)
def test_what_is_beyond_the_limits_fails_before_it_is_decoded(tmp_path, make, kind, words):
    with pytest.raises(VideoError, match=words) as failed:
        probe_video(make(tmp_path / "beyond"))
    assert failed.value.kind == kind


def test_what_is_just_within_the_limits_is_taken(tmp_path):
    assert declared(tmp_path / "large", 5000, MAX_PIXELS // 5000) and probe_video(tmp_path / "large").height == 5000
    assert probe_video(declared(tmp_path / "wide", 16, 16 * MAX_SIDE_RATIO)).width == 160
    taken = take(at_seconds(tmp_path / "long", 0, 1, 300, 301), want(1))
    assert numbers_of(taken.frames) == [0, *[1] * 299, 2]
    assert probe_video(at_seconds(tmp_path / "very long", *range(0, 43100, 200))).duration_seconds == pytest.approx(
        43000.04, abs=0.01
    )


def test_libswscales_bicubic_is_that_of_the_ffmpeg_program(recordings):
    """The kernel of features that ffmpeg's default made: nearer to the program's pictures than the bilinear one is."""
    info = probe_video(recordings["25"])
    wanted = np.arange(3)
    sizes = [Size(48, LIBSWSCALE_BICUBIC), Size(48)]
    made = [
        np.stack(same)
        for same in zip(*(p for _, p in backends.pyav_pictures(Decoding(info, sizes), wanted)), strict=True)
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
