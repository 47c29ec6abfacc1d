"""Rates of what keeps a GPU busy, for ``measure.py``: decoding, networks, both together, and any call."""

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.connection import wait
from pathlib import Path
from unittest import mock

import av
import numpy as np
import torch
from helpers.videos import encode_frames
from limits import WHOLE_FRAME
from vlalign.extract.compute import Compute
from vlalign.extract.decoding.decode import Finished
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.messages import PictureFollows, RowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.engine import extract_with_pauses, num_decoders
from vlalign.extract.extractor import Extractor
from vlalign.extract.jobs import Batch, Job, wanted_of
from vlalign.storage.common.processes import available_cores

SIZES = {"240p": (320, 240), "480p": (854, 480), "1080p": (1920, 1080)}
VIDEO_FPS, PART_SECONDS = 30, 2
FEWEST = 4
"""Calls, windows or batches between which a rate is measured, at least."""


def seconds_to_fill(extractor: Extractor) -> float:
    """Return how long a video must be to fill one batch, which holds rows of one video only."""
    profile = extractor.profile
    return (profile.window + (extractor.batch_size - 1) * (profile.stride or profile.window)) / profile.fps


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


def rate(times: Sequence[float], amounts: Sequence[int] | None = None) -> float:
    """Return how many a second there were in the later half of the time: at first, buffers fill.

    Args:
        times: When something was finished.
        amounts: How much it was each time; None: one.
    """
    middle = (times[0] + times[-1]) / 2
    first = min(sum(t < middle for t in times), len(times) - 2)
    later = len(times) - 1 - first if amounts is None else sum(amounts[first + 1 :])
    return later / (times[-1] - times[first])


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
    frames = frames.to(extractor.picture_type)
    return frames.pin_memory() if extractor.device.type == "cuda" else frames


def decoding(extractor: Extractor, path: Path, seconds: float) -> float:
    """Return the windows a second that come from as many decoders as the engine starts, once each has sent one."""
    wanted, times = [wanted_of(extractor.profile)], []
    decoders = [DecodeProcess(wanted) for _ in range(num_decoders([extractor], available_cores()))]
    of = {decoder.connection: decoder for decoder in decoders}
    to_begin, until = set(decoders), math.inf
    try:
        for decoder in decoders:
            decoder.start(path, wanted)
        while len(times) < FEWEST or time.monotonic() < until:
            for decoder in (of[connection] for connection in wait(list(of))):
                message = decoder.receive()
                if isinstance(message, RowReady):
                    decoder.take_frames(message, torch.empty(message.shape, dtype=extractor.picture_type).numpy())
                    if to_begin:
                        to_begin.discard(decoder)
                        until = time.monotonic() + seconds
                    else:
                        times.append(time.monotonic())
                elif isinstance(message, PictureFollows):
                    decoder.receive_bytes()
                elif isinstance(message, Finished):
                    decoder.start(path, wanted)
    finally:
        for decoder in decoders:
            decoder.close()
    return rate(times)


def together(extractor: Extractor, path: Path, until: float) -> float:
    """Return the windows a second whose rows an extraction computes, in full batches."""
    times, amounts, rows_of = [], [], Compute._rows_of

    def counted(future: Future[torch.Tensor], batch: Batch) -> np.ndarray:
        times.append(time.monotonic())
        amounts.append(batch.num_rows)
        return rows_of(future, batch)

    jobs = (Job(str(number), path, [extractor]) for number in itertools.count())
    with (
        mock.patch.object(Compute, "_rows_of", staticmethod(counted)),
        contextlib.closing(extract_with_pauses(jobs, [extractor])) as results,
    ):
        for done in results:
            if done and isinstance(done[1], VideoError):
                raise done[1]
            if len(times) >= FEWEST and time.monotonic() > until:
                break
    return rate(times, amounts)
