"""Frames by NVIDIA's video engine (NVDEC), through torchcodec, for profiles whose ``decoding`` is "nvdec".

Frames differ slightly from other decoders' frames: a GPU rounds differently when it converts to RGB, and frames are
scaled after the conversion, where FFmpeg's kernels scale before it. The engine is used for a file only if a few of its
first frames nearly equal the CPU's. Like torchcodec on a CPU, it does not report damage.

CUDA opens devices and libraries while it decodes, and reserves large address ranges. Its process is therefore not
confined, unlike all other decoders' processes.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import av
import numpy as np

from ...storage.common.packages import EXTRAS, install_command
from ...storage.common.system import limit
from .container import first_frame
from .errors import DecoderRejected, short_reason
from .frames import DecodePass, Images
from .kernels import PILLOW, Size
from .probe import VideoInfo
from .pyav_backend import decode_with_pyav
from .scaling import TURNS, Scaler, upright_filters
from .torchcodec_backend import (
    GROWING_CONTAINERS,
    PLAIN_FORMATS,
    addresses_bytes,
    failures_as_distrust,
    has_torchcodec,
    load,
    open_decoder,
    rgb_frames,
    torchcodec_version,
)

MAX_DIFFERENCE = 1.0
"""Maximum mean absolute difference, out of 255, between a frame and the CPU's, both in RGB of the video's own size. The
matrix of another standard changes saturated frames by more, and full instead of limited range changes all by 5 to 20.
"""
MAX_COMPARED_FRAMES, COMPARED_SECONDS = 4, 2.0
"""Maximum number of compared frames, and the length of the part at the start that they come from."""


class Engine(NamedTuple):
    """The GPU whose video engine decodes in this process."""

    device: str
    refusal: str
    """Reason why the GPU cannot be used; empty if it can."""


_engine: Engine | None = None


def use(device: str, memory_bytes: int) -> bool:
    """Load the libraries for decoding on a GPU, in the process that decodes. Its parent must not have used CUDA.

    Args:
        device: "cuda" or "cuda:N".
        memory_bytes: Address space that decoding may take if the GPU cannot be used.

    Returns:
        Whether the GPU can be used. If not, each video's ``DecoderRejected`` gives the reason.
    """
    global _engine
    refusal = _load(device, memory_bytes)
    _engine = Engine(device, refusal)
    return not refusal


def _load(device: str, memory_bytes: int) -> str:
    if not has_torchcodec():
        return f"torchcodec is not installed; install it with: {install_command(*EXTRAS['torchcodec'])}"
    if not load(memory_bytes):
        return "FFmpeg's shared libraries are not installed; see vlalign doctor"
    limit("RLIMIT_AS", None)
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        limit("RLIMIT_AS", addresses_bytes() + memory_bytes)
        return f"{device} is not available ({str(error).splitlines()[0]})"
    return ""


def is_in_use() -> bool:
    """Return whether this process was asked to decode on a GPU, whether it can or not."""
    return _engine is not None


def nvdec_version() -> str:
    """Return the name of this decoder with torchcodec's version."""
    return f"NVDEC, torchcodec {torchcodec_version()}"


def decode_with_nvdec(decoding: DecodePass, wanted: np.ndarray) -> Iterator[tuple[int, Images]]:
    """Yield (index, images) for each wanted frame, like ``decode_with_pyav``.

    Raises:
        DecoderRejected: The engine cannot be used for the file, or its frames differ from the CPU's.
    """
    info = decoding.info
    if refusal := refusal_of(info):
        raise DecoderRejected(refusal)
    assert _engine is not None  # else there is a refusal
    scalers = [Scaler(size) for size in decoding.sizes]
    with failures_as_distrust():
        decoder = open_decoder(info, _engine.device)
        compared = frames_to_compare(info, wanted)
        first_frames = [frame for _, frame in rgb_frames(decoder, decoding, compared)]
        if decoder.cpu_fallback:  # known once a frame was decoded
            raise DecoderRejected(short_reason(RuntimeError(str(decoder.cpu_fallback))))
        check_near(first_frames, frames_of_cpu(decoding, compared))
        for index, rgb in rgb_frames(decoder, decoding, wanted):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(rgb), format="rgb24")
            yield index, [scaler(frame, ()) for scaler in scalers]
    decoding.delivered = array("q", info.pts.tolist())


def refusal_of(info: VideoInfo) -> str:
    """Return the reason for not trying a file, from its packets and first frame; empty if there is none."""
    if _engine is None or _engine.refusal:
        return "no GPU was asked for" if _engine is None else _engine.refusal
    if not info.timed or info.missing:
        return "parts of it are missing" if info.missing else "its frames have no times"
    if info.containers & GROWING_CONTAINERS:
        return "streams may appear late in its container, which torchcodec does not survive"
    first = first_frame(info.path)
    if first is None or first.format.name not in PLAIN_FORMATS:
        return (
            f"its frames are {first.format.name if first else 'damaged'}; expected {' or '.join(sorted(PLAIN_FORMATS))}"
        )
    if upright_filters(first) not in TURNS:
        return "it is mirrored, or rotated by an angle other than 90, 180 or 270 degrees"
    return "it is interlaced" if first.interlaced_frame else ""


def frames_to_compare(info: VideoInfo, wanted: np.ndarray) -> np.ndarray:
    """Return the indices of the frames to compare with the CPU's: some of ``wanted``, spread over the video's start."""
    seconds = (info.pts[wanted] - info.pts[wanted[0]]) * float(info.time_base)
    early = wanted[seconds <= COMPARED_SECONDS]
    return early[np.unique(np.linspace(0, len(early) - 1, MAX_COMPARED_FRAMES).astype(int))]


def frames_of_cpu(decoding: DecodePass, indices: np.ndarray) -> list[np.ndarray]:
    """Return frames by PyAV, in RGB of the video's own size."""
    info = decoding.info
    own_size = Size(min(info.height, info.width), PILLOW)
    return [
        images[0] for _, images in decode_with_pyav(DecodePass(info, [own_size], heartbeat=decoding.heartbeat), indices)
    ]


def check_near(frames: Sequence[np.ndarray], frames_of_cpu: Sequence[np.ndarray]) -> None:
    """Compare frames with the CPU's frames.

    Raises:
        DecoderRejected: Their numbers or shapes differ, or a frame differs by more than ``MAX_DIFFERENCE``.
    """
    if [frame.shape for frame in frames] != [frame.shape for frame in frames_of_cpu]:
        raise DecoderRejected("its first frames differ in number or size from the CPU's")
    for frame, expected in zip(frames, frames_of_cpu, strict=True):
        difference = np.abs(frame.astype(np.int16) - expected).mean()
        if difference > MAX_DIFFERENCE:
            raise DecoderRejected(
                f"a frame is {difference:.1f} of 255 from the CPU's on average; expected at most {MAX_DIFFERENCE:g}"
            )
