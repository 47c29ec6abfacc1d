"""An extractor: a profile, and a network with its weights."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as F

from ..storage.console import UserError
from ..storage.device import find_device
from ..storage.records import Profile, Weights
from .models import MODELS
from .profiles import PROFILES
from .sampling import centre_crop, scaled_size
from .weights import load_published, load_random, published_weights


@dataclass(frozen=True)
class Extractor:
    profile: Profile
    weights: Weights
    network: nn.Module
    device: torch.device
    batch_size: int
    """Windows that are best computed at once on this device."""

    def prepare(self, frame: np.ndarray) -> Tensor:
        """A decoded frame, uint8 [H, W, 3], at the profile's size: uint8 [H', W', 3]."""
        picture = torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1)
        picture = F.resize(picture, list(scaled_size(*frame.shape[:2], self.profile.short_side_px)), antialias=True)
        if self.profile.crop_px is not None:
            top, left = centre_crop(*picture.shape[1:], self.profile.crop_px)
            picture = picture[:, top : top + self.profile.crop_px, left : left + self.profile.crop_px]
        return picture.permute(1, 2, 0)

    @torch.inference_mode()
    def features(self, frames: Tensor | np.ndarray) -> Tensor:
        """uint8 RGB [B, T, H, W, 3] at the profile's size, or [B, H, W, 3] where its window is one frame -> float32 [B, D].

        Raises ``ValueError`` for other shapes and types.
        """
        frames = torch.as_tensor(frames)
        window = () if self.profile.window == 1 else (self.profile.window,)
        if frames.dtype != torch.uint8 or frames.ndim != 4 + len(window) or frames.shape[1:-3] != window or frames.shape[-1] != 3:
            wanted = ["B", *map(str, window), "H", "W", "3"]
            raise ValueError(f"{self.profile.name}: frames must be uint8 [{', '.join(wanted)}], got {frames.dtype} {list(frames.shape)}")
        mean, std = (torch.tensor(values, device=self.device) for values in (self.profile.mean, self.profile.std))
        values = (frames.to(self.device).float() / 255 - mean) / std
        return self.network(values.movedim(-1, 1)).float().cpu()


def load_extractor(name: str, *, weights: str | Path = "pretrained", device: str = "cpu", seed: int = 0) -> Extractor:
    """``weights``: a file, "pretrained" (the profile's own, from the cache or their authors) or "random" (from ``seed``).

    Raises ``UserError`` for an unknown name, and for weights that are not there or not this model's.
    """
    if name not in PROFILES:
        raise UserError(f"features {name!r}: not known; expected {' or '.join(PROFILES)}")
    profile, torch_device = PROFILES[name], find_device(device)
    network = MODELS[name]().eval().requires_grad_(False)
    if weights == "random":
        used = load_random(network, seed)
    else:
        path = published_weights(profile.weights) if weights == "pretrained" else Path(weights)
        used = load_published(network, path, left_out=network.left_out)
    batch_size = network.batch_sizes["cpu" if torch_device.type == "cpu" else "cuda"]
    return Extractor(profile, used, network.fold().to(torch_device), torch_device, batch_size)
