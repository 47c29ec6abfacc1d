"""All kinds of ``odd_videos.py``: the frames of the ffmpeg program, as published extractors call it, or a difference
that is named."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.decoding import MAX_DIFFERENCE, by_program, differences, take, version_of_program, want
from helpers.needs import PROGRAM, need, needs_program
from helpers.numbered import numbered_picture, numbers_of
from helpers.odd_videos import KINDS, make, write_source
from helpers.rates import FPS

SHORT = "the program writes no picture at all of a video that ends before half a slot; the first one is taken here"
ACCEPTED = {
    "one picture": ({1}, SHORT),
    "two pictures": ({1}, SHORT),
    "rate 240 mkv": ({1}, SHORT),
    "h264 mxf": (
        {16, 24, 30},
        "MXF repeats the decoding times as times of display. The program believes them until one goes back, at the "
        "fourth frame; here none "
        "is believed. The first two frames are a slot or two later than the program's, and the video ends as much "
        "later",
    ),
    "negative times mkv": (
        set(FPS),
        "in this Matroska file the frames before time 0 have no times: the program leaves those out; here frames then "
        "follow each other at the rate of the file",
    ),
    "negative times with sound": (
        {1, 30},
        "FFmpeg 5.1 has the last frame last for 0.06 s, as long as the edit list; FFmpeg 8, which reads the file here, "
        "for 0.04 s",
    ),
    **dict.fromkeys(
        ["parts 60 s apart mpg", "parts 1000 s apart mpg"],
        (
            {16, 24, 30},
            "FFmpeg 8 gives the last reference of the first part the time of the B-frame before it, which is lost so; "
            "version 5 leaves that time open",
        ),
    ),
    **dict.fromkeys(
        ["another shape in the middle", "another size in the middle"],
        (
            {16, 24, 30},
            "the program starts its filters anew where the size changes, and loses the one frame that they hold",
        ),
    ),
}
"""Kinds of which other frames come at these rates with version 5 of the program, and why."""
SOMETIMES = {"rate 240 mkv"}
"""Those of ``ACCEPTED`` of which 5.1.9 gives the same frames as here; earlier releases of version 5 did not."""
DEEP = "version 5 of libswscale rounds samples of more than 8 bits otherwise than version 9"
CONVERTED = dict.fromkeys(["h264 10 bit", "hevc 10 bit", "hevc 12 bit", "vp9 10 bit"], DEEP) | {
    "svq1 mov": "version 5 of libswscale interpolates the colours of 4:1:0 otherwise than version 9",
    **dict.fromkeys(
        ["another shape in the middle", "another size in the middle"],
        "after the change of size the program's pictures differ along edges, by 1.8 in the mean (cause not found)",
    ),
}
"""Kinds of which the same frames come with other values, by up to ``MOST_CONVERTED`` of 255, and why."""
MOST_CONVERTED = 4.0
PARTIAL = {
    "h264 open gop cut": r"63\D+ 66 [^;]*",
    "hevc open gop cut": r"63\D+ 66 [^;]*",
    "xvid avi unpacked b-frames": r"59\D+ 73 [^;]*",
    "another shape in the middle": r"1 [^;]*",
    "another size in the middle": r"1 [^;]*",
}
"""Kinds that lack frames: those that refer to what was cut away, those that an encoder left out. And two files of
MPEG-TS put together, whose packets are not numbered in one row."""


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    return write_source(tmp_path_factory.mktemp("source") / "source.rgb", numbered_picture)


def test_there_are_100_kinds_and_each_exception_is_one_of_them():
    assert len(KINDS) >= 100
    assert {*ACCEPTED, *CONVERTED, *PARTIAL} <= set(KINDS)


@needs_program
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_odd_videos_give_the_frames_of_the_ffmpeg_program(source, tmp_path, kind):
    try:
        path = make(kind, source, tmp_path)
    except RuntimeError as error:
        if version_of_program().startswith("5."):
            raise
        need(PROGRAM, [f"an ffmpeg that writes it ({error})"])
    taken = take(path, *(want(fps) for fps in FPS))
    assert re.fullmatch(PARTIAL.get(kind, ""), taken.finished.partial)
    assert {frame.shape for rows in taken.rows for frame in rows} == {taken.frames.shape[1:]}
    height, width = taken.frames.shape[1:3]
    same, different = [], set()
    for fps, rows, theirs in zip(FPS, taken.rows, by_program(path, height, width, *FPS), strict=True):
        if len(theirs) == 0 or numbers_of(rows) != numbers_of(theirs):
            different.add(fps)
        else:
            same.append(differences(np.stack(rows), theirs).max())
    if version_of_program().startswith("5."):
        assert different == ACCEPTED.get(kind, (set(),))[0] or (kind in SOMETIMES and not different)
    else:  # versions differ about how long the last frame lasts
        assert different <= ACCEPTED.get(kind, (set(FPS),))[0]
    assert max(same, default=0) <= (MOST_CONVERTED if kind in CONVERTED else MAX_DIFFERENCE)
