"""Pictures out of video files: three decoders that give the same ones.

PyAV comes first, and says what was damaged. Where it fails, decord is tried on what it reads well (``decord_reads_well``): it is wrong in
silence on some of the rest. Then the ffmpeg program, where there is one: it may be another version, with other codecs.
Each decodes the frames in order; all scale them with FFmpeg's ``scale`` filter and ``flags=bilinear``, but for the sizes that are
wanted with Pillow's bicubic kernel: those are made of the frame in RGB at its own size. Images are decoded by Pillow, and scaled alike.
"""

import os
import shutil
import subprocess
import tempfile
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import BinaryIO, NamedTuple

import av
import ffmpeg
import numpy as np
from PIL import Image

from . import sandbox
from .images import read_image
from .probe import SAFE_OPENING, VideoError, VideoInfo, open_video, video_stream, words_of
from .sampling import scaled_size

try:
    import decord
except ImportError:  # no build for this processor
    decord = None

DECORD_CONTAINERS = {"mov", "mp4", "matroska", "webm"}
DECORD_CODECS = {"h264", "vp8", "vp9"}
FRAMES_AT_ONCE = 16
LOGGING_CODECS = {"hevc"}
"""Their decoders mark no frame as damaged, and only log what they find."""
STRICT_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
SKIPPING_CODECS = {"h264", "hevc", "mpeg4", "mpeg2video"}
"""Their decoders pass over frames that nothing refers to, and leave the others as they are."""
STILL_PACKET_SHARE, STILL_PACKET_BYTES = 0.1, 100
"""A frame that repeats the one before takes next to nothing to encode: this share of the median packet, or this many bytes."""
TRANSPOSE = {90: ("transpose", "cclock"), 180: ("hflip", ""), 270: ("transpose", "clock")}
LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW = "bilinear, libswscale", "bicubic, libswscale", "bicubic, Pillow"
KERNELS = LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW
"""What ``Profile.resize`` may be."""


class NotTrusted(Exception):
    """What a decoder gave cannot be what the file holds."""


class Size(NamedTuple):
    """Pixels of a picture's shorter side, and the kernel that brings it there."""

    short_side_px: int
    resize: str = LIBSWSCALE


@dataclass(kw_only=True)
class Tally:
    """How decoding goes."""

    beat: Callable[[], None] = lambda: None
    """Called for each frame that was decoded."""
    num_damaged: int = 0
    """Frames that the decoder itself calls corrupt, and packets that it could not read."""


@dataclass
class Decoding(Tally):
    """One pass over a video's frames."""

    info: VideoInfo
    sizes: list[Size]
    """In which pictures are wanted."""
    strict: bool = True
    """Whether a decoder that refuses damaged frames is used where there is one; else damaged frames are shown as far as they go."""
    delivered: array = field(default_factory=lambda: array("q"))
    """The times, in ticks, of the frames that came, as far as they were looked at."""

    def count(self, time: int) -> None:
        self.delivered.append(time)
        self.beat()


# An upright picture, uint8 [H, W, 3] RGB, in each of the sizes.
Pictures = list[np.ndarray]


class _Scaler:
    """FFmpeg's scale filter for frames of one size and format, made anew where those change within a video; then Pillow, where wanted.
    Its pictures keep the size that the first frame gives them, as the ffmpeg program's do."""

    def __init__(self, size: Size) -> None:
        if size.resize not in KERNELS:
            raise ValueError(f"resize {size.resize!r} is not known")
        self.size = size
        self.shape: tuple[int, int] | None = None
        self._made_for: tuple | None = None

    def see(self, frame: av.VideoFrame, upright_degrees: int) -> None:
        """Called with each frame, wanted or not; the first one settles the height and width of the pictures."""
        if self.shape is None:
            turned = (frame.width, frame.height) if upright_degrees in (90, 270) else (frame.height, frame.width)
            self.shape = scaled_size(*turned, self.size.short_side_px)

    def __call__(self, frame: av.VideoFrame, upright_degrees: int) -> np.ndarray:
        self.see(frame, upright_degrees)
        made_for = (frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range, upright_degrees)
        if made_for != self._made_for:
            self._make(frame, upright_degrees)
            self._made_for = made_for
        frame.pts = None  # times are kept elsewhere; ones that jump back would stop the filter
        self._graph.push(frame)
        picture = self._graph.pull().to_ndarray()
        if self.size.resize != PILLOW:
            return picture
        height, width = self.shape
        return np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BICUBIC))

    def _make(self, frame: av.VideoFrame, upright_degrees: int) -> None:
        turned = (frame.width, frame.height) if upright_degrees in (90, 270) else (frame.height, frame.width)
        height, width = turned if self.size.resize == PILLOW else self.shape
        self._graph = graph = av.filter.Graph()
        graph.threads = 1
        source = {
            "video_size": f"{frame.width}x{frame.height}",
            "pix_fmt": frame.format.name,
            "time_base": "1/1000",
            "colorspace": str(int(frame.colorspace)),
            "range": str(int(frame.color_range)),
        }
        steps = [
            graph.add("buffer", **source),
            *([graph.add(*TRANSPOSE[upright_degrees])] if upright_degrees else []),
            *([graph.add("vflip")] if upright_degrees == 180 else []),
            graph.add(
                "scale", f"{width}:{height}:flags={'bicubic' if self.size.resize == LIBSWSCALE_BICUBIC else 'bilinear'}"
            ),
            graph.add("format", "rgb24"),
            graph.add("buffersink"),
        ]
        graph.link_nodes(*steps).configure()


# PyAV


def pyav_pictures(decoding: Decoding, wanted: np.ndarray) -> Iterator[tuple[int, Pictures]]:
    """(index, pictures) for each of ``wanted``, ascending indices into ``info.pts``. Frames that nothing refers to and that are
    not wanted are not decoded. Those that do not come are left out: ``delivered`` tells. Raises ``VideoError``."""
    info = decoding.info
    strict, colours = _strict_decoder(info) if decoding.strict else (None, None)
    with open_video(info.path) as container:
        yield from _frames_in_order(
            decoding, wanted, container, info.time_base, info.offset, skip=info.timed, colours=colours, context=strict
        )


def _strict_decoder(info: VideoInfo) -> tuple[av.CodecContext | None, tuple[int, int] | None]:
    """libvpx, which refuses frames that end before or after their data do, where FFmpeg's own decoder shows whatever comes of them; and
    the colours that FFmpeg's decoder finds. None, None where libvpx does not know the format, or is not in this FFmpeg."""
    if info.codec not in STRICT_DECODERS:
        return None, None
    with open_video(info.path) as container:
        try:
            first = next(container.decode(video_stream(container)), None)
            strict = av.CodecContext.create(STRICT_DECODERS[info.codec], "r")
        except (av.FFmpegError, ValueError):
            return None, None
    if first is None or first.rotation or first.format.name != "yuv420p":
        return None, None
    return strict, (int(first.colorspace), int(first.color_range))


def _frames_in_order(
    decoding: Decoding,
    wanted: np.ndarray,
    container: av.container.InputContainer,
    time_base: Fraction,
    offset: int,
    *,
    skip: bool,
    colours: tuple[int, int] | None = None,
    context: av.CodecContext | None = None,
) -> Iterator[tuple[int, Pictures]]:
    """``colours``: matrix and range, where the frames themselves do not say. ``context``: a decoder other than FFmpeg's choice."""
    info, scalers = decoding.info, [_Scaler(size) for size in decoding.sizes]
    known = info.timed or info.delayed
    wanted_indices = {int(info.pts[i]): i for i in wanted.tolist()} if known else {i: i for i in wanted.tolist()}
    last_wanted = max(wanted_indices, default=-1)
    step = int(info.end - info.pts[-1])

    def in_ticks(time: int) -> int:
        return round((time - offset) * time_base / info.time_base) if time_base != info.time_base else time - offset

    stream = video_stream(container)
    context = context or stream.codec_context
    context.thread_count = 1
    context.options = {"err_detect": "crccheck"}  # checksums of frames and slices, where the encoder wrote any
    skip = skip and info.codec in SKIPPING_CODECS and len(wanted) < len(info.pts)
    for frame in decoded_frames(decoding, container, stream, set(wanted_indices) if skip else None, offset, context):
        if info.timed:
            if frame.pts is None:
                continue
            time = in_ticks(frame.pts)
        elif info.delayed:
            # What comes after the last packet follows at the usual step.
            time = (
                in_ticks(frame.dts)
                if frame.dts is not None
                else decoding.delivered[-1] + step
                if decoding.delivered
                else 0
            )
        else:
            time = len(decoding.delivered)
        if frame.is_corrupt:
            decoding.num_damaged += 1
        decoding.count(time)
        degrees = frame.rotation % 360 if frame.rotation % 360 in TRANSPOSE else 0
        for scaler in scalers:
            scaler.see(frame, degrees)
        if (index := wanted_indices.pop(time, None)) is not None:
            if colours:
                frame.colorspace, frame.color_range = colours
            yield index, [scaler(frame, degrees) for scaler in scalers]
        if time >= last_wanted and not wanted_indices:
            # A frame that others were made from may be shown after them: whether it is damaged, it says itself.
            decoding.num_damaged += sum(frame.is_corrupt for frame in _flushed(decoding, context))
            return


def decoded_frames(
    tally: Tally,
    container: av.container.InputContainer,
    stream: av.video.stream.VideoStream | av.audio.stream.AudioStream,
    needed: set[int] | None = None,
    offset: int = 0,
    context: av.CodecContext | None = None,
) -> Iterator[av.VideoFrame | av.AudioFrame]:
    """The frames of a stream in order; a packet that cannot be decoded is counted and passed over. ``needed``: times; frames at other times
    are left out where the decoder finds that no other frame refers to them."""
    context = context or stream.codec_context
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except (av.FFmpegError, ValueError, UnicodeError):
            tally.num_damaged += 1  # the rest of the file cannot be read
            packet = None
        if packet is None or packet.size == 0:
            yield from _flushed(tally, context)
            if packet is None:
                return
            continue
        if needed is not None and packet.pts is not None:
            context.skip_frame = "DEFAULT" if packet.pts - offset in needed else "NONREF"
        try:
            with _errors_of(context) as errors:
                frames = context.decode(packet)
            tally.num_damaged += bool(errors)
        except MemoryError as error:
            raise VideoError("out_of_memory", words_of(error)) from None
        except (av.FFmpegError, ValueError, UnicodeError, AttributeError, IndexError):  # all seen with damaged files
            tally.num_damaged += 1
            tally.beat()
            continue
        yield from frames


@contextmanager
def _errors_of(context: av.CodecContext) -> Iterator[list]:
    """The errors that a decoder of ``LOGGING_CODECS`` logs meanwhile; of other decoders none."""
    if context.name not in LOGGING_CODECS:
        yield []
        return
    av.logging.set_level(av.logging.ERROR)
    try:
        with av.logging.Capture() as errors:
            yield errors
    finally:
        av.logging.set_level(None)


def _flushed(tally: Tally, context: av.CodecContext) -> list[av.VideoFrame | av.AudioFrame]:
    try:
        return context.decode(None)
    except EOFError:
        return []
    except (av.FFmpegError, ValueError):
        tally.num_damaged += 1
        return []


# decord


def decord_reads_well(info: VideoInfo, sizes: list[Size]) -> bool:
    """Whether decord may be trusted with a file, by its packets and its first frame; it scales to one size, in its own way."""
    if decord is None or info.codec not in DECORD_CODECS or not info.containers & DECORD_CONTAINERS:
        return False
    if [size.resize for size in sizes] != [LIBSWSCALE] or not info.timed or not info.plain or info.missing:
        return False
    steps = np.diff(info.pts)
    if len(steps) and steps.max() > 1.5 * np.median(steps):
        return False
    with open_video(info.path) as container:
        try:
            first = next(container.decode(video_stream(container)), None)
        except (av.FFmpegError, ValueError):
            return False
        return first is not None and first.rotation == 0 and first.format.name in ("yuv420p", "yuvj420p")


def decord_pictures(decoding: Decoding, wanted: np.ndarray) -> Iterator[tuple[int, Pictures]]:
    """As ``pyav_pictures``, in one size. Raises ``NotTrusted`` where decord's idea of the file is not that of its packets."""
    info = decoding.info
    height, width = scaled_size(info.height, info.width, decoding.sizes[0].short_side_px)
    try:
        reader = decord.VideoReader(str(info.path.absolute()), num_threads=1, height=height, width=width)
        if len(reader) != len(info.pts):
            raise NotTrusted(f"decord finds {len(reader)} frames, the packets are {len(info.pts)}")
        _compare_times(reader, info)
        still = max(STILL_PACKET_SHARE * np.median(info.packet_bytes), STILL_PACKET_BYTES)
        before = (-2, None)
        for first in range(0, len(wanted), FRAMES_AT_ONCE):
            indices = wanted[first : first + FRAMES_AT_ONCE]
            for index, picture in zip(indices.tolist(), reader.get_batch(indices).asnumpy(), strict=True):
                # decord shows the frame before where it cannot decode one, and says nothing.
                if before[0] == index - 1 and info.packet_bytes[index] > still and np.array_equal(picture, before[1]):
                    raise NotTrusted(f"decord repeats frame {index - 1} in place of frame {index}")
                before = (index, picture)
                decoding.beat()
                yield index, [picture]
    except (decord.DECORDError, RuntimeError, UnicodeError) as error:
        raise NotTrusted(f"decord: {words_of(error)}") from None
    decoding.delivered = array("q", info.pts.tolist())


def _compare_times(reader: "decord.VideoReader", info: VideoInfo) -> None:
    """decord's own times of the frames, from the first one on, against the packets'."""
    seconds = reader.get_frame_timestamp(np.arange(len(info.pts)))[:, 0].astype(float)
    expected = info.pts.astype(float) * float(info.time_base)
    worst = np.abs((seconds - seconds[0]) - (expected - expected[0])).max()
    if worst > 0.5 * info.duration_seconds / len(info.pts):
        raise NotTrusted(f"decord's times are up to {worst:.2f} s off")


# The ffmpeg program


COMPLAINTS = ("[error]", "[fatal]", "corrupt decoded frame")
MOST_COMPLAINTS_BYTES = 1 << 20


def ffmpeg_program() -> str | None:
    return shutil.which("ffmpeg")


def _apart() -> dict[str, object]:
    """How the program is started: as one that starts no other, ends with this process, and is told what it cannot write."""
    return {"preexec_fn": partial(sandbox.confine_program, os.getpid()), "restore_signals": False}


def _memory_file() -> BinaryIO:
    return os.fdopen(os.memfd_create("complaints"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile()


def ffmpeg_version() -> str:
    answer = subprocess.run(
        ["ffmpeg", "-version"], capture_output=True, text=True, check=False, **_apart()
    ).stdout.split()
    return answer[2] if len(answer) > 2 else "unknown"


def ffmpeg_pictures(decoding: Decoding, wanted: np.ndarray) -> Iterator[tuple[int, Pictures]]:
    """As ``pyav_pictures``: the program hands its decoded frames on with their times, in a NUT stream of raw video."""
    with open_video(decoding.info.path) as original:
        context = video_stream(original).codec_context
        colours = int(context.colorspace), int(context.color_range)  # NUT does not hand them on
    command = (
        ffmpeg.input(f"file:{decoding.info.path}", **SAFE_OPENING)["V:0"]
        .output("pipe:1", format="nut", vcodec="rawvideo", fps_mode="passthrough", enc_time_base=-1)
        .global_args("-v", "level+warning", "-nostdin", "-threads", "1")
        .compile()
    )
    complaints = _memory_file()
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, **_apart())
    try:
        with av.open(program.stdout, format="nut") as container:
            time_base = Fraction(video_stream(container).time_base)
            yield from _frames_in_order(decoding, wanted, container, time_base, 0, skip=False, colours=colours)
        complaints.seek(0)
        lines = complaints.read(MOST_COMPLAINTS_BYTES).decode(errors="replace").splitlines()
        decoding.num_damaged += sum(any(words in line for words in COMPLAINTS) for line in lines)
    except (av.FFmpegError, ValueError) as error:
        raise VideoError("unreadable", f"the ffmpeg program gives nothing for it ({words_of(error)})") from None
    finally:
        program.stdout.close()
        program.kill()
        program.wait()
        complaints.close()


# Pillow


def pillow_pictures(decoding: Decoding, wanted: np.ndarray) -> Iterator[tuple[int, Pictures]]:
    """As ``pyav_pictures``, of an image: its one frame. Raises ``VideoError``."""
    frame = av.VideoFrame.from_ndarray(read_image(decoding.info.path), "rgb24")
    decoding.count(0)
    yield 0, [_Scaler(size)(frame, 0) for size in decoding.sizes]
