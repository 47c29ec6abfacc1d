"""The sound of files of any kind, and where in time its rows are."""

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from helpers.damage import set_last_cluster_to_0
from helpers.extractors import stub
from helpers.sounds import SAME_DECIBELS, heard, second, tone, write_clip, write_sound
from helpers.videos import remux
from vlalign.extract import extract_video
from vlalign.extract.decoding import log_mel, sound
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.log_mel import HOP, NUM_BANDS, RATE, WINDOW, log_mel_of_all
from vlalign.extract.decoding.sound import sound_rows
from vlalign.extract.extractor import Extractor
from vlalign.storage import VideoFeatures

pytestmark = pytest.mark.portable


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
    """As librosa does: a tone in one of six channels has a sixth of its amplitude. libswresample's own weights are
    others."""
    channels = np.zeros((num_channels, rate // 2))
    channels[-1] = tone(rate)
    made = heard(write_sound(tmp_path / "a.wav", channels, rate, layout=layout))
    expected = second(tone(RATE)[0] / num_channels)
    np.testing.assert_allclose(made.features.max(axis=1)[:48], expected.max(axis=1)[:48], atol=0.02)


def test_channels_of_opposite_sign_average_to_silence(tmp_path):
    made = heard(write_sound(tmp_path / "a.wav", np.concatenate([tone(RATE), -tone(RATE)]), RATE, layout="stereo"))
    assert (made.features == -100).all()


def test_silence_has_the_lowest_value_and_can_be_stored(tmp_path):
    made = heard(write_sound(tmp_path / "a.wav", np.zeros((1, RATE)), RATE))
    assert made.features.shape == (100, NUM_BANDS) and (made.features == -100).all()
    assert (made.valid_frames[:98] == WINDOW).all() and made.valid_frames[98:].tolist() == [320, 160]


def test_clipped_sound_is_unchanged(tmp_path):
    loud = 40 * tone(RATE, 1.0)
    beyond = heard(write_sound(tmp_path / "beyond.wav", loud, RATE))
    np.testing.assert_allclose(beyond.features, second(loud[0].astype(np.float32)), rtol=0, atol=SAME_DECIBELS)
    clipped = heard(write_sound(tmp_path / "clipped.wav", np.clip(loud, -1, 1), RATE, codec="pcm_s16le"))
    exact = np.clip(np.round(np.clip(loud[0], -1, 1) * 32768), -32768, 32767) / 32768
    np.testing.assert_allclose(clipped.features, second(exact), rtol=0, atol=0.01)
    assert beyond.features.max() > clipped.features.max() + 10


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_non_finite_samples_are_refused(tmp_path, value, rate):
    samples = tone(rate)
    samples[0, 3000] = value
    with pytest.raises(VideoError) as failed:
        heard(write_sound(tmp_path / "a.wav", samples, rate))
    assert failed.value.kind == "unreadable"


@pytest.mark.parametrize(
    "name, codec",
    [("a.mp3", "libmp3lame"), ("a.flac", "flac"), ("a.ogg", "libopus"), ("a.m4a", "aac"), ("a.webm", "libopus")],
)
def test_audio_files_without_video_are_read(tmp_path, name, codec):
    made = heard(write_sound(tmp_path / name, tone(48000, 1.5), 48000, codec=codec))
    assert 1.49 < made.duration_seconds < 1.6
    np.testing.assert_allclose(made.features.max(axis=1)[20:130], second(tone(RATE)[0]).max(axis=1)[20], atol=0.5)


def test_block_sizes_do_not_change_the_rows(tmp_path, monkeypatch):
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
def test_there_is_a_row_for_each_started_hop(tmp_path, num_samples):
    made = heard(write_sound(tmp_path / "a.wav", np.full((1, num_samples), 0.1), RATE))
    starts = np.arange(0, num_samples, HOP)
    assert made.valid_frames.tolist() == np.minimum(num_samples - starts, WINDOW).tolist()
    np.testing.assert_allclose(made.features, second(np.full(num_samples, np.float32(0.1))), atol=SAME_DECIBELS)


def test_only_the_beginning_is_read_on_request(tmp_path):
    path = write_sound(tmp_path / "a.wav", tone(44100, 3.0), 44100)
    rows, whole = (np.concatenate(list(sound_rows(path, seconds=seconds))[:-1]) for seconds in (1.0, None))
    assert len(rows) == 100 and len(whole) == 300
    np.testing.assert_array_equal(rows["features"][:98], whole["features"][:98])


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
    stated = re.findall(r"\d+\.\d\d", made.partial)
    assert stated == (["0.50", f"{0.5 + seconds:.2f}"] if seconds > 0.3 else [])
    assert bool(made.partial) == (seconds > 0.3)


def test_small_timestamp_errors_are_ignored(tmp_path):
    made = heard(paused(tmp_path / "a.mkv", 0.012))
    assert len(made.features) == 100 and (made.valid_frames[:98] == WINDOW).all()


@pytest.mark.parametrize("seconds", [400, 50000])
def test_absurd_timestamps_are_refused_without_filling_memory(tmp_path, seconds):
    with pytest.raises(VideoError, match=f" {seconds} s") as failed:
        heard(paused(tmp_path / "a.mkv", seconds))
    assert failed.value.kind == "bad_times"


def test_timestamps_that_jump_back_are_refused(tmp_path):
    path = set_last_cluster_to_0(paused(tmp_path / "a.mkv", 0, num_packets=700))
    with pytest.raises(VideoError, match=r" \d+ s") as failed:
        heard(path)
    assert failed.value.kind == "bad_times"


def test_parts_of_a_transport_stream_follow_each_other(tmp_path):
    path = remux(write_sound(tmp_path / "a.mp4", tone(44100, 0.6), 44100, codec="aac"), tmp_path / "a.ts", "mpegts")
    once = heard(path)
    path.write_bytes(2 * path.read_bytes())
    twice = heard(path)
    assert 2 * len(once.features) - 2 <= len(twice.features) <= 2 * len(once.features) and twice.partial == ""
    np.testing.assert_array_equal(twice.features[:50], once.features[:50])


def test_sound_that_lasts_too_long_is_refused(tmp_path, monkeypatch):
    path = paused(tmp_path / "a.mkv", 10, num_packets=10, every=1)
    assert len(heard(path).features) == 9020
    monkeypatch.setattr(sound, "MAX_VIDEO_SECONDS", 72)
    with pytest.raises(VideoError, match=r"0\.02 h") as failed:
        heard(path)
    assert failed.value.kind == "too_long"
