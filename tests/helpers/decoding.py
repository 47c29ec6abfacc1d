"""Decoding in tests: what is wanted, videos whose frames say which they are, and the ffmpeg program to compare with."""

import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from ctypes.util import find_library
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from vlalign.extract.decoding import backends, torchcodec_backend
from vlalign.extract.decoding.decode import DecodedThumbnail, DecodingFinished, DecodingStarted, decode_video
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import LIBSWSCALE, Size
from vlalign.extract.decoding.messages import LAST, Message, Request, ThumbnailFollows, VideoProbed, WindowReady
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.sampling import FrameSpec, Window, sample_frames

from helpers.needs import PACKAGE, needs_program, shared, skip_without
from helpers.numbered import HEIGHT, WIDTH, numbers_of
from helpers.rates import FPS
from helpers.zoo import VIDEOS

needs_decord = skip_without(PACKAGE, [] if backends.decord else ["decord"])


needs_torchcodec = skip_without(
    PACKAGE,
    [
        *([] if torchcodec_backend.has_torchcodec() else ["torchcodec"]),
        *([] if find_library("avcodec") else ["FFmpeg's shared libraries"]),
    ],
)


BACKENDS = [pytest.param("decord", marks=needs_decord), "pyav", pytest.param("ffmpeg", marks=needs_program)]


MAX_DIFFERENCE = 0.5
"""Mean absolute difference, of 255, that two versions of FFmpeg may show in one picture. Measured: 0."""


def want(
    fps: int,
    short_side_px: int = 48,
    window: int = 1,
    crop_px: int | None = None,
    tail: str = "none",
    resize: str = LIBSWSCALE,
    stride: int | None = None,
) -> FrameSpec:
    return FrameSpec(fps, window, short_side_px, crop_px, tail, resize, stride)


@dataclass
class Taken:
    """What came of a video."""

    rows: list[list[np.ndarray]]
    """For each profile."""
    finished: DecodingFinished
    pictures: list[DecodedThumbnail]
    begun: list[str]
    """The decoders that began, the one that finished last."""

    @property
    def frames(self) -> np.ndarray:
        return np.stack(self.rows[0])


def take(source: Path | VideoInfo, *specs: FrameSpec, excluded_decoders: tuple[str, ...] = ()) -> Taken:
    info = source if isinstance(source, VideoInfo) else probe_video(source)
    begun = []
    for part in decode_video(info, list(specs), excluded_decoders=excluded_decoders):
        if isinstance(part, DecodingStarted):
            rows, pictures = [[] for _ in specs], []
            begun.append(part.decoder)
        elif isinstance(part, Window):
            rows[part.spec_index].append(part.frames.copy())
        elif isinstance(part, DecodedThumbnail):
            pictures.append(part)
    return Taken(rows, part, pictures, begun)


def by_program(path: Path, height: int, width: int, *rates: int | None) -> list[np.ndarray]:
    """The pictures that the ffmpeg program gives to published extractors, [T, H, W, 3], for each of ``rates`` in frames
    a second; None: every frame, once."""
    return several_by_program([path], height, width, *rates)[0]


def several_by_program(paths: Sequence[Path], height: int, width: int, *rates: int | None) -> list[list[np.ndarray]]:
    """As ``by_program``, for each of ``paths``; the program takes long to start. It is called as ffmpeg-python calls
    it."""
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
    assert differences(pictures, others).max() <= MAX_DIFFERENCE


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


# Decoders agree


MADE_UP = ("ok_h264.mp4", "h264.mkv", "mpeg4.avi", "frag.mp4", "vp9.webm")
"""Videos of ``tests/videos`` that stand for any."""


REAL = {
    f"{folder}/{name}": f"data/{folder}/{name}"
    for folder, names in {
        "msrvtt/videos": [f"video{i}.mp4" for i in range(7010, 7015)],
        "msvd/videos": ["3qqEKTPxLNs_1_15.avi", "WTf5EgVY5uU_124_128.avi", "j2Dhf-xFUxU_13_20.avi"],
        "features/bmt": ["women_long_jump.mp4"],
    }.items()
    for name in names
}


def any_video(name: str) -> Path:
    """Return the file of a name in ``MADE_UP`` or ``REAL``; the test is skipped where a real one is not there."""
    return VIDEOS / name if name in MADE_UP else shared(REAL[name])


def pictures_by(
    backend: str, info: VideoInfo, sizes: list[int] | list[Size], wanted: np.ndarray
) -> tuple[list[np.ndarray], DecodePass]:
    """The pictures of ``wanted``, in each size (short sides in pixels, by FFmpeg's kernel), and how the pass went."""
    decoding = DecodePass(info, [size if isinstance(size, Size) else Size(size) for size in sizes])
    indices, pictures = zip(*getattr(backends, f"decode_with_{backend}")(decoding, wanted), strict=True)
    assert list(indices) == wanted.tolist()
    return [np.stack([of_frame[place] for of_frame in pictures]) for place in range(len(sizes))], decoding


def chosen(path: Path, fps: int) -> np.ndarray:
    info = probe_video(path)
    return sample_frames(info.pts, info.end, info.time_base, fps)


# Through the child process


@dataclass
class Ended:
    """How a video ended that a child process decoded."""

    rows: list[np.ndarray]
    begun: list[str]
    finished: DecodingFinished | VideoProbed | None = None
    failure: VideoError | None = None
    wanted: list[int] = field(default_factory=list)
    """For each of ``rows``, which of the wanted pictures it has."""


def ask(process: DecodeProcess, path: Path, *specs: FrameSpec, **how) -> Ended:
    process.start(Request(str(path), list(specs), **how))
    return listen(process)


def listen(process: DecodeProcess) -> Ended:
    ended = Ended([], [])
    try:
        while ended.finished is None:
            message = process.receive()
            if isinstance(message, DecodingStarted):
                ended.rows, ended.wanted, ended.begun = [], [], [*ended.begun, message.decoder]
            elif isinstance(message, WindowReady):
                ended.wanted.append(message.spec_index)
                ended.rows.append(np.empty(message.shape, dtype=np.uint8))
                process.take_frames(message, ended.rows[-1])
            elif isinstance(message, ThumbnailFollows):
                assert process.receive_bytes()[:2] == b"\xff\xd8"
            elif isinstance(message, DecodingFinished | VideoProbed):
                ended.finished = message
    except VideoError as error:
        ended.failure = error
    return ended


def answers(
    process: DecodeProcess, path: Path, resize: str = LIBSWSCALE, **asked: object
) -> VideoError | list[Message]:
    """What comes of one frame a second of a video."""
    process.start(Request(str(path), [want(1, resize=resize)], **asked))
    came = []
    try:
        while not came or not isinstance(came[-1], LAST):
            came.append(process.receive())
            if isinstance(came[-1], WindowReady):
                process.take_frames(came[-1], np.empty(came[-1].shape, dtype=np.uint8))
            elif isinstance(came[-1], ThumbnailFollows):
                process.receive_bytes()
    except VideoError as error:
        return error
    return came


def children_of(process_id: int) -> list[int]:
    """The process ids of its children."""
    return [int(child) for child in Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()]


ZOO_SIDE = 32
