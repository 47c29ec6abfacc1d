"""Which frames are taken, against FFmpeg's own fps filter, and at which size."""

from fractions import Fraction

import av
import numpy as np
import pytest
from helpers.rates import FPS, LENGTHS_SECONDS, RATES
from transformers.video_utils import VideoMetadata, default_sample_indices_fn
from vlalign.extract.decoding.kernels import centre_crop, scaled_size
from vlalign.extract.decoding.sampling import round_half_away, sample_frames, spread_frames, window_times

pytestmark = pytest.mark.portable


def fps_filter(pts: list[int], end: int, time_base: Fraction, fps: int) -> tuple[list[int], list[int]]:
    """Numbers of the frames that FFmpeg's filter gives, and the slots it gives them."""
    graph = av.filter.Graph()
    source = graph.add_buffer(width=16, height=16, format="gray", time_base=time_base)
    filtered, sink = graph.add("fps", f"fps={fps}"), graph.add("buffersink")
    source.link_to(filtered)
    filtered.link_to(sink)
    graph.configure()
    numbers, slots = [], []

    def collect() -> None:
        while True:
            try:
                shown = graph.pull()
            except (av.BlockingIOError, av.EOFError):
                return
            assert shown.time_base == Fraction(1, fps)
            pixels = shown.to_ndarray()
            numbers.append(256 * int(pixels[0, 0]) + int(pixels[0, 8]))
            slots.append(shown.pts)

    for number, (time, following) in enumerate(zip(pts, [*pts[1:], end], strict=True)):
        pixels = np.empty((16, 16), dtype=np.uint8)
        pixels[:, :8], pixels[:, 8:] = divmod(number, 256)
        frame = av.VideoFrame.from_ndarray(pixels, format="gray")
        frame.pts, frame.time_base = time, time_base
        frame.duration = following - time  # from the last one's duration the filter knows when the stream ends
        graph.push(frame)
        collect()
    graph.push(None)
    collect()
    return numbers, slots


def assert_as_filter(pts: list[int], end: int, time_base: Fraction, fps: int) -> None:
    numbers, slots = fps_filter(pts, end, time_base, fps)
    indices = sample_frames(np.array(pts), end, time_base, fps)
    assert numbers, "the filter gives no frame here: no comparison"
    from_zero = dict(zip(slots, numbers, strict=True))
    first = min(max(slots[0], -2), 0)  # of the slots before 0, the program writes the last two (ffmpeg.c, do_video_out)
    assert indices.tolist() == [from_zero.get(slot, numbers[0]) for slot in range(first, slots[-1] + 1)] or (
        slots[-1] < 0 and len(indices) == 1
    )


@pytest.mark.parametrize("fps", FPS)
@pytest.mark.parametrize("seconds", LENGTHS_SECONDS)
@pytest.mark.parametrize("rate", RATES)
def test_constant_rate_is_sampled_as_by_ffmpeg(rate, seconds, fps):
    num_frames = round(seconds * Fraction(rate))
    assert_as_filter(list(range(num_frames)), num_frames, 1 / Fraction(rate), fps)


@pytest.mark.parametrize("fps", FPS)
@pytest.mark.parametrize("first_tick", [-40, -1, 7, 1000])
@pytest.mark.parametrize("rate", ["24000/1001", "25", "60"])
def test_first_time_other_than_zero_is_sampled_as_by_ffmpeg(rate, first_tick, fps):
    num_frames = round(2 * Fraction(rate))
    pts = list(range(first_tick, first_tick + num_frames))
    assert_as_filter(pts, pts[-1] + 1, 1 / Fraction(rate), fps)


@pytest.mark.parametrize("fps", FPS)
@pytest.mark.parametrize("mean_rate", [8, 25, 55])
@pytest.mark.parametrize("time_base", ["1/90000", "1/12288", "1/1000", "1/600"])
def test_variable_rate_is_sampled_as_by_ffmpeg(time_base, mean_rate, fps):
    ticks_per_second = int(1 / Fraction(time_base))
    rng = np.random.default_rng([ticks_per_second, mean_rate])
    for first in (0, int(rng.integers(-2 * ticks_per_second, 2 * ticks_per_second))):
        gaps = np.maximum(rng.exponential(ticks_per_second / mean_rate, size=3 * mean_rate), 1).astype(int)
        gaps[mean_rate] = 1.7 * ticks_per_second  # a picture that stands still
        times = first + np.concatenate([[0], np.cumsum(gaps)])
        assert_as_filter(times[:-1].tolist(), int(times[-1]), Fraction(time_base), fps)


@pytest.mark.parametrize("end, shown", [(26, [0, 1]), (31, [0, 1]), (32, [0, 1, 1]), (50, [0, 1, 1, 1])])
def test_last_frame_is_shown_until_it_ends(end, shown):
    """Frames at 0 and 0.4 s of a 25 Hz clock; the last is held to ``end``, rounded to slots of 0.5 s."""
    assert fps_filter([0, 10], end, Fraction(1, 25), 2)[0] == shown
    assert sample_frames(np.array([0, 10]), end, Fraction(1, 25), 2).tolist() == shown


@pytest.mark.parametrize(
    "pts, end, time_base",
    [
        ([0], 1, Fraction(1, 25)),
        ([0, 1, 2], 3, Fraction(1, 10)),
        ([18, 19], 20, Fraction(1, 30)),
        ([-60], -59, Fraction(1, 30)),
    ],
    ids=["one frame", "0.3 s", "within one later slot", "before zero"],
)
def test_too_short_for_a_slot_gives_the_first_frame_where_ffmpeg_gives_none(pts, end, time_base):
    assert fps_filter(pts, end, time_base, 1) == ([], [])
    assert sample_frames(np.array(pts), end, time_base, 1).tolist() == [0]


@pytest.mark.parametrize(
    "rate, seconds, fps, expected",
    [
        (25, 2, 1, [12, 37]),
        (12, 0.5, 24, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]),
        (24, 0.25, 24, [0, 1, 2, 3, 4, 5]),
        (60, 1, 1, [29]),
        (60, 0.2, 24, [1, 3, 6, 8, 11]),
    ],
    ids=["middle of each second", "slow source: each twice", "same rate: each once", "60 to 1", "60 to 24"],
)
def test_worked_examples(rate, seconds, fps, expected):
    num_frames = round(rate * seconds)
    assert sample_frames(np.arange(num_frames), num_frames, Fraction(1, rate), fps).tolist() == expected


def test_no_frames_is_an_error():
    with pytest.raises(ValueError):
        sample_frames(np.array([], dtype=np.int64), 0, Fraction(1, 25), 1)


@pytest.mark.parametrize("ratio", ["1/2", "3/2", "1", "24", "1/3750", "1001/1000", "24024/30000", "1001/24000", "5/6"])
def test_round_half_away_is_exact(ratio):
    ratio = Fraction(ratio)
    values = [*range(-200, 201), *(sign * (2**41 + odd) for sign in (-1, 1) for odd in range(8))]

    def expected(value: int) -> int:
        magnitude = int(abs(value * ratio) + Fraction(1, 2))
        return magnitude if value >= 0 else -magnitude

    assert round_half_away(np.array(values), ratio).tolist() == [expected(v) for v in values]


def test_halves_are_rounded_away_from_zero():
    assert round_half_away(np.array([-5, -3, -1, 0, 1, 3, 5]), Fraction(1, 2)).tolist() == [-3, -2, -1, 0, 1, 2, 3]


@pytest.mark.parametrize(
    "height, width, short_side, expected",
    [
        (480, 640, 224, (224, 298)),
        (640, 480, 224, (298, 224)),
        (256, 256, 224, (224, 224)),
        (1080, 1920, 112, (112, 199)),
        (200, 320, 224, (224, 358)),
        (224, 300, 224, (224, 300)),
        (2, 100, 224, (224, 11200)),
    ],
    ids=lambda value: str(value),
)
def test_scaled_size(height, width, short_side, expected):
    assert scaled_size(height, width, short_side) == expected


@pytest.mark.parametrize("short_side", [112, 224])
def test_scaled_size_is_truncated(short_side):
    rng = np.random.default_rng(short_side)
    for height, width in rng.integers(16, 4000, size=(2000, 2)).tolist():
        expected = (
            (height * short_side // width, short_side)
            if height >= width
            else (short_side, width * short_side // height)
        )
        assert scaled_size(height, width, short_side) == expected


@pytest.mark.parametrize(
    "height, width, crop, expected",
    [(224, 298, 224, (0, 37)), (299, 224, 224, (37, 0)), (224, 224, 224, (0, 0)), (112, 199, 112, (0, 43))],
    ids=["landscape", "portrait, odd", "square", "landscape, odd"],
)
def test_centre_crop(height, width, crop, expected):
    assert centre_crop(height, width, crop) == expected


@pytest.mark.parametrize(
    "num_frames, first_slot, window, fps, duration, starts, ends, valid",
    [
        (40, 0, 16, 24, 1.7, [0, 16 / 24, 32 / 24], [16 / 24, 32 / 24, 1.7], [16, 16, 8]),
        (32, 0, 16, 24, 32 / 24, [0, 16 / 24], [16 / 24, 32 / 24], [16, 16]),
        (33, 0, 16, 24, 33 / 24, [0, 16 / 24, 32 / 24], [16 / 24, 32 / 24, 33 / 24], [16, 16, 1]),
        (1, 0, 16, 24, 0.04, [0], [1 / 24], [1]),
        (20, 12, 16, 24, 32 / 24, [0.5, 28 / 24], [28 / 24, 32 / 24], [16, 4]),
        (3, 0, 1, 1, 3.2, [0, 1, 2], [1, 2, 3], [1, 1, 1]),
        (3, 0, 1, 1, 2.6, [0, 1, 2], [1, 2, 3], [1, 1, 1]),
        (32, 0, 16, 16, 2.0, [0, 1], [1, 2], [16, 16]),
    ],
    ids=[
        "tail",
        "full windows",
        "tail of one",
        "one frame",
        "starts late",
        "1 fps",
        "1 fps, last slot rounded up",
        "16 fps",
    ],
)
def test_window_times(num_frames, first_slot, window, fps, duration, starts, ends, valid):
    made = window_times(num_frames, first_slot, window, fps, duration, stride=window)
    for got, expected in zip(made, (starts, ends, valid), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    assert made[2].sum() == num_frames


def test_frames_over_the_whole_video_are_the_librarys():
    for num_frames in range(1, 70):
        for window in (1, 4, 16, 64):
            found = spread_frames(num_frames, window)
            if num_frames < window:  # the library refuses these
                assert found.tolist() == [k * num_frames // window for k in range(window)]
            else:
                expected = default_sample_indices_fn(VideoMetadata(total_num_frames=num_frames), num_frames=window)
                assert found.tolist() == expected.tolist()


def test_a_window_over_the_whole_video_ends_where_it_does():
    starts, ends, valid = window_times(16, 0, 16, None, 7.5, stride=16)
    assert (starts.tolist(), ends.tolist(), valid.tolist()) == ([0.0], [7.5], [16])
