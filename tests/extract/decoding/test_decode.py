"""Video files -> the frames that profiles need: what is read from a file, windows, thumbnails and limits."""

import io
import os
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.damage import set_last_cluster_to_0
from helpers.decoding import BACKENDS, assert_same, chosen, pictures_by, take, want
from helpers.needs import shared
from helpers.numbered import HEIGHT, SOUND_RATE_HZ, constant, numbers_of, tone, write_video
from helpers.videos import RECORDINGS, remux, scene
from helpers.zoo import VIDEOS
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from vlalign.extract.decoding import decode
from vlalign.extract.decoding.container import MAX_PIXELS
from vlalign.extract.decoding.decode import DecodedThumbnail, cut, decode_video
from vlalign.extract.decoding.decord_backend import decord_reads_well
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import PILLOW, Size
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.sampling import MAX_SIDE_RATIO, Window
from vlalign.extract.pipeline.video_jobs import frame_spec_of
from vlalign.extract.videos.demo import frame_times, render_video
from vlalign.storage.profiles import LOGMEL, PROFILES

pytestmark = pytest.mark.portable

# What is read from a file, and how


@pytest.mark.parametrize("name", RECORDINGS)
def test_probed_times_are_the_planned_ones(recordings, name):
    info = probe_video(recordings[name])
    ticks, tick_seconds = frame_times(scene(**RECORDINGS[name]))
    assert [time * info.time_base for time in info.pts.tolist()] == [tick * tick_seconds for tick in ticks]
    assert info.end * info.time_base == (ticks[-1] + 1) * tick_seconds
    assert info.duration_seconds == pytest.approx(float((ticks[-1] + 1) * tick_seconds))
    assert (info.codec, info.offset, info.timed, info.plain, info.missing) == ("h264", 0, True, True, "")
    assert (info.packet_bytes > 0).all() and len(info.packet_bytes) == len(info.pts)


def test_variable_rate_leaves_frames_out(recordings):
    assert len(probe_video(recordings["variable rate"]).pts) < 24 == round(0.8 * 30)


def test_probing_reports_progress(recordings):
    beats = []
    info = probe_video(recordings["25"], lambda: beats.append(1))
    assert len(beats) >= len(info.pts) == 20
    beats.clear()
    list(decode_video(info, [want(25)], heartbeat=lambda: beats.append(1)))
    assert len(beats) == 20


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "wanted", [[0], [59], [3, 4, 11], list(range(1, 60, 2))], ids=["first", "last", "some", "every other"]
)
def test_only_wanted_frames_are_read_and_they_are_the_right_ones(with_sound, wanted, backend):
    ((pictures,), _) = pictures_by(backend, probe_video(with_sound), [HEIGHT], np.array(wanted))
    assert numbers_of(pictures) == wanted


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shift_seconds", [0, 0.48])
@pytest.mark.parametrize("container", ["matroska", "mpegts", "mov"])
def test_other_containers_give_the_same_frames_at_the_same_times(
    with_sound, tmp_path, container, shift_seconds, backend
):
    """MPEG-TS begins its clock at 1.4 s: times are counted from the file's start. Matroska rounds times to
    milliseconds."""
    path = remux(with_sound, tmp_path / "other", container, Fraction(shift_seconds), sound=False)
    info, expected = probe_video(path), probe_video(with_sound)
    seconds, expected_seconds = (i.pts.astype(float) * float(i.time_base) for i in (info, expected))
    np.testing.assert_allclose(seconds - seconds[0], expected_seconds - expected_seconds[0], atol=0.0011)
    if backend == "decord" and container == "mpegts":
        assert not decord_reads_well(info, [Size(HEIGHT)])
        return
    ((pictures,), _) = pictures_by(backend, info, [HEIGHT], np.arange(60))
    assert numbers_of(pictures) == list(range(60))


def test_a_picture_later_than_the_sound_stays_later(with_sound, tmp_path):
    path = remux(with_sound, tmp_path / "late.mp4", "mp4", shift_seconds=Fraction(1, 2))
    late, before = (probe_video(p) for p in (path, with_sound))
    assert late.pts[0] * late.time_base == pytest.approx(before.pts[0] * before.time_base + 0.5, abs=0.001)
    assert late.duration_seconds == pytest.approx(before.duration_seconds + 0.5, abs=0.001)
    repeats = [numbers_of(take(p, want(24)).frames).count(0) for p in (path, with_sound)]
    assert repeats == [repeats[1] + 12, repeats[1]], "the first picture is shown until the second one comes"


def test_a_picture_much_later_than_the_sound_is_refused(with_sound, tmp_path):
    with pytest.raises(VideoError, match=r" 301 s .*\b300 s") as failed:
        probe_video(remux(with_sound, tmp_path / "late.mp4", "mp4", shift_seconds=Fraction(301)))
    assert failed.value.kind == "bad_times"


def test_a_cover_picture_is_not_a_video_stream(tmp_path):
    """Neither alone nor before a video."""
    with av.open(str(tmp_path / "cover.mp4"), "w") as written:
        cover = written.add_stream("mjpeg", rate=1)
        cover.height, cover.width, cover.pix_fmt, cover.disposition = (
            64,
            64,
            "yuvj420p",
            av.stream.Disposition.attached_pic,
        )
        sound = written.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), dtype=np.uint8), format="rgb24").reformat(
            format="yuvj420p"
        )
        written.mux(cover.encode(frame))
        written.mux(sound.encode(tone(1)))
        written.mux(sound.encode(None))
    with pytest.raises(VideoError) as failed:
        probe_video(tmp_path / "cover.mp4")
    assert failed.value.kind == "no_video"


def make_audio_only(path: Path) -> None:
    with av.open(str(path), "w", format="mp4") as written:
        sound = written.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        written.mux(sound.encode(tone(1)))
        written.mux(sound.encode(None))


def make_cut_without_index(path: Path) -> None:
    constant(path, 20)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])


def make_emptied(path: Path) -> None:
    """Index and all packets there, every picture overwritten with zeros."""
    constant(path, 20)
    content = path.read_bytes()
    first, last = content.index(b"mdat") + 4, content.index(b"moov") - 4
    path.write_bytes(content[:first] + bytes(last - first) + content[last:])


@pytest.mark.parametrize(
    "make, kind",
    [
        (make_audio_only, "no_video"),
        (lambda path: path.write_bytes(b""), "unreadable"),
        (lambda path: path.write_bytes(np.random.default_rng(0).bytes(100_000)), "unreadable"),
        (
            lambda path: path.write_text("<!DOCTYPE html><html><body>Sign in to confirm your age</body></html>\n" * 30),
            "unreadable",
        ),
        (make_cut_without_index, "unreadable"),
        (make_emptied, "unreadable"),
        (lambda path: None, "missing"),
        (lambda path: path.mkdir(), "missing"),
        (lambda path: path.symlink_to(path.with_name("nowhere.mp4")), "missing"),
        (os.mkfifo, "missing"),
    ],
    ids=[
        "audio only",
        "empty",
        "random bytes",
        "html",
        "no index",
        "pictures zeroed",
        "missing",
        "folder",
        "dangling link",
        "pipe",
    ],
)
@pytest.mark.parametrize("without", [(), ("decord",), ("decord", "PyAV")], ids=["", "no decord", "no PyAV"])
def test_files_without_pictures_fail_with_a_kind_and_a_reason(tmp_path, make, kind, without):
    path = tmp_path / "broken.mp4"
    make(path)
    with pytest.raises(VideoError) as failed:
        take(path, want(24), excluded_decoders=without)
    assert failed.value.kind == kind
    assert str(failed.value) and "\n" not in str(failed.value)


@pytest.mark.parametrize("every", [1, 1.5, 100])
def test_thumbnails_every_few_seconds_show_those_seconds(tmp_path, every):
    """24 frames a second, with a pause from 2 to 6 s, of which features take one a second."""
    ticks = [*range(49), *range(144, 192)]
    path = write_video(tmp_path / "v.mp4", ticks, Fraction(1, 24))
    plain, dense = (
        list(decode_video(probe_video(path), [want(1, 96)], thumbnails_every=each)) for each in (None, every)
    )
    windows = [[part.frames for part in parts if isinstance(part, Window)] for parts in (plain, dense)]
    np.testing.assert_array_equal(windows[0], windows[1])
    thumbnails = [part for part in dense if isinstance(part, DecodedThumbnail)]
    end = [191 / 24] if every == 1 else []  # the last frame, where none before is near enough
    assert [thumbnail.seconds for thumbnail in thumbnails] == pytest.approx([*np.arange(0, 8, every), *end])
    from_jpeg = [np.asarray(Image.open(io.BytesIO(thumbnail.jpeg))) for thumbnail in thumbnails]
    shown = [max(n for n, tick in enumerate(ticks) if tick <= 24 * thumb.seconds + 1e-6) for thumb in thumbnails]
    assert numbers_of(from_jpeg) == shown


def test_thumbnails_end_where_their_bytes_do_and_that_is_noted(tmp_path, monkeypatch):
    path = write_video(tmp_path / "v.mp4", range(240), Fraction(1, 24))
    monkeypatch.setattr(decode, "MAX_DENSE_BYTES", 4000)
    *parts, finished = decode_video(probe_video(path), [want(1, 96)], thumbnails_every=1)
    made = [part for part in parts if isinstance(part, DecodedThumbnail)]
    assert 0 < len(made) < 11 and sum(len(thumbnail.jpeg) for thumbnail in made) <= 4000
    assert f"{11 - len(made)} thumbnails skipped" in finished.note


def test_pictures_of_the_beginning_the_middle_and_the_end(with_sound):
    pictures = take(with_sound, want(24, 96)).pictures
    assert [picture.seconds for picture in pictures] == pytest.approx([0.24, 1.2, 2.16], abs=0.08)
    from_jpeg = [np.asarray(Image.open(io.BytesIO(picture.jpeg))) for picture in pictures]
    assert {picture.shape for picture in from_jpeg} == {(90, 120, 3)}
    assert numbers_of(from_jpeg) == [round(25 * picture.seconds) for picture in pictures]


def test_the_first_seconds_alone_are_the_same_frames(with_sound):
    info = probe_video(with_sound)
    whole, beginning = take(info, want(24)), take(cut(info, 1.0), want(24))
    assert len(beginning.rows[0]) == 24
    assert numbers_of(beginning.frames) == numbers_of(whole.frames[:24])
    assert beginning.finished.duration_seconds == pytest.approx(1.0)
    assert len(take(cut(info, 0.0), want(24)).rows[0]) == 1
    assert cut(info, 100) is info


@pytest.mark.parametrize("tail, last", [("loop", [58, 59, 58, 59]), ("black frames", [58, 59, 0, 0])])
def test_windows_and_crops_of_several_profiles_in_one_pass(with_sound, tail, last):
    info = replace(probe_video(with_sound))
    every, windows, sparse = want(25), want(25, 2 * HEIGHT, 29, 2 * HEIGHT, tail), want(1)
    taken = take(info, every, windows, sparse)
    assert numbers_of(taken.rows[0]) == list(range(60))
    assert [row.shape for row in taken.rows[1]] == [(29, 96, 96, 3)] * 3
    # the middle 96 of 128 columns: half of the outer blocks is cut away, the inner two are whole
    assert [frame.tobytes() for frame in taken.rows[1][0][:, ::4, ::4]] == [
        frame.tobytes() for frame in squares(info)[:29]
    ]
    shown = squares(info)
    expected = [shown[58], shown[59], *([shown[58], shown[59]] if tail == "loop" else [np.zeros_like(shown[0])] * 2)]
    np.testing.assert_array_equal(taken.rows[1][2][:4, ::4, ::4], expected)
    assert numbers_of(taken.rows[2]) == chosen(with_sound, 1).tolist()
    assert taken.finished.num_frames == [60, 60, len(taken.rows[2])]


@pytest.mark.parametrize(
    "name",
    ["rot90.mp4", "odd_444.mp4", pytest.param("data/msrvtt/videos/video7010.mp4", marks=pytest.mark.slow)],
)
def test_all_profiles_in_one_pass_get_the_frames_that_each_gets_alone(name):
    """Every frame is decoded once, whatever is wanted of it."""
    info = cut(probe_video(shared(name) if name.startswith("data/") else VIDEOS / name), 4.0)
    wanted, beats = [frame_spec_of(profile) for name, profile in PROFILES.items() if name != LOGMEL], []
    together = take(info, *wanted)
    assert len(together.begun) == 1
    for _ in decode_video(info, wanted, heartbeat=lambda: beats.append(1)):
        pass
    assert 0 < len(beats) <= len(info.pts)
    for place, one in enumerate(wanted):
        assert_same(np.stack(together.rows[place]), take(info, one).frames)


@pytest.mark.parametrize("size", [(320, 240), (250, 180), (180, 250), (200, 90)], ids="{0[0]}x{0[1]}".format)
def test_clips_frames_are_those_of_transformers_own_processor(tmp_path, size):
    """To the last bit, from the frames in RGB at their own size: resized smaller and larger, cut where one pixel is
    left over."""
    width, height = size
    render_video(scene(2.0, width=width, height=height), tmp_path / "x.mp4")
    with av.open(str(tmp_path / "x.mp4")) as container:
        frames = [frame.to_image() for frame in container.decode(video=0)]
    processor = CLIPImageProcessorPil(do_rescale=False, do_normalize=False)
    expected = processor([frames[12], frames[37]], return_tensors="np")["pixel_values"].transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(take(tmp_path / "x.mp4", frame_spec_of(PROFILES["clip_vit_b32"])).frames, expected)


def test_one_size_can_be_requested_with_both_resize_kernels(with_sound):
    wanted = [want(1, HEIGHT // 2), want(1, HEIGHT // 2, resize=PILLOW)]
    bilinear, bicubic = (np.stack(rows).astype(int) for rows in take(with_sound, *wanted).rows)
    assert bilinear.shape == bicubic.shape and np.abs(bilinear - bicubic).max() > 0
    for pictures, one in zip((bilinear, bicubic), wanted, strict=True):
        np.testing.assert_array_equal(take(with_sound, one).frames, pictures)
    with pytest.raises(ValueError, match="resize 'nearest'"):
        take(with_sound, want(1, resize="nearest"))


def squares(info: VideoInfo) -> np.ndarray:
    ((pictures,), _) = pictures_by("pyav", info, [2 * HEIGHT], np.arange(len(info.pts)))
    return pictures[:, ::4, 16:-16:4]


# Limits


def declared(path: Path, height: int, width: int) -> Path:
    """A file that says that its frames are so large, and has next to nothing in it."""
    with av.open(str(path), "w", format="avi") as written:
        stream = written.add_stream("rawvideo", rate=24)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        packet = av.Packet(bytes(1000))
        packet.stream, packet.pts, packet.dts, packet.time_base = stream, 0, 0, Fraction(1, 24)
        written.mux(packet)
    return path


def at_seconds(path: Path, *seconds: float) -> Path:
    return write_video(path, [round(1000 * s) for s in seconds], Fraction(1, 1000), container="matroska", bf="0")


LIMITS = {
    "frames too large": (lambda path: declared(path, 6400, 8000), "too_large", "8000x6400"),
    "frames too wide": (lambda path: declared(path, 16, 16 * MAX_SIDE_RATIO + 2), "too_large", "162x16"),
    "frames too high": (lambda path: declared(path, 16 * MAX_SIDE_RATIO + 2, 16), "too_large", "16x162"),
    "one frame too long": (
        lambda path: write_video(path, [0, 1, 302, 303], Fraction(1), container="nut", bf="0"),
        "bad_times",
        " 4 .* 301 s",
    ),
    "all too long": (lambda path: at_seconds(path, *range(0, 43600, 200)), "too_long", "12.1 h.* 12 h"),
    "times that jump back": (
        lambda path: set_last_cluster_to_0(at_seconds(path, *range(14))),
        "bad_times",
        r"\d+ s",
    ),
}


@pytest.mark.parametrize("make, kind, words", LIMITS.values(), ids=LIMITS)
def test_files_beyond_the_limits_fail_before_decoding(tmp_path, make, kind, words):
    with pytest.raises(VideoError, match=words) as failed:
        probe_video(make(tmp_path / "beyond"))
    assert failed.value.kind == kind


def test_a_file_just_within_the_limits_is_decoded(tmp_path):
    assert declared(tmp_path / "large", 5000, MAX_PIXELS // 5000) and probe_video(tmp_path / "large").height == 5000
    assert probe_video(declared(tmp_path / "wide", 16, 16 * MAX_SIDE_RATIO)).width == 160
    taken = take(at_seconds(tmp_path / "long", 0, 1, 300, 301), want(1))
    assert numbers_of(taken.frames) == [0, *[1] * 299, 2]
    assert probe_video(at_seconds(tmp_path / "very long", *range(0, 43100, 200))).duration_seconds == pytest.approx(
        43000.04, abs=0.01
    )
