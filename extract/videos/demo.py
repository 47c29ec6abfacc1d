"""Render the demo's scenes: H.264 video and AAC sound in MP4, by PyAV. The same scene gives the same pixels."""

import math
import re
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image, ImageDraw

from ...storage.common.writing import atomic_write

Scene = dict[str, Any]
"""A scene, as in ``videos.jsonl``."""
RGB = {
    "red": (215, 40, 40),
    "green": (40, 170, 60),
    "blue": (45, 85, 225),
    "yellow": (235, 210, 45),
    "white": (240, 240, 240),
    "purple": (160, 60, 200),
}
OVERSAMPLING = 3  # shapes are drawn this much larger and averaged, for smooth edges
SOUND_RATE_HZ = 22050
MAX_SIDE_PX, MAX_SECONDS, MAX_FPS = 1920, 60, 120
"""Limits of a scene: a list of unknown origin may request any values."""
FPS = re.compile(r"[1-9]\d{0,5}(/[1-9]\d{0,5})?", re.ASCII)
PITCH_HZ = {
    "fall": (700, 300),
    "rise": (300, 700),
    "spin": (500, 520),
    "grow": (250, 350),
    "shrink": (600, 500),
    "bounce": (400, 800),
}


def _outline(shape: str, angle: float) -> list[tuple[float, float]]:
    """Return the corners of a shape, on or within the unit circle."""
    if shape == "circle":
        radii, count = [1.0], 64
    elif shape == "square":
        radii, count = [1.0], 4
        angle += math.pi / 4
    elif shape == "triangle":
        radii, count = [1.0], 3
        angle -= math.pi / 2
    elif shape == "star":
        radii, count = [1.0, 0.42], 10
        angle -= math.pi / 2
    else:  # a cross: twelve corners of a plus sign with arms a third as wide as long
        third, corners = 1 / 3, []
        for quarter in range(4):
            for x, y in ((1, -third), (1, third), (third, third)):
                turn = angle + quarter * math.pi / 2
                corners.append((x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)))
        return corners
    turns = [angle + 2 * math.pi * i / count for i in range(count)]
    return [(radii[i % len(radii)] * math.cos(t), radii[i % len(radii)] * math.sin(t)) for i, t in enumerate(turns)]


def _draw(canvas: np.ndarray, shape: str, colour: str, x: float, y: float, radius: float, angle: float = 0.0) -> None:
    """Paint a shape onto ``canvas`` [H, W, 3]. Coordinates are in pixels; parts outside are cut off."""
    height, width, _ = canvas.shape
    left, top = max(int(x - radius) - 1, 0), max(int(y - radius) - 1, 0)
    right, bottom = min(int(x + radius) + 2, width), min(int(y + radius) + 2, height)
    if left >= right or top >= bottom:
        return
    big = Image.new("L", ((right - left) * OVERSAMPLING, (bottom - top) * OVERSAMPLING))
    corners = [
        ((x + radius * u - left) * OVERSAMPLING, (y + radius * v - top) * OVERSAMPLING)
        for u, v in _outline(shape, angle)
    ]
    ImageDraw.Draw(big).polygon(corners, fill=255)
    mask = np.asarray(big.reduce(OVERSAMPLING), dtype=np.int32)[:, :, None]
    part = canvas[top:bottom, left:right]
    part[:] = (part * (255 - mask) + np.array(RGB[colour], dtype=np.int32) * mask) // 255


def scene_frame(scene: Scene, progress: float, background: np.ndarray) -> np.ndarray:
    """Return the upright frame, uint8 [H, W, 3], at ``progress`` in [0, 1] through the video."""
    canvas = background.astype(np.int32)
    height, width, _ = canvas.shape
    unit = min(width, height)
    other_radius = 0.25 * unit
    radius = {"small": 0.16, "large": 0.3}[scene["size"]] * unit
    # "beside" leaves a gap; "behind" and "in front of" overlap: one shape visibly covers the other.
    offset = {"behind": 0.75 * radius, "in front of": 0.75 * radius, "beside": radius + other_radius + 0.02 * unit}[
        scene["relation"]
    ]
    x, y, angle = width / 2 + scene["side"] * offset / 2, height / 2, 0.0
    match scene["verb"]:
        case "fall":
            y = height * (0.1 + 0.8 * progress)
        case "rise":
            y = height * (0.9 - 0.8 * progress)
        case "spin":
            angle = 2 * math.pi * progress
        case "grow":
            radius *= 0.35 + progress
        case "shrink":
            radius *= 1.35 - progress
        case "bounce":
            y = height * (0.8 - 0.6 * abs(math.sin(2 * math.pi * progress)))
    other_x = width / 2 - scene["side"] * offset / 2
    main = partial(_draw, canvas, scene["shape"], scene["colour"], x, y, radius, angle)
    other = partial(_draw, canvas, scene["other_shape"], scene["other_colour"], other_x, height / 2, other_radius)
    for draw in (main, other) if scene["relation"] == "behind" else (other, main):
        draw()
    return canvas.astype(np.uint8)


def scene_background(scene: Scene, width: int, height: int) -> np.ndarray:
    """Return the background of a scene, uint8 [H, W, 3]."""
    rng = np.random.default_rng(scene["noise_seed"])
    shade = np.linspace(30, 60, height, dtype=np.int64)[:, None, None]
    return (shade + rng.integers(-6, 7, size=(height, width, 3))).astype(np.uint8)


def frame_times(scene: Scene) -> tuple[list[int], Fraction]:
    """Return the presentation times in ticks, and the length of a tick in seconds.

    A variable rate drops each frame with probability 0.3.
    """
    fps = Fraction(scene["fps"])
    num_frames = max(round(scene["duration_seconds"] * fps), 1)
    ticks = list(range(num_frames))
    if scene["variable_rate"]:
        keep = np.random.default_rng([scene["noise_seed"], 1]).random(num_frames) < 0.7
        ticks = [t for t in ticks if keep[t] or t in (0, num_frames - 1)]
    return ticks, 1 / fps


def check_scene(scene: Scene) -> None:
    """Check that a scene can be drawn and is not much larger than the demo's.

    Raises:
        KeyError: A part is missing.
        TypeError: A part has a wrong type.
        ValueError: A part has a wrong value.
    """
    width, height, seconds, fps = (scene[name] for name in ("width", "height", "duration_seconds", "fps"))
    for side in (width, height):
        if not isinstance(side, int) or not 16 <= side <= MAX_SIDE_PX or side % 2:
            raise ValueError(f"{width!r} x {height!r} pixels; expected even numbers up to {MAX_SIDE_PX:,}")
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f"{seconds!r} seconds; expected up to {MAX_SECONDS}")
    if not isinstance(fps, str) or not FPS.fullmatch(fps) or not 1 <= Fraction(fps) <= MAX_FPS:
        expected = f"a whole number or a fraction, such as '25' or '30000/1001', up to {MAX_FPS}"
        raise ValueError(f"{fps!r} frames a second; expected {expected}")
    if scene["rotation_degrees"] not in (0, 90, 180, 270):
        raise ValueError(f"turned by {scene['rotation_degrees']!r} degrees; expected 0, 90, 180 or 270")
    scene_frame(scene, 0.0, scene_background(scene, 16, 16))
    bool(scene["variable_rate"])


def _sound(scene: Scene) -> np.ndarray:
    """Return a tone that glides as the object moves, int16 [1, samples]."""
    num_samples = round(scene["duration_seconds"] * SOUND_RATE_HZ)
    low, high = PITCH_HZ[scene["verb"]]
    phase = 2 * np.pi * np.cumsum(np.linspace(low, high, num_samples)) / SOUND_RATE_HZ
    return (8000 * np.sin(phase)).astype(np.int16)[None]


def render_video(scene: Scene, path: Path) -> None:
    """Render a scene to ``path``, whole or not at all."""
    turns = scene["rotation_degrees"] // 90
    ticks, tick_seconds = frame_times(scene)
    background = scene_background(scene, scene["width"], scene["height"])
    with atomic_write(path) as unfinished, av.open(str(unfinished), "w", format="mp4") as container:
        # One thread and no macroblock tree, which reads uninitialised memory: the output is then deterministic.
        options = {"crf": "20", "preset": "veryfast", "threads": "1", "x264-params": "mbtree=0"}
        video = container.add_stream("libx264", rate=1 / tick_seconds, options=options)
        stored_size = (scene["width"], scene["height"])[:: -1 if turns % 2 else 1]
        video.width, video.height, video.pix_fmt = *stored_size, "yuv420p"
        video.codec_context.time_base = tick_seconds
        if turns:
            video.set_display_rotation(scene["rotation_degrees"])
        sound = container.add_stream("aac", rate=SOUND_RATE_HZ, layout="mono")
        for tick in ticks:
            image = scene_frame(scene, tick / max(ticks[-1], 1), background)
            # Stored rotated the other way: a player that honours the metadata shows it upright.
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(np.rot90(image, -turns)), format="rgb24")
            frame.pts, frame.time_base = tick, tick_seconds
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        samples = av.AudioFrame.from_ndarray(_sound(scene), format="s16", layout="mono")
        samples.rate, samples.pts, samples.time_base = SOUND_RATE_HZ, 0, Fraction(1, SOUND_RATE_HZ)
        container.mux(sound.encode(samples))
        container.mux(sound.encode(None))
