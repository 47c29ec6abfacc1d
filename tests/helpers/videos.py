"""Real videos that tests make: one scene, recorded in many ways."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import cycle
from pathlib import Path

import av
import numpy as np
from vlalign.extract.cli.extract import main as extract_main
from vlalign.extract.decoding import backends
from vlalign.extract.decoding.frames import DecodePass
from vlalign.extract.decoding.kernels import Size
from vlalign.extract.decoding.probe import probe_video
from vlalign.extract.videos.demo import render_video
from vlalign.preprocess.datasets.demo import SHAPES, VERBS, plan_scenes
from vlalign.storage.dataset.folder import DatasetFolder

STILL = {"width": 240, "height": 180, "variable_rate": False, "rotation_degrees": 0}
RECORDINGS = {
    "24000/1001": {"fps": "24000/1001"},
    "25": {"fps": "25"},
    "30": {"fps": "30", "width": 180, "height": 240},
    "50": {"fps": "50"},
    "variable rate": {"fps": "30", "variable_rate": True},
    "rotated 90": {"fps": "25", "rotation_degrees": 90},
    "rotated 180": {"fps": "25", "rotation_degrees": 180},
    "rotated 270": {"fps": "25", "rotation_degrees": 270},
    "rotated, variable rate": {"fps": "30", "variable_rate": True, "rotation_degrees": 90},
}
UPRIGHT = {"rotated 90": "25", "rotated 180": "25", "rotated 270": "25"}


def scene(seconds: float = 0.8, **recording) -> dict:
    return plan_scenes(0, {"train": 1})[0][1] | STILL | {"fps": "25", "duration_seconds": seconds} | recording


def record_scenes(folder: Path, count: int) -> list[Path]:
    """Write short videos of different content; return their paths."""
    paths = [folder / f"{number:02}.mp4" for number in range(count)]
    for number, (path, shape, verb) in enumerate(zip(paths, cycle(SHAPES), cycle(VERBS), strict=False)):
        render_video(scene(0.7, shape=shape, verb=verb, noise_seed=number), path)
    return paths


def encode_frames(path: Path, frames: Iterable[np.ndarray], fps: int, codec: str = "libx264") -> None:
    """Write frames, uint8 [H, W, 3], as H.264 or with another encoder."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options={"crf": "18", "g": "8"})
        for number, pixels in enumerate(frames):
            if number == 0:
                stream.height, stream.width = pixels.shape[:2]
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def remux(
    source: Path, target: Path, container_format: str, shift_seconds: Fraction = Fraction(0), sound: bool = True
) -> Path:
    """The same packets in another container; the video's ones later by ``shift_seconds``."""
    with av.open(str(source)) as read, av.open(str(target), "w", format=container_format) as written:
        streams = {s: written.add_stream_from_template(s) for s in read.streams if sound or s.type == "video"}
        for packet in read.demux(*streams):
            if packet.dts is None:
                continue
            if packet.stream.type == "video":
                shift = int(shift_seconds / packet.time_base)
                packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
            packet.stream = streams[packet.stream]
            written.mux(packet)
    return target


def extract_two_shapes(root: Path, *options: str) -> DatasetFolder:
    """Make a data set "mine" of two videos, v0 with a circle and v1 with a square, and extract their features."""
    (root / "videos").mkdir()
    for number, shape in enumerate(("circle", "square")):
        render_video(scene(4.0, shape=shape), root / "videos" / f"v{number}.mp4")
    assert extract_main(["--root", str(root), "--dataset", "mine", "--videos", str(root / "videos"), *options]) == 0
    return DatasetFolder(root, "mine")


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def all_frames(path: Path, backend: str = "pyav", short_side_px: int = 112) -> np.ndarray:
    """Every frame of a video, brought to ``short_side_px`` by one of the decoders: uint8 [T, H, W, 3]."""
    info = probe_video(path)
    decoding = DecodePass(info, [Size(short_side_px)])
    return np.stack(
        [sizes[0] for _, sizes in getattr(backends, f"decode_with_{backend}")(decoding, np.arange(len(info.pts)))]
    )
