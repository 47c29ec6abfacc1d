"""Rates of what keeps a GPU busy, for ``measure.py``: decoding, networks, both together, and any call."""

import contextlib
import itertools
import math
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest import mock

import av
import numpy as np
import torch
from helpers.videos import encode_frames
from limits import WHOLE_FRAME
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.messages import WindowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.extractor import Extractor
from vlalign.extract.pipeline.engine import extract_with_pauses, num_decode_processes
from vlalign.extract.pipeline.video_jobs import VideoJob
from vlalign.storage.common.system import available_cores

SIZES = {"240p": (320, 240), "480p": (854, 480), "1080p": (1920, 1080)}
VIDEO_FPS, PART_SECONDS = 30, 2
FEWEST = 4
"""Calls or batches between which a rate is measured, at least."""
FEWEST_WINDOWS = 16
"""Windows of each decoder in a rate, at least: all may send at the same moment, and one more or less is 1 of 16."""


def seconds_of(extractor: Extractor, num_windows: int) -> float:
    """Return how long a video with so many windows is."""
    profile = extractor.profile
    return (profile.window + (num_windows - 1) * (profile.stride or profile.window)) / profile.fps


def make_video(folder: Path, size: str, seconds: float) -> Path:
    """Write a video of moving blocks, of at least so many seconds, unless it is there."""
    width, height = SIZES[size]
    num_parts = math.ceil(seconds / PART_SECONDS)
    path = folder / f"{size}-{PART_SECONDS * num_parts}s.mp4"
    if not path.exists():
        blocks = np.random.default_rng(0).integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        picture = blocks.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]
        part, partial = folder / f"{size}.part.mp4", path.with_suffix(".partial.mp4")
        encode_frames(part, (np.roll(picture, 3 * n, axis=1) for n in range(VIDEO_FPS * PART_SECONDS)), VIDEO_FPS)
        repeat_packets(part, partial, num_parts)
        part.unlink()
        partial.replace(path)
    return path


def repeat_packets(part: Path, target: Path, times: int) -> None:
    """Write a video that shows another one several times, without encoding it again."""
    with av.open(str(target), "w") as written:
        stream = None
        for number in range(times):
            with av.open(str(part)) as read:
                stream = stream or written.add_stream_from_template(read.streams.video[0])
                for packet in read.demux(video=0):
                    if packet.dts is not None:
                        later = round(number * PART_SECONDS / packet.time_base)
                        packet.pts, packet.dts = packet.pts + later, packet.dts + later
                        packet.stream = stream
                        written.mux(packet)


def rate(times: Sequence[float]) -> float:
    """Return how many a second there were in the later half of the time: at first, buffers fill.

    Args:
        times: When something was finished.
    """
    middle = (times[0] + times[-1]) / 2
    first = min(sum(t < middle for t in times), len(times) - 2)
    return (len(times) - 1 - first) / (times[-1] - times[first])


def calls_a_second(call: Callable[[], object], until: float) -> float:
    """Return how often a second ``call`` can be called, which ends when the device has."""
    times = []
    while len(times) < FEWEST or time.monotonic() < until:
        call()
        times.append(time.monotonic())
    return rate(times)


def waits(call: Callable[[], object], device: torch.device) -> str:
    """Return how often the host waits for the GPU during a call, as PyTorch counts it."""
    if device.type != "cuda":
        return "-"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        call()
        torch.cuda.set_sync_debug_mode("default")
    return str(sum("synchroniz" in str(warning.message) for warning in caught))


def a_batch(extractor: Extractor) -> torch.Tensor:
    """Return a batch as the engine makes it."""
    profile = extractor.profile
    side = (profile.crop_px, profile.crop_px) if profile.crop_px else WHOLE_FRAME
    window = () if profile.window == 1 else (profile.window,)
    frames = torch.randint(0, 256, (extractor.batch_size, *window, *side, 3), dtype=torch.uint8)
    frames = frames.to(extractor.frame_dtype)
    return frames.pin_memory() if extractor.device.type == "cuda" else frames


def whole_batches(extractor: Extractor, path: Path, num_decoders: int) -> Iterator[VideoJob]:
    """Yield jobs without end, of two batches each.

    The first one of each decoder is shorter, each by another length: else the batches of all decoders would be full at
    the same moment, again and again.
    """
    size = extractor.batch_size
    first = (-(-size * number // num_decoders) for number in range(1, num_decoders + 1))
    for number, num_windows in enumerate(itertools.chain(first, itertools.repeat(2 * size))):
        yield VideoJob(str(number), path, [extractor], seconds_of(extractor, num_windows))


def decoding_and_together(extractor: Extractor, path: Path, seconds: float, longest: float) -> tuple[float, float]:
    """Return the windows a second of an extraction without its network, and then with it.

    Both are measured in one extraction, with the same decoders and videos. A window counts when it is taken from its
    decoder. It is soon computed, too: decoding pauses while two batches wait. Counting begins when each decoder is at
    its second video, and with the network when that has computed a batch.

    Args:
        extractor: Whose device the network computes on.
        path: A video of two batches or more.
        seconds: For each of the two rates, at least.
        longest: Seconds for each of them, at most.

    Raises:
        TimeoutError: There were too few windows or batches for a rate.
        VideoError: The video cannot be decoded.
    """
    number, computes = num_decode_processes([extractor], available_cores()), threading.Event()
    windows: Counter[DecodeProcess] = Counter()
    batches: list[int] = []
    take_frames, features = DecodeProcess.take_frames, Extractor.features

    def taken(decoder: DecodeProcess, row: WindowReady, frames: np.ndarray) -> None:
        take_frames(decoder, row, frames)
        if decoder.num_videos > 1:
            windows[decoder] += 1

    def computed(extractor: Extractor, frames: torch.Tensor) -> torch.Tensor:
        if not computes.is_set():
            return torch.zeros(len(frames), extractor.profile.dimension)
        rows = features(extractor, frames)
        batches.append(len(frames))
        return rows

    def go_on(is_enough: Callable[[], bool], shortest: float, longest: float) -> float:
        began = time.monotonic()
        for done in results:
            if done and isinstance(done[1], VideoError):
                raise done[1]
            passed = time.monotonic() - began
            if passed >= shortest and is_enough():
                return passed
            if passed > longest:
                break
        counts = f"{windows.total()} windows of {len(windows)} of {number} decoders, and {len(batches)} batches"
        raise TimeoutError(f"{counts}, are too few for a rate")

    def have_all(num_windows: int) -> bool:
        return len(windows) == number and min(windows.values()) >= num_windows

    def measured(num_batches: int) -> float:
        windows.clear()
        batches.clear()
        passed = go_on(lambda: have_all(FEWEST_WINDOWS) and len(batches) >= num_batches, seconds, longest)
        return windows.total() / passed

    with (
        mock.patch.object(DecodeProcess, "take_frames", taken),
        mock.patch.object(Extractor, "features", computed),
        contextlib.closing(extract_with_pauses(whole_batches(extractor, path, number), [extractor])) as results,
    ):
        go_on(lambda: have_all(1), 0, math.inf)
        decoded = measured(0)
        computes.set()
        go_on(lambda: bool(batches), 0, longest)  # a thread's first batch is slow
        return decoded, measured(FEWEST)
