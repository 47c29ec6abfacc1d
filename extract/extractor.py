"""An extractor: a profile, and a network with its weights."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ..storage.common.device import find_device
from ..storage.common.errors import UserError
from ..storage.profiles import LOGMEL, find_profile
from ..storage.records import Profile, Weights
from .decoding.backends import KERNELS
from .decoding.decode import TAILS
from .decoding.sound import log_mel_of_all
from .models import MODELS
from .weights import load_published, load_random, published_weights

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
VALUE_RANGES = {"0..1": 255, "0..255": 1}
"""{value range: by what the bytes of a picture are divided}"""

NO_WEIGHTS = Weights(name="none", sha256="")
"""Of features that come of no network."""


def check_extractable(profile: Profile) -> None:
    """Raises ``ValueError`` with all in a profile that extraction cannot do: features that were imported may have been made in any way."""
    if profile.name == LOGMEL:
        own, stated = asdict(find_profile(LOGMEL)), asdict(profile)
        wrong = [f"{name} is {stated[name]!r}, expected {own[name]!r}" for name in own if stated[name] != own[name]]
    else:
        tails = TAILS if profile.window > 1 else (*TAILS, "none")
        rules = {
            "fps": (isinstance(profile.fps, int), "a whole number"),
            "short_side_px": (profile.short_side_px > 0, "more than 0"),
            "crop_px": (
                profile.crop_px is None or profile.crop_px <= profile.short_side_px,
                "no more than short_side_px",
            ),
            "resize": (profile.resize in KERNELS, " or ".join(map(repr, KERNELS))),
            "value_range": (profile.value_range in VALUE_RANGES, " or ".join(map(repr, VALUE_RANGES))),
            "std": (all(profile.std), "no 0 in it"),
            "tail": (profile.tail in tails, " or ".join(map(repr, tails))),
            "precision": (profile.precision in PRECISIONS, " or ".join(PRECISIONS)),
        }
        wrong = [
            f"{name} is {getattr(profile, name)!r}, expected {expected}"
            for name, (right, expected) in rules.items()
            if not right
        ]
    if wrong:
        raise ValueError(f"profile {profile.name!r} cannot be extracted with: {'; '.join(wrong)}")


@dataclass(frozen=True)
class Extractor:
    """Raises ``ValueError`` where there is something in the profile that it could not do."""

    profile: Profile
    weights: Weights
    network: nn.Module | None
    """None: log-mel features are computed where the sound is decoded."""
    device: torch.device
    batch_size: int
    """Windows that are best computed at once on this device."""

    def __post_init__(self) -> None:
        check_extractable(self.profile)

    @torch.inference_mode()
    def features(self, frames: Tensor | np.ndarray) -> Tensor:
        """uint8 RGB [B, T, H, W, 3] at the profile's size, or [B, H, W, 3] where its window is one frame -> float32 [B, D].
        Of sound: float mono samples [N] of -1..1 at the profile's rate, from time zero -> float32 [rows, D].

        Raises ``ValueError`` for other shapes and types.
        """
        frames, profile = torch.as_tensor(frames), self.profile
        if self.network is None:
            if not frames.is_floating_point() or frames.ndim != 1 or not len(frames):
                raise ValueError(f"{profile.name}: samples must be floats [N], got {frames.dtype} {list(frames.shape)}")
            return torch.from_numpy(log_mel_of_all(frames.numpy()))
        window = () if profile.window == 1 else (profile.window,)
        if (
            frames.dtype != torch.uint8
            or frames.ndim != 4 + len(window)
            or frames.shape[1:-3] != window
            or frames.shape[-1] != 3
        ):
            wanted = ["B", *map(str, window), "H", "W", "3"]
            raise ValueError(
                f"{profile.name}: frames must be uint8 [{', '.join(wanted)}], got {frames.dtype} {list(frames.shape)}"
            )
        values = frames.to(self.device, non_blocking=True).float()
        if (divisor := VALUE_RANGES[profile.value_range]) != 1:
            values /= divisor
        if any(profile.mean) or set(profile.std) != {1.0}:
            mean, std = (torch.tensor(values, device=self.device) for values in (profile.mean, profile.std))
            values = values.sub_(mean).div_(std)
        return self.network(values.to(PRECISIONS[profile.precision]).movedim(-1, 1)).float().cpu()


def load_extractor(
    name: str, *, weights: str | Path = "pretrained", device: str = "cpu", precision: str = "fp32", seed: int = 0
) -> Extractor:
    """``weights``: a file, "pretrained" (the profile's own, from the cache or their authors) or "random" (from ``seed``).
    ``precision``: what the network computes in, fp32, bf16 or, on a GPU, fp16; another one makes it another profile. Log-mel features,
    which have no network, are the same whatever the precision and the device.

    Raises ``UserError`` for an unknown name, and for weights that are not there or not this model's.
    """
    profile, torch_device = replace(find_profile(name), precision=precision), find_device(device)
    if precision not in PRECISIONS or (precision == "fp16" and torch_device.type == "cpu"):
        raise UserError(f"precision {precision!r} on {torch_device}: expected fp32, bf16 or, on a GPU, fp16")
    if profile.name == LOGMEL:
        if weights not in ("pretrained", "random"):
            raise UserError(f"weights {weights}: {name} comes of no network and has none; leave --weights out")
        return Extractor(find_profile(name), NO_WEIGHTS, None, torch.device("cpu"), batch_size=1)
    network = MODELS[profile.name]().eval().requires_grad_(False)
    if weights == "random":
        used = load_random(network, seed)
    else:
        path = published_weights(profile.weights) if weights == "pretrained" else Path(weights)
        used = load_published(network, path, left_out=network.left_out)
    batch_size = network.batch_sizes["cpu" if torch_device.type == "cpu" else "cuda"]
    return Extractor(profile, used, network.fold().to(torch_device, PRECISIONS[precision]), torch_device, batch_size)
