"""The files of ``tests/videos/odd``: kinds of videos that readers treat differently. See README.md there."""

import re
import shutil
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from helpers.decoding import take, want
from helpers.needs import needs_program
from helpers.numbered import constant, numbered_picture, numbers_of, write_video
from helpers.odd_videos import SOURCE, call, write_source
from helpers.videos import remux
from helpers.zoo import VIDEOS
from vlalign.extract.cli.extract import main
from vlalign.extract.decoding.backends import BACKENDS, choose_backends
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW, Size
from vlalign.extract.decoding.probe import probe_video

pytestmark = pytest.mark.portable

ODD = VIDEOS / "odd"
FPS = (1, 16, 24, 25)


@dataclass(frozen=True)
class Right:
    """What must come of a file."""

    first: tuple[int, ...] = (12, 37, 62)
    """Numbers of the pictures at 1 a second, or of the first ones."""
    counts: tuple[int, int, int, int] = (3, 48, 72, 75)
    """How many there are at each of ``FPS``."""
    partial: str = ""
    """A pattern of what is said to be missing."""
    note: str = ""
    """A pattern of what is said besides."""


FILES = {
    "avi_written_to_a_pipe.avi": Right(),
    "camera.m2ts": Right(),
    "clock_back_0.6_s.ts": Right((12, 37, 62, 87), (4, 64, 96, 100), note=r"2\.00 s"),
    "colr_box_differs_h264.mp4": Right(),
    "comment_after_last.gif": Right((4, 14), (2, 32, 48, 50)),
    "cut_unnoticed.gif": Right((12, 37), (2, 29, 44, 46), partial=r"\d,\d{3}"),
    "cut_unnoticed.wmv": Right((11, 36), (2, 30, 44, 46), partial=r"71,203.*42,721"),
    "depth_no_reordering.mp4": Right(),
    "edit_before_sync_h264.mp4": Right((63, 88), (2, 17, 25, 26)),
    "edit_list_two_parts.mp4": Right((12, 87), (2, 32, 48, 50)),
    "empty_samples_hevc_mp4.mp4": Right((12,), partial=r"^\d+ "),
    "empty_samples_mpeg4_mp4.mp4": Right((12, 36, 62)),
    "fields_h264.ts": Right((12,), (1, 16, 24, 25)),
    "flv_sound_begins_at_9_s.flv": Right(tuple(range(12, 275, 25)), (11, 176, 264, 275)),
    "gif_delay_0.01_s.gif": Right((4, 14, 24, 34, 44, 54, 64, 74), (8, 120, 180, 188)),
    "matrix_10_bt2020c.mp4": Right(),
    "matrix_8_ycgco.mp4": Right(),
    "mirrored_and_turned.mp4": Right((272, 17, 278)),
    "mirrored_hflip.mp4": Right((3, 74, 199)),
    "mirrored_vflip.mp4": Right((3072, 1312, 3632)),
    "opus_25fps.mkv": Right(),
    "opus_25fps.webm": Right(),
    "opus_picture_block_at_0.webm": Right(),
    "opus_real_clip_24fps.webm": Right((11, 35, 59), (3, 48, 72, 75)),
    "picture_track_first.mkv": Right(note=r"2 \w+ 2 "),
    "segments_from_10_s.mp4": Right((262, 287, 312)),
    "still_screen_12_s.webm": Right((12, 37, *12 * (49,), 62, 87), (16, 256, 384, 400), note=r"1\.96 .* 14\.00 s"),
    "theora_with_repeated_frames.ogv": Right((12, 36, 62)),
    "times_equal_in_pairs.mp4": Right((13, 37, 63), (3, 49, 73, 76)),
    "times_rounded_to_0.1_s.mkv": Right((12, 37, 62), (3, 47, 71, 74)),
    "transfer_9_log.mp4": Right(),
}
OF_A_DAMAGED_FILE = {"empty_samples_hevc_mp4.mp4"}
"""Pictures refer to one that is not there: each decoder paints over that in its own way."""


def test_each_file_is_listed():
    made = {path.name for path in ODD.iterdir() if path.suffix not in (".py", ".md") and path.is_file()}
    assert made == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_gives_its_pictures(name):
    right = FILES[name]
    taken = take(ODD / name, *map(want, FPS))
    assert numbers_of(taken.rows[0])[: len(right.first)] == [*right.first]
    assert tuple(map(len, taken.rows)) == right.counts
    for pattern, said in ((right.partial, taken.finished.partial), (right.note, taken.finished.note)):
        assert re.search(pattern, said) if pattern else said == ""


@pytest.mark.parametrize("resize", [LIBSWSCALE, PILLOW])
@pytest.mark.parametrize("name", sorted(FILES.keys() - OF_A_DAMAGED_FILE))
def test_every_decoder_gives_the_same_pictures_or_is_not_tried(name, resize):
    wanted = [want(fps, resize=resize) for fps in FPS]
    info = probe_video(ODD / name)
    first, *others = choose_backends(info, [Size(48, resize)])
    expected = take(info, *wanted, excluded_decoders=tuple({*BACKENDS} - {first}))
    assert first == "PyAV"
    for other in others:
        try:
            taken = take(info, *wanted, excluded_decoders=tuple({*BACKENDS} - {other}))
        except VideoError as error:  # it was tried, and does not read the file as its packets say
            assert error.kind == "unreadable"
            continue
        for ours, theirs in zip(expected.rows, taken.rows, strict=True):
            np.testing.assert_array_equal(np.stack(theirs), np.stack(ours), err_msg=other)


@pytest.mark.parametrize("container", ["matroska", "mp4", "mov", "flv"])
def test_field_pictures_are_frames_in_any_container(tmp_path, container):
    """Taken from MPEG-TS as they are: each packet is a field"""
    expected = take(ODD / "fields_h264.ts", *map(want, FPS))
    taken = take(remux(ODD / "fields_h264.ts", tmp_path / "fields", container), *map(want, FPS))
    assert taken.finished.partial == "" and taken.finished.decoder.startswith("PyAV")
    for ours, theirs in zip(taken.rows, expected.rows, strict=True):
        np.testing.assert_array_equal(np.stack(ours), np.stack(theirs))


def test_field_pictures_without_times_last_as_long_as_frames(tmp_path):
    taken = take(remux(ODD / "fields_h264.ts", tmp_path / "fields.h264", "h264"), want(25))
    assert numbers_of(taken.rows[0]) == [*range(25)] and taken.finished.duration_seconds == 1.0


def test_a_cut_packet_of_m2ts_is_noticed(tmp_path):
    content = (ODD / "camera.m2ts").read_bytes()
    cut = tmp_path / "cut.m2ts"
    cut.write_bytes(content[: len(content) // 192 // 2 * 192 + 76])
    assert " 192" in take(cut, want(1)).finished.partial


@needs_program
def test_the_parts_of_a_chained_ogg_follow_each_other(tmp_path):
    source = write_source(tmp_path / "source.rgb", numbered_picture)
    parts = tmp_path / "first.ogv", tmp_path / "second.ogv"
    theora = f"{SOURCE} -c:v libtheora -q:v 9"
    call(f"{theora} -frames:v 40 {{out}}", source=source, out=parts[0])
    call(f"{theora} -vf trim=start_frame=40 {{out}}", source=source, out=parts[1])
    chained = tmp_path / "chained.ogv"
    chained.write_bytes(parts[0].read_bytes() + parts[1].read_bytes())
    taken = take(chained, want(25))
    assert numbers_of(taken.rows[0]) == [*range(75)] and taken.finished.partial == ""


@pytest.mark.parametrize("transfer, name", [("smpte2084", "PQ"), ("arib-std-b67", "HLG")])
def test_hdr_is_said(tmp_path, transfer, name):
    path = constant(tmp_path / "hdr.mp4", 24, **{"x264-params": f"force-cfr=1:transfer={transfer}"})
    taken = take(path, want(1))
    assert f"({name})" in taken.finished.note and taken.finished.partial == ""


def test_a_still_screen_of_an_hour_is_decoded(tmp_path):
    path = write_video(tmp_path / "still.mkv", [0, 1, 3602, 3603], Fraction(1), container="matroska", bf="0")
    info = probe_video(path)
    assert info.duration_seconds == pytest.approx(3603, abs=1) and info.missing == ""


def test_the_command_says_what_is_unusual(tmp_path, capsys):
    (tmp_path / "videos").mkdir()
    shutil.copy(ODD / "clock_back_0.6_s.ts", tmp_path / "videos")
    where = ["--root", str(tmp_path / "root"), "--dataset", "mine", "--videos", str(tmp_path / "videos")]
    assert main([*where, "--features", "resnet152", "--weights", "random"]) == 0
    said = capsys.readouterr()
    (note,) = [line for line in (said.out + said.err).splitlines() if line.startswith("note: video")]
    assert "clock_back_0.6_s.ts" in note and re.search(r"\d\.\d\d s", note)
