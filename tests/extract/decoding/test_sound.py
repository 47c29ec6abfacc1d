"""The sound of videos -> log-mel rows: against a second library, beside the pictures, and of files that have it in odd ways or not."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from helpers.extractors import stub
from helpers.shared import shared
from helpers.videos import remux
from transformers import audio_utils
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.cli import main
from vlalign.extract.decoding import log_mel, sound
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.log_mel import HOP, NUM_BANDS, RATE, WINDOW, log_mel_of_all, row_times
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.sound import planned_sound, sound_rows
from vlalign.extract.engine import extract_videos
from vlalign.extract.extractor import Extractor
from vlalign.extract.jobs import Job
from vlalign.storage import FeatureStore, VideoFeatures
from vlalign.storage.common.errors import UserError
from vlalign.storage.files import read_jsonl
from vlalign.storage.layout import DatasetFolder
from vlalign.storage.profiles import PROFILES

needs_program = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="the ffmpeg program is not installed")
SAME_DECIBELS = 1e-4


@pytest.fixture(scope="module")
def logmel() -> Extractor:
    return load_extractor("logmel")


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


# Against a second library

FILTERS = audio_utils.mel_filter_bank(WINDOW // 2 + 1, NUM_BANDS, 20, 8000, RATE, norm="slaney", mel_scale="slaney")
HAMMING = audio_utils.window_function(WINDOW, "hamming", periodic=False)


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


def decoded_whole(path: Path) -> tuple[np.ndarray, int]:
    """All samples of a file's sound at 16 kHz, and which one the first is: decoded and resampled in one piece."""
    with av.open(str(path)) as container:
        stream, frames = container.streams.audio[0], []
        for packet in container.demux(stream):
            try:
                frames += packet.decode()
            except av.InvalidDataError:
                pytest.fail("damaged: pieces would have to be put where their times say")
        rate, first = (
            frames[0].sample_rate,
            float(frames[0].pts * stream.time_base - Fraction(container.start_time, av.time_base)),
        )
    whole = (
        np.concatenate([frame.to_ndarray() for frame in frames], axis=1)
        .mean(axis=0, dtype=np.float64)
        .astype(np.float32)
    )
    assert frames[0].format.name == "fltp"
    frame = av.AudioFrame.from_ndarray(whole[None], "fltp", "mono")
    frame.sample_rate = rate
    resampler = av.AudioResampler("fltp", "mono", RATE)
    pieces = [*resampler.resample(frame), *resampler.resample(None)]
    return np.concatenate([piece.to_ndarray()[0] for piece in pieces]), round(first * RATE)


REAL = [
    *(f"data/msrvtt/videos/video{i}.mp4" for i in (7010, 7011, 7012, 7014)),
    "data/features/bmt/women_long_jump.mp4",
]
ZOO = [
    *(
        "ok_h264.mp4",
        "ok_faststart.mp4",
        "-dash id.mp4",
        "co:lon.mp4",
        "pct%03d.mp4",
        "h264.mkv",
        "cut_editlist.mp4",
        "timescale0.mp4",
    ),
    *("audio_only.mp4", "audio_coverart.mp4"),
]
SILENT = [
    "data/msrvtt/videos/video7013.mp4",
    *(f"zoo/{name}" for name in ("av1.mp4", "frag.mp4", "vp9.webm", "gif.mp4", "raw_es.mp4")),
]


def test_the_constants_are_the_profiles():
    profile = PROFILES["logmel"]
    assert (profile.fps, profile.window, profile.stride, profile.dimension) == (RATE, WINDOW, HOP, NUM_BANDS)
    assert (WINDOW / RATE, HOP / RATE) == (0.025, 0.01), "CMCM, appendix B"


def test_noise_and_tones_give_the_second_librarys_values(logmel):
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.1, 3 * RATE + 77)
    tones = 0.5 * np.sin(np.arange(2 * RATE)[:, None] * 2 * np.pi * np.array([60.0, 440.0, 7900.0]) / RATE).sum(axis=1)
    for samples in (noise, tones, 1e-7 * noise, np.clip(9 * tones, -1, 1), np.ones(500), noise[:1]):
        expected = second(samples)
        made = logmel.features(samples.astype(np.float32)).numpy()
        assert made.dtype == np.float32 and made.shape == expected.shape == (-(-len(samples) // HOP), NUM_BANDS)
        np.testing.assert_allclose(made, second(samples.astype(np.float32)), rtol=0, atol=SAME_DECIBELS)
    with pytest.raises(ValueError, match=r"samples must be floats \[N\], got torch.int64 \[2, 3\]"):
        logmel.features(torch.zeros((2, 3), dtype=torch.int64))


def test_decibels_of_a_files_maximum_come_of_the_rows(logmel):
    """What ResDAVEnet-VQ's and AVLnet's loaders give: ``power_to_db(ref=np.max)``, 80 dB deep."""
    samples = np.random.default_rng(1).normal(0, 1, RATE) * np.geomspace(1, 1e-6, RATE)
    powers = second(samples, log_mel=None)
    rows = log_mel_of_all(samples)
    theirs = audio_utils.power_to_db(powers, reference=powers.max(), db_range=80.0)
    np.testing.assert_allclose(np.maximum(rows - rows.max(), -80), theirs, atol=SAME_DECIBELS)
    assert (theirs == theirs.min()).any(), "some are cut"


@pytest.mark.parametrize("path", [*REAL, *(f"zoo/{name}" for name in ZOO)])
def test_real_videos_give_the_second_librarys_values(path):
    path = shared(path)
    samples, first = decoded_whole(path)
    expected = second(np.append(np.zeros(first), samples))
    made = heard(path)
    np.testing.assert_allclose(made.features, expected, rtol=0, atol=SAME_DECIBELS)
    assert made.partial == "" and made.decoder == f"PyAV {av.__version__}"
    np.testing.assert_allclose(made.start_seconds, np.arange(len(expected)) * 0.01, atol=1e-12)
    np.testing.assert_allclose(made.end_seconds, made.start_seconds + 0.025, atol=1e-12)
    assert made.valid_frames[0] == WINDOW - first and made.valid_frames[-1] == (first + len(samples) - 1) % HOP + 1
    assert made.duration_seconds == (first + len(samples)) / RATE
    num_planned, seconds = planned_sound(path)
    assert abs(num_planned - len(expected)) <= 3 and seconds == pytest.approx(made.duration_seconds, abs=0.03)


@needs_program
@pytest.mark.parametrize("path", [*REAL, "zoo/ok_h264.mp4", "zoo/h264.mkv", "zoo/trunc_tail.mp4"])
def test_the_ffmpeg_program_hears_the_same(path):
    """Its decoder is another version's, whose last bits show in bands that are next to nothing."""
    path = shared(path)
    made = heard(path)
    first = WINDOW - made.valid_frames[0]
    with av.open(str(path)) as container:
        num_channels = container.streams.audio[0].codec_context.layout.nb_channels
    mean = "pan=mono|c0=" + "+".join(f"{1 / num_channels}*c{channel}" for channel in range(num_channels))
    command = ["ffmpeg", "-v", "fatal", "-nostdin", "-i", f"file:{path}", "-map", "0:a:0"]
    command += ["-af", f"aformat=sample_fmts=fltp,{mean},aresample={RATE}", "-f", "f32le", "-"]
    samples = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, dtype="<f4")
    theirs = second(np.append(np.zeros(first), samples))
    differences = np.abs(made.features - theirs)
    assert differences.max() < 0.02 and differences[theirs > -80].max(initial=0) < 1e-3


@pytest.mark.parametrize("path", SILENT)
def test_real_videos_without_sound_say_so(path):
    with pytest.raises(VideoError, match="there is no sound stream in it") as failed:
        heard(shared(path))
    assert failed.value.kind == "no_sound"


@pytest.mark.parametrize(
    "name, outcome",
    [
        ("dup_ts.ts", "bad_times: the clock of its sound jumps back by 5 s"),
        ("trunc_tail.mp4", "partial: its sound ends at 2.93 s of the 5.00 that it should have"),
        ("flip_mid.mp4", "partial: 3 packets of its sound are damaged, says the decoder"),
        ("html.mp4", "unreadable"),
        ("m3u8_local.mp4", "unreadable"),
        ("concat_rel.mp4", "unreadable"),
        ("trunc_nomoov.mp4", "unreadable"),
    ],
)
def test_odd_files_of_the_zoo(name, outcome):
    path = shared(f"zoo/{name}")
    try:
        found = f"partial: {heard(path).partial}"
    except VideoError as error:
        found = f"{error.kind}: {error}"
    assert found == outcome or (outcome == "unreadable" and found.startswith("unreadable: "))


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


def encoded(
    stream: av.audio.stream.AudioStream, samples: np.ndarray, rate: int, layout: str, start: float
) -> Iterator[av.Packet]:
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples, dtype=np.float32), "fltp", layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, round(start * rate), Fraction(1, rate)
    yield from stream.encode(frame)
    yield from stream.encode(None)


def tone(rate: int, seconds: float = 0.5, hertz: float = 1000.0) -> np.ndarray:
    return 0.25 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)[None]


@pytest.mark.parametrize("rate", [8000, 11025, 12345, 16000, 22050, 32000, 44100, 48000, 96000])
def test_odd_sample_rates_give_the_same_rows(tmp_path, rate):
    made = heard(write_sound(tmp_path / "a.wav", tone(rate), rate))
    expected = second(tone(RATE)[0])
    assert len(made.features) == 50 and made.duration_seconds == pytest.approx(0.5, abs=1e-4)
    loud = expected[5] > -40
    np.testing.assert_allclose(made.features[5:45, loud], expected[5:45, loud], atol=0.05)


@pytest.mark.parametrize(
    "codec", ["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_mulaw"]
)
def test_samples_of_any_type_are_of_the_same_scale(tmp_path, codec):
    made = heard(write_sound(tmp_path / "a.wav", tone(RATE), RATE, codec=codec))
    expected = second(tone(RATE)[0])
    np.testing.assert_allclose(
        made.features.max(axis=1)[:48], expected.max(axis=1)[:48], atol=0.15
    )  # µ-law has 14 bits


@pytest.mark.parametrize("layout, num_channels", [("mono", 1), ("stereo", 2), ("5.1", 6)])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_channels_are_averaged(tmp_path, layout, num_channels, rate):
    """As librosa does: a tone in one of six channels has a sixth of its amplitude. libswresample's own weights are others."""
    channels = np.zeros((num_channels, rate // 2))
    channels[-1] = tone(rate)
    made = heard(write_sound(tmp_path / "a.wav", channels, rate, layout=layout))
    expected = second(tone(RATE)[0] / num_channels)
    np.testing.assert_allclose(made.features.max(axis=1)[:48], expected.max(axis=1)[:48], atol=0.02)


def test_channels_of_opposite_sign_are_silence(tmp_path):
    made = heard(write_sound(tmp_path / "a.wav", np.concatenate([tone(RATE), -tone(RATE)]), RATE, layout="stereo"))
    assert (made.features == -100).all()


def test_silence_is_the_floor_and_can_be_stored(tmp_path):
    made = heard(write_sound(tmp_path / "a.wav", np.zeros((1, RATE)), RATE))
    assert made.features.shape == (100, NUM_BANDS) and (made.features == -100).all()
    assert (made.valid_frames[:98] == WINDOW).all() and made.valid_frames[98:].tolist() == [320, 160]


def test_clipped_sound_stays_as_it_is(tmp_path):
    loud = 40 * tone(RATE, 1.0)
    beyond = heard(write_sound(tmp_path / "beyond.wav", loud, RATE))
    np.testing.assert_allclose(beyond.features, second(loud[0].astype(np.float32)), rtol=0, atol=SAME_DECIBELS)
    clipped = heard(write_sound(tmp_path / "clipped.wav", np.clip(loud, -1, 1), RATE, codec="pcm_s16le"))
    exact = np.clip(np.round(np.clip(loud[0], -1, 1) * 32768), -32768, 32767) / 32768
    np.testing.assert_allclose(clipped.features, second(exact), rtol=0, atol=0.01)
    assert beyond.features.max() > clipped.features.max() + 10


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_values_that_are_no_numbers_are_refused(tmp_path, value, rate):
    samples = tone(rate)
    samples[0, 3000] = value
    with pytest.raises(VideoError, match="its sound contains non-finite values") as failed:
        heard(write_sound(tmp_path / "a.wav", samples, rate))
    assert failed.value.kind == "unreadable"


@pytest.mark.parametrize(
    "name, codec",
    [("a.mp3", "libmp3lame"), ("a.flac", "flac"), ("a.ogg", "libopus"), ("a.m4a", "aac"), ("a.webm", "libopus")],
)
def test_recordings_without_pictures_are_heard_too(tmp_path, name, codec):
    made = heard(write_sound(tmp_path / name, tone(48000, 1.5), 48000, codec=codec))
    assert 1.49 < made.duration_seconds < 1.6
    np.testing.assert_allclose(made.features.max(axis=1)[20:130], second(tone(RATE)[0]).max(axis=1)[20], atol=0.5)


def test_blocks_and_pieces_make_no_difference(tmp_path, monkeypatch):
    """25 s are three blocks; a block of 7 rows, and frames of odd lengths, give the same."""
    samples = np.random.default_rng(2).normal(0, 0.1, (1, 25 * RATE + 11)).astype(np.float32)
    path = write_sound(tmp_path / "a.wav", samples, RATE)
    blocks = list(sound_rows(path))[:-1]
    assert [len(block) for block in blocks] == [1000, 1000, 501]
    rows = np.concatenate(blocks)
    np.testing.assert_allclose(rows["features"], log_mel_of_all(samples[0]), atol=1e-5)
    monkeypatch.setattr(log_mel, "BLOCK_ROWS", 7)
    small = np.concatenate(list(sound_rows(path))[:-1])
    np.testing.assert_allclose(small["features"], rows["features"], atol=1e-5)
    np.testing.assert_array_equal(small["valid"], rows["valid"])


@pytest.mark.parametrize("num_samples", [1, 159, 160, 161, 399, 400, 401, 560, 561, 16000, 16001])
def test_a_row_for_each_hop_that_has_begun(tmp_path, num_samples):
    made = heard(write_sound(tmp_path / "a.wav", np.full((1, num_samples), 0.1), RATE))
    starts = np.arange(0, num_samples, HOP)
    assert made.valid_frames.tolist() == np.minimum(num_samples - starts, WINDOW).tolist()
    np.testing.assert_allclose(made.features, second(np.full(num_samples, np.float32(0.1))), atol=SAME_DECIBELS)


def test_only_the_beginning_where_that_is_asked_for(tmp_path):
    path = write_sound(tmp_path / "a.wav", tone(44100, 3.0), 44100)
    rows, whole = (np.concatenate(list(sound_rows(path, seconds=seconds))[:-1]) for seconds in (1.0, None))
    assert len(rows) == 100 and len(whole) == 300
    np.testing.assert_array_equal(rows["features"][:98], whole["features"][:98])


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


def click(at_seconds: float, seconds: float, rate: int = 48000, num_channels: int = 1) -> np.ndarray:
    samples = np.zeros((num_channels, round(seconds * rate)), dtype=np.float32)
    samples[:, round(at_seconds * rate) :][:, : rate // 1000] = 0.8  # a millisecond
    return samples


def watcher() -> Extractor:
    """The mean of each picture, a hundred a second."""
    seen = stub("resnet152", batch_size=64)
    seen = replace(seen, profile=replace(seen.profile, fps=100, short_side_px=48, dimension=1))
    return replace(seen, network=Brightness())


class Brightness(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1).mean(dim=1, keepdim=True)


def seconds_of_flash(made: VideoFeatures) -> float:
    bright = made.features[:, 0]
    return float(made.start_seconds[np.argmax(bright > (bright.min() + bright.max()) / 2)])


def seconds_of_click(made: VideoFeatures) -> float:
    """It is in all of the windows that are loud, and so in the middle of what they share."""
    powers = made.features.max(axis=1)
    loud = np.flatnonzero(powers > powers.max() - 10)
    assert len(loud) <= 4
    return float(made.start_seconds[loud[-1]] + made.end_seconds[loud[0]]) / 2


CLIPS = {
    "mp4, aac": {"path": "a.mp4"},
    "mp4, aac, stereo at 44.1 kHz": {"path": "a.mp4", "rate": 44100, "layout": "stereo"},
    "mp4, sound 0.3133 s later": {"path": "a.mp4", "sound_start": 0.3133},
    "mp4, picture 0.5 s later": {"path": "a.mp4", "picture_later": "1/2"},
    "mp4, picture cut at its beginning": {"path": "a.mp4", "picture_later": "-1/5", "sound_start": 0.25},
    "mkv, aac": {"path": "a.mkv"},
    "mkv, opus, sound later": {"path": "a.mkv", "codec": "libopus", "sound_start": 0.41},
    "mkv, mp3": {"path": "a.mkv", "codec": "libmp3lame"},
    "mkv, pcm at 11025 Hz": {"path": "a.mkv", "codec": "pcm_s16le", "rate": 11025},
    "mov, pcm, sound later": {"path": "a.mov", "codec": "pcm_s16le", "sound_start": 0.1111},
    "ts, aac": {"path": "a.ts"},
    "ts, picture 0.5 s later": {"path": "a.ts", "picture_later": "1/2"},
    # AVI has no place for the delay of a sound's codec, and MP3 in it is late by 23 ms in any player.
    "avi, pcm": {"path": "a.avi", "codec": "pcm_s16le"},
}
FORMATS = {"mp4": "mp4", "mkv": "matroska", "mov": "mov", "ts": "mpegts", "avi": "avi"}


@pytest.mark.parametrize("how", CLIPS)
def test_a_flash_and_its_click_are_within_20_ms(tmp_path, logmel, how):
    """The pictures' 25th of 25 a second is white; the sound clicks as it appears, whichever of the two begins later."""
    about = {"rate": 48000, "sound_start": 0.0, "picture_later": "0", "layout": "mono"} | CLIPS[how]
    later, channels = float(Fraction(about["picture_later"])), {"mono": 1, "stereo": 2}[about["layout"]]
    samples = click(1.0 + later - about["sound_start"], 2.0, about["rate"], channels)
    name, moved = about.pop("path"), about.pop("picture_later")
    path = write_clip(tmp_path / name, flash=25, sound=samples, **about)
    if later:
        path = remux(path, tmp_path / f"moved-{name}", FORMATS[name[2:]], Fraction(moved))
    made = extract_video(path, [watcher(), logmel])
    flash, clicked = seconds_of_flash(made["resnet152"]), seconds_of_click(made["logmel"])
    if name == "a.ts":
        later = 0.0  # its clock starts with its pictures
    held_back = (
        2 / 25 if name == "a.avi" else 0.0
    )  # by H.264's decoder: AVI's pictures are that late in the ffmpeg program, too
    assert flash == pytest.approx(1.0 + later + held_back, abs=0.06), (
        "to half a slot, and the priming of the sound's codec"
    )
    assert clicked == pytest.approx(flash - held_back, abs=0.020)
    alone = heard(path)
    np.testing.assert_array_equal(alone.features, made["logmel"].features)
    np.testing.assert_array_equal(alone.start_seconds, made["logmel"].start_seconds)


@pytest.mark.parametrize("start", [0.5, 0.5051, 1.0])
def test_sound_that_begins_late_has_no_rows_before(tmp_path, logmel, start):
    path = write_clip(tmp_path / "a.mkv", sound=tone(RATE, 1.0), rate=RATE, codec="pcm_f32le", sound_start=start)
    made = extract_video(path, [logmel])["logmel"]
    first = round(round(start, 3) * RATE)  # Matroska's times are milliseconds
    assert made.start_seconds[0] == pytest.approx(first // HOP * 0.01)
    lacking = first % HOP
    assert made.valid_frames[0] == WINDOW - lacking
    np.testing.assert_allclose(
        made.features, second(np.append(np.zeros(lacking), tone(RATE, 1.0)[0].astype(np.float32))), atol=SAME_DECIBELS
    )
    assert made.duration_seconds == pytest.approx(first / RATE + 1.0)


@pytest.mark.parametrize("seconds", [0.5, 3.5])
def test_sound_shorter_or_longer_than_the_pictures_ends_where_it_ends(tmp_path, logmel, seconds):
    path = write_clip(tmp_path / "a.mkv", sound=tone(RATE, seconds), rate=RATE, codec="pcm_s16le", seconds=2.0)
    made = extract_video(path, [watcher(), logmel])
    assert made["resnet152"].duration_seconds == 2.0 and made["resnet152"].partial == made["logmel"].partial == ""
    assert made["logmel"].duration_seconds == seconds and len(made["logmel"].features) == 100 * seconds
    assert made["logmel"].start_seconds[-1] == pytest.approx(seconds - 0.01)


def paused(path: Path, pause_seconds: float, *, num_packets: int = 50, every: int = 25) -> Path:
    """Packets of 20 ms, a pause after ``every`` so many."""
    with av.open(str(path), "w", format="matroska") as written:
        stream = written.add_stream("pcm_s16le", rate=RATE, layout="mono")
        stream.time_base = Fraction(1, RATE)
        stream.codec_context.open()
        for number in range(num_packets):
            packet = av.Packet(np.full(320, 8000, dtype="<i2").tobytes())
            packet.stream, packet.time_base, packet.duration = stream, Fraction(1, RATE), 320
            packet.pts = packet.dts = number * 320 + round(pause_seconds * RATE) * (number // every)
            written.mux(packet)
    return path


@pytest.mark.parametrize("seconds", [0.1, 0.25, 0.8])
def test_a_pause_is_silence_in_its_place(tmp_path, seconds):
    made = heard(paused(tmp_path / "a.mkv", seconds))
    assert len(made.features) == round(100 * (1.0 + seconds))
    silent = np.flatnonzero(made.valid_frames[:-3] == 0)
    np.testing.assert_allclose(made.start_seconds[silent[[0, -1]]], [0.5, 0.5 + seconds - 0.03])
    assert (made.features[silent[1:]] == -100).all() and made.features[silent[-1] + 2].max() > -50
    expected = f"it has no sound between 0.50 and {0.5 + seconds:.2f} s" if seconds > 0.3 else ""
    assert made.partial == expected


def test_times_that_are_a_little_off_are_let_be(tmp_path):
    made = heard(paused(tmp_path / "a.mkv", 0.012))
    assert len(made.features) == 100 and (made.valid_frames[:98] == WINDOW).all()


@pytest.mark.parametrize("seconds", [400, 50000])
def test_a_destroyed_clock_is_refused_and_fills_no_memory(tmp_path, seconds):
    with pytest.raises(VideoError, match=f"its sound would pause for {seconds} s") as failed:
        heard(paused(tmp_path / "a.mkv", seconds))
    assert failed.value.kind == "bad_times"


def test_a_clock_that_jumps_back_is_refused(tmp_path):
    path = remux(write_sound(tmp_path / "a.mp4", tone(44100, 3.0), 44100, codec="aac"), tmp_path / "a.ts", "mpegts")
    path.write_bytes(2 * path.read_bytes())
    with pytest.raises(VideoError, match="the clock of its sound jumps back by 3 s") as failed:
        heard(path)
    assert failed.value.kind == "bad_times"


def test_what_overlaps_is_heard_once(tmp_path):
    path = remux(write_sound(tmp_path / "a.mp4", tone(44100, 0.6), 44100, codec="aac"), tmp_path / "a.ts", "mpegts")
    once = heard(path)
    path.write_bytes(2 * path.read_bytes())
    twice = heard(path)
    assert len(once.features) <= len(twice.features) <= len(once.features) + 5 and twice.partial == ""
    np.testing.assert_array_equal(twice.features[:50], once.features[:50])


def test_sound_that_lasts_too_long_is_refused(tmp_path, monkeypatch):
    path = paused(tmp_path / "a.mkv", 10, num_packets=10, every=1)
    assert len(heard(path).features) == 9020
    monkeypatch.setattr(sound, "LONGEST_VIDEO_SECONDS", 72)
    with pytest.raises(VideoError, match=r"its sound lasts over 0.02 h") as failed:
        heard(path)
    assert failed.value.kind == "too_long"


# In one pass with the pictures


def bursts() -> np.ndarray:
    """2 s of noise that is as loud as it likes for 50 ms at a time."""
    rng = np.random.default_rng(5)
    return 0.2 * rng.normal(0, 1, (1, 96000)) * np.geomspace(1, 1e-3, 7)[rng.integers(0, 7, 40)].repeat(2400)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("clips")
    both = write_clip(folder / "both.mp4", sound=bursts())
    write_sound(folder / "sound.mp4", tone(48000, 1.0), 48000, codec="aac")
    remux(both, folder / "pictures.mp4", "mp4", sound=False)
    (folder / "broken.mp4").write_bytes(b"no video" * 1000)
    return {path.stem: path for path in folder.iterdir()}


def test_pictures_and_sound_come_of_one_request_to_one_child(clips, logmel, monkeypatch):
    asked = []
    start = decode_process.DecodeProcess.start
    monkeypatch.setattr(
        decode_process.DecodeProcess, "start", lambda *a, **k: (asked.append((id(a[0]), k["sound"])), start(*a, **k))[1]
    )
    made = extract_video(clips["both"], [stub("s3d"), logmel, stub("resnet152")])
    assert sorted(made) == ["logmel", "resnet152", "s3d"] and len(asked) == 1
    for name, extractor in (("s3d", stub("s3d")), ("logmel", logmel), ("resnet152", stub("resnet152"))):
        alone = extract_video(clips["both"], [extractor])[name]
        np.testing.assert_allclose(made[name].features, alone.features, rtol=1e-6)
        assert made[name].source == alone.source
    assert [sound for _, sound in asked] == [True, False, True, False]


def test_what_a_file_does_not_have_is_left_out_and_the_rest_is_there(clips, logmel):
    extractors = [stub("s3d"), logmel]
    jobs = [Job(name, path, extractors) for name, path in clips.items()]
    made = {job.video_id: result for job, result in extract_videos(jobs, extractors)}
    assert made.pop("broken").kind == "unreadable"
    assert {name: sorted(result.features) for name, result in made.items()} == {
        "both": ["logmel", "s3d"],
        "sound": ["logmel"],
        "pictures": ["s3d"],
    }
    failures = {name: {n: e.kind for n, e in result.failures.items()} for name, result in made.items()}
    assert failures == {"both": {}, "sound": {"s3d": "no_video"}, "pictures": {"logmel": "no_sound"}}
    assert len(made["pictures"].thumbnails) == 3 and made["sound"].thumbnails == []


ENDING = """
import os, signal, time
from vlalign.extract.decoding import answer, child, sound

def ending(*args, **how):
    for part in sound.sound_rows(*args, **how):
        {what}
        yield part

answer.sound_rows = ending
child.main()
"""


@pytest.mark.parametrize(
    "what, kind",
    [
        ("signal.raise_signal(signal.SIGSEGV)", "crashed"),
        ("raise MemoryError", "out_of_memory"),
        ("time.sleep(1000)", "timeout"),
    ],
)
def test_a_decoder_that_the_sound_ends_still_gives_the_pictures(clips, logmel, monkeypatch, what, kind):
    monkeypatch.setattr(decode_process, "COMMAND", ENDING.format(what=what))
    monkeypatch.setattr("vlalign.extract.engine.SILENCE_SECONDS", 2.0)
    expected = extract_video(clips["both"], [stub("s3d")])["s3d"]
    extractors = [stub("s3d"), logmel]
    ((_, made),) = extract_videos([Job("x", clips["both"], extractors)], extractors)
    assert {name: error.kind for name, error in made.failures.items()} == {"logmel": kind}
    np.testing.assert_array_equal(made.features["s3d"].features, expected.features)
    assert made.features["s3d"].decoder == expected.decoder, "no decoder of pictures is to blame"
    ((_, alone),) = extract_videos([Job("x", clips["both"], [logmel])], [logmel])
    assert isinstance(alone, VideoError) and alone.kind == kind


LONG_RUN = """
import sys
from pathlib import Path
from vlalign.extract import extract_video, load_extractor
from vlalign.extract.decoding.sound import sound_rows
path = Path(sys.argv[2])
if sys.argv[1] == "decoding":
    print(sum(getattr(part, "num_rows", 0) for part in sound_rows(path)))
else:
    print(len(extract_video(path, [load_extractor("logmel")])["logmel"].features))
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells the most memory that a program itself had"
)
@pytest.mark.parametrize("what, most_mb", [("decoding", 10), ("extracting", 180)])
def test_memory_does_not_grow_with_the_length_of_the_sound(tmp_path, what, most_mb):
    """But for the rows themselves, of which an hour has 59 MB, and which are put together at the end."""
    peaks_kb = {}
    for minutes in (1, 60):
        path = write_sound(
            tmp_path / f"{minutes}.wav", np.zeros((1, minutes * 60 * 8000), dtype=np.float32), 8000, codec="pcm_mulaw"
        )
        answer = subprocess.run(
            [sys.executable, "-c", LONG_RUN, what, path], capture_output=True, text=True, check=True
        ).stdout.split()
        assert int(answer[0]) == minutes * 6000
        peaks_kb[minutes] = int(answer[1])
    print(f"{what}, peak memory in KB: {peaks_kb}")
    assert peaks_kb[60] < peaks_kb[1] + 1024 * most_mb


# The command


def call(folder: Path, root: Path, *options: str, features: str) -> int:
    return main(["--root", str(root), "--dataset", "mine", "--videos", str(folder), "--features", features, *options])


def test_the_command_writes_what_there_is_and_records_what_there_is_not(clips, tmp_path, capsys):
    root, dataset = tmp_path / "root", DatasetFolder(tmp_path / "root", "mine")
    folder = clips["both"].parent
    assert call(folder, root, "--weights", "random", features="resnet152,logmel") == 1
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines() if "'pictures'" in line]
    assert (
        len(lines) == 1 and "logmel: no_sound: there is no sound stream in it; recorded in failures.jsonl" in lines[0]
    )
    assert "'sound'" in printed and "resnet152: no_video: there is no video stream in it" in printed
    assert "features resnet152,logmel of 1 of 4 videos are there" in printed and "3 videos failed" in printed
    failed = {
        name: {f["video_id"]: f["kind"] for f in read_jsonl(dataset.features(name) / "failures.jsonl")}
        for name in ("resnet152", "logmel")
    }
    assert failed == {
        "resnet152": {"broken": "unreadable", "sound": "no_video"},
        "logmel": {"broken": "unreadable", "pictures": "no_sound"},
    }
    assert sorted(FeatureStore(dataset.features("resnet152")).video_ids()) == ["both", "pictures"]
    store = FeatureStore(dataset.features("logmel"))
    assert sorted(store.video_ids()) == ["both", "sound"]
    assert store.profile == PROFILES["logmel"] and (store.weights.name, store.weights.sha256) == ("none", "")
    made, stored = heard(clips["both"]), store.get("both")
    np.testing.assert_array_equal(stored.features, made.features.astype(np.float16))
    np.testing.assert_array_equal(stored.start_seconds, made.start_seconds)
    clip = store.get("both", start_seconds=0.5, end_seconds=1.0)
    np.testing.assert_allclose(clip.start_seconds[[0, -1]], [0.5, 1.0])

    assert call(folder, root, "--weights", "random", features="resnet152,logmel") == 1
    assert "tried" not in capsys.readouterr().err, "neither what is there nor what failed"
    assert call(folder, root, "--retry-failed", features="logmel") == 1
    assert "2 videos tried, 2 problems" in capsys.readouterr().err


def test_a_folder_of_recordings_is_taken_where_only_sound_is_asked_for(tmp_path, capsys):
    folder = tmp_path / "spoken"
    folder.mkdir()
    for name, codec in (("a.wav", "pcm_s16le"), ("b.mp3", "libmp3lame"), ("c.flac", "flac")):
        write_sound(folder / name, tone(RATE), RATE, codec=codec)
    assert call(folder, tmp_path / "root", features="logmel") == 0
    assert sorted(FeatureStore(tmp_path / "root/mine/features/logmel").video_ids()) == ["a", "b", "c"]
    assert call(folder, tmp_path / "other", "--weights", "random", features="logmel,s3d") == 2
    assert "no video files in it" in capsys.readouterr().err


def test_a_plan_tells_of_sound(clips, tmp_path, capsys):
    assert (
        call(clips["both"].parent, tmp_path / "root", "--weights", "random", "--plan", features="resnet152,logmel") == 1
    )
    planned = capsys.readouterr()
    assert "logmel: no_sound: there is no sound stream in it" in planned.err
    assert "resnet152: no_video: there is no video stream in it" in planned.err
    assert "1 of 4 videos cannot be read" in planned.out
    table = {
        line.split()[0]: line.split()[1:]
        for line in planned.out.splitlines()
        if line.startswith(("resnet152", "logmel"))
    }
    assert table["resnet152"][0] == table["logmel"][0] == "2" and table["resnet152"][2] == "4"
    num_rows = sum(len(heard(clips[name]).features) for name in ("both", "sound"))
    assert int(table["logmel"][2]) == pytest.approx(num_rows, abs=6)


def test_rows_of_others_are_compared(clips, tmp_path, capsys):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    rows = heard(clips["both"]).features
    for made, code, remark in (
        (rows, 0, "same"),
        (rows * 0.23, 0, "same: their rows are 0.23 times as long"),
        (
            rows - rows.max() - 20,
            1,
            f"DIFFERENT: their values are ours {-rows.max() - 20:+.2f} throughout: another reference",
        ),
        (np.roll(rows, 3, axis=0), 1, "DIFFERENT: theirs have rows 3 places later"),
        (np.flip(rows, axis=1), 1, "DIFFERENT: no cause known here explains it"),
    ):
        np.save(theirs / "both.npy", made)
        assert call(clips["both"].parent, tmp_path / "root", "--verify-against", str(theirs), features="logmel") == code
        line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("both"))
        assert remark in line


def test_weights_and_precision_are_none_of_its_business(clips, tmp_path, capsys):
    assert load_extractor("logmel", weights="random", precision="bf16").profile == PROFILES["logmel"]
    with pytest.raises(UserError, match=r"weights x.pth: logmel uses no network and has none; leave --weights out"):
        load_extractor("logmel", weights="x.pth")
    assert call(clips["both"].parent, tmp_path / "root", "--weights", "x.pth", features="logmel") == 2
    assert "leave --weights out" in capsys.readouterr().err
    assert call(clips["both"].parent, tmp_path / "root", "--weights", "x.pth", features="logmel,s3d") == 2
    assert "weights x.pth: no such file" in capsys.readouterr().err, "they are for the other one"
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "logmel" in capsys.readouterr().out


def test_a_probed_clock_is_the_one_of_the_sound(clips):
    """Both count from the same zero, to the tick of the pictures."""
    info = probe_video(clips["both"])
    with av.open(str(clips["both"])) as container:
        assert sound.time_zero(container) == info.offset * info.time_base
    assert json.dumps(log_mel.row_times(3, 2)[0].tolist()) == "[0.03, 0.04]"
