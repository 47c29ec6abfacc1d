"""Videos made at random by the ffmpeg program: codec, container, rate, clock, sound, edit list, rotation.

``python tests/helpers/random_videos.py 500 SEED`` makes so many, compares each with the frames of the program, and
prints those that differ. A video takes about half a second.
"""

import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from vlalign.extract.decoding.errors import VideoError

from helpers.decoding import MAX_DIFFERENCE, by_program, differences, take, want
from helpers.numbered import numbered_picture, numbers_of
from helpers.odd_videos import HEVC, MPEG2, MPEG4, VP9, X264, call, write_source
from helpers.rates import FPS

BEST = "-pix_fmt yuv420p"
CODECS = {
    "h264": (
        [
            f"{X264} -bf 0",
            f"{X264} -bf 2 -x264-params b-adapt=0",
            f"{X264} -bf 3 -g 12 -x264-params open-gop=1:b-adapt=0",
        ],
        ["mp4", "mov", "mkv", "ts", "m2ts", "flv", "avi", "3gp", "nut"],
    ),
    "hevc": ([f"{HEVC} {BEST}", f"{HEVC}:bframes=3:b-adapt=0 {BEST}"], ["mp4", "mov", "mkv", "ts"]),
    "mpeg4": ([f"{MPEG4} -bf 0", f"{MPEG4} -bf 2"], ["mp4", "mov", "mkv", "avi", "ts"]),
    "mpeg2": ([f"{MPEG2} -bf 0", f"{MPEG2} -bf 2"], ["mpg", "vob", "ts", "mkv", "avi"]),
    "vp8": (["-c:v libvpx -deadline realtime -crf 5 -b:v 1M"], ["webm", "mkv"]),
    "vp9": ([f"{VP9} {BEST}"], ["webm", "mkv", "mp4"]),
    "theora": (["-c:v libtheora -q:v 9"], ["ogv", "mkv"]),
    "wmv2": (["-c:v wmv2 -q:v 2"], ["wmv", "avi"]),
    "flv1": (["-c:v flv -q:v 2"], ["flv"]),
    "mjpeg": (["-c:v mjpeg -q:v 2"], ["mov", "avi", "mkv"]),
    "gif": ([""], ["gif"]),
}
"""{codec: (how it is encoded, containers that hold it)}"""
SOUND = {
    **dict.fromkeys(["mp4", "mov", "m2ts", "ts", "flv", "3gp"], "aac"),
    **dict.fromkeys(["avi"], "mp3"),
    **dict.fromkeys(["mpg", "vob"], "mp2"),
    **dict.fromkeys(["mkv", "nut"], "pcm_s16le"),
    **dict.fromkeys(["webm", "ogv"], "libvorbis"),
    "wmv": "wmav2",
}
AT_END, OTHERWISE = "ends otherwise", "differs"
MP4 = {"mp4", "mov", "3gp"}
RATES = ["25", "24", "30", "30000/1001", "12.5", "50", "60", "15", "10"]


@dataclass(frozen=True)
class Made:
    """A video, and the calls of the program that made it."""

    path: Path
    calls: list[str]


def make(chance: random.Random, source: Path, folder: Path) -> Made | None:
    """Make a video; return None for a combination that the program does not write."""
    codec = chance.choice(list(CODECS))
    ways, containers = CODECS[codec]
    suffix = chance.choice(containers)
    options = [chance.choice(ways)]
    rate = "10" if codec == "gif" else chance.choice(RATES)
    pictures_late, sound_late = chance.choice([(0, 0), (0, 0), (0, 0.3), (0.3, 0), (0, 0.02), (0.013, 0)])
    inputs = [f"-itsoffset {pictures_late} -f rawvideo -pix_fmt rgb24 -s 64x48 -r {rate} -i {{source}}"]
    if suffix in SOUND and chance.random() < 0.6:
        inputs.append(f"-itsoffset {sound_late} -f lavfi -t {chance.choice([1, 2, 3])} -i sine=330:44100")
        options.append(f"-c:a {SOUND[suffix]}")
    if codec != "mjpeg":
        options.append(f"-frames:v {chance.randint(8, 75)}")
    if suffix in MP4:
        options.append(f"-video_track_timescale {chance.choice([600, 1000, 12800, 90000, 30000])}")
        options.append(chance.choice(["", "", "-movflags frag_keyframe+empty_moov", "-movflags +faststart"]))
    if suffix in MP4 | {"mkv", "webm", "ts"} and chance.random() < 0.3:
        options.append("-vf setpts='(N/25+0.3*floor(N/7))/TB' -fps_mode vfr")
    if suffix in {"ts", "m2ts", "mkv"} and chance.random() < 0.3:
        options.append(f"-output_ts_offset {chance.choice([0.5, 20, 4000])}")
    calls = [" ".join([*inputs, *options])]
    if suffix in MP4 | {"mkv", "ts"} and chance.random() < 0.3:
        again = f"-ss {chance.choice([0.2, 0.5, 1.0])} -i {{before}} -map 0 -c copy"
        calls.append(f"{again} {chance.choice(['', '-t 0.7', '-t 1.1'])}")
    if suffix in {"mp4", "mov"} and chance.random() < 0.3:
        calls.append(f"-i {{before}} -map 0 -c copy -metadata:s:v:0 rotate={chance.choice([90, 180, 270])}")
    before = folder / "none"
    for number, words in enumerate(calls):
        out = folder / f"{codec}_{number}.{suffix}"
        try:
            call(f"{words} {{out}}", source=source, before=before, out=out)
        except RuntimeError:
            return None
        before = out
    return Made(before, calls)


def difference(path: Path) -> str:
    """Say how the pictures of a video differ from those of the program at some rates; empty if they do not."""
    try:
        taken = take(path, *(want(fps) for fps in FPS))
    except VideoError as error:
        try:
            frames = by_program(path, 48, 64, None)[0]
        except subprocess.CalledProcessError:  # it finds none either
            return ""
        return f"{error.kind}: {error}; the program gives {len(frames)} frames" if len(frames) else ""
    found = [f"partial: {taken.finished.partial}"] if taken.finished.partial else []
    height, width = taken.frames.shape[1:3]
    for fps, rows, theirs in zip(FPS, taken.rows, by_program(path, height, width, *FPS), strict=True):
        if len(theirs) == 0:  # shorter than half a slot: here one picture is taken
            found += [] if len(rows) == 1 else [f"at {fps}/s {numbers_of(rows)} and none"]
        elif (ours := numbers_of(rows)) != (program := numbers_of(theirs)):
            shorter = min(len(ours), len(program))
            at_end = ours[:shorter] == program[:shorter]
            found.append(f"{AT_END if at_end else OTHERWISE} at {fps}/s: {ours} and {program}")
        elif (most := differences(np.stack(rows), theirs).max()) > MAX_DIFFERENCE:
            found.append(f"at {fps}/s values differ by {most:.2f}")
    return "; ".join(found)


def differing(number: int, seed: int, folder: Path) -> Iterator[tuple[Made, str]]:
    """Yield each of ``number`` videos and how it differs."""
    chance, made = random.Random(seed), 0
    source = write_source(folder / "source.rgb", numbered_picture)
    while made < number:
        if (video := make(chance, source, folder)) is not None:
            made += 1
            yield video, difference(video.path)


def main() -> None:
    number, seed = map(int, sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        found = 0
        for count, (video, words) in enumerate(differing(number, seed, Path(folder)), start=1):
            if words:
                found += 1
                print(f"{count}: {video.path.name}: {words}\n    {'  ->  '.join(video.calls)}", flush=True)
        print(f"{number} videos, {found} differ")


if __name__ == "__main__":
    main()
