"""All decoders give the same pictures."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from helpers.damage import ZEROED, skipping, zero_packets
from helpers.decoding import (
    MADE_UP,
    MAX_DIFFERENCE,
    REAL,
    any_video,
    assert_same,
    by_program,
    differences,
    needs_decord,
    pictures_by,
    take,
    version_of_program,
    want,
)
from helpers.needs import PROGRAM, missing_programs, need, needs_program
from helpers.numbered import HEIGHT, busy_picture, constant
from helpers.videos import RECORDINGS, UPRIGHT, all_frames
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.backends import choose_backends
from vlalign.extract.decoding.decord_backend import DecoderRejected, decord_reads_well
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import Size, scaled_size
from vlalign.extract.decoding.probe import probe_video


@pytest.mark.parametrize("name", [*MADE_UP, *REAL])
def test_decoders_give_the_same_pictures(name):
    info = probe_video(any_video(name))
    wanted = np.unique([*range(5), *range(5, min(len(info.pts), 150), 20)])
    pyav, decoding = pictures_by("pyav", info, [224, 112], wanted)
    assert [pictures.shape[1:3] for pictures in pyav] == [
        scaled_size(info.height, info.width, side) for side in (224, 112)
    ]
    assert decoding.num_damaged == 0
    others = []
    if backends.can_use_ffmpeg():
        others.append(pictures_by("ffmpeg", info, [224, 112], wanted)[0])
    if decord_reads_well(info, [Size(224)]):
        others.append([pictures_by("decord", info, [side], wanted)[0][0] for side in (224, 112)])
    elif backends.decord is not None:
        assert "avi" in info.containers
    if not others:
        need(PROGRAM, missing_programs("ffmpeg"))
    for other in others:
        for pictures, same in zip(pyav, other, strict=True):
            assert_same(pictures, same)


@needs_program
@pytest.mark.parametrize("name", ["mpeg4.avi", *list(REAL)[:1], *list(REAL)[-4:]])
def test_videos_give_the_frames_of_the_ffmpeg_program(name):
    path = any_video(name)
    taken = take(path, want(1), want(24))
    height, width = taken.frames.shape[1:3]
    for rows, theirs in zip(taken.rows, by_program(path, height, width, 1, 24), strict=True):
        assert_same(np.stack(rows), theirs)


COLOURS = {
    "untagged": {},
    "bt709": {"colorspace": 1, "color_primaries": 1, "color_trc": 1, "color_range": 1},
    "smpte170m": {"colorspace": 6, "color_range": 1},
    "full range": {"color_range": 2},
    "full range bt709": {"colorspace": 1, "color_range": 2},
    "bt2020": {"colorspace": 9, "color_range": 1},
}


def coloured_video(path: Path, tags: dict[str, int], pix_fmt: str = "yuv420p") -> Path:
    """The same samples whatever the tags: those say which colours are meant."""
    with av.open(str(path), "w", format="mp4") as written:
        stream = written.add_stream("libx264", rate=24, options={"preset": "ultrafast", "threads": "1"})
        stream.height, stream.width, stream.pix_fmt = 120, 160, pix_fmt
        for tag, value in tags.items():
            setattr(stream.codec_context, tag, value)
        for number in range(12):
            frame = av.VideoFrame(160, 120, "yuv420p")
            for plane, samples in zip(
                frame.planes, np.random.default_rng(number).integers(20, 230, (3, 15, 20), dtype=np.uint8), strict=True
            ):
                large = samples.repeat(plane.height // 15, axis=0).repeat(plane.width // 20, axis=1)
                padded = np.zeros((plane.height, plane.line_size), dtype=np.uint8)
                padded[:, : plane.width] = large
                plane.update(padded)
            if pix_fmt == "yuvj420p":
                frame = frame.reformat(format="yuvj420p", src_color_range=2, dst_color_range=2)
            for tag, value in tags.items():
                setattr(frame, tag, value)
            frame.pts, frame.time_base = number, Fraction(1, 24)
            written.mux(stream.encode(frame))
        written.mux(stream.encode(None))
    return path


@needs_program
@pytest.mark.parametrize(
    "tags, pix_fmt", [*((tags, "yuv420p") for tags in COLOURS), ("untagged", "yuvj420p"), ("bt709", "yuvj420p")]
)
def test_colours_are_those_of_the_ffmpeg_program(tmp_path, tags, pix_fmt):
    path = coloured_video(tmp_path / "coloured.mp4", COLOURS[tags], pix_fmt)
    info, every = probe_video(path), np.arange(12)
    (theirs,) = by_program(path, 80, 106, None)
    for backend in ("pyav", "ffmpeg", *(["decord"] if decord_reads_well(info, [Size(80)]) else [])):
        ((pictures,), _) = pictures_by(backend, info, [80], every)
        assert differences(pictures, theirs).max() <= MAX_DIFFERENCE, backend


def test_colour_tags_are_respected(tmp_path):
    """So that the test above has something to compare."""
    made = {
        tags: all_frames(coloured_video(tmp_path / f"{place}.mp4", COLOURS[tags])) for place, tags in enumerate(COLOURS)
    }
    assert differences(made["bt709"], made["smpte170m"]).min() > 2
    assert differences(made["full range"], made["untagged"]).min() > 2
    assert differences(made["smpte170m"], made["untagged"]).max() <= MAX_DIFFERENCE


@needs_decord
@pytest.mark.parametrize("name", RECORDINGS)
def test_decord_and_pyav_give_the_same_pixels(recordings, name):
    info = probe_video(recordings[name])
    if decord_reads_well(info, [Size(112)]):
        np.testing.assert_array_equal(all_frames(recordings[name], "decord"), all_frames(recordings[name], "pyav"))
    else:
        assert "rotated" in name or "variable" in name


@pytest.mark.parametrize("backend", ["pyav", pytest.param("ffmpeg", marks=needs_program)])
@pytest.mark.parametrize("name", UPRIGHT)
def test_rotated_recordings_are_upright(recordings, name, backend):
    rotated, upright = (all_frames(recordings[which], backend, 180) for which in (name, UPRIGHT[name]))
    assert rotated.shape == upright.shape == (20, 180, 240, 3)
    upside_down = np.abs(upright.astype(int) - upright[:, ::-1, ::-1]).mean()
    assert np.abs(rotated.astype(int) - upright).mean() < 4 < upside_down


@pytest.mark.parametrize("backend, name", [("decord", "decord"), ("pyav", "PyAV"), ("ffmpeg", "ffmpeg")])
def test_only_the_requested_decoder_is_used(with_sound, backend, name):
    without = tuple({"decord", "PyAV", "ffmpeg"} - {name})
    info = probe_video(with_sound)
    if name not in choose_backends(info, [Size(HEIGHT)]):
        with pytest.raises(VideoError) as failed:
            take(info, want(24), excluded_decoders=without)
        assert failed.value.kind == "unreadable" and all(other in str(failed.value) for other in without)
        return
    taken = take(info, want(24), excluded_decoders=without)
    assert taken.begun == [name]
    assert ("decord" in taken.finished.partial) == bool(taken.finished.partial) == (name == "decord")
    version = {
        "decord": lambda: backends.decord.__version__,
        "PyAV": lambda: av.__version__,
        "ffmpeg": version_of_program,
    }[name]()
    assert taken.finished.decoder == f"{name} {version}"


# Frames that need not be decoded

REFERENCES = {
    "two B-frames": {"bf": "2", "x264-params": "force-cfr=1:b-adapt=0:b-pyramid=none"},
    "three B-frames, pyramid": {"bf": "3", "x264-params": "force-cfr=1:b-pyramid=normal:b-adapt=0"},
    "no B-frames": {"bf": "0"},
    "mpeg4": {"codec": "mpeg4", "bf": "2"},
    "mpeg2": {"codec": "mpeg2video", "container": "mpegts", "bf": "2"},
    "vp9": {"codec": "libvpx-vp9", "container": "webm"},
}


@pytest.mark.parametrize("how", REFERENCES)
def test_skipping_frames_that_nothing_refers_to_changes_no_picture(tmp_path, how):
    def picture(number: int) -> np.ndarray:
        return np.roll(busy_picture(0), number, axis=1)

    info = probe_video(constant(tmp_path / "references", 100, 24, picture=picture, **REFERENCES[how]))
    some, num_some, same, num_whole = skipping(info, 120)
    np.testing.assert_array_equal(some, same)
    assert len({p.tobytes() for p in some}) == len(some) == 4
    if how in ("no B-frames", "vp9"):
        assert num_some == num_whole
    else:
        assert num_some < 0.7 * num_whole


@pytest.mark.parametrize("name", ["mpeg4.avi", *list(REAL)[:5], "msvd/videos/j2Dhf-xFUxU_13_20.avi"])
def test_skipping_changes_no_picture(name):
    info = probe_video(any_video(name))
    some, num_some, same, num_whole = skipping(info, 112)
    np.testing.assert_array_equal(some, same)
    assert num_some <= num_whole
    if "msrvtt" in name:  # AVI has no times to know frames by
        assert num_some < 0.7 * num_whole


@needs_decord
@pytest.mark.parametrize("numbers", ZEROED.values(), ids=ZEROED)
@pytest.mark.parametrize("name", ["mp4", "webm"])
def test_decord_is_not_used_for_files_with_lost_frames(undamaged, tmp_path, name, numbers):
    info = probe_video(zero_packets(undamaged[name], tmp_path / f"zeroed.{name}", numbers))
    assert decord_reads_well(info, [Size(48)]), "its packets look well"
    with pytest.raises(DecoderRejected, match="decord"):
        pictures_by("decord", info, [48], np.arange(96))


@needs_decord
def test_decord_is_used_for_a_video_that_stands_still(tmp_path):
    path = constant(tmp_path / "still.mp4", 60, picture=lambda number: busy_picture(number // 20))
    taken = take(path, want(24), excluded_decoders=("PyAV",))
    assert taken.begun == ["decord"]
    assert len({row.tobytes() for row in taken.rows[0]}) >= 3
