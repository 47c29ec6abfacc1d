"""Files that are cut off, zeroed or without their beginning."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.damage import ZEROED, zero_bytes, zero_packets
from helpers.decoding import Taken, assert_same, by_program, pictures_by, take, want
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.decord_backend import DecoderRejected, decord_reads_well
from vlalign.extract.decoding.kernels import Size
from vlalign.extract.decoding.probe import probe_video


def cut_off(source: Path, target: Path, share: float) -> Path:
    target.write_bytes(source.read_bytes()[: int(share * source.stat().st_size)])
    return target


def assert_only_frames_that_exist(path: Path, taken: Taken, num_frames: int) -> None:
    """Pictures that FFmpeg decodes, all of them, in order; repeated only where one is missing."""
    assert taken.finished.decoder.startswith("PyAV"), "decord says nothing of what it could not decode"
    # Where many frames are damaged, a decoder may show the one before and call it decoded.
    assert num_frames - 2 <= len({row.tobytes() for row in taken.rows[0]}) <= num_frames
    if not backends.can_use_ffmpeg():
        return
    (theirs,) = by_program(path, *taken.frames.shape[1:3], None)
    first_of = {picture.tobytes(): place for place, picture in reversed(list(enumerate(theirs)))}
    nearest = [first_of.get(row.tobytes(), -1) for row in taken.rows[0]]
    for place, row in enumerate(taken.rows[0]):
        if nearest[place] < 0:
            nearest[place] = int(np.argmin([np.abs(row.astype(int) - picture).mean() for picture in theirs]))
    assert nearest == sorted(nearest)
    assert len(set(first_of.values()) - set(nearest)) <= 2
    assert_same(taken.frames, theirs[nearest])


@pytest.mark.parametrize("share", [0.5, 0.6])
def test_mp4_cut_in_the_middle_gives_the_frames_that_are_left(undamaged, tmp_path, share):
    path = cut_off(undamaged["mp4"], tmp_path / "cut.mp4", share)
    taken = take(path, want(24))
    num_there, num_decoded = (int(n) for n in re.match(CUT_WORDS, taken.finished.partial).groups())
    assert 40 < num_decoded < num_there < 60
    assert_only_frames_that_exist(path, taken, num_decoded)
    assert len(taken.rows[0]) - num_decoded <= 2, "frames that are missing at the end are not made up"


CUT_WORDS = r"it has (\d+)\D+ 96 [^;]*; (\d+)\D+ \d+ [^;]*; 1 "


@pytest.mark.parametrize("name", ["mkv", "webm"])
def test_matroska_cut_in_the_middle_is_noted(undamaged, tmp_path, name):
    path = cut_off(undamaged[name], tmp_path / f"cut.{name}", 0.6)
    taken = take(path, want(24))
    reached = float(re.search(r"\b([\d.]+) s .*\b4\.00\b", taken.finished.partial)[1])
    assert len(taken.rows[0]) / 24 == pytest.approx(reached, abs=0.15) and 2 < reached < 3
    assert_only_frames_that_exist(path, taken, len({row.tobytes() for row in taken.rows[0]}))


@pytest.mark.parametrize("which", ZEROED)
@pytest.mark.parametrize("name", ["mp4", "mkv", "webm"])
def test_zeroed_packets_are_noted_and_no_other_frame_takes_their_place(undamaged, tmp_path, name, which):
    path = zero_packets(undamaged[name], tmp_path / f"zeroed.{name}", ZEROED[which])
    taken = take(path, want(24))
    num_decoded, num_damaged = (int(n) for n in re.search(LOST_WORDS + "$", taken.finished.partial).groups())
    assert num_decoded <= 96 - len(ZEROED[which]) and num_damaged >= len(ZEROED[which])
    assert len(taken.rows[0]) == 96
    assert_only_frames_that_exist(path, taken, num_decoded)


LOST_WORDS = r"(\d+)\D+ 96 [^;]*; (\d+) [^;]*"


@pytest.mark.parametrize("num_bytes", [2000, 8000])
def test_a_zeroed_run_in_the_middle_of_a_file(undamaged, tmp_path, num_bytes):
    middle = undamaged["mp4"].stat().st_size // 2
    path = zero_bytes(undamaged["mp4"], tmp_path / "zeroed.mp4", middle, middle + num_bytes)
    taken = take(path, want(24))
    num_decoded, _ = (int(n) for n in re.search(LOST_WORDS + "$", taken.finished.partial).groups())
    assert_only_frames_that_exist(path, taken, num_decoded)
    if backends.decord:
        with pytest.raises(DecoderRejected):
            pictures_by("decord", probe_video(path), [48], np.arange(96))


def test_a_zeroed_run_in_the_middle_of_webm_is_noted(undamaged, tmp_path):
    middle = undamaged["webm"].stat().st_size // 2
    taken = take(zero_bytes(undamaged["webm"], tmp_path / "zeroed.webm", middle, middle + 8000), want(24))
    assert len({row.tobytes() for row in taken.rows[0]}) < 80
    broken_at = int(re.search(r" ([\d,]+)", taken.finished.partial)[1].replace(",", ""))
    assert middle <= broken_at <= middle + 8000


@pytest.mark.parametrize("num_packets", [20, 100])
def test_a_lost_start_gives_the_frames_from_the_next_key_frame_on(undamaged, tmp_path, num_packets):
    path = tmp_path / "lost.ts"
    path.write_bytes(undamaged["ts"].read_bytes()[188 * num_packets :])
    info = probe_video(path)
    assert not info.plain and not decord_reads_well(info, [Size(48)])
    taken = take(info, want(24))
    assert re.fullmatch(rf"72\D+ {len(info.pts)} [^;]*", taken.finished.partial)
    assert_only_frames_that_exist(path, taken, 72)
