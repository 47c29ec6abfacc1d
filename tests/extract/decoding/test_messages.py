"""What a decoding process answers: typed, and not believed. A decoder that a file has taken over says what that file
likes."""

import json
import random
import shutil
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from helpers.extractors import run, stub
from vlalign.extract import load_extractor
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.clip_file import ClipWritten
from vlalign.extract.decoding.decode import DecodingFinished, DecodingStarted
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.log_mel import ROW as SOUND_ROW
from vlalign.extract.decoding.messages import (
    ClipFollows,
    ClipPart,
    Failed,
    FrameFollows,
    Heartbeat,
    InvalidMessage,
    Message,
    PixelsFollow,
    Request,
    SamplesFollow,
    ShotsFollow,
    SoundFailed,
    SoundFollows,
    SoundProbed,
    ThumbnailFollows,
    VideoProbed,
    WindowReady,
    encode,
    parse,
)
from vlalign.extract.decoding.process import MAX_ANSWER_BYTES, DecodeProcess
from vlalign.extract.decoding.process_link import num_bytes_for
from vlalign.extract.decoding.sampling import MAX_VIDEO_SECONDS, FrameSpec, num_windows, sample_frames
from vlalign.extract.decoding.sound import SamplesFinished, SoundFinished
from vlalign.extract.decoding.span import SpanProbed
from vlalign.extract.pipeline import video_jobs
from vlalign.extract.pipeline.video_jobs import VideoJob, frame_spec_of
from vlalign.storage.profiles import PROFILES

MESSAGES: list[Message] = [
    Heartbeat(),
    Failed("timeout", "so"),
    SoundFailed("no_sound", ""),
    SoundProbed(3, 1.5),
    VideoProbed("h264", 4, 3, 1, "", [3, 0]),
    DecodingStarted("PyAV"),
    WindowReady(0, [16, 224, 224, 3], 4096),
    ThumbnailFollows(0.5),
    SoundFollows(),
    SamplesFollow(),
    ShotsFollow("PySceneDetect 0.7.2"),
    ClipFollows(),
    FrameFollows(2.5),
    PixelsFollow(2.5, 480, 640),
    SpanProbed(30000, 1001, 0.0, 1.0, 2.0, 30, 0.033, 0.034, 9.5, 64, 48, 2, 48000, "01:00:00;00", 0.5, "mp4"),
    ClipPart(1 << 20),
    ClipWritten(1 << 33, 1.0, 2.0, 30),
    SoundFinished("PyAV 18", -3, 1000, 10.0, ""),
    SamplesFinished("PyAV 18", 16000, "cut"),
    DecodingFinished("PyAV 18", 2.25, "cut", [54], note="its clock jumps"),
]
CROPPED = FrameSpec(fps=24, window=16, short_side_px=224, crop_px=224, tail="loop")
WHOLE = FrameSpec(fps=1, window=1, short_side_px=48, crop_px=None, tail="loop")


def test_messages_and_requests_survive_encoding():
    assert {type(message) for message in MESSAGES} == set(Message.__args__)
    assert [parse(encode(message)) for message in MESSAGES] == MESSAGES
    request = Request("/x.mp4", [CROPPED, WHOLE], sound=True, shots=True, excluded_decoders=["decord"], seconds=2.5)
    assert Request.from_json(request.to_json()) == request
    clip = Request("/x.mp4", [], clip=(1.5, 2.0))
    assert Request.from_json(clip.to_json()) == clip
    span = Request("/x.mp4", [], span=(1.5, 2.0), clip_kind="exact")
    assert Request.from_json(span.to_json()) == span
    frame = Request("/x.mp4", [], frame_at=0.0, thumbnails_every=2.0)
    assert Request.from_json(frame.to_json()) == frame


def test_any_answer_is_parsed_or_refused():
    chance, values = (
        random.Random(0),
        [None, True, -1, 2**60, 10**400, 1e400, float("nan"), "", "x" * 70_000, "\0", "\ud800", [], [1.5], {}, [[1]]],
    )
    num_refused = 0
    for _ in range(3000):
        about = json.loads(encode(chance.choice(MESSAGES)))
        for _ in range(chance.randrange(1, 3)):
            name = chance.choice([*about, "other"])
            if chance.random() < 0.2:
                about.pop(name, None)
            else:
                about[name] = chance.choice(values)
        content = json.dumps(about).encode()
        if chance.random() < 0.2:
            content = content[: chance.randrange(len(content))] + chance.randbytes(3)
        try:
            message = parse(content)
            assert type(message) in Message.__args__
            assert "\0" not in repr(message) and repr(message).encode()
        except InvalidMessage:
            num_refused += 1
    assert num_refused > 2000


def test_no_video_has_more_rows_than_the_longest():
    num_ticks = MAX_VIDEO_SECONDS * 2
    for wanted in (CROPPED, WHOLE, replace(CROPPED, stride=4)):
        num_frames = len(sample_frames(np.arange(num_ticks), num_ticks, Fraction(1, 2), wanted.fps))
        num_rows = num_windows(num_frames, wanted.window, wanted.stride or wanted.window)
        assert num_rows <= wanted.max_windows <= num_rows + 30
    assert replace(WHOLE, fps=None).max_windows == 1


@pytest.mark.parametrize(
    "row",
    [
        WindowReady(2, [48, 64, 3], 0),
        WindowReady(-1, [48, 64, 3], 0),
        WindowReady(0, [15, 224, 224, 3], 0),
        WindowReady(0, [16, 224, 225, 3], 0),
        WindowReady(0, [16, 224, 224, 4], 0),
        WindowReady(0, [], 0),
        WindowReady(1, [48, 64], 0),
        WindowReady(1, [47, 64, 3], 0),
        WindowReady(1, [48, 481, 3], 0),
        WindowReady(1, [-48, 64, 3], 0),
        WindowReady(1, [1, 48, 64, 3], 0),
    ],
)
def test_a_row_that_was_not_requested_is_refused(row):
    with pytest.raises(InvalidMessage):
        row.check([CROPPED, WHOLE])
    WindowReady(0, [16, 224, 224, 3], 0).check([CROPPED, WHOLE])
    WindowReady(1, [480, 48, 3], 0).check([CROPPED, WHOLE])


ROW, LAST = WindowReady(0, [224, 224, 3], 0), DecodingFinished("PyAV 18", 1.0, "", [1])
MOST_SOUND_ROWS = 10_000
LIES: dict[str, list[bytes]] = {
    "no JSON": [b"\xff" * 100],
    "no message": [b"[1]"],
    "the same decoder again and again": [encode(DecodingStarted("PyAV")), b""],
    "a decoder that nobody knows": [encode(DecodingStarted("another"))],
    "a row before it began": [encode(ROW)],
    "a row of other frames": [encode(DecodingStarted("PyAV")), encode(replace(ROW, shape=[1 << 20, 1 << 20, 3]))],
    "a row before the memory": [encode(DecodingStarted("PyAV")), encode(replace(ROW, offset=-1))],
    "a row that ends after the memory": [
        encode(DecodingStarted("PyAV")),
        encode(replace(ROW, offset=num_bytes_for([frame_spec_of(PROFILES["resnet152"])]) - 224 * 224 * 3 + 1)),
    ],
    "an end before it began": [encode(LAST)],
    "an end of more rows": [encode(DecodingStarted("PyAV")), encode(ROW), encode(replace(LAST, num_frames=[2]))],
    "an end of very many rows": [encode(DecodingStarted("PyAV")), encode(replace(LAST, num_frames=[1 << 50]))],
    "an end of other features": [
        encode(DecodingStarted("PyAV")),
        encode(ROW),
        encode(replace(LAST, num_frames=[1, 1])),
    ],
    "an end in a million years": [
        encode(DecodingStarted("PyAV")),
        encode(ROW),
        encode(replace(LAST, duration_seconds=3e13)),
    ],
    "an end without figures": [encode(LAST).replace(b"1.0", b"NaN")],
    "pictures without end": [encode(ThumbnailFollows(0.0)), b"x"] * 20,
    "a picture of two megabytes": [encode(ThumbnailFollows(0.0)), bytes(2 << 20)],
    "sound without end": [encode(SoundFollows()), bytes(SOUND_ROW.itemsize * MOST_SOUND_ROWS // 2)] * 3,
    "half a row of sound": [encode(SoundFollows()), bytes(SOUND_ROW.itemsize // 2)],
    "more sound than a message holds": [encode(SoundFollows()), bytes(MAX_ANSWER_BYTES + 1)],
    "sound that ends before it began": [encode(SoundFinished("PyAV 18", 0, 0, 1.0, ""))],
}


FAST_LIES = {
    "no JSON",
    "a row of other frames",
    "an end before it began",
    "pictures without end",
    "half a row of sound",
}
"""One of each kind."""


@pytest.mark.parametrize(
    "lie", [lie if lie in FAST_LIES else pytest.param(lie, marks=pytest.mark.slow) for lie in LIES]
)
def test_a_lying_decoder_fails_only_its_own_video(short_video, tmp_path, monkeypatch, lie):
    for name in ("bad", "good"):
        shutil.copy(short_video, tmp_path / f"{name}.mp4")
    (tmp_path / "answers").write_bytes(b"|||".join(LIES[lie]))
    hostile = (
        "from pathlib import Path\nfrom vlalign.extract.decoding import child\n"
        "from vlalign.extract.decoding.messages import Request\n"
        "whole = child.serve\n"
        "def serve(line, memory, gpu):\n"
        "    request = line.recv_bytes()\n"
        "    if 'bad' in Request.from_json(request).path:\n"
        f"        for each in Path({str(tmp_path)!r}, 'answers').read_bytes().split(b'|||'): line.send_bytes(each)\n"
        "        line.recv_bytes()\n"
        "    class Again:\n"
        "        first = [request]\n"
        "        def __getattr__(self, name): return getattr(line, name)\n"
        "        def recv_bytes(self, *most): return self.first.pop() if self.first else line.recv_bytes(*most)\n"
        "    whole(Again(), memory, gpu)\n"
        "child.serve = serve\n"
        "child.main()\n"
    )
    monkeypatch.setattr(decode_process, "COMMAND", hostile)
    refusals, refused = [], DecodeProcess.refused
    monkeypatch.setattr(DecodeProcess, "refused", lambda self, why: refusals.append(why) or refused(self, why))
    monkeypatch.setattr(video_jobs, "MAX_SOUND_ROWS", MOST_SOUND_ROWS)
    features = [stub("resnet152"), load_extractor("logmel")] if "sound" in lie else [stub("resnet152")]
    made = run([VideoJob(name, tmp_path / f"{name}.mp4", features) for name in ("bad", "good")], features)
    bad = made["bad"]
    error = bad if isinstance(bad, VideoError) else bad.failures["logmel"]
    assert error.kind == "crashed" and refusals and "\n" not in str(error)
    good = made["good"].features["resnet152"]
    assert len(good.features) == 1 and np.isfinite(good.features).all()


def test_a_decoder_that_reads_nothing_does_not_block_its_parent():
    process, frames = DecodeProcess(), np.empty((1, 1, 3), dtype=np.uint8)
    try:
        with pytest.raises(VideoError) as failed:
            for _ in range(1 << 20):
                process.take_frames(WindowReady(0, [1, 1, 3], 0), frames)
        assert failed.value.kind == "crashed" and not process.usable
    finally:
        process.close()
