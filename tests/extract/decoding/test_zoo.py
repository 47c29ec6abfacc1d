"""Files that other programs made, or broke."""

import re

import numpy as np
import pytest
from helpers.damage import skipping
from helpers.decoding import ZOO_SIDE, ask, assert_same, by_program, pictures_by, want
from helpers.needs import needs_program
from helpers.openings import Openings
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.decord_backend import decord_reads_well
from vlalign.extract.decoding.kernels import Size
from vlalign.extract.decoding.probe import probe_video

pytestmark = pytest.mark.portable

# The zoo: files that other programs made, or broke

WHOLE = dict.fromkeys(
    [
        *("ok_h264.mp4", "ok_faststart.mp4", "frag.mp4", "-dash id.mp4", "co:lon.mp4", "pct%03d.mp4"),
        *("av1.mp4", "hevc10.mp4", "vp9.webm", "raw_es.mp4", "interl.mpg", "flip_mid.mp4", "rot90.mp4"),
        *("mpeg4.avi", "h264.ts"),
    ],
    (120, 120),
) | {
    "h264.mkv": (121, 120),  # its first picture is 23 ms late: the program shows it twice
    "cut_editlist.mp4": (88, 88),
    "odd_444.mp4": (48, 48),
    "odd_vp9.webm": (48, 48),
    "gif.mp4": (24, 24),
    "dup_ts.ts": (240, 120),  # the same five seconds twice
    "vfr.mp4": (115, 60),
    "oneframe.mp4": (1, 1),
    "huge_8k.mp4": (6, 6),
}
"""Pictures at 24 a second, and how many of them differ."""


PARTIAL = {
    "trunc_tail.mp4": (
        range(70, 73),
        r"it has 73 \D+ 120 [^;]*; 72 \D+ 73 ",
    ),
    "flip_index.mp4": (range(2, 3), r"it has 2 \D+ 120 "),
}
"""How many different pictures, and what is said to be missing."""


FAILED = {
    "trunc_nomoov.mp4": "unreadable",
    "zero.mp4": "unreadable",
    "random.mp4": "unreadable",
    "ftyp_random.mp4": "unreadable",
    "html.mp4": "unreadable",
    "audio_only.mp4": "no_video",
    "audio_coverart.mp4": "no_video",
    "m3u8_local.mp4": "unreadable",
    "m3u8_local.m3u8": "unreadable",
    "m3u8_http.mp4": "unreadable",
    "concat_rel.mp4": "unreadable",
    "concat_abs.mp4": "unreadable",
    "timescale0.mp4": "bad_times",
}


NOT_FOR_DECORD = {
    *(
        "av1.mp4",
        "hevc10.mp4",
        "raw_es.mp4",
        "interl.mpg",
        "dup_ts.ts",
        "cut_editlist.mp4",
        "odd_444.mp4",
        "gif.mp4",
        "vfr.mp4",
        "rot90.mp4",
        "mpeg4.avi",
        "h264.ts",
    ),
    *PARTIAL,
}


COPIES = ("ok_faststart.mp4", "-dash id.mp4", "co:lon.mp4", "pct%03d.mp4")


HIDDEN = ("flip_mid.mp4",)
"""Damage that each version of FFmpeg paints over in its own way."""


def test_no_file_of_the_zoo_ends_the_child(zoo, zoo_folder, process):
    assert zoo("README.md").failure.kind == "unreadable"
    videos = {path.name for path in zoo_folder.iterdir() if path.is_file()} - {"README.md", "make.sh"}
    assert videos == {*WHOLE, *PARTIAL, *FAILED}
    assert process.usable


@pytest.mark.parametrize("name", WHOLE)
def test_zoo_files_that_are_whole(zoo, name):
    ended = zoo(name)
    num_sampled, num_distinct = WHOLE[name]
    assert ended.failure is None
    assert (len(ended.rows), len({row.tobytes() for row in ended.rows})) == (num_sampled, num_distinct)
    assert ended.finished.num_frames == [num_sampled]
    assert (ended.finished.partial == "") == (name not in HIDDEN)
    if name in NOT_FOR_DECORD:
        assert ended.finished.decoder.startswith("PyAV") and ended.begun == ["PyAV"]


@pytest.mark.parametrize("name", PARTIAL)
def test_zoo_files_of_which_a_part_is_missing(zoo, name):
    ended = zoo(name)
    num_distinct, words = PARTIAL[name]
    assert ended.failure is None
    assert len({row.tobytes() for row in ended.rows}) in num_distinct
    assert len(ended.rows) < 76
    assert re.match(words, ended.finished.partial)
    assert ended.finished.decoder.startswith("PyAV")


@pytest.mark.parametrize("name", FAILED)
def test_zoo_files_that_fail(zoo, name):
    failure = zoo(name).failure
    assert failure.kind == FAILED[name]
    assert str(failure) and "\n" not in str(failure)
    assert zoo(name).rows == []


@needs_program
@pytest.mark.parametrize("name", [*(name for name in WHOLE if name not in {*COPIES, *HIDDEN}), "trunc_tail.mp4"])
def test_zoo_files_give_the_frames_of_the_ffmpeg_program(zoo, zoo_folder, name):
    rows = np.stack(zoo(name).rows)
    (theirs,) = by_program(zoo_folder / name, *rows.shape[1:3], 24)
    assert_same(rows, theirs)


@pytest.mark.parametrize("name", [name for name in WHOLE if name not in {*COPIES, *HIDDEN, "huge_8k.mp4"}])
def test_zoo_files_give_the_same_pictures_with_any_decoder(zoo_folder, name):
    info = probe_video(zoo_folder / name)
    every = np.arange(min(len(info.pts), 40))
    ((pictures,), _) = pictures_by("pyav", info, [ZOO_SIDE], every)
    assert len({picture.tobytes() for picture in pictures}) == len(every)
    if decord_reads_well(info, [Size(ZOO_SIDE)]):
        assert_same(pictures_by("decord", info, [ZOO_SIDE], every)[0][0], pictures)
    else:
        assert name in NOT_FOR_DECORD or backends.decord is None
        if backends.can_use_ffmpeg():
            assert_same(pictures_by("ffmpeg", info, [ZOO_SIDE], every)[0][0], pictures)


def test_zoo_rotation_is_applied(zoo):
    assert {row.shape for row in zoo("rot90.mp4").rows} == {(42, 32, 3)}


def test_zoo_damage_in_pictures_is_noted_whichever_decoders_there_are(zoo):
    ended = zoo("flip_mid.mp4")
    assert re.fullmatch(r"\d+ [^;]*", ended.finished.partial)
    assert len(ended.rows) == 120


@pytest.mark.parametrize(
    "name", ["ok_h264.mp4", "frag.mp4", "h264.mkv", "hevc10.mp4", "interl.mpg", "cut_editlist.mp4", "rot90.mp4"]
)
def test_skipping_changes_no_picture_of_the_zoo(zoo_folder, name):
    some, num_some, same, num_whole = skipping(probe_video(zoo_folder / name), 112)
    np.testing.assert_array_equal(some, same)
    assert num_some < 0.65 * num_whole or name == "interl.mpg"


def test_zoo_playlists_open_no_other_file(zoo_folder, process):
    openings, num_refused = Openings(sorted((zoo_folder / "secret").iterdir())), 0
    for path in sorted(zoo_folder.iterdir()):
        if path.is_file() and path.read_bytes()[:7] in (b"#EXTM3U", b"ffconca"):
            assert ask(process, path, want(1)).failure.kind == "unreadable"
            num_refused += 1
    assert num_refused == 5
    assert openings.since_last() == set()
    openings.close()
