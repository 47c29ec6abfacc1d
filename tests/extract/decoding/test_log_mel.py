"""Log-mel rows, against a second library."""

import re
import subprocess
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from helpers.decoding import version_of_program
from helpers.needs import needs_program, shared
from helpers.sounds import SAME_DECIBELS, heard, second
from transformers import audio_utils
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.log_mel import BLOCK_ROWS, HOP, NUM_BANDS, RATE, WINDOW, RowBlocks, log_mel_of_all
from vlalign.extract.decoding.sound import planned_sound
from vlalign.storage.profiles import PROFILES


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
    *("av1.mp4", "frag.mp4", "vp9.webm", "gif.mp4", "raw_es.mp4"),
    "data/msrvtt/videos/video7013.mp4",
]


def test_the_constants_equal_the_profile():
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
    with pytest.raises(ValueError, match=r"\[N\].* torch.int64 \[2, 3\]"):
        logmel.features(torch.zeros((2, 3), dtype=torch.int64))


def test_decibels_of_a_files_maximum_come_of_the_rows(logmel):
    """What ResDAVEnet-VQ's and AVLnet's loaders give: ``power_to_db(ref=np.max)``, 80 dB deep."""
    samples = np.random.default_rng(1).normal(0, 1, RATE) * np.geomspace(1, 1e-6, RATE)
    powers = second(samples, log_mel=None)
    rows = log_mel_of_all(samples)
    theirs = audio_utils.power_to_db(powers, reference=powers.max(), db_range=80.0)
    np.testing.assert_allclose(np.maximum(rows - rows.max(), -80), theirs, atol=SAME_DECIBELS)
    assert (theirs == theirs.min()).any(), "some are cut"


@pytest.fixture
def heard_file(request, zoo_folder) -> Path:
    """A made-up video of the zoo, or a real one."""
    return shared(request.param) if request.param.startswith("data/") else zoo_folder / request.param


@pytest.mark.parametrize("heard_file", [*ZOO, *REAL], indirect=True)
def test_videos_give_the_second_librarys_values(heard_file):
    path = heard_file
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
@pytest.mark.parametrize("heard_file", ["ok_h264.mp4", "h264.mkv", "trunc_tail.mp4", *REAL], indirect=True)
def test_the_ffmpeg_program_gives_the_same_sound(heard_file):
    """Its decoder is another version's, whose last bits show in bands that are next to nothing."""
    path = heard_file
    made = heard(path)
    first = WINDOW - made.valid_frames[0]
    with av.open(str(path)) as container:
        num_channels = container.streams.audio[0].codec_context.layout.nb_channels
    mean = "pan=mono|c0=" + "+".join(f"{1 / num_channels}*c{channel}" for channel in range(num_channels))
    command = ["ffmpeg", "-v", "fatal", "-nostdin", "-i", f"file:{path}", "-map", "0:a:0"]
    command += ["-af", f"aformat=sample_fmts=fltp,{mean},aresample={RATE}", "-f", "f32le", "-"]
    samples = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, dtype="<f4")
    theirs, mine = second(np.append(np.zeros(first), samples)), made.features
    if (av.library_versions["libavformat"][0] >= 63) != (int(version_of_program().split(".")[0]) >= 9):
        # FFmpeg 9 drops what AAC's encoder adds to fill its last packet; versions before keep it.
        assert abs(len(mine) - len(theirs)) <= 3
        both = min(len(mine), len(theirs)) - 5
        mine, theirs = mine[:both], theirs[:both]
    differences = np.abs(mine - theirs)
    assert differences.max() < 0.02 and differences[theirs > -80].max(initial=0) < 1e-3


@pytest.mark.parametrize("heard_file", SILENT, indirect=True)
def test_videos_without_sound_say_so(heard_file):
    with pytest.raises(VideoError) as failed:
        heard(heard_file)
    assert failed.value.kind == "no_sound"


@pytest.mark.parametrize(
    "name, outcome",
    [
        ("dup_ts.ts", "partial: "),
        ("trunc_tail.mp4", r"partial: .* 2\.93 s .* 5\.00 .*"),
        ("flip_mid.mp4", "partial: 3 .*"),
        ("html.mp4", "unreadable: .*"),
        ("m3u8_local.mp4", "unreadable: .*"),
        ("concat_rel.mp4", "unreadable: .*"),
        ("trunc_nomoov.mp4", "unreadable: .*"),
    ],
)
def test_odd_files_of_the_zoo(zoo_folder, name, outcome):
    path = zoo_folder / name
    try:
        found = f"partial: {heard(path).partial}"
    except VideoError as error:
        found = f"{error.kind}: {error}"
    assert re.fullmatch(outcome, found)


@pytest.mark.parametrize("num_blocks", [1, 2])
@pytest.mark.parametrize("more_rows", range(-4, 4))
@pytest.mark.parametrize("more_samples", [-1, 0, 1])
def test_blocks_that_end_anywhere_hold_every_row_once(num_blocks, more_rows, more_samples):
    """A child may send no empty block, so none is made where the sound ends with a full one."""
    samples = np.random.default_rng(0).normal(size=(num_blocks * BLOCK_ROWS + more_rows) * HOP + more_samples)
    samples = samples.astype(np.float32)
    blocks = RowBlocks(0)
    made = [block for start in range(0, len(samples), 4096) for block in blocks.add(samples[start:][:4096], real=True)]
    made += blocks.finish()
    assert all(len(block) for block in made)
    assert sum(map(len, made)) == blocks.num_rows
    np.testing.assert_allclose(np.concatenate(made)["features"], log_mel_of_all(samples), atol=1e-4)
