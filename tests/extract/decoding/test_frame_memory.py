"""Frames on their way from a decoder's process to its parent: in memory that both see."""

import fcntl
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers.decoding import Ended, ask, children_of, take, want
from helpers.needs import SYSTEM, skip_without
from helpers.numbered import constant, moving_picture
from vlalign.extract.decoding import process as decode_process
from vlalign.extract.decoding import process_link
from vlalign.extract.decoding.errors import VideoError
from vlalign.extract.decoding.messages import Request, WindowReady
from vlalign.extract.decoding.process import DecodeProcess
from vlalign.extract.decoding.process_link import MAX_WINDOW_BYTES, FrameMemory, create_memory, num_bytes_for
from vlalign.extract.decoding.sampling import FrameSpec

U8 = np.dtype(np.uint8)
SHAPES = [want(24, 48), want(24, 48, window=8, tail="loop"), want(12, 32, window=8, tail="loop", stride=3)]
"""Single frames, windows, and windows that overlap."""


@pytest.fixture(scope="module")
def video(tmp_path_factory) -> Path:
    """Each frame differs from all others."""
    return constant(tmp_path_factory.mktemp("moving") / "moving.mp4", 96, 24, picture=moving_picture)


@pytest.fixture
def memory(request) -> Callable[[int], tuple[FrameMemory, np.ndarray, int]]:
    """The memory as the decoder sees it, its bytes as the parent does, and the end of the pipe that the parent writes
    to."""

    def make(num_bytes: int) -> tuple[FrameMemory, np.ndarray, int]:
        descriptor = create_memory(num_bytes)
        taken, told = os.pipe()
        request.addfinalizer(lambda: [os.close(end) for end in (taken, told)])
        made = FrameMemory(descriptor, partial(os.read, taken))
        return made, np.frombuffer(made._memory, np.uint8), told

    return make


def test_any_windows_arrive_unchanged_whenever_they_are_copied(memory, monkeypatch):
    chance, num_waits = random.Random(0), 0
    for _ in range(30):
        num_wanted = chance.randrange(1, 4)
        ours, theirs, told = memory(num_wanted * 2 * 20 * 4096)
        ours.divide(num_wanted)
        shapes = [(chance.randrange(1, 12), 8, 300, 3) for _ in range(num_wanted)]
        unread: list[tuple[int, np.ndarray]] = []

        def copy_one(theirs=theirs, told=told, unread=unread) -> None:
            if unread:
                offset, expected = unread.pop(0)
                np.testing.assert_array_equal(theirs[offset : offset + expected.size], expected.ravel())
                os.write(told, b".")

        monkeypatch.setattr(ours, "_wait", lambda ours=ours, copy=copy_one: (copy(), FrameMemory._wait(ours)))
        for number in range(40):
            which, num_unread = chance.randrange(num_wanted), len(unread)
            frames = ours.allocate(which, shapes[which], U8)
            num_waits += len(unread) < num_unread
            frames[:] = number
            unread.append((ours.hand_over(frames), frames.copy()))
            if chance.random() < 0.3:
                copy_one()
            if chance.random() < 0.05:  # the size of the pictures changes
                shapes[which] = (chance.randrange(1, 12), *shapes[which][1:])
        ours.wait_until_read()
        assert not unread
    assert num_waits > 300


def test_a_full_memory_blocks_the_decoder_until_a_window_is_copied(memory):
    ours, _, told = memory(8192)
    ours.divide(1)
    shape = (4096,)
    for _ in range(2):
        ours.hand_over(ours.allocate(0, shape, U8))
    placed = threading.Event()
    thread = threading.Thread(target=lambda: (ours.allocate(0, shape, U8), placed.set()))
    thread.start()
    assert not placed.wait(0.3)
    os.write(told, b".")
    assert placed.wait(30)
    thread.join()


def test_a_decoder_ends_when_nobody_will_copy_its_windows(memory):
    taken, told = os.pipe()
    ours = FrameMemory(create_memory(8192), partial(os.read, taken))
    ours.divide(1)
    for _ in range(2):
        ours.hand_over(ours.allocate(0, (4096,), U8))
    os.close(told)
    with pytest.raises(EOFError):
        ours.allocate(0, (4096,), U8)
    os.close(taken)


def test_there_is_room_for_the_largest_windows_of_each_profile(memory):
    for wanted in ([], [want(24)], SHAPES, [want(24, 720, window=16, tail="loop"), want(1, 16)]):
        ours, _, _ = memory(num_bytes_for(wanted))
        ours.divide(max(len(wanted), 1))
        for number, each in enumerate(wanted):
            largest = (each.window, each.short_side_px, 10 * each.short_side_px, 3)
            assert ours.allocate(number, largest, U8).nbytes == each.max_window_bytes
    cropped = FrameSpec(24, 16, 256, 224, "loop", resize="bicubic, torchvision, not rounded")
    assert cropped.max_window_bytes == 16 * 224 * 224 * 3 * 4
    assert FrameSpec(24, 16, 224, None, "loop", "bilinear, Pillow, to a square").max_window_bytes == 16 * 224 * 224 * 3
    assert num_bytes_for([want(1, 8000)]) == 2 * MAX_WINDOW_BYTES


def test_windows_that_are_too_large_fail(memory):
    ours, _, _ = memory(8192)
    ours.divide(1)
    with pytest.raises(VideoError, match=r"\[300, 300, 300, 3\] .* 256 MB") as failed:
        ours.allocate(0, (300, 300, 300, 3), U8)
    assert failed.value.kind == "out_of_memory"


def rows_are_right(ended: Ended, video: Path, wanted: list[FrameSpec]) -> None:
    """Compare with decoding in this process."""
    expected = take(video, *wanted)
    assert ended.failure is None and len(ended.rows) == sum(map(len, expected.rows))
    for which, rows in enumerate(expected.rows):
        came = [row for row, of in zip(ended.rows, ended.wanted, strict=True) if of == which]
        np.testing.assert_array_equal(came, rows)


def test_rows_are_those_of_decoding_in_one_process(video):
    process = DecodeProcess(SHAPES)
    try:
        for wanted in (SHAPES, SHAPES[1:2], SHAPES[::-1]):
            rows_are_right(ask(process, video, *wanted), video, wanted)
    finally:
        process.close()


GIVES_UP = """
from vlalign.extract.decoding import backends, child, decode
from vlalign.extract.decoding.errors import VideoError

def pictures(decoding, wanted):
    for index, sizes in backends.decode_with_pyav(decoding, wanted):
        if index == 50:
            raise VideoError("unreadable", "no more")
        yield index, [255 - size for size in sizes]

decode.BACKENDS["PyAV"] = pictures
child.main()
"""


def test_rows_of_a_decoder_that_gave_up_are_not_mixed_with_those_of_the_next(video, monkeypatch):
    """Another process goes on in the same memory, while rows of the first one may be unread."""
    monkeypatch.setattr(decode_process, "COMMAND", GIVES_UP)
    whole = DecodeProcess.take_frames

    def slowly(self: DecodeProcess, row: WindowReady, frames: np.ndarray) -> None:
        time.sleep(0.005)
        whole(self, row, frames)

    monkeypatch.setattr(DecodeProcess, "take_frames", slowly)
    wanted = SHAPES[:2]  # of one size: decord gives no other
    process, expected = DecodeProcess(wanted), take(video, *wanted, excluded_decoders=("PyAV", "ffmpeg"))
    try:
        for _ in range(2):
            ended = ask(process, video, *wanted)
            assert ended.begun == ["PyAV", "decord"]
            for which, rows in enumerate(expected.rows):
                came = [row for row, of in zip(ended.rows, ended.wanted, strict=True) if of == which]
                np.testing.assert_array_equal(came, rows)
    finally:
        process.close()


# What is left


@skip_without(SYSTEM, [] if hasattr(os, "memfd_create") else ["memfd_create"])
def test_the_memory_keeps_its_size_whatever_a_decoder_does():
    descriptor = create_memory(8192)
    for num_bytes in (0, 4096, 8193):
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, num_bytes)
    with pytest.raises(PermissionError):
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    assert os.fstat(descriptor).st_nlink == 0
    os.close(descriptor)


def test_a_system_without_such_memory_uses_a_file_without_a_name(video, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert not hasattr(process_link.os, "memfd_create")
    process = DecodeProcess(SHAPES)
    try:
        assert list(tmp_path.iterdir()) == []
        rows_are_right(ask(process, video, *SHAPES), video, SHAPES)
    finally:
        process.close()


@pytest.mark.parametrize("num_kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_a_decoder_that_is_killed_in_the_middle_leaves_nothing(video, num_kills):
    """Its rows until then are right, and so are all of the decoder that takes over."""
    chance, expected, before = random.Random(num_kills), take(video, SHAPES[1]).rows[0], what_is_there()
    process = DecodeProcess(SHAPES[1:2])
    for _ in range(num_kills):
        process.start(Request(str(video), SHAPES[1:2]))
        rows, last, failure = [], chance.randrange(len(expected)), None
        while failure is None:
            try:
                message = process.receive()
                if isinstance(message, WindowReady):
                    if len(rows) == last:
                        (decoder,) = children_of(process._process.pid)
                        time.sleep(chance.choice([0, 0.001]))
                        os.kill(chance.choice([decoder, process._process.pid]), 9)
                    rows.append(np.empty(message.shape, np.uint8))
                    process.take_frames(message, rows[-1])
                elif type(message).__name__ == "ThumbnailFollows":
                    process.receive_bytes()
                elif type(message).__name__ == "DecodingFinished":
                    break
            except VideoError as error:
                failure = error
        assert len(rows) > last
        np.testing.assert_array_equal(rows, expected[: len(rows)])
        process.close()
        process = DecodeProcess(SHAPES[1:2])
    ended = ask(process, video, SHAPES[1])
    process.close()
    np.testing.assert_array_equal(ended.rows, expected)
    assert what_is_there() == before


def what_is_there() -> tuple[int, list[str], set[int]]:
    """Open descriptors, mapped memory of files without a name or in /dev/shm, and child processes."""
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:" in line or "/shm" in line]
    return len(os.listdir("/proc/self/fd")), mapped, set(children_of(os.getpid()))
