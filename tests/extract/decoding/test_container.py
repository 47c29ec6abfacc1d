"""Opening a video file with the PyAV that is installed: its interface differs between versions."""

import gc
import sys
import wave
from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.videos import encode_frames
from vlalign.extract.decoding.container import open_video, time_base_of, video_stream
from vlalign.extract.decoding.errors import VideoError

pytestmark = pytest.mark.portable


def test_a_title_in_another_encoding_does_not_stop_a_video(tmp_path):
    plain, titled = tmp_path / "plain.mp4", tmp_path / "titled.mkv"
    encode_frames(plain, np.zeros((3, 64, 64, 3), np.uint8), 25)
    with av.open(str(plain)) as read, av.open(str(titled), "w") as written:
        written.metadata["title"] = "the caf_ at night"
        stream = written.add_stream_from_template(read.streams.video[0])
        for packet in read.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                written.mux(packet)
    content = titled.read_bytes()
    assert content.count(b"caf_") == 1
    titled.write_bytes(content.replace(b"caf_", b"caf\xe9"))  # Latin-1, as old cameras write

    with open_video(titled) as container:
        stream = video_stream(container)
        assert time_base_of(stream) == Fraction(1, 1000)
        assert len(list(container.decode(stream))) == 3


def test_a_tone_in_a_wav_file_is_not_taken_for_mpeg_ts(tmp_path):
    path, period = tmp_path / "tone.wav", 47  # 188 bytes, a packet of MPEG-TS
    samples = np.sin(2 * np.pi * np.arange(32_000) / period).astype(np.float32)
    samples[::period] = np.frombuffer(b"\x47\x47\x47\x3d", "<f4")  # with its sync byte
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(4)
        file.setframerate(32_000)
        file.writeframes(samples.tobytes())

    with open_video(path) as container:
        assert container.format.name == "wav"
        assert sum(frame.samples for frame in container.decode(audio=0)) == len(samples)


def test_a_file_that_cannot_be_opened_leaves_no_error_behind(tmp_path, monkeypatch):
    """From Python 3.13 on, an error while such an object is removed is printed."""
    left_behind = []
    monkeypatch.setattr(sys, "unraisablehook", left_behind.append)
    with pytest.raises(VideoError) as failed:
        open_video(tmp_path / "missing.mp4")
    assert failed.value.kind == "missing"
    del failed
    gc.collect()
    assert not left_behind
