"""Videos whose frames say which they are."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

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
    sound_codec: str = "aac",
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
            sound = written.add_stream(sound_codec, rate=SOUND_RATE_HZ, layout="mono")
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


# Damaged files


def moving_picture(number: int) -> np.ndarray:
    """Much in it, and different in each frame."""
    return np.roll(busy_picture(0), 3 * number, axis=1)
