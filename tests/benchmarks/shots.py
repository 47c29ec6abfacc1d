"""Cuts that PySceneDetect's detectors find in synthetic videos, and the processor time of a frame.

    python tests/benchmarks/shots.py FOLDER

Each video has 21 shots of two seconds, 160x90 at 25 frames a second; fades and flashes have their own numbers. A cut is
found if a shot begins within two frames of it, and false if none is there.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from scenedetect import AdaptiveDetector, ContentDetector, detect
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.decoding.shot_finder import ShotFinder
from vlalign.extract.decoding.shots import SIZE

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from helpers.videos import encode_frames

FPS, HEIGHT, WIDTH = 25, 90, 160
NUM_SHOTS, NUM_FRAMES = 21, 50
NUM_FADES, NUM_FLASHES = 10, 8
CLOSE_SECONDS = 2.5 / FPS
DETECTORS = {"adaptive": AdaptiveDetector, "content": ContentDetector}
WHIP = range(22, 28)
"""The frames of a shot in which the camera turns by two screen widths."""

Frames = Iterator[np.ndarray]


def scenery(seed: int) -> np.ndarray:
    """Return a wide image of patches of colour."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 48, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((8 * WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)


def shot(seed: int, left: Callable[[int], int], object_px: int = 20, speed_px: int = 2) -> Frames:
    """Yield the frames of a shot with noise and a moving square; ``left`` places the camera."""
    wide, noise = scenery(seed), np.random.default_rng(seed)
    for number in range(NUM_FRAMES):
        frame = wide[:, left(number) :][:, :WIDTH] + noise.integers(-4, 5, (HEIGHT, WIDTH, 3))
        frame[20 : 20 + object_px, speed_px * number % WIDTH :][:, :object_px] = 255 - seed
        yield np.clip(frame, 0, 255).astype(np.uint8)


def handheld(seed: int) -> Callable[[int], int]:
    """Return the places of a camera that trembles by up to three pixels a frame."""
    steps = np.random.default_rng(seed).integers(-3, 4, NUM_FRAMES).cumsum()
    return lambda number: int(WIDTH + steps[number])


def whip(number: int) -> int:
    """Return the place of a camera that turns quickly in the middle of the shot."""
    return 2 * WIDTH * min(max(number - WHIP.start, 0), len(WHIP)) // len(WHIP)


KINDS: dict[str, Callable[[int], Frames]] = {
    "still": lambda seed: shot(seed, lambda number: 0),
    "slow pan": lambda seed: shot(seed, lambda number: number),
    "handheld": lambda seed: shot(seed, handheld(seed)),
    "fast object": lambda seed: shot(seed, lambda number: 0, object_px=45, speed_px=16),
    "whip pan": lambda seed: shot(seed, whip),
    "pan of two widths a second": lambda seed: shot(seed, lambda number: 2 * WIDTH * number // FPS),
}


def many(kind: Callable[[int], Frames]) -> Frames:
    """Yield the frames of all shots of a kind."""
    for seed in range(NUM_SHOTS):
        yield from kind(seed)


def fades(length: int) -> Frames:
    """Yield shots that fade to black and from black, in as many frames each."""
    for seed in range(NUM_FADES + 1):
        for number, frame in enumerate(shot(seed, lambda number: 0)):
            up = number / length if seed > 0 else 1
            down = (NUM_FRAMES - 1 - number) / length if seed < NUM_FADES else 1
            yield (frame * min(up, down, 1)).astype(np.uint8)


def dissolves(length: int) -> Frames:
    """Yield shots of which each dissolves into the next, in as many frames."""
    for seed in range(NUM_FADES + 1):
        following = list(shot(seed + 1, lambda number: 0))
        for number, frame in enumerate(shot(seed, lambda number: 0)):
            share = max(0, number - NUM_FRAMES + length) / length if seed < NUM_FADES else 0
            yield (frame * (1 - share) + following[0] * share).astype(np.uint8)


def flashes(light: int) -> Frames:
    """Yield one place, seen for as long as eight shots, with a brighter frame in the middle of each."""
    for _ in range(NUM_FLASHES):
        for number, frame in enumerate(shot(3, lambda number: 0)):
            yield np.clip(frame.astype(np.int16) + light * (number == NUM_FRAMES // 2), 0, 255).astype(np.uint8)


def count(path: Path, detector: str, cuts: np.ndarray, reach_seconds: float) -> tuple[int, int]:
    """Return how many of the cuts are found, and the number of other cuts."""
    found = np.array([start.seconds for start, _ in detect(str(path), DETECTORS[detector]())][1:])
    if not len(cuts) or not len(found):
        return 0, len(found)
    is_near = np.abs(found[:, None] - cuts[None]) <= reach_seconds
    return int(is_near.any(axis=0).sum()), int((~is_near.any(axis=1)).sum())


def milliseconds_per_frame(path: Path) -> float:
    """Return the processor time of a frame without its decoding."""
    info = probe_video(path)
    images = list(KINDS["still"](0))
    height, width = SIZE.shape(info.height, info.width)
    images = [np.asarray(Image.fromarray(image).resize((width, height))) for image in images]
    finder, start = ShotFinder(info), time.process_time()
    for number in range(1000):
        finder.add(number, images[number % len(images)])
    return time.process_time() - start  # of a thousand frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    cuts = np.arange(1, NUM_SHOTS) * NUM_FRAMES / FPS
    made = {name: (many(kind), cuts, CLOSE_SECONDS) for name, kind in KINDS.items()}
    blacks = np.arange(1, NUM_FADES + 1) * NUM_FRAMES / FPS
    for length in (6, 12, 25):
        made[f"fade through black, 2 x {length} frames"] = fades(length), blacks, (length + 1) / FPS
        made[f"dissolve, {length} frames"] = dissolves(length), blacks, (length + 1) / FPS
    for light in (50, 150):
        made[f"flash, {light} of 255"] = flashes(light), np.array([]), CLOSE_SECONDS
    for name, (frames, wanted, reach) in made.items():
        path = folder / f"{name.replace(' ', '_').replace(',', '')}.mp4"
        encode_frames(path, frames, FPS)
        counts = {detector: count(path, detector, wanted, reach) for detector in DETECTORS}
        cells = [f"{detector}: {right} of {len(wanted)}, {false} false" for detector, (right, false) in counts.items()]
        print(f"{name}: {'; '.join(cells)}", flush=True)
    print(f"a frame: {milliseconds_per_frame(folder / 'still.mp4'):.2f} ms of processor time, decoding apart")


if __name__ == "__main__":
    main()
