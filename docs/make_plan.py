"""Writes the tables of docs/plan.md from measured rates. Run it after a change of a rate.

``python docs/make_plan.py --minutes 3 --core-price 0.04 --gpu-price 2.5`` prints them for your own videos and prices.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from vlalign.storage.profiles import PROFILES

PAGE = Path(__file__).with_name("plan.md")
BEGIN, END = "<!-- tables: written by make_plan.py -->\n", "<!-- end of tables -->\n"

NUM_VIDEOS = (100, 1_000, 10_000, 100_000, 1_200_000)

ROWS_PER_CORE_SECOND = {"resnet152": 6.6 / 2, "i3d_resnext101": 9.4 / 2, "i3d_resnet152": 6.2 / 2, "s3d": 4.6 / 2}
"""Feature vectors a second of the whole command in fp32, docs/speed.md: two cores of an AMD EPYC (Zen 4), 320x240,
2026-11-22, commit b1e9fdaf."""

ROWS_PER_CORE_SECOND |= {"clip_vit_b32": 10.0 / 2}
"""The same of two cores of an AMD EPYC (Zen 3), 2026-11-30, commit 1df8a5b9; the lower of two runs."""

HOURS_PER_GPU_HOUR = {"resnet152": 1110.7, "s3d": 446.5, "clip_vit_b32": 1010.2, "r2plus1d": 487.6}
"""Hours of video of 240p that one NVIDIA H200 with 16 cores extracts an hour in bf16, tests/benchmarks/README.md:
2026-11-27, commit 3880c286; the lower of two runs."""

CAPTIONS_PER_SECOND = 3_358
"""Captions that two cores of an Intel Xeon tag, tests/benchmarks/README.md: 2026-11-21."""

CAPTIONS_PER_VIDEO = 113
"""HowTo100M's, 136 million captions of 1.2 million videos."""

BYTES_OF_ROW_TIMES = 20
"""Start and end of a row (8 bytes each) and its valid frames (4)."""

WINDOWS_PER_HOUR = sum(3_600 / (seconds / 2) for seconds in (4, 8, 16))
"""Search windows of 4, 8 and 16 s, each half a window after the one before."""

ROWS_OF_TABLE = ("resnet152", "clip_vit_b32", "i3d_resnext101", "i3d_resnet152", "s3d", "r2plus1d")


def rows_per_hour(name: str) -> float:
    """Return the feature vectors of an hour of video."""
    profile = PROFILES[name]
    assert profile.fps is not None and profile.stride is not None
    return 3_600 * profile.fps / profile.stride


def bytes_per_hour(name: str) -> float:
    """Return the bytes of an hour of video in a store."""
    return rows_per_hour(name) * (PROFILES[name].row_bytes + BYTES_OF_ROW_TIMES)


def index_bytes(name: str, hours: float, num_videos: int) -> float:
    """Return the bytes of a search index without a run: a float16 vector a window, and one for each whole video."""
    return (WINDOWS_PER_HOUR * hours + num_videos) * PROFILES[name].dimension * 2


def core_hours_per_hour(name: str) -> float | None:
    """Return the core hours that extract an hour of video on a CPU; None if nobody measured it."""
    rate = ROWS_PER_CORE_SECOND.get(name)
    return None if rate is None else rows_per_hour(name) / rate / 3_600


def tables(minutes: float, core_price: float, gpu_price: float) -> str:
    """Return all tables for videos of ``minutes`` minutes, and prices of an hour of a core and of a GPU machine."""
    return "\n".join(_lines(minutes, core_price, gpu_price)) + "\n"


def _lines(minutes: float, core_price: float, gpu_price: float) -> Iterator[str]:
    hours = {number: number * minutes / 60 for number in NUM_VIDEOS}
    yield f"Assumed: {minutes:g} minutes a video; an hour of a core costs {core_price:g}, a GPU machine {gpu_price:g}."
    yield from _heading("Size of the features", "features")
    for name in ROWS_OF_TABLE:
        yield _row(name, [_size(bytes_per_hour(name) * hours[number]) for number in NUM_VIDEOS])
    yield from _heading("Size of the search index of `clip_vit_b32`", "index")
    yield _row("clip_vit_b32", [_size(index_bytes("clip_vit_b32", hours[number], number)) for number in NUM_VIDEOS])
    yield from _heading("Extraction on CPUs, core hours in fp32 (price)", "features")
    for name in ROWS_OF_TABLE:
        rate = core_hours_per_hour(name)
        yield _row(name, [_time(rate, hours[number], core_price) for number in NUM_VIDEOS])
    yield from _heading("Extraction on one H200 with 16 cores, hours in bf16 (price)", "features")
    for name in ROWS_OF_TABLE:
        rate = 1 / HOURS_PER_GPU_HOUR[name] if name in HOURS_PER_GPU_HOUR else None
        yield _row(name, [_time(rate, hours[number], gpu_price) for number in NUM_VIDEOS])
    yield from _heading(f"Tagging of {CAPTIONS_PER_VIDEO} captions a video, core hours (price)", "step")
    rate = 2 * CAPTIONS_PER_VIDEO / CAPTIONS_PER_SECOND / 3_600
    yield _row("vlalign-preprocess", [_time(rate, number, core_price) for number in NUM_VIDEOS])


def _heading(title: str, first: str) -> Iterator[str]:
    yield from ("", f"**{title}**", "")
    yield f"| {first} | " + " | ".join(f"{number:,} videos" for number in NUM_VIDEOS) + " |"
    yield "|---" * (1 + len(NUM_VIDEOS)) + "|"


def _row(name: str, cells: list[str]) -> str:
    return f"| `{name}` | " + " | ".join(cells) + " |"


def _time(rate: float | None, amount: float, price: float) -> str:
    return "not measured" if rate is None else f"{_number(rate * amount)} ({_number(rate * amount * price)})"


def _number(value: float) -> str:
    """Return 0.25, 4.2, 57 or 1,300: two digits that count, or all of a whole number."""
    if value < 0.01:
        return "under 0.01"
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _size(num_bytes: float) -> str:
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= scale or unit == "MB":
            return f"{_number(num_bytes / scale)} {unit}"
    raise AssertionError


def page() -> str:
    """Return docs/plan.md with the tables of today's rates."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return before + BEGIN + tables(6.7, 0.05, 4.0) + END + rest.split(END)[1]


def main() -> None:
    """Write the page, or print the tables for the given numbers."""
    parser = argparse.ArgumentParser(description="Tables of docs/plan.md. Without options, the page is written.")
    parser.add_argument("--minutes", type=float, help="length of a video in minutes")
    parser.add_argument("--core-price", type=float, help="price of an hour of a core")
    parser.add_argument("--gpu-price", type=float, help="price of an hour of a machine with a GPU and 16 cores")
    given = parser.parse_args()
    numbers = (given.minutes, given.core_price, given.gpu_price)
    if all(number is None for number in numbers):
        PAGE.write_text(page(), encoding="utf-8")
    elif any(number is None for number in numbers):
        parser.error("give all three: --minutes, --core-price and --gpu-price")
    elif not all(0 < number < 1e6 for number in numbers):
        parser.error("--minutes, --core-price and --gpu-price: expected numbers above 0 and below a million")
    else:
        print(tables(*numbers), end="")


if __name__ == "__main__":
    main()
