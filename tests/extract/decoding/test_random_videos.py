"""Videos that are made at random give the frames of the ffmpeg program, or a difference that is named."""

import re

import pytest
from helpers.decoding import version_of_program
from helpers.needs import PROGRAM, need, needs_program
from helpers.random_videos import AT_END, differing

ONLY_AT_END = re.compile(rf"{AT_END} at [^;]*(; {AT_END} at [^;]*)*")
"""Versions of FFmpeg differ about how long the last frame lasts."""


@needs_program
@pytest.mark.slow
def test_videos_made_at_random_give_the_frames_of_the_ffmpeg_program(tmp_path):
    if not version_of_program().startswith("5."):
        need(PROGRAM, ["ffmpeg 5, whose differences are known"])
    found = []
    for video, words in differing(60, 7, tmp_path):
        # Version 5 shows the picture before a cut of Motion JPEG, which the edit list leaves out.
        is_cut_mjpeg = "-c:v mjpeg" in video.calls[0] and len(video.calls) > 1
        if words and not is_cut_mjpeg and not ONLY_AT_END.fullmatch(words):
            found.append((video.calls, words))
    assert found == []
