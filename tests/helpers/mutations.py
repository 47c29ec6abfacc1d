"""Real videos in five containers, and seeded damage to them."""

import random
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from helpers.needs import shared
from helpers.videos import remux

SHORTEST_CUT_BYTES = 600


def transcode(source: Path, target: Path, codec: str, container: str, num_frames: int = 96, **options: str) -> Path:
    """The first frames of a video in another codec and container."""
    with av.open(str(source)) as read, av.open(str(target), "w", format=container) as written:
        rate = Fraction(read.streams.video[0].average_rate).limit_denominator(1000)
        stream = written.add_stream(codec, rate=rate, options=options)
        stream.height, stream.width = read.streams.video[0].height, read.streams.video[0].width
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(read.decode(video=0)):
            if number == num_frames:
                break
            picture = av.VideoFrame.from_ndarray(frame.to_ndarray(format="yuv420p"), format="yuv420p")
            picture.pts, picture.time_base = number, 1 / rate
            written.mux(stream.encode(picture))
        written.mux(stream.encode(None))
    return target


def make_sources(folder: Path) -> dict[str, Path]:
    """Videos of 2 to 18 s: other people's files as they are, or their pictures in another container or codec."""
    msrvtt, msvd = (shared(f"data/{name}/videos") for name in ("msrvtt", "msvd"))
    zoo, mp4, avi = shared("zoo"), msrvtt / "video7013.mp4", msvd / "WTf5EgVY5uU_124_128.avi"
    return {
        "real.mp4": mp4,
        "zoo.mp4": zoo / "ok_h264.mp4",
        "fragments.mp4": zoo / "frag.mp4",
        "av1.mp4": zoo / "av1.mp4",
        "hevc.mp4": zoo / "hevc10.mp4",
        "zoo.webm": zoo / "vp9.webm",
        "odd.webm": zoo / "odd_vp9.webm",
        "vp9.webm": transcode(mp4, folder / "vp9.webm", "libvpx-vp9", "webm", speed="6", b="300k"),
        "vp8.webm": transcode(mp4, folder / "vp8.webm", "libvpx", "webm", speed="6", b="300k"),
        "zoo.mkv": zoo / "h264.mkv",
        "real.mkv": remux(mp4, folder / "real.mkv", "matroska"),
        "hevc.mkv": transcode(
            avi, folder / "hevc.mkv", "libx265", "matroska", preset="ultrafast", **{"x265-params": "log-level=0"}
        ),
        "real.avi": avi,
        "other.avi": msvd / "j2Dhf-xFUxU_13_20.avi",
        "mpeg4.avi": transcode(mp4, folder / "mpeg4.avi", "mpeg4", "avi", b="500k"),
        "real.ts": remux(mp4, folder / "real.ts", "mpegts"),
        "b-frames.ts": transcode(avi, folder / "b-frames.ts", "libx264", "mpegts", preset="faster", bf="3"),
        "mpeg2.ts": transcode(zoo / "ok_h264.mp4", folder / "mpeg2.ts", "mpeg2video", "mpegts", b="800k"),
    }


def cut(content: bytearray, chance: random.Random) -> bytearray:
    """Ends early: anywhere, or within its last tenth."""
    share = chance.random() if chance.random() < 0.5 else 1 - 0.1 * chance.random()
    return content[: max(int(share * len(content)), SHORTEST_CUT_BYTES)]


def flip(content: bytearray, chance: random.Random) -> bytearray:
    """1 to 60 bits are others: all over the file, or in one stretch of it."""
    number = chance.choice([1, 5, 20, 60])
    length = chance.choice([len(content), min(len(content), 4096)])
    start = chance.randrange(len(content) - length + 1)
    for _ in range(number):
        content[start + chance.randrange(length)] ^= 1 << chance.randrange(8)
    return content


def shuffle(content: bytearray, chance: random.Random) -> bytearray:
    """A piece is zeros, missing, there twice, or two have changed places."""
    length = min(chance.choice([16, 188, 1000, 8000]), len(content) // 4)
    first, second = sorted(chance.sample(range(0, len(content) - length, length), 2))
    piece, other = content[first : first + length], content[second : second + length]
    how = chance.choice(["zeros", "missing", "twice", "swapped"])
    if how == "zeros":
        content[first : first + length] = bytes(length)
    elif how == "missing":
        del content[first : first + length]
    elif how == "twice":
        content[second:second] = piece
    else:
        content[first : first + length], content[second : second + length] = other, piece
    return content


MUTATIONS: dict[str, Callable[[bytearray, random.Random], bytearray]] = {"cut": cut, "flip": flip, "shuffle": shuffle}


def mutate(source: Path, target: Path, how: str, seed: int) -> Path:
    target.write_bytes(MUTATIONS[how](bytearray(source.read_bytes()), random.Random(f"{target.suffix} {how} {seed}")))
    return target


def largest_change(rows: list[np.ndarray], undamaged: list[np.ndarray]) -> float:
    """How far a row is from the one at its place, relative to that one's length (Euclidean, over all values of its
    pictures): the largest of all rows. Infinite where there are more or fewer rows."""
    if len(rows) != len(undamaged):
        return float("inf")
    pairs = [(row.astype(np.float32), other.astype(np.float32)) for row, other in zip(rows, undamaged, strict=True)]
    return max(float(np.linalg.norm(row - other) / max(np.linalg.norm(other), 1)) for row, other in pairs)
