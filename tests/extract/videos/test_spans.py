"""Parts of videos as files: which frames and sound a copy and an exact clip have, and what stops them."""

import io
import itertools
import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.needs import PROGRAM, need, needs_program
from helpers.numbered import busy_picture, numbered_picture, numbers_of, write_video
from helpers.odd_videos import KINDS, make, write_source
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import LIBSWSCALE, Size
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.pyav_backend import decode_with_pyav
from vlalign.extract.decoding.scaling import swaps_sides, upright_filters
from vlalign.extract.decoding.webm_clip import upright_rgb
from vlalign.extract.videos.spans import SpanReader

SPANS = [(0.52, 1.5), (0.0, 0.3), (1.3, 9.0), (2.04, 2.05)]
LOST = {
    "h264 intra refresh": "its key frames are points of recovery: decoders skip what follows them",
    "parts 60 s apart mpg": "the B-frames before the second part need its first one's end",
    "parts 1000 s apart mpg": "as above",
    "raw yuv nut": "Matroska takes raw frames of no file but with an option",
}
"""Kinds whose copies lack frames, and why. Exact clips have all."""
SOME = {
    *("h264 mp4 pyramid", "h264 mkv", "h264 avi b-frames", "h264 ts b-frames", "h264 raw", "h264 mxf"),
    *("h264 open gop", "svq1 mov", "uneven mkv", "edit list, cut start with sound", "rotated 90", "late pictures ogg"),
    "clock that wraps",
}
"""Kinds that the fast tests try."""


@pytest.fixture(scope="module")
def reader():
    with SpanReader() as made:
        yield made


def frames_of(content: io.BytesIO) -> tuple[list[float], list[np.ndarray]]:
    """The times and upright pictures of a clip."""
    content.seek(0)
    with av.open(content) as clip:
        frames = list(clip.decode(video=0))
    sizes = [(f.height, f.width) if swaps_sides(upright_filters(f)) else (f.width, f.height) for f in frames]
    pictures = [upright_rgb(frame, *size) for frame, size in zip(frames, sizes, strict=True)]
    return [float(frame.time or 0) for frame in frames], pictures


def cut(reader, path: Path, start: float, end: float, kind: str):
    content = io.BytesIO()
    return reader.write(path, start, end, kind, content), content


def check_kind(kind: str, reader, folder: Path) -> None:
    """Compare clips with the frames that features are computed of."""
    path = make(kind, write_source(folder / "source.rgb", numbered_picture), folder)
    info = probe_video(path)
    decoded = decode_with_pyav(DecodePass(info, [Size(48, LIBSWSCALE)]), np.arange(len(info.pts)))
    number_of = {index: numbers_of([images[0]])[0] for index, images in decoded}
    times = [int(pts) * info.time_base for pts in info.pts]
    for start, end in SPANS:
        if start >= times[-1]:
            continue
        first = max(
            index for index, time in enumerate(times) if index == 0 or time <= Fraction(start) + Fraction(1, 10**6)
        )
        inside = [i for i, time in enumerate(times) if i == first or (i > first and time < end - 1e-6)]
        behind = times[inside[-1] + 1] if inside[-1] + 1 < len(times) else info.end * info.time_base
        expected = [number_of[index] for index in inside if index in number_of]
        facts = reader.probe(path, start, end)
        assert facts.num_frames == len(inside)
        assert [facts.start_seconds, facts.end_seconds] == pytest.approx([float(times[first]), float(behind)])
        written, content = cut(reader, path, start, end, "exact")
        shown, pictures = frames_of(content)
        assert numbers_of(pictures) == expected
        assert [written.start_seconds, written.end_seconds] == pytest.approx([facts.start_seconds, facts.end_seconds])
        np.testing.assert_allclose(
            shown, [float(times[i] - times[first]) for i in inside if i in number_of], atol=0.002
        )
        if not facts.copy_container or kind in LOST:
            continue
        written, content = cut(reader, path, start, end, "copy")
        assert written.start_seconds == pytest.approx(facts.key_seconds) and facts.key_seconds <= facts.start_seconds
        shown, pictures = frames_of(content)
        own = [time + written.start_seconds for time in shown]
        assert len(own) == written.num_frames
        last = float(times[inside[-1]])
        chosen = [p for p, time in zip(pictures, own, strict=True) if facts.start_seconds - 0.002 < time < last + 0.002]
        assert numbers_of(chosen) == expected


@needs_program
@pytest.mark.parametrize("kind", sorted(SOME))
def test_clips_have_the_frames_of_rows(kind, reader, tmp_path):
    check_kind(kind, reader, tmp_path)


@needs_program
@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SOME and not kind.endswith("in the middle")])
def test_clips_of_all_kinds_have_the_frames_of_rows(kind, reader, tmp_path):
    try:
        check_kind(kind, reader, tmp_path)
    except RuntimeError as error:
        need(PROGRAM, [f"ffmpeg that writes this kind ({error})"])


def busy_video(path: Path, **how) -> Path:
    ticks = [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 14, 15, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30]
    return write_video(path, ticks, Fraction(1, 25), picture=busy_picture, rate=Fraction(25), g="6", crf="4", **how)


def raw_frames(source: Path | io.BytesIO) -> list[np.ndarray]:
    if isinstance(source, io.BytesIO):
        source.seek(0)
    with av.open(source) as opened:
        return [frame.to_ndarray() for frame in opened.decode(video=0)]


def test_a_copy_has_the_very_frames_and_an_exact_clip_nearly(tmp_path, reader):
    """Of a variable rate, with B-frames: the first and the last frame beside those of the source."""
    path = busy_video(tmp_path / "v.mp4")
    source = raw_frames(path)
    written, content = cut(reader, path, 0.44, 0.88, "copy")
    copied = raw_frames(content)
    key = next(i for i, frame in enumerate(source) if np.array_equal(frame, copied[0]))
    assert key <= 9 and written.num_frames == len(copied)
    assert all(np.array_equal(a, b) for a, b in zip(copied, source[key:], strict=False))
    assert any(np.array_equal(copied[-1 - late], source[17]) for late in range(3))  # ticks 11 to 21 are frames 9 to 17
    _, content = cut(reader, path, 0.44, 0.88, "exact")
    exact = raw_frames(content)
    assert len(exact) == 9  # ticks 11, 12, 13, 14, 15, 18, 19, 20, 21
    for mine, theirs in ((exact[0], source[9]), (exact[-1], source[17])):
        error = np.mean((mine.astype(float) - theirs) ** 2)
        assert 10 * np.log10(255**2 / error) > 38
        others = [np.mean((mine.astype(float) - frame) ** 2) for frame in source if frame is not theirs]
        assert min(others) > 20 * error


def clicks(path: Path, at: list[float], rate: int = 48_000) -> Path:
    """A video with a white frame and a click at some seconds."""
    with av.open(str(path), "w") as written:
        video = written.add_stream("libx264", rate=25, options={"bf": "2", "g": "50"})
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        sound = written.add_stream("aac", rate=rate, layout="mono")
        for number in range(150):
            is_lit = any(abs(number / 25 - second) < 0.01 for second in at)
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 255 * is_lit, np.uint8), "rgb24")
            written.mux(video.encode(frame))
        written.mux(video.encode(None))
        samples = np.zeros((1, 6 * rate), np.float32)
        for second in at:
            samples[0, round(second * rate) :][:480] = 0.8 * np.sin(np.arange(480))
        whole = av.AudioFrame.from_ndarray(samples, "fltp", "mono")
        whole.sample_rate = rate
        written.mux(sound.encode(whole))
        written.mux(sound.encode(None))
    return path


def lights_and_clicks(source) -> tuple[list[float], list[float]]:
    """When frames are white, and when sound begins."""
    with av.open(source) as opened:
        lit = [float(f.time or 0) for f in opened.decode(video=0) if f.to_ndarray(format="gray").mean() > 200]
    if isinstance(source, io.BytesIO):
        source.seek(0)
    with av.open(source) as opened:
        sounds = [(float(f.time or 0) + np.arange(f.samples) / f.sample_rate, f) for f in opened.decode(audio=0)]
    times, samples = (
        np.concatenate([t for t, _ in sounds]),
        np.concatenate([f.to_ndarray()[0] for _, f in sounds]),
    )
    loud = times[np.abs(samples) > 0.3]
    return lit, [float(loud[0]), *(float(b) for a, b in itertools.pairwise(loud) if b - a > 0.2)]


@pytest.mark.parametrize("rate", [48_000, 96_000])
@pytest.mark.parametrize("kind", ["exact", "copy"])
def test_sound_stays_with_the_picture(tmp_path, reader, kind, rate):
    path = clicks(tmp_path / "v.mp4", [1.0, 2.2, 3.0, 4.4], rate)
    written, content = cut(reader, path, 2.16, 4.6, kind)
    content.seek(0)
    lit, begins = lights_and_clicks(content)
    source_lit, source_begins = lights_and_clicks(path)
    assert [time + written.start_seconds for time in lit] == pytest.approx(source_lit[1:], abs=0.001)
    assert [time + written.start_seconds for time in begins] == pytest.approx(source_begins[1:], abs=0.002)
    content.seek(0)
    with av.open(content) as clip:
        assert (clip.duration or 0) / 1e6 == pytest.approx(written.end_seconds - written.start_seconds, abs=0.05)
    assert content.getvalue()[4:8] == b"ftyp" and content.getvalue().index(b"moov") < content.getvalue().index(b"mdat")


def test_the_timecode_and_the_rate_of_a_file(tmp_path, reader):
    path = tmp_path / "v.mov"
    with av.open(str(path), "w") as written:
        written.metadata["timecode"] = "01:00:00;02"
        video = written.add_stream("libx264", rate=Fraction(30000, 1001))
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            written.mux(video.encode(av.VideoFrame.from_ndarray(numbered_picture(number), "rgb24")))
        written.mux(video.encode(None))
    facts = reader.probe(path, 0.5, 0.8)
    assert (facts.timecode, facts.rate_numerator, facts.rate_denominator) == ("01:00:00;02", 30000, 1001)
    assert (facts.width, facts.height, facts.num_channels) == (64, 48, 0)


def test_what_stops_a_clip(tmp_path, reader):
    avi = write_video(tmp_path / "v.avi", range(50), Fraction(1, 25), codec="mpeg4", container="avi")
    with pytest.raises(VideoError, match="exact"):
        cut(reader, avi, 0.5, 1.0, "copy")
    mp4 = busy_video(tmp_path / "v.mp4")
    with pytest.raises(VideoError) as error:
        reader.write(mp4, 0.0, 1.0, "exact", io.BytesIO(), max_bytes=1000)
    assert error.value.kind == "too_large"
    with pytest.raises(VideoError) as error:
        reader.write(mp4, 0.0, 1.0, "exact", io.BytesIO(), wait_seconds=0.001)
    assert error.value.kind == "timeout"
    shutil.copy(Path(__file__), tmp_path / "v.mkv")
    with pytest.raises(VideoError):
        reader.probe(tmp_path / "v.mkv", 0.0, 1.0)
    with pytest.raises(VideoError):
        reader.probe(mp4, 0.0, 1.0, folders=[str(tmp_path / "elsewhere")])
    assert reader.probe(mp4, 0.0, 1.0).num_frames == 21  # the reader goes on
