"""Processor time of each decoder for RGB frames of a video's own size: ``python tests/benchmarks/decoders.py VIDEO...``

At 1 and at 24 frames a second, in this process, the decoders by turns. What starting them takes is said apart.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from vlalign.extract.decoding.backends import BACKENDS, choose_backends
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import LIBSWSCALE, PILLOW, Size
from vlalign.extract.decoding.probe import VideoInfo, probe_video
from vlalign.extract.decoding.sampling import sample_frames

RATES = 1, 24
DECODERS = {"PyAV": PILLOW, "torchcodec": PILLOW, "decord": LIBSWSCALE}
"""Each with a kernel that it can be asked for, at the video's own size: nothing is scaled."""


def whole_size(info: VideoInfo, decoder: str) -> Size:
    """Return the video's own size."""
    return Size(min(info.height, info.width), DECODERS[decoder])


def decode(info: VideoInfo, decoder: str, fps: float) -> float:
    """Return the seconds of processor time."""
    start = time.process_time()
    wanted = np.unique(sample_frames(info.pts, info.end, info.time_base, fps))
    for _ in BACKENDS[decoder](DecodePass(info, [whole_size(info, decoder)]), wanted):
        pass
    return time.process_time() - start


def turns(infos: list[VideoInfo], num_turns: int) -> Iterator[str]:
    """Yield a line for each rate and decoder."""
    for decoder in DECODERS:
        yield f"start, {decoder}: {decode(infos[0], decoder, 1):.2f} s for the first frames"
    for fps in RATES:
        seconds = {decoder: [] for decoder in DECODERS}
        for _ in range(num_turns):
            for decoder, of in seconds.items():
                of.append(sum(decode(info, decoder, fps) for info in infos))
        base = np.median(seconds["PyAV"])
        for decoder, of in seconds.items():
            yield f"{fps} fps, {decoder}: {np.median(of):.2f} s, {np.median(of) / base:.2f} of PyAV's"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("videos", type=Path, nargs="+")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    infos = []
    for info in map(probe_video, args.videos):
        missing = [d for d in DECODERS if d not in choose_backends(info, [whole_size(info, d)])]
        if missing:
            print(f"{info.path.name} is left out: {', '.join(missing)} may not read it")
        else:
            infos.append(info)
    for line in turns(infos, args.turns):
        print(line, flush=True)


if __name__ == "__main__":
    main()
