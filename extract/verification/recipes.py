"""Common alternative recipes for an extractor's feature vectors."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from ...storage.records import VideoFeatures
from ..decoding.decode import DecodingFinished, DecodingStarted
from ..decoding.errors import VideoError
from ..decoding.kernels import LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW, SQUARE, Kernel
from ..decoding.messages import InvalidMessage, Request, ThumbnailFollows, WindowReady
from ..decoding.process import DecodeProcess
from ..decoding.sampling import FrameSpec
from ..extractor import Extractor
from ..models.s3d import S3D
from ..pipeline.video_jobs import frame_spec_of
from .compare import Alternatives, Hypothesis

BATCH = 4
RATES = (1, 2, 3, 4, 5, 8, 10, 12, 15, 16, 20, 24, 25, 30, 32, 50, 60)
"""Frames per second that people use."""

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KINETICS = ((110.6, 103.2, 96.3), (1.0, 1.0, 1.0))
ACTIVITYNET = ((114.7748, 107.7354, 99.4750), (1.0, 1.0, 1.0))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
IG65M = ((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
HARA_2020 = ((0.4345, 0.4051, 0.3775), (0.2768, 0.2713, 0.2737))
SLOWFAST = ((0.45, 0.45, 0.45), (0.225, 0.225, 0.225))
NOTHING = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
NORMALISATIONS = {
    "values 0..1, nothing subtracted": ("0..1", *NOTHING),
    "values 0..255, nothing subtracted": ("0..255", *NOTHING),
    "values -1..1": ("0..1", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "ImageNet's mean and std": ("0..1", *IMAGENET),
    "values 0..255 minus Kinetics' mean": ("0..255", *KINETICS),
    "values 0..255 minus ActivityNet's mean": ("0..255", *ACTIVITYNET),
    "the mean and std of Hara 2020": ("0..1", *HARA_2020),
    "CLIP's mean and std": ("0..1", *CLIP),
    "the mean and std of R(2+1)D on IG-65M": ("0..1", *IG65M),
    "SlowFast's mean and std": ("0..1", *SLOWFAST),
}
FILLS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "black frames": lambda frames, valid: np.zeros_like(frames[valid:]),
    "its frames again from the first": lambda frames, valid: frames[np.arange(valid, len(frames)) % valid],
    "its last frame again and again": lambda frames, valid: np.repeat(
        frames[valid - 1 : valid], len(frames) - valid, axis=0
    ),
}
"""{tail rule of the last window: (frames, number of real ones) -> fill frames}"""


def read_windows(
    path: Path, specs: list[FrameSpec], indices: Sequence[int]
) -> tuple[list[dict[int, np.ndarray]], list[int]]:
    """Decode some windows of a video.

    Args:
        path: The video.
        specs: The frames that each recipe needs.
        indices: Indices of the windows to return.

    Returns:
        For each of ``specs``, {index: frames of the window, [T, H, W, 3] or [H, W, 3]}, and the number of all windows.

    Raises:
        VideoError: The video cannot be decoded.
    """
    process = DecodeProcess(specs)
    windows: list[dict[int, np.ndarray]] = []
    counts: list[int] = []
    try:
        process.start(Request(str(path), specs))
        while True:
            message = process.receive()
            if isinstance(message, DecodingStarted):
                windows, counts = [{} for _ in specs], [0] * len(specs)
            elif isinstance(message, WindowReady):
                message.check(specs[: len(counts)])
                which = message.spec_index
                frames = np.empty(message.shape, Kernel.of(specs[which].resize).dtype)
                process.take_frames(message, frames)
                if counts[which] in indices:
                    windows[which][counts[which]] = frames
                counts[which] += 1
            elif isinstance(message, ThumbnailFollows):
                process.receive_bytes()
            elif isinstance(message, DecodingFinished):
                return windows, counts
    except InvalidMessage as error:
        raise process.refused(error) from None
    finally:
        process.close()


@dataclass(frozen=True)
class _Variant:
    """An extractor and its input frames."""

    extractor: Extractor
    frames: list[np.ndarray]
    another_rate: bool = False


class Recipes:
    """The alternative recipes that may have made an extractor's feature vectors."""

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self.known: list[str] = []
        """Recipes that were the only explanation of a video. They are tried first for the next videos."""

    @cached_property
    def _in_bf16(self) -> Extractor:
        network = copy.deepcopy(self.extractor.network)
        assert network is not None
        profile = replace(self.extractor.profile, precision="bf16")
        return replace(self.extractor, network=network.to(torch.bfloat16), profile=profile)

    def alternatives(self, path: Path, ours: VideoFeatures, embedded: bool = False) -> Alternatives:
        """Return a function that computes a video's feature vectors by other recipes.

        The video is decoded once, for all sizes and rates that are possible.

        Args:
            path: The video.
            ours: Our features of it.
            embedded: True if vectors are the output of the network's ``video_embedding``.
        """

        def hypotheses(indices: Sequence[int], num_rows: int) -> Iterator[Hypothesis]:
            frames, variants = self._variants(path, ours, indices, num_rows)
            if self.extractor.profile.precision == "fp32":
                rows = self._rows(_Variant(self._in_bf16, frames), embedded)
                yield Hypothesis("our recipe, computed in bf16", rows, ours=True)
            for name in sorted(variants, key=lambda name: name not in self.known):
                variant = variants[name]
                yield Hypothesis(name, self._rows(variant, embedded), another_rate=variant.another_rate)

        return hypotheses

    def _variants(
        self, path: Path, ours: VideoFeatures, indices: Sequence[int], num_rows: int
    ) -> tuple[list[np.ndarray], dict[str, _Variant]]:
        """Return the frames of our recipe, and the other recipes by name."""
        profile, spec = self.extractor.profile, frame_spec_of(self.extractor.profile)
        square = (f"{name}, Pillow{SQUARE}" for name in ("bilinear", "bicubic"))
        usual = square if Kernel.of(profile.resize).to_square else (LIBSWSCALE, LIBSWSCALE_BICUBIC, PILLOW)
        kernels = [kernel for kernel in usual if kernel != profile.resize]
        rates = [
            r for r in RATES if r != profile.fps and abs(ours.duration_seconds * r / profile.stride - num_rows) < 2
        ]
        asked = [
            spec,
            *(replace(spec, resize=kernel) for kernel in kernels),
            *(replace(spec, fps=rate) for rate in rates),
        ]
        windows, counts = read_windows(path, asked, indices)
        if counts[0] != len(ours.valid_frames):
            raise VideoError(
                "changed", f"its file gives {counts[0]:,} rows now, but the store has {len(ours.valid_frames):,}"
            )
        frames = [windows[0][index] for index in indices]
        variants = self._other_inputs(frames)
        names = [(f"the kernel {kernel!r}", False) for kernel in kernels]
        names += [(f"{rate} frames a second", True) for rate in rates]
        for (name, another_rate), one, made, count in zip(names, asked[1:], windows[1:], counts[1:], strict=True):
            if count == num_rows or not another_rate:
                extractor = replace(self.extractor, profile=replace(profile, resize=one.resize))
                variants[name] = _Variant(extractor, [made[index] for index in indices], another_rate)
        valid = int(ours.valid_frames[-1])
        if indices[-1] == counts[0] - 1 == num_rows - 1 and valid < profile.window:
            variants |= self._other_fills(frames, valid)
        return frames, variants

    def _other_fills(self, frames: list[np.ndarray], valid: int) -> dict[str, _Variant]:
        variants = {}
        for name, fill in FILLS.items():
            last = np.concatenate([frames[-1][:valid], fill(frames[-1], valid)])
            if not np.array_equal(last, frames[-1]):
                variants[f"a last window filled with {name}"] = _Variant(self.extractor, [*frames[:-1], last])
        return variants

    def _other_inputs(self, frames: list[np.ndarray]) -> dict[str, _Variant]:
        profile = self.extractor.profile
        swapped = [np.ascontiguousarray(frame[..., ::-1]) for frame in frames]
        variants = {"red and blue swapped": _Variant(self.extractor, swapped)}
        for name, values in NORMALISATIONS.items():
            if values == (profile.value_range, profile.mean, profile.std):
                continue
            value_range, mean, std = values
            extractor = replace(self.extractor, profile=replace(profile, value_range=value_range, mean=mean, std=std))
            variants[name] = _Variant(extractor, frames)
            variants[f"{name}, red and blue swapped"] = _Variant(extractor, swapped)
        return variants

    def _rows(self, variant: _Variant, embedded: bool) -> np.ndarray:
        frames = variant.frames
        batches = [np.stack(frames[i : i + BATCH]) for i in range(0, len(frames), BATCH)]
        rows = np.concatenate([variant.extractor.features(batch).numpy() for batch in batches])
        return self.embed(rows) if embedded else rows

    @property
    def embedding_dimension(self) -> int | None:
        """Width of the embedding that the network computes from its features; None if it has none."""
        return self.extractor.network.fc.out_features if isinstance(self.extractor.network, S3D) else None

    def embed(self, rows: np.ndarray) -> np.ndarray:
        """Return the network's embedding of features: [N, 512] for [N, 1024]."""
        network = self.extractor.network
        assert isinstance(network, S3D)
        like = next(network.parameters())
        with torch.inference_mode():
            return network.video_embedding(torch.from_numpy(rows).to(like.device, like.dtype)).float().cpu().numpy()
