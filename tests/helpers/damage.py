"""Packets of videos that are zeroed or counted."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from vlalign.extract.decoding.probe import VideoInfo
from vlalign.extract.decoding.sampling import sample_frames

from helpers.decoding import pictures_by


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


ZEROED = {"three frames": range(31, 34), "most of a group": range(26, 44), "one frame": [49]}


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


def set_last_cluster_to_0(path: Path) -> Path:
    """Give the last cluster of a Matroska file the time 0."""
    content = path.read_bytes()
    time = content.index(b"\xe7", content.rindex(bytes.fromhex("1f43b675"))) + 1
    num_bytes = content[time] & 0x7F
    path.write_bytes(content[: time + 1] + bytes(num_bytes) + content[time + 1 + num_bytes :])
    return path
