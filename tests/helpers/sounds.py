"""Files with sound that tests make."""

import io
import wave
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from transformers import audio_utils
from vlalign.extract.decoding.log_mel import HOP, NUM_BANDS, RATE, WINDOW, row_times
from vlalign.extract.decoding.sound import sound_rows
from vlalign.storage import VideoFeatures


def second(samples: np.ndarray, **how) -> np.ndarray:
    """[rows, 40] of all samples [N], by transformers' ``audio_utils``, which follows librosa."""
    padded = np.append(samples.astype(np.float64), np.zeros(WINDOW))
    emphasised = np.append(padded[0], padded[1:] - 0.97 * padded[:-1])
    about = {
        "power": 2.0,
        "center": False,
        "mel_filters": FILTERS,
        "mel_floor": 1e-10,
        "log_mel": "dB",
        "dtype": np.float64,
    }
    return audio_utils.spectrogram(emphasised, HAMMING, WINDOW, HOP, **about | how).T[: -(-len(samples) // HOP)]


SAME_DECIBELS = 1e-4


def heard(path: Path) -> VideoFeatures:
    """As ``extract_video`` gives it (a test below compares them), without a child process."""
    *blocks, end = sound_rows(path)
    rows = np.concatenate(blocks)
    assert len(rows) == end.num_rows
    starts, ends = row_times(end.first_row, end.num_rows)
    times = {
        "start_seconds": starts,
        "end_seconds": ends,
        "valid_frames": rows["valid"],
        "duration_seconds": end.duration_seconds,
    }
    return VideoFeatures(
        video_id=path.stem, features=rows["features"], decoder=end.decoder, partial=end.partial, **times
    )


# Files of any kind


def write_sound(
    path: Path, samples: np.ndarray, rate: int, *, codec: str = "pcm_f32le", layout: str = "mono", start: float = 0.0
) -> Path:
    """Samples float [channels, N] of -1..1, and no pictures."""
    with av.open(str(path), "w") as written:
        stream = written.add_stream(codec, rate=rate, layout=layout)
        for packet in encoded(stream, samples, rate, layout, start):
            written.mux(packet)
    return path


def tone(rate: int, seconds: float = 0.5, hertz: float = 1000.0) -> np.ndarray:
    return 0.25 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)[None]


# Where in time


def write_clip(
    path: Path,
    *,
    seconds: float = 2.0,
    flash: int | None = None,
    fps: int = 25,
    sound: np.ndarray,
    rate: int = 48000,
    codec: str = "aac",
    layout: str = "mono",
    sound_start: float = 0.0,
) -> Path:
    """Black pictures, the one numbered ``flash`` white, and ``sound`` [channels, N] from ``sound_start`` on."""
    with av.open(str(path), "w") as written:
        video = written.add_stream("libx264", rate=fps, options={"threads": "1", "preset": "ultrafast", "bf": "2"})
        video.height, video.width, video.pix_fmt = 48, 64, "yuv420p"
        stream = written.add_stream(codec, rate=rate, layout=layout)
        packets = []
        for number in range(round(seconds * fps)):
            frame = av.VideoFrame.from_ndarray(
                np.full((48, 64, 3), 255 * (number == flash), dtype=np.uint8), format="rgb24"
            )
            frame.pts, frame.time_base = number, Fraction(1, fps)
            packets += video.encode(frame)
        packets += [*video.encode(None), *encoded(stream, sound, rate, layout, sound_start)]
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            written.mux(packet)
    return path


# Against a second library

FILTERS = audio_utils.mel_filter_bank(WINDOW // 2 + 1, NUM_BANDS, 20, 8000, RATE, norm="slaney", mel_scale="slaney")


HAMMING = audio_utils.window_function(WINDOW, "hamming", periodic=False)


def encoded(
    stream: av.audio.stream.AudioStream, samples: np.ndarray, rate: int, layout: str, start: float
) -> Iterator[av.Packet]:
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, dtype=np.float32), "fltp", layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, round(start * rate), Fraction(1, rate)
    yield from stream.encode(frame)
    yield from stream.encode(None)


def sound_of_one_second() -> bytes:
    """A WAV file."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(b"\1\0" * 16_000)
    return content.getvalue()
